"""The rules that translate the calls of functions to vectorised expressions. Instants are those of UTC."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from catchment.functions.installed import scalar
from catchment.query.sql.dialect import show
from catchment.query.types import TIMESTAMP, arrow_type
from catchment.vectorised.coercion import BOOLEAN, DOUBLE, NULL, TEXT, NotVectorisedError, cast, require_type
from catchment.vectorised.expressions import Constant, KernelCall, OwnCall, StructOf, VectorExpression
from catchment.vectorised.scope import InputScope

TEXT_FUNCTIONS: dict[type[exp.Expr], tuple[str, pa.DataType]] = {
    exp.Length: ("count_characters", pa.int32()),
    exp.Trim: ("trim", TEXT),
    exp.Upper: ("upper", TEXT),
    exp.Lower: ("lower", TEXT),
}
TEXT_TESTS: dict[type[exp.Expr], str] = {
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
}
INSTANT_FUNCTIONS: dict[type[exp.Expr], tuple[str, pa.DataType]] = {
    exp.Hour: ("hour", pa.int32()),
    exp.Minute: ("minute", pa.int32()),
    exp.Second: ("second", pa.int32()),
    exp.UnixMicros: ("to_micros", pa.int64()),
    exp.UnixMillis: ("to_millis", pa.int64()),
    exp.UnixSeconds: ("to_seconds", pa.int64()),
}
DAY_FUNCTIONS: dict[type[exp.Expr], str] = {exp.Year: "year", exp.Month: "month", exp.Day: "day"}
_UNITS_US = {"SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6, "DAY": 86400 * 10**6}


def convert(scope: InputScope, node: exp.Cast) -> VectorExpression:
    type_ = arrow_type(node.to)
    if type_ is None or node.args.get("format"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return cast(scope.translate(node.this), type_, node)


def text_function(scope: InputScope, node: exp.Expr) -> VectorExpression:
    if any(value for name, value in node.args.items() if name != "this"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    kernel, type_ = TEXT_FUNCTIONS[type(node)]
    return KernelCall(type_, kernel, (text_operand(scope, node.this),))


def text_test(scope: InputScope, node: exp.Expr) -> VectorExpression:
    text = Constant(TEXT, constant_text(node.expression))
    return KernelCall(BOOLEAN, TEXT_TESTS[type(node)], (text_operand(scope, node.this), text))


def join_texts(scope: InputScope, node: exp.Expr) -> VectorExpression:
    parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
    return KernelCall(TEXT, "join_texts", tuple(text_operand(scope, part) for part in parts))


def take_characters(scope: InputScope, node: exp.Substring) -> VectorExpression:
    start, length = (_constant_number(scope, node.args.get(name), node) for name in ("start", "length"))
    if start < 1 or length < 0:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    ends = Constant(pa.int64(), start - 1), Constant(pa.int64(), start - 1 + length)
    return KernelCall(TEXT, "take_characters", (text_operand(scope, node.this), *ends))


def instant_function(scope: InputScope, node: exp.Expr) -> VectorExpression:
    kernel, type_ = INSTANT_FUNCTIONS[type(node)]
    return KernelCall(type_, kernel, (require_type(scope.translate(node.this), TIMESTAMP, node),))


def day_function(scope: InputScope, node: exp.Expr) -> VectorExpression:
    inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
    return KernelCall(pa.int32(), DAY_FUNCTIONS[type(node)], (cast(_moment(scope, inner), pa.date32(), node),))


def day_of(scope: InputScope, node: exp.TsOrDsToDate) -> VectorExpression:
    return cast(_moment(scope, node.this), pa.date32(), node)


def _moment(scope: InputScope, node: exp.Expr) -> VectorExpression:
    found = scope.translate(node)
    if found.type not in (TIMESTAMP, pa.date32()) or isinstance(found, Constant):
        raise NotVectorisedError(f"{show(node)} is no day and no instant of a record")
    return found


def truncate(scope: InputScope, node: exp.TimestampTrunc) -> VectorExpression:
    unit_us = None if node.unit is None else _UNITS_US.get(node.unit.name.upper())
    value = require_type(scope.translate(node.this), TIMESTAMP, node)
    if unit_us is None or node.args.get("zone") or isinstance(value, Constant):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(TIMESTAMP, "truncate", (value, Constant(pa.int64(), unit_us)))


def round_off(scope: InputScope, node: exp.Expr) -> VectorExpression:
    if node.args.get("decimals") or node.args.get("to"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    kernel = "floor" if isinstance(node, exp.Floor) else "ceiling"
    return KernelCall(pa.int64(), kernel, (require_type(scope.translate(node.this), DOUBLE, node),))


def root(scope: InputScope, node: exp.Sqrt) -> VectorExpression:
    return KernelCall(DOUBLE, "root", (require_type(scope.translate(node.this), DOUBLE, node),))


def is_not_a_number(scope: InputScope, node: exp.IsNan) -> VectorExpression:
    found = scope.translate(node.this)
    if not pa.types.is_floating(found.type):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(BOOLEAN, "is_not_a_number", (found,))


def text_operand(scope: InputScope, node: exp.Expr) -> VectorExpression:
    return require_type(scope.translate(node), TEXT, node)


def constant_text(node: exp.Expr) -> str:
    if not (isinstance(node, exp.Literal) and node.is_string):
        raise NotVectorisedError(f"{show(node)} is no text constant")
    return str(node.this)


def _constant_number(scope: InputScope, node: exp.Expr | None, parent: exp.Expr) -> int:
    found = None if node is None else scope.translate(node)
    if not isinstance(found, Constant) or not isinstance(found.value, int):
        raise NotVectorisedError(f"{show(parent)} is left to Spark")
    return found.value


def call_own(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    """Translate the call of a function that the project has brought."""
    name = str(node.this).lower()
    declared = scalar(name)
    if declared is None:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return OwnCall(declared.returns, name, tuple(scope.translate(argument) for argument in node.expressions))


def make_struct(scope: InputScope, node: exp.Struct) -> VectorExpression:
    names = [field.this.name for field in node.expressions if isinstance(field, exp.PropertyEQ)]
    if len(names) != len(node.expressions):
        raise NotVectorisedError(f"{show(node)} has fields without names")
    values = tuple(scope.translate(field.expression) for field in node.expressions)
    if any(value.type == NULL for value in values):
        raise NotVectorisedError(f"{show(node)} has a field without a type")
    return StructOf(pa.struct(list(zip(names, (v.type for v in values), strict=True))), values)
