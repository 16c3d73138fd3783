"""From a SELECT over several streams to its plan: each stream is aggregated alone, and the results are joined.

A side is grouped by the keys in which pairs must agree and by its own keys of GROUP BY, and computes what every
aggregate needs of it. What cannot be computed from the two sides alone is refused here. What an outer join adds to that
is in `catchment.query.join`. Three streams and more are joined one after the other: the left side of a join is then a
join itself, which is asked for keys and aggregates as a stream is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from sqlglot import exp

from catchment.query.catalog import Catalog
from catchment.query.fragment import Key
from catchment.query.join import LEFT, OTHER, RIGHT, SIDES, JoinedKey, KeyComparison, RowCondition
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import Sink, WindowAggregate, WindowJoin
from catchment.query.planning.calls import fresh_name, restrict
from catchment.query.planning.from_clause import FromClause, StreamJoin
from catchment.query.planning.grouping import read_grouping
from catchment.query.planning.pairs import PairAggregates, StreamAggregates
from catchment.query.planning.refused_options import NOT_SAMPLED, check_options
from catchment.query.planning.scope import Scope, make_typed
from catchment.query.planning.select import aggregate_stream, names_in_use, read_conditions, read_finish, read_keys
from catchment.query.planning.sides import JoinConditions, JoinSides, StreamNames
from catchment.query.sql.dialect import render, show
from catchment.query.sql.statements import View
from catchment.query.types import sql_type
from catchment.timeline import WindowSpec


def plan_joined(view: View, catalog: Catalog, read: FromClause) -> QueryPlan:
    """Return the plan of a view that joins streams, or the first mistake in it."""
    check_options(view, "joins streams", NOT_SAMPLED, may_have_contract=True)
    assert read.joined is not None
    grouping = read_grouping(view.select, read.scope, read.streams)
    keys = read_keys(view, grouping, read.scope)
    planned = PlannedJoin.of(read, read.joined, read_conditions(view, read), view.options.max_distinct)
    for expression in grouping.keys:
        planned.group_by(expression, keys[render(expression)])
    planned.compare_keys()
    finish = read_finish(view, grouping, keys, planned.aggregates)
    return QueryPlan(Sink(finish(planned.node(grouping.window)), view.name, catalog.answering_site(view), view.options))


@dataclass(frozen=True)
class SplitConditions:
    """The conditions of a join by when they hold: before it, for a pair to be one, and of the rows that it gives.

    `preserved` are the sides whose records are rows also without a partner. A condition on rows that is null wherever a
    side is missing leaves no such row: the other side is then not preserved.
    """

    before: JoinConditions
    on: JoinConditions
    after: JoinConditions
    preserved: tuple[str, ...]

    @classmethod
    def of(cls, sides: JoinSides, conditions: Sequence[exp.Expr]) -> SplitConditions:
        """Split the conditions of a join: its own, those of what it reads, and those on the rows that it gives."""
        joined = sides.joined
        before, on, after = JoinConditions(sides), JoinConditions(sides).add(joined.on), JoinConditions(sides)
        for condition in joined.before:
            before.add(condition)
        for condition in conditions:
            after.add(condition)
        return cls(before, on, after, tuple(s for s in joined.preserved if not _drops_alone(after, sides, s)))

    @property
    def equal(self) -> list[tuple[exp.Expr, exp.Expr]]:
        return [*self.on.equal, *self.after.equal]

    @property
    def compared(self) -> list[tuple[exp.Expr, str, exp.Expr]]:
        return [*self.on.compared, *self.after.compared]

    def filters(self, side: str) -> list[exp.Expr]:
        """Return the conditions that a record of a side must meet to have any part in the join."""
        found = list(self.before.of[side])
        found += self.on.of[side] if side not in self.preserved else []
        return found + (self.after.of[side] if OTHER[side] not in self.preserved else [])

    def guards(self, side: str) -> list[exp.Expr]:
        """Return the conditions that a record of a preserved side must meet to have a partner."""
        return self.on.of[side] if side in self.preserved else []

    def row_conditions(self) -> list[tuple[str, exp.Expr]]:
        """Return the conditions on rows in which a side may be missing, with that side."""
        return [(side, part) for side in SIDES if OTHER[side] in self.preserved for part in self.after.of[side]]


def _drops_alone(after: JoinConditions, sides: JoinSides, side: str) -> bool:
    """Return whether the conditions on rows leave none of a side's records that have no partner."""
    if after.equal or after.compared:
        return True
    return any(sides.without(OTHER[side], part) is None for part in after.of[OTHER[side]])


