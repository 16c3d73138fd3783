"""The types of vectorised expressions, and the conversions between them: those of Spark in ANSI mode.

Integers widen to the wider of two; with a DOUBLE every number is a DOUBLE; a number with a point is a decimal constant,
which is taken only where it is compared with a decimal column of as many digits or meets a DOUBLE.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from catchment.errors import QueryError
from catchment.query.sql.dialect import show
from catchment.query.types import TIMESTAMP, sql_type
from catchment.vectorised.expressions import Constant, KernelCall, VectorExpression

BOOLEAN = pa.bool_()
TEXT = pa.string()
DOUBLE = pa.float64()
NULL = pa.null()
_INT_LIMIT, _BIGINT_LIMIT = 2**31, 2**63
_INSTANT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")


class NotVectorisedError(QueryError):
    """Something that the vectorised evaluator leaves to native Spark SQL; the message says what."""


def require_type(found: VectorExpression, type_: pa.DataType, node: exp.Expr) -> VectorExpression:
    """Return an operand that must be of a type."""
    if found.type != type_:
        raise NotVectorisedError(f"{show(node)} is {type_name(found.type)}, and {type_name(type_)} is needed")
    return found


def is_plain(type_: pa.DataType) -> bool:
    """Return whether values of a type are single values whose order and equality are those of Spark."""
    return type_ in (TEXT, TIMESTAMP, pa.date32(), BOOLEAN, pa.float32(), DOUBLE) or (
        is_whole(type_) or isinstance(type_, pa.Decimal128Type)
    )


def unify(values: list[VectorExpression], node: exp.Expr) -> list[VectorExpression]:
    """Return the values with the one type that Spark gives them."""
    types = {v.type for v in values if v.type != NULL}
    if not types:
        raise NotVectorisedError(f"{show(node)} has no type")
    if len(types) == 1:
        type_ = types.pop()
    elif all(is_whole(t) for t in types):
        type_ = max(types, key=lambda t: t.bit_width)
    elif DOUBLE in types and all(is_whole(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in types):
        type_ = DOUBLE
    else:
        named = " and ".join(sorted(type_name(t) for t in types))
        raise NotVectorisedError(f"{show(node)} mixes {named}")
    return [cast(value, type_, node) for value in values]


def cast(value: VectorExpression, type_: pa.DataType, node: exp.Expr) -> VectorExpression:
    """Return the value as Spark's CAST to a type gives it."""
    if value.type == type_:
        return value
    if isinstance(value, Constant):
        return _cast_constant(value, type_, node)
    kernel = _cast_kernel(value.type, type_)
    if kernel is None:
        raise NotVectorisedError(f"CAST of {type_name(value.type)} to {type_name(type_)} is left to Spark")
    return KernelCall(type_, kernel, (value,))


def _cast_kernel(source: pa.DataType, target: pa.DataType) -> str | None:
    if is_whole(source):
        if is_whole(target):
            return "widen" if target.bit_width > source.bit_width else "narrow"
        return {DOUBLE: "to_double", pa.float32(): "to_single", TEXT: "to_text"}.get(target)
    if isinstance(source, pa.Decimal128Type):
        if isinstance(target, pa.Decimal128Type):
            has_room = target.precision - target.scale >= source.precision - source.scale
            return "widen" if has_room and target.scale >= source.scale else None
        return "to_double" if target == DOUBLE else None
    if source == DOUBLE and target in (pa.int32(), pa.int64()):
        return "cut_to_whole"
    if source == BOOLEAN and (is_whole(target) or target == TEXT):
        return "to_text" if target == TEXT else "to_bit"
    kernels = {
        (pa.float32(), DOUBLE): "to_double",
        (DOUBLE, pa.float32()): "to_single",
        (TIMESTAMP, pa.date32()): "to_day",
        (pa.date32(), TIMESTAMP): "to_instant",
    }
    return kernels.get((source, target))


def _cast_constant(constant: Constant, type_: pa.DataType, node: exp.Expr) -> VectorExpression:
    value = constant.value
    if value is None:
        return Constant(type_, None)
    if isinstance(value, int) and not isinstance(value, bool) and is_whole(type_):
        if -(2 ** (type_.bit_width - 1)) <= value < 2 ** (type_.bit_width - 1):
            return Constant(type_, value)
    elif isinstance(value, int | Decimal) and not isinstance(value, bool) and type_ == DOUBLE:
        return Constant(type_, float(value))
    elif isinstance(value, str) and type_ in (TIMESTAMP, pa.date32()):
        return Constant(type_, _read_moment(value, type_))
    raise NotVectorisedError(f"{show(node)} is left to Spark")


def _read_moment(text: str, type_: pa.DataType) -> dt.date | dt.datetime:
    found = _INSTANT.fullmatch(text)
    is_day = type_ == pa.date32()
    if found is None or (is_day and found[4] is not None):
        raise NotVectorisedError(f"the moment {text!r} is left to Spark")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    micros = int((found[7] or "").ljust(6, "0"))
    try:
        if is_day:
            return dt.date(year, month, day)
        return dt.datetime(year, month, day, hour, minute, second, micros, dt.UTC)
    except ValueError as error:
        raise NotVectorisedError(f"the moment {text!r} is left to Spark") from error


def fit_constant(value: VectorExpression, other: VectorExpression) -> VectorExpression:
    """Return a constant as the type of what it is compared with, where that does not change the comparison."""
    if not isinstance(value, Constant) or isinstance(other, Constant):
        return value
    if isinstance(value.value, str) and other.type in (TIMESTAMP, pa.date32()):
        if other.type == pa.date32() and _INSTANT.fullmatch(value.value) is None:
            return value
        return Constant(other.type, _read_moment(value.value, other.type))
    if isinstance(other.type, pa.Decimal128Type) and isinstance(value.value, int | Decimal):
        number = Decimal(value.value)
        scale = max(-int(number.as_tuple().exponent), 0)
        if scale <= other.type.scale and abs(number) < Decimal(10) ** (other.type.precision - other.type.scale):
            return Constant(other.type, number)
    return value


def whole_constant(value: int, node: exp.Expr) -> Constant:
    """Return a whole number as the constant that Spark reads: an INT, or a BIGINT where it does not fit."""
    if not -_BIGINT_LIMIT < value < _BIGINT_LIMIT:
        raise NotVectorisedError(f"the number {show(node)} is left to Spark")
    return Constant(pa.int32() if -_INT_LIMIT < value < _INT_LIMIT else pa.int64(), value)


def whole_operand(value: VectorExpression, node: exp.Expr) -> VectorExpression:
    """Return an operand that must be an integer."""
    if not is_whole(value.type):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return value


def number_type(value: VectorExpression, node: exp.Expr) -> pa.DataType:
    """Return the type of an operand that must be an integer or a floating number."""
    if not (is_whole(value.type) or pa.types.is_floating(value.type)):
        raise NotVectorisedError(f"{show(node)} computes with {type_name(value.type)}")
    return value.type


def is_whole(type_: pa.DataType) -> bool:
    """Return whether a type is one of integers."""
    return bool(pa.types.is_signed_integer(type_))


def type_name(type_: pa.DataType) -> str:
    """Return the SQL name of a type."""
    return "NULL" if type_ == NULL else sql_type(type_)
