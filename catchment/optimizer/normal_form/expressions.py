"""Expressions in their normal form: what means the same is written the same.

A *bare* expression is a parsed one without parentheses; `to_text` adds exactly those that are needed, so that two texts
differ only where the trees do. Each rule takes a bare expression and returns one that has the same value on every
record, including nulls (three-valued logic), NaN and -0.0; where that would need a type that is not known here, the
expression is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from sqlglot import exp

from catchment.query.sql.dialect import read_expression, render

# These are put in parentheses where they are operands of another operator.
_OPERATORS = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Is, exp.Case)
_MIRRORED = {
    exp.LT: exp.GT,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.NullSafeEQ: exp.NullSafeEQ,
}
_NEGATED = {exp.LT: exp.GTE, exp.GTE: exp.LT, exp.GT: exp.LTE, exp.LTE: exp.GT, exp.EQ: exp.NEQ, exp.NEQ: exp.EQ}
_INT_LIMIT = 2**31  # literals below it are INTs in Spark, and constants are folded only to INTs
_ARITHMETIC: dict[type[exp.Expr], Callable[[int, int], int]] = {
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
}
_COMPARISONS: dict[type[exp.Expr], Callable[[int, int], bool]] = {
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
}
Rule = Callable[[exp.Expr], exp.Expr]


def parse_bare(sql: str) -> exp.Expr:
    """Return the expression of a text, without parentheses."""
    return _bottom_up(read_expression(sql), lambda node: node.this.copy() if isinstance(node, exp.Paren) else node)


def to_text(expression: exp.Expr) -> str:
    """Return the one text of a bare expression."""
    return render(_bottom_up(expression, _wrap))


def _wrap(node: exp.Expr) -> exp.Expr:
    """Return an operand in parentheses, where it is an operator inside another."""
    if isinstance(node, _OPERATORS) and not isinstance(node, exp.Paren | exp.Dot) and _is_operand(node):
        return exp.Paren(this=node.copy())
    return node


def _is_operand(node: exp.Expr) -> bool:
    return isinstance(node.parent, _OPERATORS) and not isinstance(node.parent, exp.Paren | exp.Dot | exp.Case)


def fold_constants(expression: exp.Expr) -> exp.Expr:
    """Fold sums, differences, products and comparisons of whole numbers, and TRUE and FALSE in AND, OR and NOT."""
    return _bottom_up(expression, _fold)


def push_negations(expression: exp.Expr) -> exp.Expr:
    """Push NOT down to the comparisons; write BETWEEN as two comparisons, and IN of one value as an equality."""
    return _bottom_up(_expand(expression), _push_not)


def order_operands(expression: exp.Expr) -> exp.Expr:
    """Sort the operands of AND, OR, +, * and comparisons, and the values of IN, by their texts.

    In a comparison a constant stands on the right; in AND, OR and IN equal operands are one. One pass, operands first,
    since the order of operands depends on their own texts.
    """
    return _bottom_up(expression, lambda node: _order(_flip(node)))


EXPRESSION_RULES: tuple[Rule, ...] = (push_negations, fold_constants, order_operands)


@cache
def normal_text(sql: str) -> str:
    """Return the text of an expression after every rule."""
    expression = parse_bare(sql)
    for rule in EXPRESSION_RULES:
        expression = rule(expression)
    return to_text(expression)


@cache
def split_conjunctions(sql: str) -> tuple[str, ...]:
    """Return the parts of a condition in normal form that must all hold; none for TRUE."""
    parts = operands(parse_bare(sql), exp.And)
    return tuple(to_text(part) for part in parts if not _is_constant(part, True))


@cache
def columns_of(sql: str) -> frozenset[str]:
    """Return the columns that an expression reads, as texts."""
    return frozenset(render(column) for column in read_expression(sql).find_all(exp.Column))


def rename_columns(sql: str, names: dict[str, str]) -> str:
    """Return the expression with its unqualified columns renamed."""

    def rename(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and len(node.parts) == 1 and node.name in names:
            return exp.column(names[node.name], quoted=True)
        return node

    return render(read_expression(sql).transform(rename, copy=False))


def operands(expression: exp.Expr, kind: type[exp.Binary]) -> list[exp.Expr]:
    """Return the operands of a chain of one operator, of a bare expression."""
    if type(expression) is not kind:
        return [expression]
    return [*operands(expression.left, kind), *operands(expression.right, kind)]


def integer(node: exp.Expr) -> int | None:
    """Return the whole number that a node is, if it is an INT literal or the negative of one."""
    if isinstance(node, exp.Neg):
        inner = integer(node.this)
        return None if inner is None else -inner
    return int(node.this) if isinstance(node, exp.Literal) and node.is_int and not node.is_string else None


def _bottom_up(expression: exp.Expr, rule: Rule) -> exp.Expr:
    made = expression.copy()
    for node in reversed(list(made.walk())):
        new = rule(node)
        if new is not node:
            if node is made:
                made = new
            else:
                node.replace(new)
    return made


def _expand(expression: exp.Expr) -> exp.Expr:
    return _bottom_up(expression, _expand_node)


def _expand_node(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        low, high = node.args["low"], node.args["high"]
        return exp.And(
            this=exp.GTE(this=node.this.copy(), expression=low.copy()),
            expression=exp.LTE(this=node.this.copy(), expression=high.copy()),
        )
    if isinstance(node, exp.In) and len(node.expressions) == 1 and not node.args.get("query"):
        return exp.EQ(this=node.this.copy(), expression=node.expressions[0].copy())
    return node


def _push_not(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Not):
        return node
    inner = node.this
    if isinstance(inner, exp.Not):
        return inner.this.copy()  # type: ignore[no-any-return]
    if type(inner) in _NEGATED:
        return _NEGATED[type(inner)](this=inner.left.copy(), expression=inner.right.copy())
    if isinstance(inner, exp.And | exp.Or):
        other = exp.Or if isinstance(inner, exp.And) else exp.And
        left, right = (_push_not(exp.Not(this=side.copy())) for side in (inner.left, inner.right))
        return other(this=left, expression=right)
    return node


def _fold(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.And | exp.Or):
        return _fold_connector(node, isinstance(node, exp.And))
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Boolean):
        return exp.Boolean(this=not node.this.this)
    if not isinstance(node, exp.Binary):
        return node
    left, right = integer(node.left), integer(node.right)
    if left is None or right is None:
        return node
    if type(node) in _COMPARISONS:
        return exp.Boolean(this=_COMPARISONS[type(node)](left, right))
    result = _ARITHMETIC[type(node)](left, right) if type(node) in _ARITHMETIC else None
    return node if result is None or max(abs(v) for v in (left, right, result)) >= _INT_LIMIT else _number(result)


def _fold_connector(node: exp.Binary, neutral: bool) -> exp.Expr:
    """Fold x AND TRUE to x, and x AND FALSE to FALSE, whatever x is; OR likewise, with TRUE and FALSE exchanged."""
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if _is_constant(side, neutral):
            return other.copy()
        if _is_constant(side, not neutral):
            return exp.Boolean(this=not neutral)
    return node


def _is_constant(node: exp.Expr, value: bool) -> bool:
    return isinstance(node, exp.Boolean) and bool(node.this) is value


def _number(value: int) -> exp.Expr:
    literal = exp.Literal.number(abs(value))
    return exp.Neg(this=literal) if value < 0 else literal


def _flip(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Binary) or type(node) not in _MIRRORED:
        return node
    left, right = node.left, node.right
    if (_is_literal(left), to_text(left)) > (_is_literal(right), to_text(right)):
        return _MIRRORED[type(node)](this=right.copy(), expression=left.copy())
    return node


def _is_literal(node: exp.Expr) -> bool:
    return not any(True for _ in node.find_all(exp.Column))


def _order(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.In) and node.expressions:
        return exp.In(this=node.this.copy(), expressions=_sort_by_text(node.expressions, unique=True))
    for kind in (exp.And, exp.Or):
        if type(node) is kind and type(node.parent) is not kind:
            return _chain(kind, _sort_by_text(operands(node, kind), unique=True))
    if isinstance(node, exp.Add | exp.Mul) and to_text(node.left) > to_text(node.right):
        return type(node)(this=node.right.copy(), expression=node.left.copy())
    return node


def _sort_by_text(nodes: Iterable[exp.Expr], *, unique: bool) -> list[exp.Expr]:
    by_text = sorted(((to_text(n), n) for n in nodes), key=lambda pair: pair[0])
    return [n.copy() for n in (dict(by_text).values() if unique else [n for _, n in by_text])]


def _chain(kind: type[exp.Binary], parts: list[exp.Expr]) -> exp.Expr:
    made = parts[0]
    for part in parts[1:]:
        made = kind(this=made, expression=part)
    return made