@dataclass
class PlannedStream:
    """What one stream computes for the joins that it is in: its keys, by their texts, and its aggregates."""

    names: StreamNames
    canonical: str
    filters: Sequence[exp.Expr]
    keys: dict[str, Key] = field(default_factory=dict)

    @cached_property
    def aggregates(self) -> StreamAggregates:
        """The aggregates, which are named beside the keys: they are asked for when all keys are known."""
        taken = names_in_use(self.keys.values())
        return StreamAggregates(self.names.read.scope, taken, names=self.names)

    def add_key(self, expression: exp.Expr, type_: pa.DataType, name: str, guards: Sequence[exp.Expr] = ()) -> str:
        """Return the name of a key, which is null where a guard does not hold."""
        local = self.names.local(expression)
        made = make_typed(local, self.names.read.scope.text, "the key").cast(type_)
        conditions = [self.names.local(guard) for guard in guards]
        value = restrict(made, exp.and_(*conditions) if conditions else None)
        assert value is not None
        if value.sql not in self.keys:
            taken = names_in_use(self.keys.values())
            self.keys[value.sql] = Key(fresh_name(name, taken), value.sql, value.type)
        return self.keys[value.sql].name

    def compare_keys(self) -> None:
        """Do nothing: a stream alone compares no keys."""

    def node(self, window: WindowSpec) -> WindowAggregate:
        where = tuple(dict.fromkeys(render(self.names.local(part)) for part in self.filters))
        stream = self.names.read.streams[self.canonical]
        found = tuple(self.aggregates.found.values())
        return aggregate_stream(
            stream, self.names.lookups(self.canonical), where, window, tuple(self.keys.values()), found
        )


