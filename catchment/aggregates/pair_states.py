"""States over pairs: what a join makes of the states of its two sides.

When every record of a group is paired with n records of another stream, an aggregate over the pairs sees each record n
times. Laws:

    repeat(state, n)      = combine(state, state, ... n times)
    multiply(left, right) = the state of x * y over all pairs of an x of the left and a y of the right

and n = 0 gives the state of no records. Counts, integers and decimals are exact, extremes and HLL sketches do not
change, doubles are within 1e-12. Sketches of ranks and of frequencies have no such law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate
from catchment.aggregates.bits import Bits
from catchment.aggregates.bounded_sets import BoundedSet
from catchment.aggregates.covariation import Covariation
from catchment.aggregates.distinct import ApproxCountDistinct
from catchment.aggregates.grouped import DECIMAL_DIGITS, floats_of, nullable, valid_rows
from catchment.aggregates.histogram import Histogram
from catchment.aggregates.shape import Shape
from catchment.aggregates.simple import Average, Count, Extreme, Sum
from catchment.aggregates.spread import RawMoments, Spread
from catchment.aggregates.totals import split_doubles
from catchment.aggregates.value_by import ValueBy
from catchment.arrays import Ints, Mask
from catchment.errors import AggregateError

_INT64_DIGITS = 19  # digits of the largest 64 bit integer
_WIDE_DIGITS = 76  # digits of Arrow's widest decimal
_UNCHANGED = (
    Extreme,
    ApproxCountDistinct,
    BoundedSet,
    ValueBy,
)  # what does not change when records come more than once
_CENTRAL = (Spread, Shape, Covariation)  # a number of records, means, and sums of distances from these
_COMPARISONS = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<>": pc.not_equal,
    "=": pc.equal,
}


def can_repeat(aggregate: Aggregate) -> bool:
    """Return whether the law of `repeat` holds for an aggregate."""
    return isinstance(aggregate, (*_UNCHANGED, *_CENTRAL, Count, Sum, RawMoments, Bits, Histogram))


def repeat(aggregate: Aggregate, states: Sequence[pa.Array], times: Ints) -> list[pa.Array]:
    """Return the states of each row, as if its records were there `times` times."""
    assert can_repeat(aggregate), aggregate
    if isinstance(aggregate, _UNCHANGED):
        return [_null_where(times == 0, state) for state in states]
    if isinstance(aggregate, _CENTRAL):
        return [_repeat_central(s.name, state, times) for s, state in zip(aggregate.states, states, strict=True)]
    if isinstance(aggregate, Bits):
        return [_repeat_bits(aggregate, states[0], times)]
    if isinstance(aggregate, Histogram):
        return [_repeat_count(state, times) for state in states]
    repeated = [_repeat_total(state, times) for state in states]
    return [
        r.fill_null(0) if s.name.endswith("__count") else r for s, r in zip(aggregate.states, repeated, strict=True)
    ]


def no_records(aggregate: Aggregate, rows: int) -> list[pa.Array]:
    """Return the states of rows that no record counts for."""
    return repeat(aggregate, [pa.nulls(rows, s.type) for s in aggregate.states], np.zeros(rows, dtype=np.int64))


def multiply(aggregate: Aggregate, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the states of a sum or an average of products, from those of the factors."""
    assert isinstance(aggregate, Sum), aggregate
    if isinstance(aggregate, Average):
        *sums, count = left
        *others, counted = right
        return [*_product(sums, others), _repeat_count(count, np.asarray(counted.fill_null(0)))]
    return _product(left, right)


