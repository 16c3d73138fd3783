"""A view over more than two inputs, as a chain of views over two.

The chain follows FROM: its first part joins everything up to the second input, each further part adds one input and
the tables before it. So a table must stand before, or directly after, the inputs that it ties; a condition is checked
by the first part that has all its columns. A part passes on the columns that later parts read, under the names
`alias__column`, and the time of each event that it joined.

Events meet when each of them lives at the time of the latest. A part checks that for what it joins: the match of two
events is an event at the time of the later one, whose lifetime is the shorter of theirs; that is an upper bound, and
the passed times say exactly whether each event still lives. So the order of FROM does not change the matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from sqlglot import exp

from catchment.feeds.language.lifetimes import Lifetimes
from catchment.feeds.language.plan_template import read_from, read_outputs, refuse_clauses
from catchment.feeds.language.statements import ViewStatement
from catchment.feeds.language.template import EVENT_TIME
from catchment.feeds.language.view_scope import FeedCatalog, FeedScope, is_sample, make_column
from catchment.query.sql.dialect import conjuncts, show

CHAIN = "joined"  # the alias under which a part reads the one before it


@dataclass
class _Part:
    """The sources of one view of the chain, in order, and the conditions that it checks."""

    tables: list[exp.Table] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)


def split_inputs(view: ViewStatement, catalog: FeedCatalog) -> list[ViewStatement]:
    """Return a chain of views over at most two inputs that together are the view; its last one has its name."""
    sources = list(_sources(view))
    if sum(_is_input(table, catalog) for table in sources) <= 2:
        return [view]
    scope = FeedScope(view, catalog)
    refuse_clauses(scope)
    written = [*read_from(scope), *conjuncts(getattr(view.select.args.get("where"), "this", None))]
    outputs = [(name, scope.qualify(node)) for name, node in read_outputs(scope).items()]
    parts = _parts(sources, catalog)
    _spread_conditions(parts, [scope.qualify(term) for term in written])
    chain = list(_Chain(scope, parts, outputs).views())
    for part in chain[:-1]:
        if part.name in catalog.views or part.name in catalog.streams or part.name in catalog.tables:
            raise scope.error(f"the name {part.name!r} is needed for a part of this view", view.select)
    return chain


def _sources(view: ViewStatement) -> Iterator[exp.Table]:
    joins = view.select.args.get("joins") or []
    for item in [view.select.args.get("from_"), *joins]:
        if item is not None and isinstance(item.this, exp.Table):
            yield item.this


def _is_input(table: exp.Table, catalog: FeedCatalog) -> bool:
    return table.name.lower() not in catalog.tables


def _alias(table: exp.Table) -> str:
    return (table.alias or table.name).lower()


def _parts(sources: list[exp.Table], catalog: FeedCatalog) -> list[_Part]:
    """Divide FROM: two inputs to the first part, one to each other; a table goes with the next input."""
    parts = [_Part()]
    left = sum(_is_input(table, catalog) for table in sources)
    for table in sources:
        is_full = len(parts[-1].inputs) == (2 if len(parts) == 1 else 1)
        if is_full and left:
            parts.append(_Part())
        parts[-1].tables.append(table)
        parts[-1].aliases.append(_alias(table))
        if _is_input(table, catalog):
            parts[-1].inputs.append(_alias(table))
            left -= 1
    return parts


def _spread_conditions(parts: list[_Part], terms: list[exp.Expr]) -> None:
    """Give each condition to the first part that has all its columns."""
    for term in terms:
        needed = _aliases_in(term)
        known: set[str] = set()
        for part in parts:
            known.update(part.aliases)
            if needed <= known:
                part.conditions.append(term)
                break


def _aliases_in(term: exp.Expr) -> set[str]:
    found = {column.table for column in term.find_all(exp.Column) if column.table}
    if is_sample(term) and term.expressions:
        found.add(show(term.expressions[0]).lower())
    return found


class _Chain:
    """Writes the views of a chain."""

    def __init__(self, scope: FeedScope, parts: list[_Part], outputs: list[tuple[str, exp.Expr]]) -> None:
        self.scope = scope
        self.view = scope.view
        self.parts = parts
        self.outputs = outputs
        inputs = [alias for part in parts for alias in part.inputs]
        where = f"{self.view.where}, view {self.view.name!r}"
        self.lifetimes_us = self.view.lifetimes.resolve(inputs, where)

    def views(self) -> Iterator[ViewStatement]:
        earlier: list[_Part] = []
        for number, part in enumerate(self.parts):
            is_last = number == len(self.parts) - 1
            earlier.append(part)
            outputs = self.outputs if is_last else list(self._passed_on(earlier))
            yield self._view(part, earlier[:-1], outputs, None if is_last else number + 1)

    def _view(
        self, part: _Part, earlier: list[_Part], outputs: list[tuple[str, exp.Expr]], number: int | None
    ) -> ViewStatement:
        passed = {alias for old in earlier for alias in old.aliases}

        def read(node: exp.Expr) -> exp.Expr:
            return _from_chain(node, passed)

        chain = [exp.to_table(part_name(self.view.name, len(earlier)), alias=CHAIN)] if earlier else []
        first, *others = [*chain, *(table.copy() for table in part.tables)]
        still_alive = [read(term) for term in self._still_alive(part, earlier)]
        conditions = [*map(read, part.conditions), *still_alive]
        select = exp.select(*(exp.alias_(read(node), name) for name, node in outputs), copy=False).from_(first)
        for table in others:
            select = select.join(table, join_type="cross")
        if conditions:
            select = select.where(*conditions)
        name = self.view.name if number is None else part_name(self.view.name, number)
        notify_every_us = self.view.notify_every_us if number is None else None
        lifetimes = self._lifetimes(part, earlier)
        return replace(self.view, name=name, lifetimes=lifetimes, notify_every_us=notify_every_us, select=select)

    def _lifetimes(self, part: _Part, earlier: list[_Part]) -> Lifetimes:
        found = [(alias, self.lifetimes_us[alias]) for alias in part.inputs]
        if earlier:
            shortest_us = min(self.lifetimes_us[alias] for old in earlier for alias in old.inputs)
            found.insert(0, (CHAIN, shortest_us))
        return Lifetimes(by_alias_us=tuple(found))

    def _still_alive(self, part: _Part, earlier: list[_Part]) -> Iterator[exp.Expr]:
        """Yield the conditions that events of earlier parts live at the time of the new one."""
        for new in part.inputs if earlier else ():
            for alias in [alias for old in earlier for alias in old.inputs]:
                apart = exp.Sub(this=make_column(new, EVENT_TIME), expression=make_column(alias, EVENT_TIME))
                yield exp.LTE(this=apart, expression=exp.Literal.number(self.lifetimes_us[alias]))

    def _passed_on(self, earlier: list[_Part]) -> Iterator[tuple[str, exp.Expr]]:
        """Yield what later parts read of the sources so far: columns, and the times of events."""
        known = {alias for part in earlier for alias in part.aliases}
        later = [term for part in self.parts[len(earlier) :] for term in part.conditions]
        read = {
            (column.table, column.name): column
            for node in [*later, *(node for _, node in self.outputs)]
            for column in node.find_all(exp.Column)
            if column.table in known
        }
        for alias, name in sorted(read):
            yield passed_name(alias, name), make_column(alias, name)
        for alias in [alias for part in earlier for alias in part.inputs]:
            yield passed_name(alias, EVENT_TIME), make_column(alias, EVENT_TIME)


def part_name(view: str, number: int) -> str:
    """Return the name of the number-th part of a chain."""
    return f"{view}__{number}"


def passed_name(alias: str, column: str) -> str:
    """Return the name under which a part passes on a column."""
    return f"{alias}__{column}"


def _from_chain(node: exp.Expr, passed: Iterable[str]) -> exp.Expr:
    """Return an expression that reads the sources of earlier parts from the chain."""

    def rename(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.table in passed:
            return make_column(CHAIN, passed_name(part.table, part.name))
        return part

    return node.copy().transform(rename, copy=False)
