"""Small tables without Arrow's own bytes: the name and type of each column, then its values, one after another.

In a table of four rows an Arrow stream is mostly schema, offsets and padding. Here a column is its name, one byte for
its type and flags, which values are null, and the values that are not: whole numbers as varints (seven bits per byte,
the sign in the lowest bit) or as varints of their differences, whichever is shorter; doubles that are whole numbers as
those too, others with their bytes transposed; texts as lengths and characters. Every table says all of itself, so a
frame means the same whatever came before it.

Law: `read_columns(write_columns(table), table.num_rows)` equals the table, bit by bit, wherever `write_columns` takes
it. Every value takes a byte or, null or BOOLEAN, a bit; so what is read is bounded by the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catchment.errors import WireError

MAX_PLAIN_ROWS = 256  # larger tables are mostly values, which Arrow and zstd pack as well and faster

_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]

# A type by its number, which is part of the version of frames.
_TYPES: tuple[pa.DataType, ...] = (
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
)
_NUMBERS = {type_: number for number, type_ in enumerate(_TYPES)}
_TYPE_MASK = 0x0F
_REQUIRED = 0x10  # the field is not nullable
_HAS_NULLS = 0x20
_VARINTS = 0x40  # of doubles: all are whole numbers, and are written as such
_DIFFERENCES = 0x80  # whole numbers are written as differences to the one before
_MAX_VARINT_BYTES = 10
_EXACT = 2.0**53


def write_columns(table: pa.Table) -> bytes | None:
    """Return the bytes of a table; None where it is large, or has a type that is not written here."""
    if table.num_rows > MAX_PLAIN_ROWS or table.schema.metadata:
        return None
    if any(field.type not in _NUMBERS or field.metadata for field in table.schema):
        return None
    return b"".join(
        _write_column(field, column.combine_chunks()) for field, column in zip(table.schema, table.columns, strict=True)
    )


def _write_column(field: pa.Field, column: pa.Array | pa.ChunkedArray) -> bytes:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    name = field.name.encode()
    flags = 0 if field.nullable else _REQUIRED
    mask = b""
    if values.null_count:
        flags |= _HAS_NULLS
        mask = np.packbits(np.asarray(values.is_valid()), bitorder="little").tobytes()
        values = values.drop_null()
    more, data = _write_values(values)
    return b"".join(
        [
            write_varints(np.array([len(name)], np.uint64)),
            name,
            bytes([_NUMBERS[field.type] | flags | more]),
            mask,
            data,
        ]
    )


def _write_values(values: pa.Array) -> tuple[int, bytes]:
    """Return the flags and the bytes of values, of which none is null."""
    type_ = values.type
    if pa.types.is_boolean(type_):
        return 0, np.packbits(np.asarray(values), bitorder="little").tobytes()
    if _is_text(type_):
        texts = [text.encode() if isinstance(text, str) else text for text in values.to_pylist()]
        return 0, write_varints(np.array([len(text) for text in texts], np.uint64)) + b"".join(texts)
    if pa.types.is_floating(type_):
        numbers = np.asarray(values)
        if _are_whole(numbers):
            flags, data = _write_whole(numbers.astype(np.int64))
            return flags | _VARINTS, data
        return 0, numbers.view(np.uint8).reshape(len(numbers), -1).T.tobytes()
    return _write_whole(_as_whole(values))


def _as_whole(values: pa.Array) -> npt.NDArray[np.int64]:
    storage = values.cast(pa.int32()) if values.type == pa.date32() else values
    return np.asarray(storage.cast(pa.int64()), dtype=np.int64)


def _are_whole(numbers: npt.NDArray[np.floating]) -> bool:
    """Return whether all are whole numbers that integers hold; -0.0 is none."""
    with np.errstate(invalid="ignore"):
        is_whole = (np.abs(numbers) < _EXACT) & (np.trunc(numbers) == numbers)
    return bool(np.all(is_whole & ~((numbers == 0) & np.signbit(numbers))))


def _write_whole(numbers: npt.NDArray[np.int64]) -> tuple[int, bytes]:
    plain = write_varints(_zigzag(numbers))
    differences = write_varints(_zigzag(np.diff(numbers, prepend=np.int64(0))))
    return (_DIFFERENCES, differences) if len(differences) < len(plain) else (0, plain)


def _zigzag(numbers: npt.NDArray[np.int64]) -> _Words:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _unzigzag(words: _Words) -> npt.NDArray[np.int64]:
    return (words >> np.uint64(1)).view(np.int64) ^ -(words & np.uint64(1)).view(np.int64)


def write_varints(words: _Words) -> bytes:
    """Return numbers in groups of seven bits, the lowest first; all but the last group of each have the high bit."""
    if not len(words):
        return b""
    groups = (words[:, None] >> (np.arange(_MAX_VARINT_BYTES, dtype=np.uint64) * np.uint64(7))) & np.uint64(0x7F)
    places = np.arange(_MAX_VARINT_BYTES)
    last = np.where(groups != 0, places, 0).max(axis=1)[:, None]
    found = groups.astype(np.uint8) | np.where(places < last, 0x80, 0).astype(np.uint8)
    return bytes(found[places <= last])


@dataclass
class _Reader:
    """The bytes of a table, and how far they are read."""

    data: _Bytes
    place: int = 0

    def take(self, count: int) -> _Bytes:
        if count > len(self.data) - self.place:
            raise WireError("a table of plain columns is cut short")
        self.place += count
        return self.data[self.place - count : self.place]

    def varints(self, count: int) -> _Words:
        """Read numbers that `write_varints` has written."""
        rest = self.data[self.place : self.place + count * _MAX_VARINT_BYTES]
        ends = np.flatnonzero(rest < 0x80)[:count]
        if len(ends) < count:
            raise WireError("a table of plain columns is cut short")
        if not count:
            return np.empty(0, np.uint64)
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        if lengths.max() > _MAX_VARINT_BYTES or np.any(rest[ends[lengths == _MAX_VARINT_BYTES]] > 1):
            raise WireError("a number of a table of plain columns is too long")
        used = self.take(int(ends[-1]) + 1)
        shifts = (np.arange(len(used)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
        return np.add.reduceat((used & 0x7F).astype(np.uint64) << shifts, starts)

    def bits(self, count: int) -> npt.NDArray[np.bool_]:
        packed = self.take((count + 7) // 8)
        return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)


def read_columns(data: bytes | memoryview, rows: int) -> pa.Table:
    """Return the table that `write_columns` has written; anything else is refused."""
    if rows > MAX_PLAIN_ROWS:
        raise WireError(f"a table of plain columns has {rows} rows, at most {MAX_PLAIN_ROWS} are taken")
    reader = _Reader(np.frombuffer(data, np.uint8))
    fields: list[pa.Field] = []
    columns: list[pa.Array] = []
    while reader.place < len(reader.data):
        name = _text_of(reader.take(int(min(reader.varints(1)[0], len(reader.data)))))
        flags = int(reader.take(1)[0])
        if flags & _TYPE_MASK >= len(_TYPES):
            raise WireError(f"the column {name!r} is of a type that this version does not have")
        type_ = _TYPES[flags & _TYPE_MASK]
        fields.append(pa.field(name, type_, nullable=not flags & _REQUIRED))
        columns.append(_read_column(reader, type_, flags, rows))
    return pa.table(columns, schema=pa.schema(fields))


def _text_of(data: _Bytes) -> str:
    try:
        return data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise WireError("the name of a column is no text") from error


def _read_column(reader: _Reader, type_: pa.DataType, flags: int, rows: int) -> pa.Array:
    is_valid = reader.bits(rows) if flags & _HAS_NULLS else None
    count = rows if is_valid is None else int(is_valid.sum())
    values = _read_values(reader, type_, flags, count)
    if is_valid is None:
        return values
    return values.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))


def _read_values(reader: _Reader, type_: pa.DataType, flags: int, count: int) -> pa.Array:
    if pa.types.is_boolean(type_):
        return pa.array(reader.bits(count), type_)
    if _is_text(type_):
        return _read_texts(reader, type_, count)
    if pa.types.is_floating(type_) and not flags & _VARINTS:
        width = type_.bit_width // 8
        cells = reader.take(count * width).reshape(width, count).T
        return pa.array(np.ascontiguousarray(cells).view(type_.to_pandas_dtype()).ravel(), type_)
    numbers = _unzigzag(reader.varints(count))
    if flags & _DIFFERENCES:
        numbers = np.cumsum(numbers, dtype=np.int64)
    return _from_whole(numbers, type_)


def _read_texts(reader: _Reader, type_: pa.DataType, count: int) -> pa.Array:
    lengths = reader.varints(count)
    left = len(reader.data) - reader.place
    if np.any(lengths > left) or int(lengths.sum()) > left:
        raise WireError("a table of plain columns is cut short")
    ends = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))]).astype(np.int32)
    texts = reader.take(int(ends[-1])).tobytes()
    found = pa.Array.from_buffers(type_, count, [None, pa.py_buffer(ends), pa.py_buffer(texts)])
    found.validate(full=True)
    return found


def _from_whole(numbers: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    if pa.types.is_floating(type_):
        return pa.array(numbers.astype(type_.to_pandas_dtype()), type_)
    whole = pa.array(numbers)
    if type_ == pa.date32():
        return whole.cast(pa.int32()).cast(type_)
    return whole.cast(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(type_ == pa.string() or type_ == pa.binary())
