"""Reductions by group over Arrow arrays, on which the aggregates are built.

Row i belongs to group `groups[i]` of `size` groups. Nulls are skipped; a group without a value is null (or 0,
for a count). Nothing here loops over rows in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catchment.aggregates.base import Groups
from catchment.arrays import Floats, Index, Ints, Mask
from catchment.errors import AggregateError

DECIMAL_DIGITS = 38  # digits of the widest decimal that Spark and Arrow have in common
_EXACT_DIGITS = 15  # whole numbers of this many digits are exact as doubles
_EXACT_POWER = 22  # powers of ten up to this one are exact as doubles
_INT64_MAX = 2**63 - 1
_HALF_BITS = 32  # of a 64 bit integer
_DIGIT_BITS = 16  # numpy sorts numbers of this many bits by radix
_DIGIT = 2**_DIGIT_BITS - 1
_SUM_BITS = 53  # of a double
_SINGLE_BITS = 24  # of a number in single precision
SINGLE_LIMIT = 3e38  # a number beyond this has no form in single precision


def valid_rows(values: pa.Array) -> Mask:
    """Return which rows are not null."""
    if values.null_count == 0:
        return np.ones(len(values), dtype=np.bool_)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def floats_of(values: pa.Array) -> Floats:
    """Return the rows as the nearest doubles, 0.0 where null."""
    if pa.types.is_decimal(values.type):
        return _floats_of_decimals(values.fill_null(0))
    doubles = values.cast(pa.float64(), safe=False)
    return np.asarray(doubles.fill_null(0.0) if doubles.null_count else doubles)


def _floats_of_decimals(values: pa.Array) -> Floats:
    """Return the nearest doubles, as in Spark; Arrow's own conversion may be off by a bit."""
    if values.type.precision <= _EXACT_DIGITS and values.type.scale <= _EXACT_POWER:
        return np.asarray(unscaled_words(values) / 10.0**values.type.scale)
    return np.array([float(number) for number in values.to_pylist()], dtype=np.float64)


def unscaled_words(values: pa.Array) -> Ints:
    """Return decimals of at most 18 digits without their points: the lower word of each, 0 where null."""
    filled = values.fill_null(0)
    words = np.frombuffer(filled.buffers()[1], np.int64)
    return np.ascontiguousarray(words[2 * filled.offset : 2 * (filled.offset + len(filled)) : 2])


def integers_of(values: pa.Array) -> Ints:
    """Return the rows as 64 bit integers, 0 where null."""
    whole = values.cast(pa.int64())
    return np.asarray(whole.fill_null(0) if whole.null_count else whole)


def count_rows(values: pa.Array | None, groups: Groups, size: int) -> Ints:
    """Return how many non-null rows each group has; every row counts where there are no values."""
    counted = groups if values is None or values.null_count == 0 else groups[valid_rows(values)]
    return np.bincount(counted, minlength=size).astype(np.int64)


def sum_integers(values: pa.Array, groups: Groups, size: int) -> pa.Array:
    """Return the exact 64 bit sums; a sum that does not fit is an error, as in Spark's ANSI mode."""
    numbers = integers_of(values)
    if len(numbers) and max(int(numbers.max()), -int(numbers.min())) * len(numbers) > _INT64_MAX:
        _refuse_overflow(numbers, groups, size)
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, groups, numbers)
    return nullable(sums, count_rows(values, groups, size) == 0)


def _refuse_overflow(numbers: Ints, groups: Groups, size: int) -> None:
    """Refuse sums beyond 64 bits: the halves of the numbers are added apart, where they cannot overflow."""
    upper = np.zeros(size, dtype=np.int64)
    lower = np.zeros(size, dtype=np.int64)
    np.add.at(upper, groups, numbers >> _HALF_BITS)
    np.add.at(lower, groups, numbers & (2**_HALF_BITS - 1))
    upper += lower >> _HALF_BITS
    if np.any((upper >= 2 ** (_HALF_BITS - 1)) | (upper < -(2 ** (_HALF_BITS - 1)))):
        raise AggregateError(
            "a sum of integers does not fit into 64 bits",
            hint="sum a DECIMAL or a DOUBLE: sum(CAST(x AS DECIMAL(38, 0)))",
        )


