"""The values of a broker's records as texts: JSON and CSV as they are, Avro and Protobuf as one JSON object per record.

A value that cannot be read stays in the stream as a text that no parser takes, so that it is counted and quarantined
with what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from catchment.records.avro import AvroReader
from catchment.records.registry import SchemaRegistry

NO_VALUE = "(no value)"  # the text of a record without a value, such as a tombstone


class ValueReader:
    """Reads the values of one stream. Avro and Protobuf need a file with the schema, or the address of a registry."""

    def __init__(
        self, format: str, schema_file: str | None = None, registry: str | None = None, message: str | None = None
    ) -> None:
        self._read_one = _reader(format, schema_file, SchemaRegistry(registry) if registry else None, message)

    def read(self, values: Sequence[bytes | None]) -> pa.Array:
        """Return one text per value."""
        return pa.array([NO_VALUE if value is None else self._read_one(value) for value in values], pa.string())

    def read_bytes(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return one text per value in UTF-8, as far as texts are; None where there is no value."""
        if self._read_one is _read_text:
            return list(values)
        return [None if value is None else self._read_one(value).encode() for value in values]


def _reader(
    format: str, schema_file: str | None, registry: SchemaRegistry | None, message: str | None
) -> Callable[[bytes], str]:
    match format:
        case "avro":
            return AvroReader(schema_file, registry).read
        case "protobuf":
            from catchment.records.protobuf import ProtobufReader

            return ProtobufReader(schema_file, registry, message).read
    return _read_text


def _read_text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
