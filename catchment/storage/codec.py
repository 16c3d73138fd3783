"""Events as bytes: any tree of frozen dataclasses, plain values, Arrow tables and types, without pickle.

A document is a JSON head and the Arrow tables it refers to by number. What is read back equals what was written;
a class that the reader does not know is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from catchment.errors import WireError

_LENGTH = struct.Struct("<I")
_TABLE, _CLASS, _TYPE = "$table", "$class", "$type"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class EventCodec:
    """Writes and reads documents made of the given classes."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.classes = {c.__name__: c for c in classes}

    def encode(self, value: Any) -> bytes:
        tables: list[pa.Table] = []
        head = json.dumps(self._pack(value, tables), separators=(",", ":")).encode()
        return b"".join(_LENGTH.pack(len(part)) + part for part in [head, *(_table_bytes(t) for t in tables)])

    def decode(self, data: bytes) -> Any:
        head, *tables = _parts(data)
        return self._unpack(json.loads(head), [_table(t) for t in tables])

    def to_plain(self, value: Any) -> Any:
        """A value without tables as plain JSON."""
        tables: list[pa.Table] = []
        plain = self._pack(value, tables)
        assert not tables, "a table is no plain JSON"
        return plain

    def from_plain(self, plain: Any) -> Any:
        """What `to_plain` was given."""
        return self._unpack(plain, [])

    def _pack(self, value: Any, tables: list[pa.Table]) -> Any:
        if isinstance(value, pa.Table):
            tables.append(value)
            return {_TABLE: len(tables) - 1}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if type(value).__name__ not in self.classes:
                raise WireError(f"no way to write a {type(value).__name__}; known are {sorted(self.classes)}")
            fields = {f.name: self._pack(getattr(value, f.name), tables) for f in dataclasses.fields(value)}
            return {_CLASS: type(value).__name__, **fields}
        if isinstance(value, pa.DataType):
            return {_TYPE: base64.b64encode(pa.schema([pa.field("", value)]).serialize()).decode()}
        if isinstance(value, Mapping):
            return {key: self._pack(v, tables) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._pack(v, tables) for v in value]
        return value

    def _unpack(self, value: Any, tables: list[pa.Table]) -> Any:
        if isinstance(value, list):
            return tuple(self._unpack(v, tables) for v in value)
        if not isinstance(value, dict):
            return value
        if _TABLE in value:
            return tables[value[_TABLE]]
        if _TYPE in value:
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value[_TYPE]))).field(0).type
        fields = {key: self._unpack(v, tables) for key, v in value.items() if key != _CLASS}
        if _CLASS not in value:
            return fields
        if value[_CLASS] not in self.classes:
            raise WireError(f"a document holds a {value[_CLASS]!r}; this version reads {sorted(self.classes)}")
        return self.classes[value[_CLASS]](**fields)


def _table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        parts.append(data[at + _LENGTH.size : at + _LENGTH.size + size])
        at += _LENGTH.size + size
    return parts
