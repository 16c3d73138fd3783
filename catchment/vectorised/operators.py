"""The rules that translate columns, constants, operators and choices to vectorised expressions."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from catchment.query.sql.dialect import show
from catchment.vectorised.coercion import (
    BOOLEAN,
    DOUBLE,
    NULL,
    TEXT,
    NotVectorisedError,
    cast,
    fit_constant,
    is_plain,
    is_whole,
    number_type,
    require_type,
    type_name,
    unify,
    whole_constant,
    whole_operand,
)
from catchment.vectorised.expressions import Choice, Connective, Constant, InputColumn, KernelCall, VectorExpression
from catchment.vectorised.functions import constant_text, text_operand
from catchment.vectorised.scope import InputScope

MAX_LISTED = 100  # values of an IN
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "equal",
    exp.NEQ: "differ",
    exp.LT: "less",
    exp.LTE: "at_most",
    exp.GT: "greater",
    exp.GTE: "at_least",
    exp.NullSafeEQ: "same",
    exp.EqualNull: "same",
}
ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}
BIT_OPERATIONS: dict[type[exp.Expr], str] = {
    exp.BitwiseAnd: "both_bits",
    exp.BitwiseOr: "either_bits",
    exp.BitwiseXor: "differing_bits",
}


def column(scope: InputScope, node: exp.Column) -> VectorExpression:
    parts = [part.name for part in node.parts]
    if parts[:-1] not in ([], [scope.relation]) or parts[-1] not in scope.columns.names:
        raise NotVectorisedError(f"{show(node)} is no plain column of {scope.relation}")
    type_ = scope.columns.field(parts[-1]).type
    if not is_plain(type_):
        raise NotVectorisedError(f"{show(node)} is {type_name(type_)}")
    return InputColumn(type_, parts[-1])


def literal(scope: InputScope, node: exp.Literal) -> VectorExpression:
    text = str(node.this)
    if node.is_string:
        return Constant(TEXT, text)
    if re.fullmatch(r"\d+", text):
        return whole_constant(int(text), node)
    if re.fullmatch(r"\d*\.\d+|\d+\.", text):
        number = Decimal(text)
        digits = len(number.as_tuple().digits)
        scale = -int(number.as_tuple().exponent)
        if max(digits, scale) <= 38:
            return Constant(pa.decimal128(max(digits, scale), scale), number)
    elif re.fullmatch(r"(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text):
        return Constant(DOUBLE, float(text))
    raise NotVectorisedError(f"the number {text} is left to Spark")


def negative(scope: InputScope, node: exp.Neg) -> VectorExpression:
    if isinstance(node.this, exp.Literal) and re.fullmatch(r"\d+", str(node.this.this)):
        return whole_constant(-int(node.this.this), node)
    found = scope.translate(node.this)
    if isinstance(found, Constant) and isinstance(found.value, Decimal | float):
        return Constant(found.type, -found.value)
    return KernelCall(number_type(found, node), "negate", (found,))


def absolute(scope: InputScope, node: exp.Abs) -> VectorExpression:
    found = scope.translate(node.this)
    return KernelCall(number_type(found, node), "absolute", (found,))


def compare(scope: InputScope, node: exp.Expr) -> VectorExpression:
    left, right = scope.translate(node.this), scope.translate(node.expression)
    return compare_values(COMPARISONS[type(node)], left, right, node)


def compare_values(kernel: str, left: VectorExpression, right: VectorExpression, node: exp.Expr) -> VectorExpression:
    left, right = fit_constant(left, right), fit_constant(right, left)
    left, right = unify([left, right], node)
    if not is_plain(left.type):
        raise NotVectorisedError(f"{show(node)} compares {type_name(left.type)}")
    return KernelCall(BOOLEAN, kernel, (left, right))


def between(scope: InputScope, node: exp.Between) -> VectorExpression:
    if node.args.get("symmetric"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    value = scope.translate(node.this)
    low = compare_values("at_least", value, scope.translate(node.args["low"]), node)
    high = compare_values("at_most", value, scope.translate(node.args["high"]), node)
    return Connective(BOOLEAN, low, high, is_and=True)


def one_of(scope: InputScope, node: exp.In) -> VectorExpression:
    if not 0 < len(node.expressions) <= MAX_LISTED or node.args.get("query"):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    value = scope.translate(node.this)
    values = [scope.translate(listed) for listed in node.expressions]
    if len({v.type for v in values}) > 1:
        raise NotVectorisedError(f"{show(node)} lists values of several types")
    found = compare_values("equal", value, values[0], node)
    for other in values[1:]:
        found = Connective(BOOLEAN, found, compare_values("equal", value, other, node), is_and=False)
    return found


def arithmetic(scope: InputScope, node: exp.Binary) -> VectorExpression:
    left, right = unify([scope.translate(node.left), scope.translate(node.right)], node)
    return KernelCall(number_type(left, node), ARITHMETIC[type(node)], (left, right))


def divide(scope: InputScope, node: exp.Div) -> VectorExpression:
    left, right = scope.translate(node.left), scope.translate(node.right)
    if not (is_whole(left.type) and is_whole(right.type)):
        left, right = unify([left, right], node)
        require_type(left, DOUBLE, node)
    return KernelCall(DOUBLE, "divide", (cast(left, DOUBLE, node), cast(right, DOUBLE, node)))


def divide_whole(scope: InputScope, node: exp.IntDiv) -> VectorExpression:
    sides = [cast(whole_operand(scope.translate(s), node), pa.int64(), node) for s in (node.left, node.right)]
    return KernelCall(pa.int64(), "divide_whole", tuple(sides))


def remainder(scope: InputScope, node: exp.Mod) -> VectorExpression:
    left, right = unify([scope.translate(node.left), scope.translate(node.right)], node)
    return KernelCall(number_type(left, node), "remainder", (left, right))


def bits(scope: InputScope, node: exp.Binary) -> VectorExpression:
    left, right = unify([scope.translate(node.left), scope.translate(node.right)], node)
    return KernelCall(whole_operand(left, node).type, BIT_OPERATIONS[type(node)], (left, right))


def other_bits(scope: InputScope, node: exp.BitwiseNot) -> VectorExpression:
    found = whole_operand(scope.translate(node.this), node)
    return KernelCall(found.type, "other_bits", (found,))


def extreme(scope: InputScope, node: exp.Greatest | exp.Least) -> VectorExpression:
    """Translate `greatest` and `least`."""
    kernel = "larger" if isinstance(node, exp.Greatest) else "smaller"
    found, *others = unify([scope.translate(n) for n in (node.this, *node.expressions)], node)
    if not is_plain(found.type) or found.type == BOOLEAN:
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    for other in others:
        found = KernelCall(found.type, kernel, (found, other))
    return found


def connect(scope: InputScope, node: exp.Connector) -> VectorExpression:
    left, right = scope.condition(node.left), scope.condition(node.right)
    return Connective(BOOLEAN, left, right, is_and=isinstance(node, exp.And))


def negation(scope: InputScope, node: exp.Not) -> VectorExpression:
    return KernelCall(BOOLEAN, "negation", (scope.condition(node.this),))


def test(scope: InputScope, node: exp.Is) -> VectorExpression:
    if isinstance(node.expression, exp.Boolean):
        return KernelCall(BOOLEAN, "same", (scope.condition(node.this), scope.translate(node.expression)))
    if not isinstance(node.expression, exp.Null):
        raise NotVectorisedError(f"{show(node)} is left to Spark")
    return KernelCall(BOOLEAN, "is_null", (scope.translate(node.this),))


def like(scope: InputScope, node: exp.Like) -> VectorExpression:
    pattern = _pattern(node)
    inner = pattern.strip("%")
    if any(c in inner for c in "%_") or not inner:
        return KernelCall(BOOLEAN, "matches", (text_operand(scope, node.this), Constant(TEXT, pattern)))
    if not (pattern.startswith("%") or pattern.endswith("%")):
        return compare_values("equal", scope.translate(node.this), Constant(TEXT, inner), node)
    kernel = "contains"
    if not pattern.startswith("%"):
        kernel = "starts_with"
    elif not pattern.endswith("%"):
        kernel = "ends_with"
    return KernelCall(BOOLEAN, kernel, (text_operand(scope, node.this), Constant(TEXT, inner)))


def like_any_case(scope: InputScope, node: exp.ILike) -> VectorExpression:
    pattern = _pattern(node)
    if not pattern.isascii():
        raise NotVectorisedError(f"the pattern {pattern!r} is left to Spark")
    return KernelCall(BOOLEAN, "matches_any_case", (text_operand(scope, node.this), Constant(TEXT, pattern)))


def _pattern(node: exp.Like | exp.ILike) -> str:
    pattern = constant_text(node.expression)
    if "\\" in pattern or node.args.get("escape"):
        raise NotVectorisedError(f"the pattern {pattern!r} is left to Spark")
    return pattern


def case(scope: InputScope, node: exp.Case) -> VectorExpression:
    conditions = []
    for branch in node.args["ifs"]:
        if node.this is None:
            conditions.append(scope.condition(branch.this))
        else:
            tested = scope.translate(node.this), scope.translate(branch.this)
            conditions.append(compare_values("equal", *tested, branch))
    values = [scope.translate(branch.args["true"]) for branch in node.args["ifs"]]
    default = node.args.get("default")
    return _choose(scope, conditions, values, _or_null(scope, default), node)


def one_if(scope: InputScope, node: exp.If) -> VectorExpression:
    otherwise = _or_null(scope, node.args.get("false"))
    return _choose(scope, [scope.condition(node.this)], [scope.translate(node.args["true"])], otherwise, node)


def first_known(scope: InputScope, node: exp.Coalesce) -> VectorExpression:
    values = unify([scope.translate(n) for n in (node.this, *node.expressions)], node)
    found = values[-1]
    for value in reversed(values[:-1]):
        is_known = KernelCall(BOOLEAN, "negation", (KernelCall(BOOLEAN, "is_null", (value,)),))
        found = Choice(found.type, ((is_known, value),), found)
    return found


def either(scope: InputScope, node: exp.Nvl2) -> VectorExpression:
    """Translate `nvl2`: the second value where the first is known, else the third."""
    is_null = KernelCall(BOOLEAN, "is_null", (scope.translate(node.this),))
    is_known = KernelCall(BOOLEAN, "negation", (is_null,))
    values = [scope.translate(node.args["true"])]
    return _choose(scope, [is_known], values, _or_null(scope, node.args.get("false")), node)


def null_if(scope: InputScope, node: exp.Nullif) -> VectorExpression:
    value = scope.translate(node.this)
    equal = compare_values("equal", value, scope.translate(node.expression), node)
    return Choice(value.type, ((equal, Constant(value.type, None)),), value)


def _or_null(scope: InputScope, node: exp.Expr | None) -> VectorExpression:
    return Constant(NULL, None) if node is None else scope.translate(node)


def _choose(
    scope: InputScope,
    conditions: list[VectorExpression],
    values: list[VectorExpression],
    otherwise: VectorExpression,
    node: exp.Expr,
) -> VectorExpression:
    *chosen, default = unify([*values, otherwise], node)
    return Choice(default.type, tuple(zip(conditions, chosen, strict=True)), default)
