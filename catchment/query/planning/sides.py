"""The two sides of a join: to which side an expression belongs, and conditions split by sides.

Every relation of FROM belongs to one stream: a stream to itself, a table to the stream that looks it up. The right side
of a join is one stream, the left one has all streams that were joined before. At its own sites a relation has the name
that it would have in a view of its stream alone, so that a side has the same fragment as such a view, and is shared
with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sqlglot import exp

from catchment.query.fragment import Lookup
from catchment.query.join import LEFT, RIGHT, SIDES, TURNED
from catchment.query.planning.calls import fresh_name
from catchment.query.planning.from_clause import FromClause, StreamJoin
from catchment.query.planning.grouping import window_name
from catchment.query.planning.scope import VALUE_OF, infer_type
from catchment.query.sql.dialect import CatchmentSpark, conjuncts, read_expression, render, show
from catchment.query.types import sql_type

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
# What is null where one of its operands is.
_STRICT: tuple[type[exp.Expr], ...] = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Like, exp.ILike, *_OPERATORS)
SAME_WINDOW = "leave it out: records are paired within the window of GROUP BY"


@dataclass(frozen=True)
class JoinSides:
    """The two sides of one join of a FROM clause."""

    read: FromClause
    joined: StreamJoin

    def of(self, expression: exp.Expr) -> tuple[str, ...]:
        """Return the sides whose columns an expression names."""
        found = {self._value_side(node) for node in expression.walk()}
        return tuple(s for s in SIDES if s in found)

    def _value_side(self, node: exp.Expr) -> str | None:
        """Return the side that a node is a value of: a column, or a value of a subquery, which may be a constant."""
        if isinstance(node, exp.Column):
            return self._side(self.read.owners[node.parts[0].name])
        return self._side(node.meta[VALUE_OF]) if VALUE_OF in node.meta else None

    def without(self, side: str, expression: exp.Expr) -> exp.Expr | None:
        """Return an expression with nulls for all values of a side; None where the whole is then certainly null."""
        made = expression.copy().transform(lambda node: _null_of(node) if self._value_side(node) == side else node)
        return None if is_null(made) else made

    def _side(self, stream: str) -> str:
        return RIGHT if stream == self.joined.canonical else LEFT


@dataclass(frozen=True)
class StreamNames:
    """The names that relations have in the fragments of their streams, by their names in the whole view."""

    read: FromClause

    @cached_property
    def names(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        tables = {k.alias: k.table for k in self.read.lookups}
        for canonical, stream in self.read.streams.items():
            taken: set[str] = set()
            for relation in (r for r, owner in self.read.owners.items() if owner == canonical):
                found[relation] = fresh_name(tables.get(relation, stream.name), taken)
                taken.add(found[relation].lower())
        return found

    def local(self, expression: exp.Expr) -> exp.Expr:
        """Return an expression of one stream with the names of its fragment."""
        made = expression.copy()
        for column in made.find_all(exp.Column):
            first = column.parts[0]
            first.replace(exp.to_identifier(self.names[first.name], quoted=True))
        return made

    def lookups(self, canonical: str) -> tuple[Lookup, ...]:
        """Return the look-ups of a stream."""
        mine = (k for k in self.read.lookups if self.read.owners[k.alias] == canonical)
        return tuple(replace(k, alias=self.names[k.alias], on=render(self.local(read_expression(k.on)))) for k in mine)


@dataclass
class JoinConditions:
    """Conditions by the sides that decide them, and the expressions that are compared between sides."""

    sides: JoinSides
    equal: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    compared: list[tuple[exp.Expr, str, exp.Expr]] = field(default_factory=list)  # left, operator, right
    of: dict[str, list[exp.Expr]] = field(default_factory=lambda: {s: [] for s in SIDES})

    def add(self, condition: exp.Expr | None, at: exp.Expr | None = None) -> JoinConditions:
        """Split a condition by sides; a part that needs both sides must compare a value of each, or it is refused."""
        for part in _parts(condition):
            found = self.sides.of(part)
            if len(found) < len(SIDES):
                self.of[found[0] if found else LEFT].append(part)
            else:
                self._compare(part, at)
        return self

    def _compare(self, part: exp.Expr, at: exp.Expr | None) -> None:
        text = self.sides.read.scope.text
        place = at if at is not None else part
        if any(window_name(node) for node in part.walk()):
            raise text.error("the condition of a join names windows", place, hint=SAME_WINDOW)
        operator = _OPERATORS.get(type(part))
        both = [self.sides.of(e) for e in (part.this, part.expression)] if operator else []
        if operator is None or sorted(both) != [(LEFT,), (RIGHT,)]:
            raise text.error(
                f"{show(part)} is about single pairs of records",
                place,
                hint="of two streams write a.column = b.column, or another comparison of the two; the rest on one each",
            )
        turned = both[0] == (RIGHT,)
        left, right = (part.expression, part.this) if turned else (part.this, part.expression)
        if operator == "=":
            self.equal.append((left, right))
        else:
            self.compared.append((left, TURNED[operator] if turned else operator, right))


def is_null(expression: exp.Expr) -> bool:
    """Return whether an expression is certainly null; False where that does not show."""
    if isinstance(expression, exp.Null):
        return True
    if isinstance(expression, exp.Cast | exp.Paren | exp.Neg | exp.Not | exp.Between | exp.In | exp.Dot):
        return is_null(expression.this)
    if isinstance(expression, exp.Struct):
        return all(is_null(field.expression) for field in expression.expressions)
    return isinstance(expression, _STRICT) and (is_null(expression.this) or is_null(expression.expression))


def _null_of(value: exp.Expr) -> exp.Expr:
    """Return a null of the type of a value."""
    type_ = infer_type(value.copy())
    return exp.null() if type_ is None else exp.cast(exp.null(), sql_type(type_), dialect=CatchmentSpark)


def _parts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield the parts of a condition that must all hold; BETWEEN is two."""
    for part in conjuncts(condition):
        if isinstance(part, exp.Between) and not part.args.get("symmetric"):
            yield exp.GTE(this=part.this.copy(), expression=part.args["low"].copy())
            yield exp.LTE(this=part.this.copy(), expression=part.args["high"].copy())
        else:
            yield part
