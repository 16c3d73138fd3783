"""The one codec of everything durable: trees of registered dataclasses, plain values, Arrow tables and numpy arrays.

A class is registered by `@stored`, under its own name and with a version. What is decoded equals what was encoded,
types included: a tuple comes back as a tuple, an integer key as an integer. A document of an older version is migrated
by the functions that the class declares; one of a newer version, or of a class that this catchment does not know, is
refused by name. No code is ever run from a document, so it may come from a disk that others can write to.

The bytes are MessagePack (msgspec); what MessagePack has no type for is an extension of the kinds below. Lists, and
dictionaries with plain keys, are MessagePack's own.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from catchment.errors import StorageError

Class = TypeVar("Class", bound=type)
Fields = dict[str, Any]
Array = np.ndarray[Any, Any]
Migration = Callable[[Fields], Fields]  # the fields of one version to those of the next

_LEAST_INTEGER = -(2**63)  # that MessagePack carries
_GREATEST_INTEGER = 2**64 - 1
_INTEGERS = range(_LEAST_INTEGER, _GREATEST_INTEGER + 1)
COMPRESS_ARRAYS_FROM_BYTES = 1024  # below it compression saves less than it costs
COMPRESS_TABLES_FROM_BYTES = 4096  # likewise: most of a smaller table is its schema
THREADS_FROM_BYTES = 1_000_000  # below it handing columns to other threads costs more than it saves
# What reading bytes that this codec did not write can end in.
_MALFORMED = (
    msgspec.DecodeError,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
_DTYPE = re.compile(r"[<>|=][biufcmMSU][0-9]+(\[[a-zA-Z0-9]+\])?")  # names of types as numpy writes them
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_COMPRESSED_HERE = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)


class _Kind(IntEnum):
    """Extension types of a document; numbers are never used again for something else."""

    RECORD = 1  # a registered dataclass: [name, version, fields]
    MEMBER = 2  # a member of a registered enum: [name, value]
    TUPLE = 3
    SET = 4
    FROZENSET = 5
    DEQUE = 6  # [items, maxlen]
    COUNTER = 7
    MAP = 8  # a dictionary with keys that MessagePack maps cannot have: [[key, value], ...]
    INTEGER = 9  # beyond 64 bits
    DECIMAL = 10
    TABLE = 11
    TYPE = 12
    ARRAY = 13  # a numpy array: [dtype, shape, bytes]
    COMPRESSED_ARRAY = 14  # a large one: [dtype, shape, bytes compressed by zstd]


@dataclasses.dataclass(frozen=True)
class _Registration:
    stored_class: type
    version: int
    migrations: Mapping[int, Migration]
    fields: tuple[str, ...]


_REGISTRY: dict[str, _Registration] = {}


def stored(version: int = 1, migrations: Mapping[int, Migration] | None = None) -> Callable[[Class], Class]:
    """Register a dataclass or an enum, so that documents may hold it.

    `version` grows whenever the fields change their meaning; `migrations[n]` makes the fields of version n + 1 from
    those of version n. A new field with a default needs no migration. Fields with `metadata={"stored": False}` are
    derived: they are not written, and take their defaults when read.
    """

    def register(new: Class) -> Class:
        known = _REGISTRY.get(new.__name__)
        assert known is None or _full_name(known.stored_class) == _full_name(new), (
            f"two classes are stored as {new.__name__}"
        )
        _REGISTRY[new.__name__] = _Registration(new, version, dict(migrations or {}), stored_fields(new))
        return new

    return register


def encode(value: Any) -> bytes:
    """Return a value as a document."""
    return msgspec.msgpack.encode(_pack(value))


def decode(data: bytes) -> Any:
    """Return the value of a document."""
    try:
        return msgspec.msgpack.decode(data, ext_hook=_read_extension)
    except _MALFORMED as error:
        raise StorageError(f"the bytes are not a document of catchment: {error}") from error


def _pack(value: Any) -> Any:
    how = _PACKERS.get(type(value))
    if how is None:
        how = _packer_of(value)
        _PACKERS[type(value)] = how
    return how(value)


def _packer_of(value: Any) -> Callable[[Any], Any]:
    """Return how values of a type are packed; it is asked once per type."""
    if isinstance(value, np.generic):
        return _pack_scalar
    if isinstance(value, Enum):
        return _pack_member
    for of, how in _PLAIN_PACKERS.items():
        if isinstance(value, of):
            return how
    if dataclasses.is_dataclass(value):
        return _pack_record
    if isinstance(value, Mapping):
        return _pack_mapping
    return _pack_other


def _pack_as_is(value: Any) -> Any:
    return value


def _pack_scalar(value: np.generic) -> Any:
    return value.item()


def _pack_member(value: Enum) -> msgspec.msgpack.Ext:
    return _extension(_Kind.MEMBER, [_registered_name(type(value)), value.value])


def _pack_integer(value: int) -> Any:
    return value if _LEAST_INTEGER <= value <= _GREATEST_INTEGER else _extension(_Kind.INTEGER, str(value))


def _pack_list(value: list[Any]) -> list[Any]:
    return [_pack(v) for v in value]


def _pack_tuple(value: tuple[Any, ...]) -> msgspec.msgpack.Ext:
    return _extension(_Kind.TUPLE, [_pack(v) for v in value])


def _pack_mapping(value: Mapping[Any, Any]) -> Any:
    if isinstance(value, Counter):
        return _extension(_Kind.COUNTER, [[_pack(k), n] for k, n in value.items()])
    if all(type(key) is str or (type(key) is int and key in _INTEGERS) for key in value):
        return {key: _pack(v) for key, v in value.items()}
    return _extension(_Kind.MAP, [[_pack(k), _pack(v)] for k, v in value.items()])


def _pack_record(value: Any) -> msgspec.msgpack.Ext:
    name = _registered_name(type(value))
    known = _REGISTRY[name]
    fields = {field: _pack(getattr(value, field)) for field in known.fields}
    return _extension(_Kind.RECORD, [name, known.version, fields])


def _pack_other(value: Any) -> Any:
    match value:
        case set():
            return _extension(_Kind.SET, [_pack(v) for v in value])
        case frozenset():
            return _extension(_Kind.FROZENSET, [_pack(v) for v in value])
        case deque():
            return _extension(_Kind.DEQUE, [[_pack(v) for v in value], value.maxlen])
        case np.ndarray():
            return _pack_array(value)
        case pa.Table():
            return msgspec.msgpack.Ext(int(_Kind.TABLE), _table_bytes(value))
        case pa.DataType():
            return msgspec.msgpack.Ext(int(_Kind.TYPE), bytes(pa.schema([pa.field("", value)]).serialize()))
        case Decimal():
            return _extension(_Kind.DECIMAL, str(value))
    raise _unregistered_error(type(value))


def _pack_array(value: Array) -> msgspec.msgpack.Ext:
    content = np.ascontiguousarray(value).tobytes()
    head = [value.dtype.str, list(value.shape)]
    if len(content) < COMPRESS_ARRAYS_FROM_BYTES:
        return _extension(_Kind.ARRAY, [*head, content])
    return _extension(_Kind.COMPRESSED_ARRAY, [*head, pa.compress(content, codec="zstd", asbytes=True)])


# How values of plain types are packed, and of those derived from them; the first that fits counts.
_PLAIN_PACKERS: dict[type, Callable[[Any], Any]] = {
    type(None): _pack_as_is,
    bool: _pack_as_is,
    bytes: _pack_as_is,
    float: _pack_as_is,
    str: _pack_as_is,
    int: _pack_integer,
    list: _pack_list,
    tuple: _pack_tuple,
}
_PACKERS: dict[type, Callable[[Any], Any]] = dict(_PLAIN_PACKERS)  # by exact type: as many as there are types


def _read_dtype(text: str) -> np.dtype[Any]:
    """Return a type by its name; numpy would evaluate other texts as Python."""
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not the type of an array")
    return np.dtype(text)


def _read_array(dtype: str, shape: list[int], content: bytes) -> Array:
    return np.frombuffer(content, _read_dtype(dtype)).reshape(shape).copy()


def _read_compressed_array(dtype: str, shape: list[int], packed: bytes) -> Array:
    size = math.prod(shape) * _read_dtype(dtype).itemsize
    return _read_array(dtype, shape, pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True))


def _read_extension(code: int, data: memoryview) -> Any:
    if code == _Kind.TABLE:
        return _read_table(data)
    if code == _Kind.TYPE:
        return pa.ipc.read_schema(pa.py_buffer(bytes(data))).field(0).type
    content = msgspec.msgpack.decode(data, ext_hook=_read_extension)
    match code:
        case _Kind.RECORD:
            return _read_record(*content)
        case _Kind.MEMBER:
            return _registration(content[0]).stored_class(content[1])
        case _Kind.TUPLE:
            return tuple(content)
        case _Kind.SET:
            return set(content)
        case _Kind.FROZENSET:
            return frozenset(content)
        case _Kind.DEQUE:
            return deque(content[0], content[1])
        case _Kind.COUNTER:
            return Counter(dict(content))
        case _Kind.MAP:
            return dict(content)
        case _Kind.INTEGER:
            return int(content)
        case _Kind.DECIMAL:
            return Decimal(content)
        case _Kind.ARRAY:
            return _read_array(*content)
        case _Kind.COMPRESSED_ARRAY:
            return _read_compressed_array(*content)
    raise StorageError(f"a document holds an extension of type {code}, which this catchment does not know")


def _read_record(name: str, version: int, fields: Fields) -> Any:
    known = _registration(name)
    if version > known.version:
        raise StorageError(
            f"a {name} of version {version} was written by a newer catchment; this one reads up to {known.version}",
            hint="start the newer version again, or restore a copy of the state from before the upgrade",
        )
    for older in range(version, known.version):
        if older not in known.migrations:
            raise StorageError(f"a {name} of version {version} cannot be migrated to version {known.version}")
        fields = known.migrations[older](fields)
    return known.stored_class(**fields)


def _full_name(stored_class: type) -> str:
    return f"{stored_class.__module__}.{stored_class.__qualname__}"


def _registration(name: str) -> _Registration:
    if name not in _REGISTRY:
        raise StorageError(
            f"a document holds a {name!r}, which this catchment does not know",
            hint="start the catchment that wrote it, or restore a copy of the state from before the upgrade",
        )
    return _REGISTRY[name]


def _registered_name(wanted: type) -> str:
    known = _REGISTRY.get(wanted.__name__)
    if known is None or known.stored_class is not wanted:
        raise _unregistered_error(wanted)
    return wanted.__name__


def _unregistered_error(wanted: type) -> StorageError:
    return StorageError(f"a {wanted.__name__} cannot be stored", hint="decorate its class with @stored")


def stored_fields(stored_class: type) -> tuple[str, ...]:
    """Return the fields of a registered dataclass that are written; an enum has none."""
    if not dataclasses.is_dataclass(stored_class):
        return ()
    return tuple(f.name for f in dataclasses.fields(stored_class) if f.metadata.get("stored", True))


def _extension(kind: _Kind, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(int(kind), msgspec.msgpack.encode(content))


def _table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_write_options(table.nbytes)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _write_options(size_bytes: int) -> pa.ipc.IpcWriteOptions:
    if size_bytes < COMPRESS_TABLES_FROM_BYTES:
        return _PLAIN
    return _COMPRESSED_HERE if size_bytes < THREADS_FROM_BYTES else _COMPRESSED


def _read_table(data: memoryview) -> pa.Table:
    options = pa.ipc.IpcReadOptions(use_threads=len(data) >= THREADS_FROM_BYTES)
    return pa.ipc.open_stream(pa.py_buffer(bytes(data)), options=options).read_all()
