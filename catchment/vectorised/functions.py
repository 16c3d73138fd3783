"""The rules that translate the calls of functions to vectorised expressions. Instants are those of UTC."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from catchment.functions.installed import scalar
from catchment.query.sql.dialect import show
from catchment.query.types import TIMESTAMP, arrow_type
from catchment.vectorised.coercion import (
    BOOLEAN,
    DOUBLE,
    NULL,
    TEXT,
    NotVectorisedError,
    cast,
    is_whole,
    number_type,
    require_type,
    unify,
)
from catchment.vectorised.expressions import Choice, Constant, KernelCall, OwnCall, StructOf, VectorExpression
from catchment.vectorised.number_kernels import MAX_ROUND_DIGITS
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.scope import InputScope, Rule
from catchment.vectorised.text_kernels import END_OF_TEXT

TEXT_FUNCTIONS: dict[type[exp.Expr], tuple[str, pa.DataType]] = {
    exp.Length: ("count_characters", pa.int32()),
    exp.Reverse: ("reverse_text", TEXT),
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
DAY_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.Quarter: "quarter",
    exp.DayOfWeek: "day_of_week",
    exp.DayOfYear: "day_of_year",
    exp.WeekOfYear: "week_of_year",
}
_DAY_UNITS = ("WEEK", "MONTH", "QUARTER", "YEAR")
_PARTS: dict[str, type[exp.Expr]] = {
    "YEAR": exp.Year,
    "QUARTER": exp.Quarter,
    "MONTH": exp.Month,
    "WEEK": exp.WeekOfYear,
    "DAY": exp.Day,
    "DAYOFWEEK": exp.DayOfWeek,
    "DOW": exp.DayOfWeek,
    "DOY": exp.DayOfYear,
    "HOUR": exp.Hour,
    "MINUTE": exp.Minute,
}
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
    start = _constant_number(scope, node.args.get("start"), node)
    given = node.args.get("length")
    length = END_OF_TEXT - start if given is None else _constant_number(scope, given, node)
    if start < 1 or length < 0:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return _slice_text(scope, node.this, start - 1, start - 1 + length)


def _slice_text(scope: InputScope, node: exp.Expr, start: int, stop: int) -> VectorExpression:
    ends = Constant(pa.int64(), start), Constant(pa.int64(), stop)
    return KernelCall(TEXT, "take_characters", (text_operand(scope, node), *ends))


def take_end(scope: InputScope, node: exp.Left | exp.Right) -> VectorExpression:
    """Translate `left` and `right`."""
    count = _constant_number(scope, node.expression, node)
    if isinstance(node, exp.Left) or count < 1:
        return _slice_text(scope, node.this, 0, max(count, 0))
    return KernelCall(TEXT, "last_characters", (text_operand(scope, node.this), Constant(pa.int64(), count)))


def trim(scope: InputScope, node: exp.Trim) -> VectorExpression:
    if node.args.get("expression") or node.args.get("collation"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    kernel = {"LEADING": "trim_left", "TRAILING": "trim_right"}.get(node.args.get("position") or "", "trim")
    return KernelCall(TEXT, kernel, (text_operand(scope, node.this),))


def replace_text(scope: InputScope, node: exp.Replace) -> VectorExpression:
    searched = constant_text(node.expression)
    replacement = "" if node.args.get("replacement") is None else constant_text(node.args["replacement"])
    if not searched:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    texts = Constant(TEXT, searched), Constant(TEXT, replacement)
    return KernelCall(TEXT, "replace_text", (text_operand(scope, node.this), *texts))


def join_known_texts(scope: InputScope, node: exp.ConcatWs) -> VectorExpression:
    separator, *parts = node.expressions
    texts = tuple(text_operand(scope, part) for part in parts)
    if not texts:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(TEXT, "join_known_texts", (Constant(TEXT, constant_text(separator)), *texts))


def instant_function(scope: InputScope, node: exp.Expr) -> VectorExpression:
    kernel, type_ = INSTANT_FUNCTIONS[type(node)]
    return KernelCall(type_, kernel, (require_type(scope.translate(node.this), TIMESTAMP, node),))


def day_function(scope: InputScope, node: exp.Expr) -> VectorExpression:
    return KernelCall(pa.int32(), DAY_FUNCTIONS[type(node)], (_day(scope, node.this, node),))


def _day(scope: InputScope, node: exp.Expr, parent: exp.Expr) -> VectorExpression:
    """Return the day of a day or an instant."""
    inner = node.this if isinstance(node, exp.TsOrDsToDate) else node
    return cast(_moment(scope, inner), pa.date32(), parent)


def add_days(scope: InputScope, node: exp.TsOrDsAdd) -> VectorExpression:
    """Translate `date_add` and `date_sub`."""
    if node.unit is not None and node.unit.name.upper() != "DAY":
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    days = Constant(pa.int32(), _constant_number(scope, node.expression, node))
    return KernelCall(pa.date32(), "add_days", (_day(scope, node.this, node), days))


def count_days(scope: InputScope, node: exp.DateDiff) -> VectorExpression:
    if node.args.get("unit"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    ends = _day(scope, node.this, node), _day(scope, node.expression, node)
    return KernelCall(pa.int32(), "count_days", ends)


def first_day(scope: InputScope, node: exp.DateTrunc) -> VectorExpression:
    """Translate `trunc` of days."""
    name = constant_text(node.args["unit"]).upper()
    unit = {"YYYY": "YEAR", "YY": "YEAR", "MON": "MONTH", "MM": "MONTH"}.get(name, name)
    if unit not in _DAY_UNITS or node.args.get("zone"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(pa.date32(), "first_day", (_day(scope, node.this, node), Constant(TEXT, unit)))


def extract(scope: InputScope, node: exp.Extract) -> VectorExpression:
    return _part_of(scope, node.this.name, node.expression, node)


def _part_of(scope: InputScope, part: str, moment: exp.Expr, node: exp.Expr) -> VectorExpression:
    """Translate a part of a moment that has a function of its own."""
    function = _PARTS.get(part.upper())
    if function is None:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return scope.translate(function(this=moment.copy()))


def day_of(scope: InputScope, node: exp.TsOrDsToDate) -> VectorExpression:
    return cast(_moment(scope, node.this), pa.date32(), node)


def _moment(scope: InputScope, node: exp.Expr) -> VectorExpression:
    found = scope.translate(node)
    if found.type not in (TIMESTAMP, pa.date32()) or isinstance(found, Constant):
        raise NotVectorisedError(f"{show(node)} is no day and no instant of a record")
    return found


def truncate(scope: InputScope, node: exp.TimestampTrunc) -> VectorExpression:
    unit = "" if node.unit is None else node.unit.name.upper()
    if unit in _DAY_UNITS and not node.args.get("zone"):
        first = KernelCall(pa.date32(), "first_day", (_day(scope, node.this, node), Constant(TEXT, unit)))
        return cast(first, TIMESTAMP, node)
    unit_us = _UNITS_US.get(unit)
    value = require_type(scope.translate(node.this), TIMESTAMP, node)
    if unit_us is None or node.args.get("zone") or isinstance(value, Constant):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(TIMESTAMP, "truncate", (value, Constant(pa.int64(), unit_us)))


def round_off(scope: InputScope, node: exp.Expr) -> VectorExpression:
    if node.args.get("decimals") or node.args.get("to"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    kernel = "floor" if isinstance(node, exp.Floor) else "ceiling"
    return KernelCall(pa.int64(), kernel, (require_type(scope.translate(node.this), DOUBLE, node),))


def round_half_up(scope: InputScope, node: exp.Round) -> VectorExpression:
    """Translate `round` of numbers whose rounded values have the same type."""
    given = node.args.get("decimals")
    digits = 0 if given is None else _constant_number(scope, given, node)
    found = scope.translate(node.this)
    if not 0 <= digits <= MAX_ROUND_DIGITS or node.args.get("truncate"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    if is_whole(found.type) and not isinstance(found, Constant):
        return found
    return KernelCall(DOUBLE, "round_half_up", (require_type(found, DOUBLE, node), Constant(pa.int64(), digits)))


def sign_of(scope: InputScope, node: exp.Sign) -> VectorExpression:
    found = scope.translate(node.this)
    if number_type(found, node) == pa.float32() or isinstance(found, Constant):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(DOUBLE, "sign_of", (cast(found, DOUBLE, node),))


def known_number(scope: InputScope, node: exp.Nanvl) -> VectorExpression:
    """Translate `nanvl`."""
    value, other = (require_type(scope.translate(n), DOUBLE, node) for n in (node.this, node.expression))
    return Choice(DOUBLE, ((KernelCall(BOOLEAN, "is_not_a_number", (value,)), other),), value)


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
    if found is not None and not found.reads and not isinstance(found, OwnCall):
        value = found.compute(RecordColumns({}, 0))
        if is_whole(value.type) and isinstance(value, pa.Scalar) and value.is_valid:
            return int(value.as_py())
    raise NotVectorisedError(f"{show(parent)} is left to Spark")


def call_named(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    """Translate the call of a function that the project has brought, or of one that has no form of its own."""
    name = str(node.this).lower()
    declared = scalar(name)
    if declared is not None:
        return OwnCall(declared.returns, name, tuple(scope.translate(argument) for argument in node.expressions))
    if name in _NAMED and len(node.expressions) == _NAMED[name][0]:
        return _NAMED[name][1](scope, node)
    raise NotVectorisedError(f"{show(node)} is left to Spark")


def _is_null(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    return KernelCall(BOOLEAN, "is_null", (scope.translate(node.expressions[0]),))


def _is_known(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    return KernelCall(BOOLEAN, "negation", (_is_null(scope, node),))


def _octets(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    return KernelCall(pa.int32(), "octets", (text_operand(scope, node.expressions[0]),))


def _weekday(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    return KernelCall(pa.int32(), "weekday", (_day(scope, node.expressions[0], node),))


def _date_part(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    part, moment = node.expressions
    return _part_of(scope, constant_text(part), moment, node)


def _positive_remainder(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
    left, right = unify([scope.translate(side) for side in node.expressions], node)
    if not is_whole(left.type):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(left.type, "positive_remainder", (left, right))


def _instant_from(kernel: str) -> Rule:
    def translate(scope: InputScope, node: exp.Anonymous) -> VectorExpression:
        found = scope.translate(node.expressions[0])
        if not is_whole(found.type) or isinstance(found, Constant):
            raise NotVectorisedError(f"{show(node)} is left to Spark")
        return KernelCall(TIMESTAMP, kernel, (found,))

    return translate


# Functions that are parsed without a form of their own: how many arguments they have, and their rules.
_NAMED: dict[str, tuple[int, Rule]] = {
    "isnull": (1, _is_null),
    "isnotnull": (1, _is_known),
    "octet_length": (1, _octets),
    "weekday": (1, _weekday),
    "date_part": (2, _date_part),
    "datepart": (2, _date_part),
    "pmod": (2, _positive_remainder),
    "timestamp_seconds": (1, _instant_from("from_seconds")),
    "timestamp_millis": (1, _instant_from("from_millis")),
    "timestamp_micros": (1, _instant_from("from_micros")),
}


def make_struct(scope: InputScope, node: exp.Struct) -> VectorExpression:
    names = [field.this.name for field in node.expressions if isinstance(field, exp.PropertyEQ)]
    if len(names) != len(node.expressions):
        raise NotVectorisedError(f"{show(node)} has fields without names")
    values = tuple(scope.translate(field.expression) for field in node.expressions)
    if any(value.type == NULL for value in values):
        raise NotVectorisedError(f"{show(node)} has a field without a type")
    return StructOf(pa.struct(list(zip(names, (v.type for v in values), strict=True))), values)