def sum_decimals(values: pa.Array, groups: Groups, size: int) -> pa.Array:
    """Return the exact sums, with 38 digits; a sum that does not fit is an error, as in Spark's ANSI mode."""
    scale = values.type.scale
    sums = reduce_by_hash(values.cast(pa.decimal128(DECIMAL_DIGITS, scale)), groups, size, "sum")
    approximate = np.asarray(values.fill_null(0).cast(pa.float64()))
    rough = np.bincount(groups, weights=approximate, minlength=size)
    if np.any(np.abs(rough) >= 10.0 ** (DECIMAL_DIGITS - scale)):
        raise AggregateError(
            f"a sum of decimals does not fit into {DECIMAL_DIGITS} digits with {scale} after the point",
            hint="sum a decimal of a smaller scale, or a DOUBLE",
        )
    return sums.cast(pa.decimal128(DECIMAL_DIGITS, scale))


def sum_pairs(high: Floats, low: Floats, groups: Groups, size: int) -> tuple[Floats, Floats]:
    """Return the sums of high + low by group, as such pairs.

    The error of each addition of high parts is carried in the low part. Groups are folded in halves, so that the
    error grows with the logarithm of their sizes, and only groups of more than one row are touched.
    """
    highs = np.zeros(size)
    lows = np.zeros(size)
    highs[groups] = high
    lows[groups] = low
    rows = np.flatnonzero(np.bincount(groups, minlength=size)[groups] > 1)
    rows = rows[stable_order(groups[rows])]
    codes, high, low = groups[rows], high[rows], low[rows]
    position = _position_in_run(codes)
    with np.errstate(invalid="ignore", over="ignore"):
        while position.any():
            _fold_odd_positions(position, high, low)
            even = position & 1 == 0
            codes, high, low = codes[even], high[even], low[even]
            position = position[even] >> 1
    highs[codes] = high
    lows[codes] = low
    return highs, lows


def sum_split(high: Floats, low: Floats, groups: Groups, size: int, most: int) -> tuple[Floats, Floats]:
    """Return the sums of high + low by group, as such pairs, where each high part is a number in single precision.

    High parts of similar size are added without rounding, in any order: a sum of n numbers of 24 bits, none of which is
    smaller than the largest times 2^-29 n, fits into 53 bits. So they are added size by size, and the sums of the sizes
    as pairs: as exact as `sum_pairs` and, since numbers mostly have one or two such sizes, much faster. `most` is the
    number of rows of the largest group, not counting those whose parts are zeros.
    """
    spare_bits = _SUM_BITS - _SINGLE_BITS - most.bit_length()
    magnitudes = np.abs(high)
    largest = float(magnitudes.max(initial=0.0))
    if spare_bits < 1 or not largest <= SINGLE_LIMIT:
        return sum_pairs(high, low, groups, size)
    lows = _add_up(low, groups, size)
    if float(magnitudes.min(initial=largest)) >= _least_similar(largest, spare_bits):
        return _add_up(high, groups, size), lows
    highs = np.zeros(size)
    while largest > 0.0:
        is_similar = magnitudes >= _least_similar(largest, spare_bits)
        highs, error = two_sum(highs, _add_up(np.where(is_similar, high, 0.0), groups, size))
        lows += error
        rest = np.flatnonzero(~is_similar & (magnitudes > 0.0))
        groups, high, magnitudes = groups[rest], high[rest], magnitudes[rest]
        largest = float(magnitudes.max(initial=0.0))
    return highs, lows


def _least_similar(largest: float, spare_bits: int) -> float:
    """Return the least magnitude that can be added to the largest one without rounding."""
    return math.ldexp(1.0, math.frexp(largest)[1] - spare_bits)


def _add_up(numbers: Floats, groups: Groups, size: int) -> Floats:
    """Return the sums by group, added one number after another; whole numbers come back where there are none."""
    return np.bincount(groups, weights=numbers, minlength=size).astype(np.float64, copy=False)


