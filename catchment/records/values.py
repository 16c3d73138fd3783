"""The values of a broker's records as texts: JSON and CSV as they are, Avro as one JSON object per record.

A value that cannot be read stays in the stream as a text that no parser takes, so that it is counted and quarantined
with what it was.
"""

from __future__ import annotations

import base64
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa

from catchment.errors import EngineError

NO_VALUE = "(no value)"  # the text of a record without a value, such as a tombstone
REGISTRY_HEADER = struct.Struct(">bI")  # a zero, and the number of the schema: how registries mark a value
REGISTRY_ANSWER_S = 15.0
MAX_SCHEMA_BYTES = 1_000_000


@dataclass
class ValueReader:
    """Reads the values of one stream. Avro needs a file with the schema, or the address of a registry."""

    format: str
    schema_file: str | None = None
    registry: str | None = None
    _schemas: dict[int | None, Any] = field(default_factory=dict, repr=False)

    def read(self, values: Sequence[bytes | None]) -> pa.Array:
        """Return one text per value."""
        read_one = self._read_avro if self.format == "avro" else _read_text
        return pa.array([NO_VALUE if value is None else read_one(value) for value in values], pa.string())

    def _read_avro(self, value: bytes) -> str:
        import fastavro

        number, body = self._split(value)
        schema = self._schema(number)
        try:
            record = fastavro.schemaless_reader(BytesIO(body), schema, None)
            return json.dumps(record, default=_plain, allow_nan=False)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, UnicodeDecodeError, OverflowError, struct.error):
            return f"not Avro: {value[:2000].hex()}"

    def _split(self, value: bytes) -> tuple[int | None, bytes]:
        """Return the number of the schema, where a registry gives schemas, and the rest of the value."""
        if self.registry is None:
            return None, value
        if len(value) < REGISTRY_HEADER.size:
            return 0, value
        magic, number = REGISTRY_HEADER.unpack_from(value)
        return (number, value[REGISTRY_HEADER.size :]) if magic == 0 else (0, value)

    def _schema(self, number: int | None) -> Any:
        """Return a schema, parsed once; number 0, which no registry gives, is a schema that nothing fits."""
        import fastavro

        if number not in self._schemas:
            if number is None:
                text = _read_schema_file(self.schema_file)
            else:
                text = self._fetch_schema(number) if number else '{"type": "enum", "name": "Nothing", "symbols": []}'
            self._schemas[number] = fastavro.parse_schema(json.loads(text))
        return self._schemas[number]

    def _fetch_schema(self, number: int) -> str:
        """Ask the registry. That it is away is an outage, not a bad record: the batch fails and is tried again."""
        address = f"{str(self.registry).rstrip('/')}/schemas/ids/{number}"
        try:
            with urllib.request.urlopen(address, timeout=REGISTRY_ANSWER_S) as answer:
                return str(json.loads(answer.read(MAX_SCHEMA_BYTES))["schema"])
        except (urllib.error.URLError, TimeoutError, ValueError, KeyError) as error:
            raise EngineError(
                f"the schema registry did not give schema {number}: {error}",
                where=address,
                hint="check registry in the stream's WITH (...); the records are read again when it answers",
            ) from error


def _read_text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _read_schema_file(path: str | None) -> str:
    if path is None:
        raise EngineError("format 'avro' needs a schema", hint="set schema = 'file.avsc', or registry = 'http://...'")
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"the schema {path} cannot be read: {error.strerror}", hint="the path is relative to the project folder"
        ) from error


def _plain(value: Any) -> Any:
    """Return what JSON has no form for as Spark reads it from JSON."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)
