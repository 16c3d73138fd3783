"""approx_count_distinct: an HLL sketch (HLL_8).

Spark and the core must feed their sketches with the same values. Strings and integers are hashed by the sketch
itself; the sketch would skip the empty string, so it goes in as the string of one NUL. Dates and timestamps go in as
days and microseconds since the epoch, booleans as 0 and 1, floats and decimals of at most 18 digits as Spark's
`xxhash64` of their bits, with all NaN alike and -0.0 as 0.0.

The registers of an HLL depend on the set of values alone, but one that was never merged also keeps a running
estimate that depends on their order. The value is therefore always the estimate from the registers: equal
sets give equal answers, bit by bit, however they were split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import HLL_8, hll_sketch, hll_union

from catchment.aggregates.base import AggregateCall, Groups, quote
from catchment.aggregates.hashing import hash_rows
from catchment.aggregates.sketches import EMPTY_BYTES, SketchAggregate, read_sketch
from catchment.arrays import Ints
from catchment.errors import AggregateError
from catchment.storage.codec import stored

COUPON_BYTES = 4  # what a sketch of few values keeps of each
DEFAULT_LG_K = 12  # binary logarithm of the number of registers
MIN_LG_K, MAX_LG_K = 4, 21
_HASHED_DIGITS = 18  # a decimal of up to 18 digits is one 64 bit word in Spark

# In the preamble of a serialized HLL: the flags, and the mode in the lowest two bits.
_FLAGS_AT, _OUT_OF_ORDER = 5, 16
_MODE_AT, _MODE_MASK, _MODE_HLL = 7, 3, 2


@stored()
@dataclass(frozen=True)
class ApproxCountDistinct(SketchAggregate):
    """The approximate number of distinct values; 0 for none. `sketch_error` is its relative standard error."""

    lg_k: int = DEFAULT_LG_K
    suffix = "hll"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_LG_K <= self.lg_k <= MAX_LG_K:
            raise AggregateError(
                f"{self.function} takes lgK from {MIN_LG_K} to {MAX_LG_K}, and was given {self.lg_k}",
                where=self.name,
            )
        _check_type(self.argument_type, self.name)

    @classmethod
    def from_call(cls, call: AggregateCall) -> ApproxCountDistinct:
        """Make the aggregate of a call; a second argument is lgK if it is whole, a relative deviation if below 1."""
        lg_k = lg_k_of(call.parameters[0], call.name) if call.parameters else DEFAULT_LG_K
        return cls(*call.head, lg_k)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    @property
    def sketch_error(self) -> float:
        bounds = (
            abs(float(hll_sketch.get_rel_err(upper, True, self.lg_k, deviations))) / deviations
            for upper in (False, True)
            for deviations in (1, 2, 3)
        )
        return max(bounds)

    @property
    def takes_counts(self) -> bool:
        return True

    def size_bytes(self, values: float) -> float:
        return min(EMPTY_BYTES + COUPON_BYTES * values, EMPTY_BYTES + float(2**self.lg_k))

    def lift_counted(self, values: pa.Array, counts: Ints, groups: Groups, size: int) -> list[pa.Array]:
        return self.lift(values, groups, size)  # a value counts once however often it comes

    def lift_sql(self) -> tuple[str, ...]:
        return (f"hll_sketch_agg({_sketch_input_sql(f'({self.argument})', self.argument_type)}, {self.lg_k})",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"hll_union_agg({quote(self.states[0].name)})",)

    def prepare(self, values: pa.Array) -> pa.Array:
        return _sketch_input(values)

    def sketch(self, values: pa.Array) -> bytes:
        sketch = hll_sketch(self.lg_k, HLL_8)
        for value in values.to_pylist():
            sketch.update(value)
        return bytes(sketch.serialize_updatable())

    def merge(self, sketches: Sequence[bytes]) -> bytes:
        union = hll_union(self.lg_k)
        for state in sketches:
            union.update(read_sketch(hll_sketch.deserialize, state, self))
        return bytes(union.get_result(HLL_8).serialize_updatable())

    def estimate(self, sketch: bytes | None) -> int:
        if sketch is None:
            return 0
        read = read_sketch(hll_sketch.deserialize, mark_merged(sketch), self)
        return round(float(read.get_estimate()))


def mark_merged(sketch: bytes) -> bytes:
    """Return the sketch marked as merged, so that it is estimated from its registers alone."""
    if len(sketch) <= _MODE_AT or sketch[_MODE_AT] & _MODE_MASK != _MODE_HLL:
        return sketch
    flags = sketch[_FLAGS_AT] | _OUT_OF_ORDER
    return sketch[:_FLAGS_AT] + bytes([flags]) + sketch[_FLAGS_AT + 1 :]


def lg_k_of(parameter: object, name: str) -> int:
    """Return lgK itself, or the least lgK whose standard deviation 1.04 / sqrt(2^lgK) is at most the one given."""
    try:
        number = float(str(parameter))
    except ValueError:
        number = math.nan
    if 0 < number < 1:
        return max(math.ceil(2 * math.log2(1.04 / number)), MIN_LG_K)
    if number.is_integer():
        return int(number)
    raise AggregateError(
        f"approx_count_distinct takes lgK or a relative deviation, and was given {parameter!r}",
        where=name,
        hint=f"lgK is a whole number from {MIN_LG_K} to {MAX_LG_K}, a deviation is between 0 and 1",
    )


def _check_type(type_: pa.DataType | None, name: str) -> None:
    if pa.types.is_decimal(type_) and type_ is not None and type_.precision > _HASHED_DIGITS:
        raise AggregateError(
            f"approx_count_distinct takes decimals of at most {_HASHED_DIGITS} digits, and was given {type_}",
            where=name,
            hint="count the distinct values of CAST(x AS STRING)",
        )
    if not any(test(type_) for test in (_is_fed_directly, _is_day_or_instant, _is_hashed)):
        raise AggregateError(
            f"approx_count_distinct cannot take {type_}",
            where=name,
            hint="count the values of CAST(x AS STRING)",
        )


def _is_fed_directly(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_signed_integer(type_)
        or pa.types.is_boolean(type_)
    )


def _is_day_or_instant(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def _is_hashed(type_: pa.DataType) -> bool:
    return bool(pa.types.is_float32(type_) or pa.types.is_float64(type_) or pa.types.is_decimal(type_))


def _sketch_input_sql(x: str, type_: pa.DataType | None) -> str:
    """Return the Spark SQL of the values for Spark's sketch."""
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return f"CASE WHEN {x} = '' THEN char(0) ELSE {x} END"
    if pa.types.is_date32(type_):
        return f"unix_date({x})"
    if pa.types.is_timestamp(type_):
        return f"unix_micros({x})"
    if pa.types.is_decimal(type_) and type_ is not None:
        return _hash_sql(x, f"DECIMAL({type_.precision}, {type_.scale})")
    if pa.types.is_floating(type_):
        return _hash_sql(x, "DOUBLE")
    return f"CAST({x} AS BIGINT)"


def _hash_sql(x: str, type_: str) -> str:
    return f"CASE WHEN {x} IS NOT NULL THEN xxhash64(CAST({x} AS {type_})) END"


def _sketch_input(values: pa.Array) -> pa.Array:
    """Return the values for the core's sketch, from values without nulls: the same as Spark's."""
    type_ = values.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pc.if_else(pc.equal(values, ""), "\0", values)
    if pa.types.is_date32(type_):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(type_):
        return values.cast(pa.timestamp("us", type_.tz)).cast(pa.int64())
    if pa.types.is_decimal(type_):
        return _hash_array(values)
    if pa.types.is_floating(type_):
        return _hash_array(values.cast(pa.float64()))
    return values.cast(pa.int64())


def _hash_array(values: pa.Array) -> pa.Array:
    return pa.array(hash_rows([values]).view(np.int64))
