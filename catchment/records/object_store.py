"""Object stores that speak S3: where they are and with which keys, from a file of the project or the environment.

Keys never stand in SQL, in listings, in logs or in the text of an error: `without_secrets` takes them out of what a
client library says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from catchment.errors import ConfigError
from catchment.records.client_config import read_client_config

S3_PREFIX = "s3://"
S3_SETTINGS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
MAX_TOLD = 300  # characters of what a client library says
_SECRET_NAMES = re.compile(r"secret|password|token|credential|key", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PASSWORD_IN_ADDRESS = re.compile(r"(://[^:/@\s]*):[^@/\s]+@")


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


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """Return what a client library says in one short line, without colours and without what settings keep secret."""
    plain = _PASSWORD_IN_ADDRESS.sub(r"\1:***@", _COLOUR.sub("", text))
    for name, value in settings.items():
        if value and _SECRET_NAMES.search(name):
            plain = plain.replace(value, "***")
    lines = (line.strip(" ↳\t") for line in plain.splitlines())
    told = ": ".join(line for line in lines if line and not re.match(r"\d+: ", line))
    return told[:MAX_TOLD]
