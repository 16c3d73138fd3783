"""From a SELECT over two streams to its plan: each side is aggregated alone, and the results are joined.

A side is grouped by the keys in which pairs must agree and by its own keys of GROUP BY, and computes what every
aggregate needs of it. What cannot be computed from the two sides alone is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from catchment.errors import QueryError
from catchment.query.catalog import Catalog
from catchment.query.fragment import Key
from catchment.query.join import SIDES, JoinedKey, KeyComparison
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import Sink, WindowAggregate, WindowJoin
from catchment.query.planning.calls import AggregateSet, fresh_name
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
    check_options(view, "joins two streams")
    assert read.joined is not None
    sides = JoinSides(read)
    grouping = read_grouping(view.select, read.scope, read.streams)
    keys = read_keys(view, grouping, read.scope)
    conditions = JoinConditions(sides).add(read.joined.on)
    for condition in read_conditions(view, read):
        conditions.add(condition)
    if not conditions.equal:
        raise view.text.error(
            "these streams are joined without an equality",
            read.joined.on,
            hint="write ON a.column = b.column [AND ...]",
        )
    made = _SideKeys(sides)
    joined = made.group(grouping, keys)
    on = tuple(made.both(*pair) for pair in conditions.equal)
    compared = tuple(
        KeyComparison(a, o, b) for left, o, right in conditions.compared for a, b in [made.both(left, right)]
    )
    taken = {*OWN_NAMES, *(k.name.lower() for k in keys.values())}
    sets = {s: AggregateSet(read.scope, made.names_in_use(s)) for s in SIDES}
    aggregates = PairAggregates(read.scope, taken, view.options.max_distinct, sides=sides, sets=sets)
    finish = read_finish(view, grouping, keys, aggregates)
    left, right = (_side(s, sides, conditions, grouping.window, made, aggregates) for s in SIDES)
    pairs = tuple(aggregates.pairs.values())
    join = WindowJoin(left, right, tuple(dict.fromkeys(on)), joined, pairs, tuple(dict.fromkeys(compared)))
    site = view.options.sink or catalog.project.center
    return QueryPlan(Sink(finish(join), view.name, site, view.options))


def _side(
    side: str,
    sides: JoinSides,
    conditions: JoinConditions,
    window: WindowSpec,
    made: _SideKeys,
    aggregates: PairAggregates,
) -> WindowAggregate:
    where = tuple(dict.fromkeys(render(c) for c in conditions.local(side)))
    found = tuple(aggregates.sets[side].found.values())
    keys = tuple(made.keys[side].values())
    return aggregate_stream(sides.stream(side), sides.lookups(side), where, window, keys, found)


def check_options(view: View, what: str) -> None:
    """Refuse options that are possible for views of one stream only; `what` says what this view does."""
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
            hint="leave it out: such a view waits by the slack of its streams, is not sampled, and merges late records",
        )


@dataclass
class _SideKeys:
    """The keys of both sides, by the texts of their expressions."""

    sides: JoinSides
    keys: dict[str, dict[str, Key]] = field(default_factory=lambda: {s: {} for s in SIDES})

    def names_in_use(self, side: str) -> set[str]:
        """Return the names that are in use on a side."""
        return {*OWN_NAMES, *(k.name.lower() for k in self.keys[side].values())}

    def group(self, grouping: Grouping, keys: dict[str, Key]) -> tuple[JoinedKey, ...]:
        """Return the keys of GROUP BY, each on its own side."""
        return tuple(self._group_by(e, keys[render(e)].name) for e in grouping.keys)

    def _group_by(self, expression: exp.Expr, name: str) -> JoinedKey:
        text = self.sides.read.scope.text
        found = self.sides.of(expression)
        if len(found) > 1:
            raise text.error(
                f"the key {show(expression)} is of columns of two streams",
                expression,
                hint="group by columns of one stream each, and compute with both in SELECT",
            )
        source = self._put(found[0], make_typed(self.sides.local(expression), text, "the key"), name)
        return JoinedKey(name, found[0], source)

    def both(self, left: exp.Expr, right: exp.Expr) -> tuple[str, str]:
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
        left_name, right_name = (
            self._put(s, m if m.type == common else TypedExpression(f"CAST({m.sql} AS {sql_type(common)})", common), n)
            for s, m, n in zip(SIDES, made, named, strict=True)
        )
        return left_name, right_name

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