@dataclass
class PlannedJoin:
    """One join: its conditions, its keys by what they were asked for as, and its aggregates over pairs."""

    sides: JoinSides
    conditions: SplitConditions
    left: PlannedStream | PlannedJoin
    right: PlannedStream
    max_distinct: int
    keys: dict[tuple[str, ...], JoinedKey] = field(default_factory=dict)
    on: tuple[tuple[str, str], ...] = ()
    compared: tuple[KeyComparison, ...] = ()
    where: tuple[RowCondition, ...] = ()

    @classmethod
    def of(cls, read: FromClause, joined: StreamJoin, after: Sequence[exp.Expr], max_distinct: int) -> PlannedJoin:
        """Return a join with the joins within it; `after` are the conditions on the rows that it gives."""
        sides = JoinSides(read, joined)
        conditions = SplitConditions.of(sides, after)
        if not conditions.equal:
            raise read.scope.text.error(
                "these streams are joined without an equality",
                joined.on or joined.at,
                hint="write ON a.column = b.column [AND ...]",
            )
        names = StreamNames(read)
        filters = {side: conditions.filters(side) for side in SIDES}
        left = (
            PlannedStream(names, read.canonical, filters[LEFT])
            if joined.inner is None
            else cls.of(read, joined.inner, filters[LEFT], max_distinct)
        )
        return cls(sides, conditions, left, PlannedStream(names, joined.canonical, filters[RIGHT]), max_distinct)

    @cached_property
    def aggregates(self) -> PairAggregates:
        """The aggregates over pairs, which are named beside the keys: they are asked for when all keys are known."""
        return PairAggregates(
            self._scope,
            names_in_use(self.keys.values()),
            self.max_distinct,
            sides=self.sides,
            parts={LEFT: self.left.aggregates, RIGHT: self.right.aggregates},
            preserved=self.conditions.preserved,
        )

    @property
    def _scope(self) -> Scope:
        return self.sides.read.scope

    def _part(self, side: str) -> PlannedStream | PlannedJoin:
        return self.left if side == LEFT else self.right

    def group_by(self, expression: exp.Expr, key: Key) -> None:
        """Let a key of GROUP BY be one of the join, under its own name."""
        self.keys[(render(expression), key.name)] = self._joined_key(expression, key.type, key.name)

    def add_key(self, expression: exp.Expr, type_: pa.DataType, name: str, guards: Sequence[exp.Expr] = ()) -> str:
        """Return the name of a key for a join around this one; it is null where a guard does not hold."""
        asked = (render(expression), sql_type(type_), *map(render, guards))
        if asked not in self.keys:
            own = fresh_name(name, names_in_use(self.keys.values()))
            self.keys[asked] = self._joined_key(expression, type_, own, guards)
        return self.keys[asked].name

    def _joined_key(
        self, expression: exp.Expr, type_: pa.DataType, name: str, guards: Sequence[exp.Expr] = ()
    ) -> JoinedKey:
        found = {side for part in (expression, *guards) for side in self.sides.of(part)}
        if len(found) > 1:
            return self._key_of_either(expression, type_, name, guards)
        side = RIGHT if RIGHT in found else LEFT
        source = self._part(side).add_key(expression, type_, name, guards)
        other = OTHER[side]
        if other not in self.conditions.preserved:
            return JoinedKey(name, side, source)
        own, *rest = (self.sides.without(side, part) for part in (expression, *guards))
        if own is None or None in rest:
            return JoinedKey(name, side, source)
        return JoinedKey(name, side, source, self._part(other).add_key(own, type_, name, [g for g in rest if g]))

    def _key_of_either(
        self, expression: exp.Expr, type_: pa.DataType, name: str, guards: Sequence[exp.Expr]
    ) -> JoinedKey:
        """Return coalesce(a.x, b.y) as a key, which pairs agree in if they are joined by a.x = b.y."""
        values = [expression.this, *expression.expressions] if isinstance(expression, exp.Coalesce) else []
        by_side = {self.sides.of(value): value for value in values}
        equal = {(render(a), render(b)) for a, b in self.conditions.equal}
        left, right = (by_side.get((side,)) for side in SIDES)
        if guards or len(values) != len(SIDES) or not left or not right or (render(left), render(right)) not in equal:
            raise self._scope.text.error(
                f"the key {show(expression)} is of columns of two streams",
                expression,
                hint="group and compare by columns of one stream each, or by coalesce(a.x, b.y) of a join ON a.x = b.y",
            )
        source = self.left.add_key(left, type_, name)
        is_needed = RIGHT in self.conditions.preserved
        return JoinedKey(name, LEFT, source, self.right.add_key(right, type_, name) if is_needed else None)

    def compare_keys(self) -> None:
        """Let both sides have the keys in which pairs agree or are compared, and those that WHERE asks for."""
        first, *rest = self.conditions.equal
        on = (self._both(*first, is_guarded=True), *(self._both(*pair) for pair in rest))
        self.on = tuple(dict.fromkeys(on))
        compared = (
            KeyComparison(a, operator, b)
            for left, operator, right in self.conditions.compared
            for a, b in [self._both(left, right)]
        )
        self.compared = tuple(dict.fromkeys(compared))
        self.where = tuple(dict.fromkeys(self._row_condition(*c) for c in self.conditions.row_conditions()))
        self.left.compare_keys()

    def _row_condition(self, side: str, part: exp.Expr) -> RowCondition:
        """Return a condition on rows in which a side may be missing, as keys of both sides."""
        alone = self.sides.without(side, part)
        assert alone is not None, "a condition that leaves no such row was found before"
        source = self._part(side).add_key(part, pa.bool_(), "kept")
        return RowCondition(side, source, self._part(OTHER[side]).add_key(alone, pa.bool_(), "kept"))

    def _both(self, left: exp.Expr, right: exp.Expr, is_guarded: bool = False) -> tuple[str, str]:
        """Return the keys by which pairs are compared, in a type that both have."""
        text = self._scope.text
        given = {LEFT: left, RIGHT: right}
        types = [make_typed(e.copy(), text, "the join key").type for e in given.values()]
        common = _common_type(*types)
        if common is None or pa.types.is_nested(common):
            raise text.error(
                f"{show(left)} and {show(right)} are compared, {' with '.join(map(sql_type, types))}",
                left,
                hint="make them one type with CAST; a nested value is no join key",
            )
        names = []
        for side, value in given.items():
            name = value.name if isinstance(value, exp.Column) else "join_key"
            guards = self.conditions.guards(side) if is_guarded else ()
            names.append(self._part(side).add_key(value, common, name, guards))
        return names[0], names[1]

    def node(self, window: WindowSpec) -> WindowJoin:
        """Return the join over what its sides compute."""
        assert self.aggregates.pairs, "every view computes something"
        return WindowJoin(
            self.left.node(window),
            self.right.node(window),
            self.on,
            tuple(self.keys.values()),
            tuple(self.aggregates.pairs.values()),
            self.compared,
            self.conditions.preserved,
            self.where,
        )


def _common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which Spark compares two."""
    if sql_type(left) == sql_type(right):
        return left
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return pa.int64()
    numbers = (pa.types.is_integer(t) or pa.types.is_floating(t) for t in (left, right))
    return pa.float64() if all(numbers) else None
