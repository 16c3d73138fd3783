"""Spark's `xxhash64` over Arrow columns, in numpy: bit by bit the same, so that both sides decide alike.

Spark hashes a row column by column, each with the hash of those before it as its seed, the first with 42;
a null leaves the hash as it is. Whole numbers up to 32 bits, dates and booleans are hashed as 4 bytes, 64
bit numbers, timestamps (microseconds), doubles (-0.0 as 0.0, one NaN) and decimals of up to 18 digits as
8, strings and binaries by their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from catchment.errors import CatchmentError

Words = NDArray[np.uint64]

SPARK_SEED = 42
_MASK = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_STRIPE = 32
_BLOCK_ROWS = 16_384  # that a core's cache holds with all that is computed of them: twice as fast as all at once
_LONG_DECIMAL_DIGITS = 18


def hash_rows(columns: Sequence[pa.Array], seed: int = SPARK_SEED) -> Words:
    """`xxhash64(columns...)` of each row, as unsigned words; `seed` is Spark's unless another is given."""
    if not columns:
        raise CatchmentError("a row without columns has no hash")
    blocks = [[c.slice(at, _BLOCK_ROWS) for c in columns] for at in range(0, len(columns[0]), _BLOCK_ROWS)]
    return np.concatenate([_hash_block(block, seed) for block in blocks] or [np.zeros(0, dtype=np.uint64)])


def _hash_block(columns: Sequence[pa.Array], seed: int) -> Words:
    state = np.full(len(columns[0]), seed & _MASK, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            hashed = _hasher(column.type)(column, state)
            state = hashed if column.null_count == 0 else np.where(np.asarray(column.is_valid()), hashed, state)
    return state


def hash_text(text: str, seed: int) -> int:
    """XXH64 of a text's UTF-8 bytes: a constant of a plan."""
    return int(hash_rows([pa.array([text])], seed)[0])


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
    return hash_words(np.asarray(column.cast(pa.int64()).fill_null(0)).view(np.uint64), seed)


def hash_words(words: Words, seed: Words) -> Words:
    """XXH64 of 8 byte words, each with its own seed. A spike is sampled by it, so it is written for speed: what it
    computes with is made once and then changed in place."""
    state, spare = words * _u(_P2), np.empty_like(words)
    _turn(state, 31, spare)
    state *= _u(_P1)
    state ^= seed + _u((_P5 + 8) & _MASK)
    _turn(state, 27, spare)
    state *= _u(_P1)
    state += _u(_P4)
    for shift, factor in ((33, _P2), (29, _P3), (32, 1)):
        state ^= np.right_shift(state, _u(shift), out=spare)
        state *= _u(factor)
    return state


def _turn(words: Words, by: int, spare: Words) -> None:
    """Rotate in place."""
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
    """The unscaled number, the digits without the point: up to 18 of them are the lower of the two words."""
    words = np.frombuffer(column.buffers()[1], dtype=np.uint64).reshape(-1, 2)
    return hash_words(words[column.offset : column.offset + len(column), 0], seed)


def _hash_bytes(column: pa.Array, seed: Words) -> Words:
    """Rows of one length are hashed together, a word of each at a time."""
    binary = column.cast(pa.large_binary())
    offsets = np.frombuffer(binary.buffers()[1], dtype=np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(binary.buffers()[2] or b"", dtype=np.uint8)
    lengths, hashed = np.diff(offsets), np.empty(len(binary), dtype=np.uint64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        taken = data[offsets[rows][:, None] + np.arange(length)] if length else np.empty((len(rows), 0), np.uint8)
        hashed[rows] = _hash_matrix(np.ascontiguousarray(taken), seed[rows])
    return hashed


def _hash_matrix(rows: NDArray[np.uint8], seed: Words) -> Words:
    """XXH64 of byte strings of one length, one a row."""
    length = rows.shape[1]
    striped, worded = length - length % _STRIPE, length - length % 8
    state = _absorb_stripes(rows[:, :striped], seed) if striped else seed + _u(_P5)
    state = state + _u(length)
    for at in range(striped, worded, 8):
        state = _absorb_word(state, _word(rows, at))
    if length - worded >= 4:
        state = _absorb_int(state, _word(rows, worded, 4))
        worded += 4
    for at in range(worded, length):
        state = _rotate(state ^ (rows[:, at].astype(np.uint64) * _u(_P5)), 11) * _u(_P1)
    return _finish(state)


def _absorb_stripes(rows: NDArray[np.uint8], seed: Words) -> Words:
    lanes = [seed + _u(_P1) + _u(_P2), seed + _u(_P2), seed, seed - _u(_P1)]
    for at in range(0, rows.shape[1], _STRIPE):
        lanes = [_rotate(lane + _word(rows, at + 8 * i) * _u(_P2), 31) * _u(_P1) for i, lane in enumerate(lanes)]
    state = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
    for lane in lanes:
        state = (state ^ (_rotate(lane * _u(_P2), 31) * _u(_P1))) * _u(_P1) + _u(_P4)
    return state


def _word(rows: NDArray[np.uint8], at: int, size: int = 8) -> Words:
    """The little-endian word of `size` bytes that starts at a place of each row."""
    return np.ascontiguousarray(rows[:, at : at + size]).view(f"<u{size}")[:, 0].astype(np.uint64)


def _absorb_word(state: Words, word: Words) -> Words:
    return _rotate(state ^ (_rotate(word * _u(_P2), 31) * _u(_P1)), 27) * _u(_P1) + _u(_P4)


def _absorb_int(state: Words, word: Words) -> Words:
    return _rotate(state ^ (word * _u(_P1)), 23) * _u(_P2) + _u(_P3)


def _finish(state: Words) -> Words:
    state = (state ^ (state >> _u(33))) * _u(_P2)
    state = (state ^ (state >> _u(29))) * _u(_P3)
    return state ^ (state >> _u(32))


def _rotate(words: Words, by: int) -> Words:
    return (words << _u(by)) | (words >> _u(64 - by))


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