def _product(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> list[pa.Array]:
    if len(left) == 1:
        return [_multiply(left[0], right[0])]
    missing = ~(valid_rows(left[0]) & valid_rows(right[0]))
    with np.errstate(invalid="ignore", over="ignore"):
        upper, lower = split_doubles(
            (floats_of(left[0]) + floats_of(left[1])) * (floats_of(right[0]) + floats_of(right[1]))
        )
    return [nullable(upper, missing), nullable(lower, missing)]


def _repeat_total(state: pa.Array, times: Ints) -> pa.Array:
    """Return a total or a count `times` times; null where that is 0 times."""
    if pa.types.is_decimal(state.type):
        return _repeat_decimals(_null_where(times == 0, state), times)
    if pa.types.is_integer(state.type):
        return _multiply(_null_where(times == 0, state), pa.array(times))
    with np.errstate(invalid="ignore", over="ignore"):
        return nullable(floats_of(state) * times, ~valid_rows(state) | (times == 0))


def _repeat_decimals(state: pa.Array, times: Ints) -> pa.Array:
    wide = state.cast(pa.decimal256(_WIDE_DIGITS - _INT64_DIGITS - 1, state.type.scale))
    product = pc.multiply(wide, pa.array(times).cast(pa.decimal256(_INT64_DIGITS, 0)))
    try:
        return product.cast(pa.decimal128(DECIMAL_DIGITS, state.type.scale))
    except pa.ArrowInvalid as cause:
        raise AggregateError(
            f"a sum over pairs does not fit into {DECIMAL_DIGITS} digits with {state.type.scale} after the point",
            hint="sum a decimal of a smaller scale, or a DOUBLE",
        ) from cause


def _repeat_count(count: pa.Array, times: Ints) -> pa.Array:
    return _multiply(count.fill_null(0), pa.array(times))


def _repeat_central(name: str, state: pa.Array, times: Ints) -> pa.Array:
    if name.endswith("__n"):
        return _repeat_count(state, times)
    is_mean = "__mean" in name
    with np.errstate(invalid="ignore"):
        return _means(state, times) if is_mean else pa.array(np.where(times == 0, 0.0, floats_of(state) * times))


def _repeat_bits(aggregate: Bits, bits: pa.Array, times: Ints) -> pa.Array:
    """Return bits as they are; those that an odd number of integers have vanish where integers come in pairs."""
    kept = _null_where(times == 0, bits)
    if aggregate.function != "bit_xor":
        return kept
    zeros = pc.multiply(kept, pa.scalar(0, kept.type))
    return pc.if_else(pa.array(times % 2 == 0), zeros, kept)


def _means(mean: pa.Array, times: Ints) -> pa.Array:
    return pa.array(np.where(times == 0, 0.0, floats_of(mean)))


def _null_where(missing: Mask, state: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(missing), pa.scalar(None, state.type), state) if missing.any() else state


def _multiply(left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        return pc.multiply_checked(left, right)
    except pa.ArrowInvalid as cause:
        raise AggregateError(
            "a sum or a count over pairs does not fit into 64 bits",
            hint="sum a DECIMAL or a DOUBLE: sum(CAST(x AS DECIMAL(38, 0)))",
        ) from cause


def compare(left: pa.Array, operator: str, right: pa.Array) -> pa.Array:
    """Return where a comparison of two columns certainly holds, row by row.

    As in Spark, a null compares with nothing, and NaN equals NaN and is above all else.
    """
    if pa.types.is_floating(left.type):
        left, right = _ranks(left, right)
    elif pa.types.is_boolean(left.type):
        left, right = left.cast(pa.int8()), right.cast(pa.int8())
    return _COMPARISONS[operator](left, right).fill_null(False)


def _ranks(left: pa.Array, right: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return whole numbers in the order of two columns of floats."""
    both = pa.concat_arrays([left, right.cast(left.type)])
    whole = pc.if_else(pc.is_nan(both), pa.scalar(None, both.type), pc.add(both, pa.scalar(0.0, both.type)))
    distinct = pc.unique(whole.drop_null())
    order = distinct.take(pc.sort_indices(distinct))
    known = pc.index_in(whole, value_set=order)
    ranks = pc.if_else(pc.is_nan(both), pa.scalar(len(order), pa.int32()), known)
    return ranks.slice(0, len(left)), ranks.slice(len(left))
