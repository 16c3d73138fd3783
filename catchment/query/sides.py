"""Which side of a join an expression is of, and conditions taken apart by sides.

Every relation of FROM belongs to one of the two streams: a stream to itself, a table to the stream that looks it up. On
its own side a relation has the name that it would have in a view of that stream alone, so that a side is the same
fragment as such a view's, and is shared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sqlglot import exp

from catchment.query.calls import fresh_name
from catchment.query.dialect import read_expression, render, show
from catchment.query.fragment import Lookup
from catchment.query.grouping import window_name
from catchment.query.join import LEFT, RIGHT, SIDES
from catchment.query.relations import From, conjuncts
from catchment.query.statements import Stream

SAME_WINDOW = "leave it out: records are paired within the window of GROUP BY"


@dataclass(frozen=True)
class Sides:
    """The two sides of a FROM clause."""

    read: From

    def stream(self, side: str) -> Stream:
        assert self.read.joined is not None
        return self.read.stream if side == LEFT else self.read.joined.stream

    def of(self, expression: exp.Expr) -> tuple[str, ...]:
        """The sides whose columns an expression names."""
        found = {self._side(self.read.owners[c.parts[0].name]) for c in expression.find_all(exp.Column)}
        return tuple(s for s in SIDES if s in found)

    def _side(self, stream: str) -> str:
        return LEFT if stream == self.read.stream.name else RIGHT

    @cached_property
    def local_names(self) -> Mapping[str, str]:
        """The names that relations have on their own sides, by those they have in the whole."""
        names: dict[str, str] = {}
        for side in SIDES:
            mine = [r for r, owner in self.read.owners.items() if self._side(owner) == side]
            tables = {k.alias: k.table for k in self.read.lookups}
            taken: set[str] = set()
            for relation in mine:
                names[relation] = fresh_name(tables.get(relation, self.stream(side).name), taken)
                taken.add(names[relation].lower())
        return names

    def local(self, expression: exp.Expr) -> exp.Expr:
        """An expression of one side with the names of that side."""
        made = expression.copy()
        for column in made.find_all(exp.Column):
            first = column.parts[0]
            first.replace(exp.to_identifier(self.local_names[first.name], quoted=True))
        return made

    def lookups(self, side: str) -> tuple[Lookup, ...]:
        mine = (k for k in self.read.lookups if self._side(self.read.owners[k.alias]) == side)
        return tuple(
            replace(k, alias=self.local_names[k.alias], on=render(self.local(read_expression(k.on)))) for k in mine
        )


@dataclass
class Conditions:
    """Conditions by the sides that decide them, and what pairs must agree in."""

    sides: Sides
    equal: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    of: dict[str, list[exp.Expr]] = field(default_factory=lambda: {s: [] for s in SIDES})

    def add(self, condition: exp.Expr | None, at: exp.Expr | None = None) -> Conditions:
        """Take a condition apart; a part that needs both sides and is no equality is a mistake."""
        for part in conjuncts(condition) if condition is not None else ():
            found = self.sides.of(part)
            if len(found) < len(SIDES):
                self.of[found[0] if found else LEFT].append(part)
            else:
                self.equal.append(self._equality(part, at))
        return self

    def _equality(self, part: exp.Expr, at: exp.Expr | None) -> tuple[exp.Expr, exp.Expr]:
        text, place = self.sides.read.scope.text, at if at is not None else part
        if any(window_name(node) for node in part.walk()):
            raise text.error("the condition of a join names windows", place, hint=SAME_WINDOW)
        if isinstance(part, exp.EQ):
            by_side = {self.sides.of(e): e for e in (part.left, part.right)}
            if set(by_side) == {(LEFT,), (RIGHT,)}:
                return by_side[LEFT,], by_side[RIGHT,]
        raise text.error(
            f"{show(part)} compares single records of two streams",
            place,
            hint="two streams are joined by equality, a.column = b.column; other conditions are on one stream each",
        )

    def local(self, side: str) -> Iterator[exp.Expr]:
        """The conditions of a side, in its own names."""
        return (self.sides.local(part) for part in self.of[side])

    def joint(self, side: str) -> exp.Expr | None:
        """All conditions of a side as one."""
        parts = list(self.local(side))
        return exp.and_(*parts) if parts else None
