"""What vectorised expressions compute: one function per operation of Spark SQL, over Arrow columns.

Each gives the answer of Spark in ANSI mode for every value, or raises an error: NaN equals NaN and is greater than any
other number, -0.0 equals 0.0, null is unknown, an overflow is an error. An error says only that the batch cannot be
computed here: native Spark SQL decides what it means, and for which record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.grouped import floats_of
from catchment.errors import EngineError
from catchment.vectorised import calendar_kernels as calendar
from catchment.vectorised import number_kernels as numbers
from catchment.vectorised import text_kernels as texts
from catchment.vectorised.values import Value

Kernel = Callable[..., Value]

_DAY_US = 86_400_000_000
_WHOLE_LIMIT = 2.0**62  # beyond it a double is not cut to a whole number here: limits of types are Spark's affair


def equal(left: Value, right: Value) -> Value:
    """Return left = right."""
    if not pa.types.is_floating(left.type):
        return pc.equal(left, right)
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def differ(left: Value, right: Value) -> Value:
    """Return left <> right."""
    return pc.invert(equal(left, right))


def less(left: Value, right: Value) -> Value:
    """Return left < right."""
    if not pa.types.is_floating(left.type):
        return pc.less(left, right)
    return pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def greater(left: Value, right: Value) -> Value:
    """Return left > right."""
    return less(right, left)


def at_most(left: Value, right: Value) -> Value:
    """Return left <= right."""
    return pc.invert(less(right, left))


def at_least(left: Value, right: Value) -> Value:
    """Return left >= right."""
    return pc.invert(less(left, right))


def same(left: Value, right: Value) -> Value:
    """Return left <=> right: never null, and true for two nulls."""
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both_null, pc.coalesce(equal(left, right), pa.scalar(False)))


def add(left: Value, right: Value) -> Value:
    """Return left + right; an integer overflow is an error."""
    return pc.add_checked(left, right)


def subtract(left: Value, right: Value) -> Value:
    """Return left - right; an integer overflow is an error."""
    return pc.subtract_checked(left, right)


def multiply(left: Value, right: Value) -> Value:
    """Return left * right; an integer overflow is an error."""
    return pc.multiply_checked(left, right)


def divide(left: Value, right: Value) -> Value:
    """Return left / right of doubles; a division by zero is an error."""
    _refuse_zero(right)
    return pc.divide(left, right)


def divide_whole(left: Value, right: Value) -> Value:
    """Return left DIV right of BIGINTs."""
    _refuse_zero(right)
    return pc.divide_checked(left, right)


def larger(left: Value, right: Value) -> Value:
    """Return the greater of two values; null only if both are."""
    return pc.if_else(pc.coalesce(less(left, right), pc.is_null(left)), right, left)


def smaller(left: Value, right: Value) -> Value:
    """Return the lesser of two values; null only if both are."""
    return pc.if_else(pc.coalesce(less(right, left), pc.is_null(left)), right, left)


def remainder(left: Value, right: Value) -> Value:
    """Return left % right, with the sign of left; a division by zero is an error."""
    _refuse_zero(right)
    if pa.types.is_floating(left.type):
        return _remainder_of_floats(left, right)
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


def _remainder_of_floats(left: Value, right: Value) -> Value:
    missing = pc.or_(pc.is_null(left), pc.is_null(right))
    sides = (pc.coalesce(side, pa.scalar(1.0, side.type)) for side in (left, right))
    plain = [np.asarray(side) if isinstance(side, pa.Array) else side.as_py() for side in sides]
    with np.errstate(invalid="ignore"):
        found = np.fmod(*plain)
    if isinstance(missing, pa.Scalar):
        return pa.scalar(None if missing.as_py() else float(found), left.type)
    return pa.array(found, left.type, mask=np.asarray(missing))


def positive_remainder(left: Value, right: Value) -> Value:
    """Return pmod(left, right) of integers."""
    found = remainder(left, right)
    return pc.if_else(pc.less(found, pa.scalar(0, found.type)), remainder(pc.add_checked(found, right), right), found)


def _refuse_zero(divisor: Value) -> None:
    if pc.any(
        pc.equal(divisor, pa.scalar(0, divisor.type)) if isinstance(divisor, pa.Array) else _one(divisor)
    ).as_py():
        raise EngineError("a division by zero")


def _one(divisor: pa.Scalar) -> pa.Array:
    return pa.array([divisor.as_py() == 0])


def negate(value: Value) -> Value:
    """Return -value."""
    return pc.negate_checked(value)


def absolute(value: Value) -> Value:
    """Return abs(value)."""
    return pc.abs_checked(value)


def root(value: Value) -> Value:
    """Return sqrt(value) of doubles: NaN for negative numbers."""
    return pc.sqrt(value)


def floor(value: Value) -> Value:
    """Return floor(value) of doubles as BIGINT."""
    return _to_whole(pc.floor(value), pa.int64())


def ceiling(value: Value) -> Value:
    """Return ceil(value) of doubles as BIGINT."""
    return _to_whole(pc.ceil(value), pa.int64())


def _to_whole(value: Value, type_: pa.DataType) -> Value:
    magnitude = pc.abs(value)
    if (
        not pc.min(pc.less(magnitude, pa.scalar(_WHOLE_LIMIT, value.type))).as_py()
        and pc.any(pc.is_valid(value)).as_py()
    ):
        raise EngineError("a number is too large for a whole number")
    return value.cast(type_)


def negation(value: Value) -> Value:
    """Return NOT value."""
    return pc.invert(value)


def is_null(value: Value) -> Value:
    """Return value IS NULL."""
    return pc.is_null(value)


def is_not_a_number(value: Value) -> Value:
    """Return isnan(value): false for null, as in Spark."""
    return pc.coalesce(pc.is_nan(value), pa.scalar(False))


def widen(value: Value, type_: pa.DataType) -> Value:
    """Return an integer as a wider one, or a decimal with more digits."""
    return value.cast(type_)


def narrow(value: Value, type_: pa.DataType) -> Value:
    """Return an integer as a narrower one; one that does not fit is an error."""
    return value.cast(type_)


def to_double(value: Value, type_: pa.DataType) -> Value:
    """Return a number as the nearest DOUBLE."""
    if pa.types.is_decimal(value.type):
        column = value if isinstance(value, pa.Array) else pa.array([value.as_py()], value.type)
        doubles = pa.array(floats_of(column), mask=np.asarray(column.is_null()))
        return doubles if isinstance(value, pa.Array) else doubles[0]
    return value.cast(type_, safe=False)


def to_single(value: Value, type_: pa.DataType) -> Value:
    """Return a number as the nearest FLOAT."""
    return value.cast(type_, safe=False)


def cut_to_whole(value: Value, type_: pa.DataType) -> Value:
    """Return a DOUBLE without its digits after the point, as an integer."""
    return _to_whole(pc.trunc(value), type_)


def to_text(value: Value, type_: pa.DataType) -> Value:
    """Return an integer or a BOOLEAN as its text."""
    return value.cast(type_)


def to_bit(value: Value, type_: pa.DataType) -> Value:
    """Return a BOOLEAN as 0 or 1."""
    return value.cast(pa.int8()).cast(type_)


def to_instant(value: Value, type_: pa.DataType) -> Value:
    """Return the instant at which a day begins in UTC."""
    return pc.multiply_checked(value.cast(pa.int32()).cast(pa.int64()), _DAY_US).cast(type_)


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        kernel.__name__: kernel
        for kernel in (
            equal,
            differ,
            less,
            greater,
            at_most,
            at_least,
            same,
            add,
            subtract,
            multiply,
            divide,
            divide_whole,
            larger,
            smaller,
            remainder,
            positive_remainder,
            negate,
            absolute,
            root,
            floor,
            ceiling,
            negation,
            is_null,
            is_not_a_number,
            calendar.to_micros,
            calendar.to_millis,
            calendar.to_seconds,
            calendar.hour,
            calendar.minute,
            calendar.second,
            calendar.year,
            calendar.month,
            calendar.day,
            calendar.truncate,
            calendar.from_seconds,
            calendar.from_millis,
            calendar.from_micros,
            calendar.day_of_week,
            calendar.weekday,
            calendar.day_of_year,
            calendar.week_of_year,
            calendar.quarter,
            calendar.add_days,
            calendar.count_days,
            calendar.first_day,
            texts.count_characters,
            texts.trim,
            texts.upper,
            texts.lower,
            texts.join_texts,
            texts.take_characters,
            texts.starts_with,
            texts.ends_with,
            texts.contains,
            texts.octets,
            texts.trim_left,
            texts.trim_right,
            texts.last_characters,
            texts.reverse_text,
            texts.replace_text,
            texts.join_known_texts,
            texts.matches,
            texts.matches_any_case,
            numbers.round_half_up,
            numbers.sign_of,
            numbers.both_bits,
            numbers.either_bits,
            numbers.differing_bits,
            numbers.other_bits,
        )
    }
)
CASTS: Mapping[str, Kernel] = MappingProxyType(
    {
        cast.__name__: cast
        for cast in (
            widen,
            narrow,
            to_double,
            to_single,
            cut_to_whole,
            to_text,
            to_bit,
            calendar.to_day,
            to_instant,
        )
    }
)
# Operations that are an error for some values, and those that are only for integers.
FALLIBLE = frozenset(
    [
        "divide",
        "divide_whole",
        "remainder",
        "positive_remainder",
        "from_seconds",
        "from_millis",
        "add_days",
        "count_days",
        "matches_any_case",
        "floor",
        "ceiling",
        "upper",
        "lower",
        "narrow",
        "cut_to_whole",
        "to_instant",
    ]
)
OVERFLOWING = frozenset(["add", "subtract", "multiply", "negate", "absolute"])
