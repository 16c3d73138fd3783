"""Object stores that speak S3: where they are and with which keys, from a file of the project or the environment.

Keys never stand in SQL, in listings, in logs or in the text of an error: `without_secrets` takes them out of what a
client library says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from catchment.errors import ConfigError
from catchment.records.client_config import read_client_config

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

S3_PREFIX = "s3://"
S3_SETTINGS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
MAX_TOLD = 300  # characters of what a client library says
CONNECT_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 60
CLIENT_ATTEMPTS = 3  # of one call, by the client library; whoever calls tries again later, and says so
_SECRET_NAMES = re.compile(r"secret|password|token|credential|key", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PASSWORD_IN_ADDRESS = re.compile(r"(://[^:/@\s]*):[^@/\s]+@")
_REFUSALS = {  # what stores answer by name -> what it means, in words
    "NO_SUCH_BUCKET": "there is no such bucket",
    "ACCESS_DENIED": "its keys may not do this, or are wrong",
    "INVALID_ACCESS_KEY_ID": "the store does not know its access_key_id",
    "SIGNATURE_DOES_NOT_MATCH": "its secret_access_key is wrong",
    "NETWORK_CONNECTION": "the store does not answer",
}
_HOPELESS = ("NO_SUCH_BUCKET", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")


class StoreError(OSError):
    """An object store is away, or has refused a call; an outage for whoever can wait.

    `is_refusal` says that the store has answered, and somebody has to change the keys, the bucket or the rights.
    """

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


@dataclass(frozen=True)
class S3Settings:
    """How an object store is reached; what is not given is found in the environment (AWS_*)."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, path: str) -> S3Settings:
        """Return the settings of a file of `name = value` lines; all from the environment without a file."""
        given = read_client_config(path)
        unknown = [name for name in given if name not in S3_SETTINGS]
        if unknown:
            raise ConfigError(
                f"an object store has no setting {unknown[0]!r}",
                where=path,
                hint=f"possible are {', '.join(S3_SETTINGS)}",
            )
        return cls(**given)

    @property
    def secrets(self) -> dict[str, str]:
        """What must not be told to anybody, by name."""
        return {name: value for name in S3_SETTINGS[2:] if (value := getattr(self, name))}

    def delta_options(self) -> dict[str, str]:
        """Return the settings as deltalake names them.

        Commits are conditional puts (`If-None-Match`), so that two writers never write the same version of a table.
        """
        named = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_ALLOW_HTTP": "true" if (self.endpoint or "").startswith("http://") else None,
            "conditional_put": "etag",
            "max_retries": "3",  # whoever writes tries again, and says so
            "retry_timeout": "20s",
            "connect_timeout": "10s",
            "timeout": "60s",
        }
        return {name: value for name, value in named.items() if value is not None}

    def filesystem(self) -> S3FileSystem:
        """Return the store as Arrow reads and writes it; one client per process and settings."""
        return _connect(self, self.endpoint or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))

    @contextmanager
    def telling(self, address: str) -> Iterator[None]:
        """Raise what goes wrong with an address as a `StoreError`, in words and without keys.

        An object that is not there stays a FileNotFoundError.
        """
        try:
            yield
        except (StoreError, FileNotFoundError):
            raise
        except (OSError, pa.ArrowException) as error:
            text = str(error)
            code = next((name for name in _REFUSALS if f"AWS Error {name}" in text), None)
            at = f"{address} at {self.endpoint}" if self.endpoint else address
            said = without_secrets(text, self.secrets)
            told = said if code is None else f"{_REFUSALS[code]} ({said})"
            raise StoreError(f"{at}: {told}", is_refusal=code in _HOPELESS) from error


@lru_cache(maxsize=16)
def _connect(settings: S3Settings, endpoint: str | None) -> S3FileSystem:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem  # takes memory that sites without stores spare

    scheme, separator, host = (endpoint or "").partition("://")
    return S3FileSystem(
        access_key=settings.access_key_id,
        secret_key=settings.secret_access_key,
        session_token=settings.session_token,
        region=settings.region or _environment("AWS_REGION", "AWS_DEFAULT_REGION"),
        endpoint_override=host if separator else endpoint,
        scheme=scheme if separator else "https",
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=CLIENT_ATTEMPTS),
    )


def _environment(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def path_in_store(address: str) -> str:
    """Return an address such as s3://lake/a/b as Arrow names it: bucket and key."""
    return address.removeprefix(S3_PREFIX)


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """Return what a client library says in one short line, without colours and without what settings keep secret."""
    plain = _PASSWORD_IN_ADDRESS.sub(r"\1:***@", _COLOUR.sub("", text))
    for name, value in settings.items():
        if value and _SECRET_NAMES.search(name):
            plain = plain.replace(value, "***")
    lines = (line.strip(" ↳\t") for line in plain.splitlines())
    told = ": ".join(line for line in lines if line and not re.match(r"\d+: ", line))
    return told[:MAX_TOLD]
