"""Scalar SQL expressions on a device: compiled to Python closures, with SQL's NULL.

A device has no Spark, so the predicates and projections of its views are compiled from the same parsed SQL
that Spark runs at the cloud. Invariant: for every supported node both give the same value, NULL included
(comparisons and arithmetic of NULL are NULL, AND and OR are three-valued, a division by zero is NULL).

A compiled expression is called with *slots*, a tuple of tuples; a `Layout` says where each column lives.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.language.functions import Functions
from catchment.query.sql.dialect import read_expression, show, write_expression

Slots = tuple[tuple[Any, ...], ...]
Evaluate = Callable[[Slots], Any]
Layout = Mapping[str, tuple[int, int]]  # "alias.column" -> (slot, position in it)

Operation = Callable[..., Any]
Rename = Callable[[exp.Column], exp.Expr]


def _divide(left: float, right: float) -> float | None:
    return left / right if right else None


def _remainder(left: float, right: float) -> float | None:
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return int(math.copysign(abs(left) % abs(right), left))
    return math.fmod(left, right)


# What is NULL where an argument is.
_STRICT: dict[type[exp.Expr], Operation] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: _divide,
    exp.Mod: _remainder,
    exp.Neg: operator.neg,
    exp.Not: operator.not_,
    exp.Abs: abs,
}

POSSIBLE = (
    "columns, literals, + - * / %, comparisons, AND, OR, NOT, BETWEEN, IN (list), IS NULL, CASE, "
    "abs, coalesce, least, greatest and registered functions"
)


class NotEvaluableError(FeedError):
    """A device cannot evaluate this node of an expression."""

    def __init__(self, node: exp.Expr) -> None:
        super().__init__(f"found {show(node)!r}, which a device cannot evaluate; possible: {POSSIBLE}")
        self.node = node


def conjunction(terms: list[exp.Expr]) -> str | None:
    """Return terms joined by AND as normalised SQL; None where there are none."""
    return " AND ".join(sorted({_in_parentheses(t) for t in terms})) if terms else None


def _in_parentheses(term: exp.Expr) -> str:
    text = write_expression(term)
    return f"({text})" if isinstance(term, exp.Or) else text


def column_name(column: exp.Column) -> str:
    """Return 'alias.column' of a qualified column."""
    return f"{column.table}.{column.name}"


def compile_sql(sql: str | None, layout: Layout, functions: Functions) -> Evaluate:
    """Return a closure for an expression in SQL text; no expression is always TRUE."""
    if sql is None:
        return lambda slots: True
    return compile_expression(read_expression(sql), layout, functions)


def compile_expression(node: exp.Expr, layout: Layout, functions: Functions) -> Evaluate:
    """Return a closure that evaluates a parsed expression over slots."""
    return _Compiler(layout, functions).compile(node)


def to_spark(sql: str | None, functions: Functions, column: Rename) -> str:
    """Return an expression as Spark SQL, with columns replaced by `column` and functions in their native form."""
    if sql is None:
        return "true"
    return write_expression(_spark(read_expression(sql), functions, column))


def _spark(node: exp.Expr, functions: Functions, column: Rename) -> exp.Expr:
    def rewrite(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return column(part)
        if isinstance(part, exp.Div | exp.Mod):
            part.set("expression", exp.Nullif(this=part.expression, expression=exp.Literal.number(0)))
        if isinstance(part, exp.Anonymous):
            arguments = [write_expression(_spark(a, functions, column)) for a in part.expressions]
            return read_expression(functions[part.name.lower()].to_spark(arguments))
        return part

    if isinstance(node, exp.Anonymous):
        return rewrite(node)
    copied = node.copy()
    for child in list(copied.iter_expressions()):
        child.replace(_spark(child, functions, column))
    return rewrite(copied)


class _Compiler:
    """Compiles one expression; each kind of node has one method."""

    def __init__(self, layout: Layout, functions: Functions) -> None:
        self.layout = layout
        self.functions = functions

    def compile(self, node: exp.Expr) -> Evaluate:
        operation = _STRICT.get(type(node))
        if operation is not None:
            return _strict(operation, [self.compile(c) for c in node.iter_expressions()])
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotEvaluableError(node)
        evaluate: Evaluate = method(node)
        return evaluate

    def _column(self, node: exp.Column) -> Evaluate:
        slot, position = self.layout[column_name(node)]
        return lambda slots: slots[slot][position]

    def _literal(self, node: exp.Literal) -> Evaluate:
        value = node.to_py()
        constant = float(value) if not isinstance(value, int | str) else value
        return lambda slots: constant

    def _boolean(self, node: exp.Boolean) -> Evaluate:
        value = bool(node.this)
        return lambda slots: value

    def _null(self, node: exp.Null) -> Evaluate:
        return lambda slots: None

    def _paren(self, node: exp.Paren) -> Evaluate:
        return self.compile(node.this)

    def _and(self, node: exp.And) -> Evaluate:
        left = self.compile(node.left)
        right = self.compile(node.right)

        def evaluate(slots: Slots) -> bool | None:
            first = left(slots)
            if first is False:
                return False
            second = right(slots)
            if second is False:
                return False
            return None if first is None or second is None else True

        return evaluate

    def _or(self, node: exp.Or) -> Evaluate:
        left = self.compile(node.left)
        right = self.compile(node.right)

        def evaluate(slots: Slots) -> bool | None:
            first = left(slots)
            if first is True:
                return True
            second = right(slots)
            if second is True:
                return True
            return None if first is None or second is None else False

        return evaluate

    def _between(self, node: exp.Between) -> Evaluate:
        low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
        high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
        return self._and(exp.And(this=low, expression=high))

    def _in(self, node: exp.In) -> Evaluate:
        if not node.expressions:
            raise NotEvaluableError(node)
        value = self.compile(node.this)
        choices = [self.compile(e) for e in node.expressions]

        def evaluate(slots: Slots) -> bool | None:
            found = value(slots)
            options = [choice(slots) for choice in choices]
            if found is None:
                return None
            if found in [o for o in options if o is not None]:
                return True
            return None if None in options else False

        return evaluate

    def _is(self, node: exp.Is) -> Evaluate:
        value = self.compile(node.this)
        wanted = self.compile(node.expression)
        return lambda slots: value(slots) is wanted(slots)

    def _coalesce(self, node: exp.Coalesce) -> Evaluate:
        parts = [self.compile(p) for p in node.iter_expressions()]
        return lambda slots: next((v for p in parts if (v := p(slots)) is not None), None)

    def _least(self, node: exp.Least) -> Evaluate:
        return self._extreme(node, min)

    def _greatest(self, node: exp.Greatest) -> Evaluate:
        return self._extreme(node, max)

    def _extreme(self, node: exp.Expr, choose: Operation) -> Evaluate:
        parts = [self.compile(p) for p in node.iter_expressions()]
        return lambda slots: choose((v for p in parts if (v := p(slots)) is not None), default=None)

    def _case(self, node: exp.Case) -> Evaluate:
        if node.this is not None:
            raise NotEvaluableError(node)
        arms = [(self.compile(i.this), self.compile(i.args["true"])) for i in node.args["ifs"]]
        otherwise = self.compile(node.args["default"]) if node.args.get("default") else lambda slots: None

        def evaluate(slots: Slots) -> Any:
            chosen = next((value for condition, value in arms if condition(slots) is True), otherwise)
            return chosen(slots)

        return evaluate

    def _anonymous(self, node: exp.Anonymous) -> Evaluate:
        function = self.functions.get(node.name.lower())
        if function is None:
            raise NotEvaluableError(node)
        return _strict(function.python, [self.compile(a) for a in node.expressions])


def _strict(operation: Operation, parts: list[Evaluate]) -> Evaluate:
    """Return a call that is NULL when an argument is."""

    def evaluate(slots: Slots) -> Any:
        values = [p(slots) for p in parts]
        return None if None in values else operation(*values)

    return evaluate