def _position_in_run(codes: Groups) -> Index:
    """Return the position of each row among its equal neighbours, from 0."""
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if codes.size else codes
    return np.arange(codes.size) - np.repeat(starts, np.diff(np.r_[starts, codes.size]))


def _fold_odd_positions(position: Index, high: Floats, low: Floats) -> None:
    """Add each row of odd position to the row before it."""
    odd = np.flatnonzero(position & 1)
    total, error = two_sum(high[odd - 1], high[odd])
    high[odd - 1] = total
    low[odd - 1] += low[odd] + error


def stable_order(codes: Groups) -> Index:
    """Return the stable sorting order; codes are sorted 16 bits at a time, as numpy then sorts by radix."""
    order = np.argsort((codes & _DIGIT).astype(np.uint16), kind="stable")
    shift = _DIGIT_BITS
    while codes.size and int(codes.max()) >> shift:
        order = order[np.argsort(((codes[order] >> shift) & _DIGIT).astype(np.uint16), kind="stable")]
        shift += _DIGIT_BITS
    return order


def sorted_codes(values: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the distinct values in ascending order, NaN last, and the place of each row among them, 0 where null.

    -0.0 counts as 0.0.
    """
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 + 0.0 is 0.0
    distinct = pc.unique(values.drop_null())
    is_boolean = pa.types.is_boolean(distinct.type)
    order = pc.sort_indices(distinct.cast(pa.int8()) if is_boolean else distinct)
    ascending = distinct.take(order)
    return np.asarray(pc.index_in(values, value_set=ascending).fill_null(0)).astype(np.int64), ascending


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return Knuth's TwoSum: a + b = total + error exactly; the error of a sum that is not finite is 0."""
    total = a + b
    shadow = total - a
    error = (a - (total - shadow)) + (b - shadow)
    return total, np.where(np.isfinite(total), error, 0.0)


def extreme(values: pa.Array, groups: Groups, size: int, which: str) -> pa.Array:
    """Return the least ("min") or greatest ("max") value; NaN is greater than any other number, as in Spark."""
    if pa.types.is_signed_integer(values.type) or pa.types.is_timestamp(values.type):
        return _extreme_integer(values.cast(pa.int64()), groups, size, which).cast(values.type)
    if not pa.types.is_floating(values.type):
        return reduce_by_hash(values, groups, size, which)
    valid = valid_rows(values)
    numbers = floats_of(values)[valid] + 0.0  # + 0.0 turns -0.0 into 0.0
    valid_groups = groups[valid]
    pick: Callable[..., None] = np.fmin.at if which == "min" else np.maximum.at
    best = np.full(size, np.nan if which == "min" else -np.inf)
    with np.errstate(invalid="ignore"):
        pick(best, valid_groups, numbers)
    return nullable(best, np.bincount(valid_groups, minlength=size) == 0).cast(values.type)


def _extreme_integer(values: pa.Array, groups: Groups, size: int, which: str) -> pa.Array:
    valid = valid_rows(values)
    numbers = integers_of(values)[valid]
    valid_groups = groups[valid]
    pick: Callable[..., None] = np.minimum.at if which == "min" else np.maximum.at
    best = np.full(size, _INT64_MAX if which == "min" else ~_INT64_MAX, dtype=np.int64)
    pick(best, valid_groups, numbers)
    return nullable(best, np.bincount(valid_groups, minlength=size) == 0)


def reduce_by_hash(values: pa.Array, groups: Groups, size: int, how: str) -> pa.Array:
    """Return Arrow's own reduction `how`, for types that numpy has no loops for."""
    table = pa.table({"group": pa.array(groups, pa.int64()), "value": values})
    reduced = table.group_by("group", use_threads=False).aggregate([("value", how)])
    row_of = np.full(size, -1, dtype=np.int64)
    row_of[reduced["group"].to_numpy()] = np.arange(reduced.num_rows)
    found = reduced[f"value_{how}"].combine_chunks()
    return pc.take(found, nullable(row_of, row_of < 0))


def nullable(numbers: NDArray[np.generic], missing: Mask) -> pa.Array:
    """Return an Arrow array of the numbers, null where missing."""
    return pa.array(numbers, mask=missing if missing.any() else None)
