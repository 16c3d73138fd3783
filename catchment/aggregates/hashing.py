"""Spark's `xxhash64` over Arrow columns: bit by bit the same, so that Spark and the core decide alike.

Spark hashes a row column by column, each with the hash of those before it as its seed, the first with 42; a null leaves
the hash as it is. Whole numbers up to 32 bits, dates and booleans are hashed as 4 bytes, 64 bit numbers, timestamps
(microseconds), doubles (-0.0 as 0.0, one NaN) and decimals of up to 18 digits as 8, strings and binaries by their
bytes. Numbers are hashed here in numpy, whole columns at a time; strings and binaries by the `xxhash` library, one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from catchment.arrays import Words
from catchment.errors import CatchmentError

SPARK_SEED = 42
_MASK = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_BLOCK_ROWS = 16_384  # few enough for a core's cache: twice as fast as all rows at once
_LONG_DECIMAL_DIGITS = 18  # a decimal of up to this many digits is one 64 bit word in Spark


def hash_rows(columns: Sequence[pa.Array], seed: int = SPARK_SEED) -> Words:
    """Return `xxhash64(columns...)` of each row, as unsigned words; `seed` is Spark's unless another is given."""
    if not columns:
        raise CatchmentError("a row without columns has no hash")
    blocks = [[c.slice(at, _BLOCK_ROWS) for c in columns] for at in range(0, len(columns[0]), _BLOCK_ROWS)]
    return np.concatenate([_hash_block(block, seed) for block in blocks] or [np.zeros(0, dtype=np.uint64)])


def _hash_block(columns: Sequence[pa.Array], seed: int) -> Words:
    rows = len(columns[0])
    state = np.full(1, seed & _MASK, dtype=np.uint64)  # one for all rows, until a column has different values
    with np.errstate(over="ignore"):
        for column in columns:
            if len(state) < rows and not _is_constant(column):
                state = np.repeat(state, rows)
            one_or_all = column.slice(0, len(state))
            hashed = _hasher(column.type)(one_or_all, state)
            has_value = None if column.null_count == 0 else np.asarray(one_or_all.is_valid())
            state = hashed if has_value is None else np.where(has_value, hashed, state)
    return state if len(state) == rows else np.repeat(state, rows)


def _is_constant(column: pa.Array) -> bool:
    """Return whether a column of whole numbers has one value; slices of partials, which come in order, often do."""
    if column.null_count or not pa.types.is_int64(column.type) or not len(column):
        return False
    numbers = np.asarray(column)
    return bool(numbers[0] == numbers[-1] and (numbers == numbers[0]).all())


def hash_text(text: str, seed: int) -> int:
    """Return XXH64 of a text's UTF-8 bytes."""
    return xxhash.xxh64_intdigest(text.encode(), seed=seed)


def can_hash(type_: pa.DataType) -> bool:
    """Return whether columns of a type have hashes."""
    return any(holds(type_) for holds, _ in _HASHERS)


def _hasher(type_: pa.DataType) -> Callable[[pa.Array, Words], Words]:
    for holds, hasher in _HASHERS:
        if holds(type_):
            return hasher
    raise CatchmentError(
        f"records cannot be told apart by a column of type {type_}",
        hint="use whole numbers, texts, binaries, timestamps, dates, doubles or decimals of up to 18 digits",
    )


def _hash_ints(column: pa.Array, seed: Words) -> Words:
    bits = np.asarray(column.cast(pa.int32()).fill_null(0)).astype(np.int64).view(np.uint64) & _u(0xFFFFFFFF)
    return _finish(_absorb_int(seed + _u(_P5) + _u(4), bits))


def _hash_longs(column: pa.Array, seed: Words) -> Words:
    numbers = column.cast(pa.int64())
    return hash_words(np.asarray(numbers.fill_null(0) if numbers.null_count else numbers).view(np.uint64), seed)


def hash_words(words: Words, seed: Words) -> Words:
    """Return XXH64 of 8 byte words, each with its own seed.

    Records are sampled by it while a site is overloaded, so it is written for speed: arrays are made once and then
    changed in place.
    """
    state = words * _u(_P2)
    spare = np.empty_like(words)
    _rotate_in_place(state, 31, spare)
    state *= _u(_P1)
    state ^= seed + _u((_P5 + 8) & _MASK)
    _rotate_in_place(state, 27, spare)
    state *= _u(_P1)
    state += _u(_P4)
    for shift, factor in ((33, _P2), (29, _P3), (32, 1)):
        state ^= np.right_shift(state, _u(shift), out=spare)
        state *= _u(factor)
    return state


def _rotate_in_place(words: Words, by: int, spare: Words) -> None:
    np.right_shift(words, _u(64 - by), out=spare)
    np.left_shift(words, _u(by), out=words)
    words |= spare


def _hash_timestamps(column: pa.Array, seed: Words) -> Words:
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return _hash_longs(micros, seed)


def _hash_floats(column: pa.Array, seed: Words) -> Words:
    numbers = _one_nan(np.asarray(column.fill_null(0.0), dtype=np.float32) + np.float32(0.0))
    return _hash_ints(pa.array(numbers.view(np.int32)), seed)


def _hash_doubles(column: pa.Array, seed: Words) -> Words:
    numbers = _one_nan(np.asarray(column.fill_null(0.0), dtype=np.float64) + 0.0)  # -0.0 + 0.0 is 0.0
    return hash_words(numbers.view(np.uint64), seed)


def _one_nan(numbers: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.where(np.isnan(numbers), np.array(np.nan, dtype=numbers.dtype), numbers)


def _hash_decimals(column: pa.Array, seed: Words) -> Words:
    """Hash the unscaled number, the digits without the point: up to 18 of them are the lower of the two words."""
    words = np.frombuffer(column.buffers()[1], dtype=np.uint64).reshape(-1, 2)
    return hash_words(words[column.offset : column.offset + len(column), 0], seed)


def _hash_bytes(column: pa.Array, seed: Words) -> Words:
    texts = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    hashes = [xxhash.xxh64_intdigest(text, seed=own) for text, own in zip(texts, seed.tolist(), strict=True)]
    return np.array(hashes, dtype=np.uint64)


def _absorb_int(state: Words, word: Words) -> Words:
    return _rotate(state ^ (word * _u(_P1)), 23) * _u(_P2) + _u(_P3)


def _finish(state: Words) -> Words:
    state = (state ^ (state >> _u(33))) * _u(_P2)
    state = (state ^ (state >> _u(29))) * _u(_P3)
    return state ^ (state >> _u(32))


def _rotate(words: Words, by: int) -> Words:
    return (words << _u(by)) | (words >> _u(64 - by))


@cache
def _u(number: int) -> np.uint64:
    return np.uint64(number)


def _is_short_whole(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_int8(type_) or types.is_int16(type_) or types.is_int32(type_) or types.is_boolean(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_binary(type_) or types.is_large_binary(type_)
    )


def _is_long_decimal(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(type_) and type_.precision <= _LONG_DECIMAL_DIGITS)


_HASHERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, Words], Words]], ...] = (
    (_is_short_whole, _hash_ints),
    (pa.types.is_date32, _hash_ints),
    (pa.types.is_int64, _hash_longs),
    (pa.types.is_timestamp, _hash_timestamps),
    (pa.types.is_float32, _hash_floats),
    (pa.types.is_float64, _hash_doubles),
    (_is_long_decimal, _hash_decimals),
    (_is_bytes, _hash_bytes),
)
