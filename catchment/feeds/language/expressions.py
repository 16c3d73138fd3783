"""Scalar SQL expressions for devices, as trees that any language can evaluate, and for Spark.

A device has no Spark, so the predicates and projections of its views are trees made from the same parsed SQL that
Spark runs at the cloud. Invariant: for every supported node both give the same value, NULL included (see
`forms/expression.py`).

A tree is evaluated over *slots*, a tuple of tuples; a `Layout` says where each column lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.forms.expression import Evaluate, Tree, compile_tree
from catchment.feeds.language.functions import Functions
from catchment.query.sql.dialect import read_expression, show, write_expression

Layout = Mapping[str, tuple[int, int]]  # "alias.column" -> (slot, position in it)

Rename = Callable[[exp.Column], exp.Expr]


# Operations that take the same arguments in SQL as in a tree.
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.Neg: "neg",
    exp.Not: "not",
    exp.Abs: "abs",
    exp.Coalesce: "coalesce",
    exp.Least: "least",
    exp.Greatest: "greatest",
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


def sql_to_tree(sql: str | None, layout: Layout, functions: Functions) -> Tree:
    """Return the tree of an expression in SQL text; no expression is always TRUE."""
    return True if sql is None else _TreeBuilder(layout, functions).build(read_expression(sql))


def compile_sql(sql: str | None, layout: Layout, functions: Functions) -> Evaluate:
    """Return a closure for an expression in SQL text; no expression is always TRUE."""
    return compile_tree(sql_to_tree(sql, layout, functions), functions)


def compile_expression(node: exp.Expr, layout: Layout, functions: Functions) -> Evaluate:
    """Return a closure that evaluates a parsed expression over slots."""
    return compile_tree(_TreeBuilder(layout, functions).build(node), functions)


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


class _TreeBuilder:
    """Turns one parsed expression into a tree; each kind of node that differs in the two has one method."""

    def __init__(self, layout: Layout, functions: Functions) -> None:
        self.layout = layout
        self.functions = functions

    def build(self, node: exp.Expr) -> Tree:
        name = _OPERATORS.get(type(node))
        if name is not None:
            return (name, *(self.build(c) for c in node.iter_expressions()))
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotEvaluableError(node)
        return method(node)

    def _column(self, node: exp.Column) -> Tree:
        return ("at", *self.layout[column_name(node)])

    def _literal(self, node: exp.Literal) -> Tree:
        value = node.to_py()
        return value if isinstance(value, int | str) else float(value)

    def _boolean(self, node: exp.Boolean) -> Tree:
        return bool(node.this)

    def _null(self, node: exp.Null) -> Tree:
        return None

    def _paren(self, node: exp.Paren) -> Tree:
        return self.build(node.this)

    def _and(self, node: exp.And) -> Tree:
        return ("and", *(self.build(part) for part in node.flatten()))

    def _or(self, node: exp.Or) -> Tree:
        return ("or", *(self.build(part) for part in node.flatten()))

    def _between(self, node: exp.Between) -> Tree:
        value = self.build(node.this)
        return ("and", (">=", value, self.build(node.args["low"])), ("<=", value, self.build(node.args["high"])))

    def _in(self, node: exp.In) -> Tree:
        if not node.expressions:
            raise NotEvaluableError(node)
        return ("in", self.build(node.this), *(self.build(e) for e in node.expressions))

    def _is(self, node: exp.Is) -> Tree:
        if not isinstance(node.expression, exp.Null | exp.Boolean):
            raise NotEvaluableError(node)
        return ("is", self.build(node.this), self.build(node.expression))

    def _case(self, node: exp.Case) -> Tree:
        if node.this is not None:
            raise NotEvaluableError(node)
        arms = [part for i in node.args["ifs"] for part in (self.build(i.this), self.build(i.args["true"]))]
        otherwise = node.args.get("default")
        return ("case", *arms, self.build(otherwise) if otherwise is not None else None)

    def _anonymous(self, node: exp.Anonymous) -> Tree:
        name = node.name.lower()
        if name not in self.functions:
            raise NotEvaluableError(node)
        return ("call", name, *(self.build(a) for a in node.expressions))
