"""Reference data: the slow-changing tables that say which devices meet, and their join on one machine.

The join reads tables from left to right; a table that is tied to earlier ones by equalities is looked up in
an index, and every other condition is checked as soon as its tables are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.forms.expression import Evaluate, Slots
from catchment.feeds.language.expressions import compile_expression
from catchment.feeds.language.functions import Functions
from catchment.query.sql.dialect import conjuncts, read_expression

Row = tuple[Any, ...]


@dataclass(frozen=True)
class ReferenceData:
    """Rows per reference table, in the order of its declared columns; `devices` lists all known ones."""

    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    devices: tuple[Any, ...] | None = None  # None: every device that a table names is known

    def rows(self, table: str, width: int) -> Sequence[Row]:
        found = self.tables.get(table)
        if found is None:
            raise FeedError(f"no rows are given for the reference table {table!r}", hint="an empty list is possible")
        for number, row in enumerate(found):
            if len(row) != width:
                raise FeedError(f"row {number} of {table!r} has {len(row)} values, expected {width}: {row!r}")
        return found


@dataclass(frozen=True)
class AliasedTable:
    """A table under an alias, ready to be joined."""

    alias: str
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True)
class _Step:
    """How one relation joins those before it: by index when keys are given, then checks."""

    relation: AliasedTable
    outer: tuple[Evaluate, ...]
    positions: tuple[int, ...]
    checks: tuple[Evaluate, ...]

    def extend(self, partials: Iterable[Slots]) -> Iterator[Slots]:
        index: dict[Row, list[Row]] = {}
        for row in self.relation.rows:
            index.setdefault(tuple(row[p] for p in self.positions), []).append(row)
        for partial in partials:
            for row in index.get(tuple(key(partial) for key in self.outer), ()):
                joined = (*partial, row)
                if all(check(joined) is True for check in self.checks):
                    yield joined


def layout_of(relations: Sequence[AliasedTable]) -> dict[str, tuple[int, int]]:
    """Return where each "alias.column" lives in a joined row."""
    return {f"{r.alias}.{c}": (slot, at) for slot, r in enumerate(relations) for at, c in enumerate(r.columns)}


def join(relations: Sequence[AliasedTable], condition: str | None, functions: Functions) -> Iterator[Slots]:
    """Return the joined rows for which the condition is TRUE, one slot per relation."""
    terms = list(conjuncts(read_expression(condition))) if condition else []
    layout = layout_of(relations)
    partials: Iterator[Slots] = iter([()])
    for number, relation in enumerate(relations):
        ready = {r.alias for r in relations[: number + 1]}
        due = [t for t in terms if {c.table for c in t.find_all(exp.Column)} <= ready]
        terms = [t for t in terms if t not in due]
        partials = _step(relation, due, layout, functions).extend(partials)
    return partials


def _step(
    relation: AliasedTable, due: list[exp.Expr], layout: Mapping[str, tuple[int, int]], functions: Functions
) -> _Step:
    outer = []
    positions = []
    checks = []
    for term in due:
        sides = _split_equality(term, relation.alias)
        if sides is None:
            checks.append(compile_expression(term, layout, functions))
        else:
            outer.append(compile_expression(sides[0], layout, functions))
            positions.append(layout[f"{relation.alias}.{sides[1].name}"][1])
    return _Step(relation, tuple(outer), tuple(positions), tuple(checks))


def _split_equality(term: exp.Expr, alias: str) -> tuple[exp.Column, exp.Column] | None:
    """Return (column of an earlier relation, column of this one) when the term is such an equality."""
    if not (isinstance(term, exp.EQ) and isinstance(term.left, exp.Column) and isinstance(term.right, exp.Column)):
        return None
    sides = sorted((term.left, term.right), key=lambda c: c.table == alias)
    return (sides[0], sides[1]) if sides[1].table == alias != sides[0].table else None
