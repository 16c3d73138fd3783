"""What vectorised expressions compute: one function per operation of Spark SQL, over Arrow columns.

Each gives the answer of Spark in ANSI mode for every value, or raises an error: NaN equals NaN and is greater than any
other number, -0.0 equals 0.0, null is unknown, an overflow is an error. An error says only that the batch cannot be
computed here: native Spark SQL decides what it means, and for which record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.grouped import floats_of
from catchment.errors import EngineError

Value: TypeAlias = "pa.Array | pa.Scalar"  # a column, or one value for all records
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


def remainder(left: Value, right: Value) -> Value:
    """Return left % right of integers, with the sign of left."""
    _refuse_zero(right)
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


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


def to_day(value: Value, type_: pa.DataType) -> Value:
    """Return the day of an instant in UTC."""
    return _on_micros(value, lambda micros: micros // _DAY_US).cast(pa.int32()).cast(type_)


def to_instant(value: Value, type_: pa.DataType) -> Value:
    """Return the instant at which a day begins in UTC."""
    return pc.multiply_checked(value.cast(pa.int32()).cast(pa.int64()), _DAY_US).cast(type_)


def to_micros(value: Value) -> Value:
    """Return unix_micros(value)."""
    return value.cast(pa.int64())


def to_millis(value: Value) -> Value:
    """Return unix_millis(value), rounded down."""
    return _on_micros(value, lambda micros: micros // 1_000)


def to_seconds(value: Value) -> Value:
    """Return unix_seconds(value), rounded down."""
    return _on_micros(value, lambda micros: micros // 1_000_000)


def hour(value: Value) -> Value:
    """Return the hour of an instant in UTC."""
    return _on_micros(value, lambda micros: micros // 3_600_000_000 % 24).cast(pa.int32())


def minute(value: Value) -> Value:
    """Return the minute of an instant."""
    return _on_micros(value, lambda micros: micros // 60_000_000 % 60).cast(pa.int32())


def second(value: Value) -> Value:
    """Return the second of an instant."""
    return _on_micros(value, lambda micros: micros // 1_000_000 % 60).cast(pa.int32())


def year(value: Value) -> Value:
    """Return the year of a day."""
    return pc.year(value).cast(pa.int32())


def month(value: Value) -> Value:
    """Return the month of a day."""
    return pc.month(value).cast(pa.int32())


def day(value: Value) -> Value:
    """Return the day of the month of a day."""
    return pc.day(value).cast(pa.int32())


def truncate(value: Value, unit_us: Value) -> Value:
    """Return an instant cut to whole units of this many microseconds."""
    unit: int = unit_us.as_py()
    return _on_micros(value, lambda micros: micros // unit * unit).cast(value.type)


def _on_micros(value: Value, compute: Callable[[np.ndarray], np.ndarray]) -> Value:
    """Return what is computed of whole numbers of microseconds or days; null stays null."""
    assert isinstance(value, pa.Array), "instants that are constants are not computed with"
    whole = value.cast(pa.int64())
    missing = np.asarray(whole.is_null()) if whole.null_count else None
    return pa.array(compute(np.asarray(whole.fill_null(0) if whole.null_count else whole)), mask=missing)


def count_characters(value: Value) -> Value:
    """Return length(value): characters, not bytes."""
    return pc.utf8_length(value)


def trim(value: Value) -> Value:
    """Return the text without spaces at its ends."""
    return pc.utf8_trim(value, characters=" ")


def upper(value: Value) -> Value:
    """Return upper(value) of texts in ASCII."""
    _refuse_other_letters(value)
    return pc.ascii_upper(value)


def lower(value: Value) -> Value:
    """Return lower(value) of texts in ASCII."""
    _refuse_other_letters(value)
    return pc.ascii_lower(value)


def _refuse_other_letters(value: Value) -> None:
    if pc.all(pc.string_is_ascii(value)).as_py() is False:
        raise EngineError("letters beyond ASCII have rules of their own in Spark")


def join_texts(*values: Value) -> Value:
    """Return concat(values): null where one of them is."""
    return pc.binary_join_element_wise(*values, "")


def take_characters(value: Value, start: Value, stop: Value) -> Value:
    """Return the characters [start, stop) of a text."""
    return pc.utf8_slice_codeunits(value, start.as_py(), stop.as_py())


def starts_with(value: Value, text: Value) -> Value:
    """Return whether a text starts with another."""
    return pc.starts_with(value, text.as_py())


def ends_with(value: Value, text: Value) -> Value:
    """Return whether a text ends with another."""
    return pc.ends_with(value, text.as_py())


def contains(value: Value, text: Value) -> Value:
    """Return whether a text contains another."""
    return pc.match_substring(value, text.as_py())


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
            remainder,
            negate,
            absolute,
            root,
            floor,
            ceiling,
            negation,
            is_null,
            is_not_a_number,
            to_micros,
            to_millis,
            to_seconds,
            hour,
            minute,
            second,
            year,
            month,
            day,
            truncate,
            count_characters,
            trim,
            upper,
            lower,
            join_texts,
            take_characters,
            starts_with,
            ends_with,
            contains,
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
            to_day,
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
