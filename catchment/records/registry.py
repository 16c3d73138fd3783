"""A schema registry: where the schemas are of values that begin with the number of theirs."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from catchment.errors import EngineError

HEADER = struct.Struct(">bI")  # a zero, and the number of the schema
ANSWER_S = 15.0
MAX_ANSWER_BYTES = 1_000_000


@dataclass(frozen=True)
class SchemaRegistry:
    """Asks a registry for schemas.

    That it is away is an outage, not a bad record: the batch fails and is tried again.
    """

    address: str

    def fetch_schema(self, number: int, form: str = "") -> dict[str, Any]:
        """Return what the registry has under a number; a form such as `serialized` asks for another than the text."""
        return self._fetch(f"schemas/ids/{number}", form, f"schema {number}")

    def fetch_version(self, subject: str, version: int, form: str = "") -> dict[str, Any]:
        """Return a version of a subject, which a schema refers to."""
        path = f"subjects/{quote(subject, safe='')}/versions/{version}"
        return self._fetch(path, form, f"version {version} of {subject!r}")

    def _fetch(self, path: str, form: str, what: str) -> dict[str, Any]:
        address = f"{self.address.rstrip('/')}/{path}" + (f"?format={form}" if form else "")
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_S) as answer:
                found = json.loads(answer.read(MAX_ANSWER_BYTES))
            if not isinstance(found.get("schema"), str):
                raise ValueError("the answer has no schema")
        except (OSError, ValueError, AttributeError) as error:
            raise EngineError(
                f"the schema registry did not give {what}: {error}",
                where=address,
                hint="check registry in the stream's WITH (...); the records are read again when it answers",
            ) from error
        return dict(found)


def split_header(value: bytes) -> tuple[int | None, bytes]:
    """Return the number of the schema of a value, and the rest of it; None if it does not begin with one."""
    if len(value) < HEADER.size:
        return None, value
    zero, number = HEADER.unpack_from(value)
    return (number, value[HEADER.size :]) if zero == 0 else (None, value)
