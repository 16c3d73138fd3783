"""Avro values as JSON objects, by a schema from a file or from a registry."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

from catchment.errors import EngineError
from catchment.records.registry import SchemaRegistry, split_header


@dataclass
class AvroReader:
    """Reads the values of one stream."""

    schema_file: str | None
    registry: SchemaRegistry | None
    _schemas: dict[int | None, Any] = field(default_factory=dict, repr=False)

    def read(self, value: bytes) -> str:
        """Return a value as a JSON object, or as a text that says it is none."""
        import fastavro

        number, body = (None, value) if self.registry is None else split_header(value)
        if self.registry is not None and number is None:
            return _not_avro(value)
        schema = self._schema(number)
        try:
            record = fastavro.schemaless_reader(BytesIO(body), schema, None)
            return json.dumps(record, default=_plain, allow_nan=False)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, UnicodeDecodeError, OverflowError, struct.error):
            return _not_avro(value)

    def _schema(self, number: int | None) -> Any:
        """Return the schema of a number, or of the file, parsed once."""
        import fastavro

        if number not in self._schemas:
            if number is None:
                text = _read_schema_file(self.schema_file)
            else:
                assert self.registry is not None
                text = self.registry.fetch_schema(number)["schema"]
            self._schemas[number] = fastavro.parse_schema(json.loads(text))
        return self._schemas[number]


def _not_avro(value: bytes) -> str:
    return f"not Avro: {value[:2000].hex()}"


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
