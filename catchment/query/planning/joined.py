"""From a SELECT over two streams to its plan: each side is aggregated alone, and the results are joined.

A side is grouped by the keys in which pairs must agree and by its own keys of GROUP BY, and computes what every
aggregate needs of it. What cannot be computed from the two sides alone is refused here. What an outer join adds to that
is in `catchment.query.join`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from catchment.errors import QueryError
from catchment.query.catalog import Catalog
from catchment.query.fragment import Key
from catchment.query.join import LEFT, OTHER, RIGHT, SIDES, JoinedKey, KeyComparison, RowCondition
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import Sink, WindowAggregate, WindowJoin
from catchment.query.planning.calls import AggregateSet, fresh_name, restrict
from catchment.query.planning.from_clause import FromClause
from catchment.query.planning.grouping import Grouping, read_grouping
from catchment.query.planning.pairs import PairAggregates
from catchment.query.planning.scope import TypedExpression, make_typed
from catchment.query.planning.select import OWN_NAMES, aggregate_stream, read_conditions, read_finish, read_keys
from catchment.query.planning.sides import JoinConditions, JoinSides
from catchment.query.sql.dialect import render, show
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import ANY, ON_DEMAND
from catchment.query.types import sql_type
from catchment.timeline import WindowSpec


def plan_joined(view: View, catalog: Catalog, read: FromClause) -> QueryPlan:
    """Return the plan of a view of two streams, or the first mistake in it."""
    check_options(view, "joins two streams", NO_BOUND.format("pairs"))
    assert read.joined is not None
    sides = JoinSides(read)
    grouping = read_grouping(view.select, read.scope, read.streams)
    keys = read_keys(view, grouping, read.scope)
    conditions = SplitConditions.of(view, sides)
    if not conditions.equal:
        raise view.text.error(
            "these streams are joined without an equality",
            read.joined.on,
            hint="write ON a.column = b.column [AND ...]",
        )
    made = _SideKeys(sides, conditions)
    joined = made.group(grouping, keys)
    on = made.equalities()
    compared = tuple(
        KeyComparison(a, o, b) for left, o, right in conditions.compared for a, b in [made.both(left, right)]
    )
    where = made.row_conditions()
    taken = {*OWN_NAMES, *(k.name.lower() for k in keys.values())}
    sets = {s: AggregateSet(read.scope, made.names_in_use(s)) for s in SIDES}
    preserved = conditions.preserved
    aggregates = PairAggregates(
        read.scope, taken, view.options.max_distinct, sides=sides, sets=sets, preserved=preserved
    )
    finish = read_finish(view, grouping, keys, aggregates)
    left, right = (_side(s, sides, conditions, grouping.window, made, aggregates) for s in SIDES)
    pairs = tuple(aggregates.pairs.values())
    join = WindowJoin(left, right, on, joined, pairs, tuple(dict.fromkeys(compared)), preserved, where)
    return QueryPlan(Sink(finish(join), view.name, catalog.answering_site(view), view.options))


def _side(
    side: str,
    sides: JoinSides,
    conditions: SplitConditions,
    window: WindowSpec,
    made: _SideKeys,
    aggregates: PairAggregates,
) -> WindowAggregate:
    where = tuple(dict.fromkeys(render(sides.local(part)) for part in conditions.filters(side)))
    found = tuple(aggregates.sets[side].found.values())
    keys = tuple(made.keys[side].values())
    return aggregate_stream(sides.stream(side), sides.lookups(side), where, window, keys, found)


NO_BOUND = "a record that is late or not sampled may be in any number of {}, so that no error can be promised; "


def check_options(view: View, what: str, why: str = "") -> None:
    """Refuse options that are possible for views of one stream only; `what` says what this view does, `why` why not."""
    options = view.options
    refused = {
        "max_error": options.max_error is not None,
        "slack": options.slack is not None,
        "shed": options.shed == ANY,
        "repair": options.repair == ON_DEMAND,
    }
    for name in (n for n, given in refused.items() if given):
        raise QueryError(
            f"view {view.name!r} {what}, and {name} is for views of one",
            where=view.where,
            hint=f"{why}leave it out: such a view waits by the slack of its streams, is not sampled, and merges late "
            "records",
        )


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
    def of(cls, view: View, sides: JoinSides) -> SplitConditions:
        """Split the conditions of a view of two streams."""
        joined = sides.read.joined
        assert joined is not None
        before, on, after = JoinConditions(sides), JoinConditions(sides).add(joined.on), JoinConditions(sides)
        for condition in joined.before:
            before.add(condition)
        for condition in read_conditions(view, sides.read):
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
class _SideKeys:
    """The keys of both sides, by the texts of their expressions."""

    sides: JoinSides
    conditions: SplitConditions
    keys: dict[str, dict[str, Key]] = field(default_factory=lambda: {s: {} for s in SIDES})

    def names_in_use(self, side: str) -> set[str]:
        """Return the names that are in use on a side."""
        return {*OWN_NAMES, *(k.name.lower() for k in self.keys[side].values())}

    def group(self, grouping: Grouping, keys: dict[str, Key]) -> tuple[JoinedKey, ...]:
        """Return the keys of GROUP BY, each on its own side."""
        return tuple(self._group_by(e, keys[render(e)]) for e in grouping.keys)

    def _group_by(self, expression: exp.Expr, key: Key) -> JoinedKey:
        found = self.sides.of(expression)
        if len(found) > 1:
            return self._group_by_either(expression, key)
        side = found[0] if found else LEFT
        source = self._put(side, self._typed(expression, key.type), key.name)
        other = OTHER[side]
        left = self.sides.without(side, expression) if other in self.conditions.preserved else None
        alone = self._put(other, self._typed(left, key.type), key.name) if left is not None else None
        return JoinedKey(key.name, side, source, alone)

    def _group_by_either(self, expression: exp.Expr, key: Key) -> JoinedKey:
        """Return coalesce(a.x, b.y) as a key, which pairs agree in if they are joined by a.x = b.y."""
        values = [expression.this, *expression.expressions] if isinstance(expression, exp.Coalesce) else []
        by_side = {self.sides.of(value): value for value in values}
        equal = {(render(a), render(b)) for a, b in self.conditions.equal}
        left, right = (by_side.get((side,)) for side in SIDES)
        if len(values) != len(SIDES) or not left or not right or (render(left), render(right)) not in equal:
            raise self.sides.read.scope.text.error(
                f"the key {show(expression)} is of columns of two streams",
                expression,
                hint="group by columns of one stream each, or by coalesce(a.x, b.y) of a join ON a.x = b.y",
            )
        source = self._put(LEFT, self._typed(left, key.type), key.name)
        is_needed = RIGHT in self.conditions.preserved
        return JoinedKey(
            key.name, LEFT, source, self._put(RIGHT, self._typed(right, key.type), key.name) if is_needed else None
        )

    def _typed(self, expression: exp.Expr, type_: pa.DataType) -> TypedExpression:
        """Return an expression of one side in its own names and in a given type."""
        return make_typed(self.sides.local(expression), self.sides.read.scope.text, "the key").cast(type_)

    def equalities(self) -> tuple[tuple[str, str], ...]:
        """Return the keys in which pairs agree; the first is null where a record may not have a partner."""
        first, *rest = self.conditions.equal
        found = (self.both(*first, is_guarded=True), *(self.both(*pair) for pair in rest))
        return tuple(dict.fromkeys(found))

    def row_conditions(self) -> tuple[RowCondition, ...]:
        """Return the conditions on rows in which a side may be missing, as keys of both sides."""
        found = []
        for side, part in self.conditions.row_conditions():
            left = self.sides.without(side, part)
            assert left is not None, "a condition that leaves no such row was found before"
            names = (self._put(s, self._typed(e, pa.bool_()), "kept") for s, e in ((side, part), (OTHER[side], left)))
            found.append(RowCondition(side, *names))
        return tuple(dict.fromkeys(found))

    def both(self, left: exp.Expr, right: exp.Expr, is_guarded: bool = False) -> tuple[str, str]:
        """Return the keys by which pairs are compared, in a type that both have."""
        text = self.sides.read.scope.text
        both = (left, right)
        made = [make_typed(self.sides.local(e), text, "the join key") for e in both]
        common = _common_type(made[0].type, made[1].type)
        if common is None or pa.types.is_nested(common):
            kinds = " with ".join(sql_type(m.type) for m in made)
            raise text.error(
                f"{show(left)} and {show(right)} are compared, {kinds}",
                left,
                hint="make them one type with CAST; a nested value is no join key",
            )
        named = [e.name if isinstance(e, exp.Column) else "join_key" for e in both]
        cast = [
            m if m.type == common else TypedExpression(f"CAST({m.sql} AS {sql_type(common)})", common) for m in made
        ]
        if is_guarded:
            cast = [self._guard(s, value) for s, value in zip(SIDES, cast, strict=True)]
        left_name, right_name = (self._put(s, m, n) for s, m, n in zip(SIDES, cast, named, strict=True))
        return left_name, right_name

    def _guard(self, side: str, value: TypedExpression) -> TypedExpression:
        """Return a join key that is null, and so joins with nothing, where a record may not have a partner."""
        parts = [self.sides.local(part) for part in self.conditions.guards(side)]
        made = restrict(value, exp.and_(*parts) if parts else None)
        assert made is not None
        return made

    def _put(self, side: str, value: TypedExpression, name: str) -> str:
        mine = self.keys[side]
        if value.sql not in mine:
            mine[value.sql] = Key(fresh_name(name, self.names_in_use(side)), value.sql, value.type)
        return mine[value.sql].name


def _common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which Spark compares two."""
    if sql_type(left) == sql_type(right):
        return left
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return pa.int64()
    numbers = (pa.types.is_integer(t) or pa.types.is_floating(t) for t in (left, right))
    return pa.float64() if all(numbers) else None
