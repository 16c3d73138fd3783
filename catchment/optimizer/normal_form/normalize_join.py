"""The normal form of a join: both sides in theirs, in the order of their texts, so that `a JOIN b` is `b JOIN a`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from catchment.optimizer.normal_form.expressions import rename_columns
from catchment.query.join import BOTH, LEFT, RIGHT, TURNED, JoinedKey, KeyComparison, PairAggregate
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import OutputColumn, SortKey, TopRows, WindowAggregate, WindowJoin

_OTHER = {LEFT: RIGHT, RIGHT: LEFT, BOTH: BOTH}


@dataclass(frozen=True)
class _Side:
    """A side in normal form, and the names that its keys and aggregates have there."""

    aggregate: WindowAggregate
    names: dict[str, str]


def normalize_join(plan: QueryPlan, normalize: Callable[[QueryPlan], QueryPlan]) -> QueryPlan:
    """Return a plan of two streams with both sides normal and in order, keys and aggregates named by their content."""
    join = plan.answer
    assert isinstance(join, WindowJoin)
    left, right = (_normal_side(side, normalize) for side in plan.sides)
    made = replace(
        join,
        left=left.aggregate,
        right=right.aggregate,
        on=tuple(sorted({(left.names[a], right.names[b]) for a, b in join.on})),
        joined=tuple(replace(k, source=(left if k.side == LEFT else right).names[k.source]) for k in join.joined),
        pairs=tuple(replace(p, left=left.names[p.left], right=right.names[p.right]) for p in join.pairs),
        compared=_sort_comparisons(
            replace(c, left=left.names[c.left], right=right.names[c.right]) for c in join.compared
        ),
    )
    ordered = made if left.aggregate.to_text() <= right.aggregate.to_text() else _swap_sides(made)
    return _rename(plan, ordered)


def _normal_side(side: QueryPlan, normalize: Callable[[QueryPlan], QueryPlan]) -> _Side:
    normal = normalize(side)
    names = {c.name: c.source for c in normal.columns if c.source is not None}
    return _Side(normal.aggregate, names)


def _swap_sides(join: WindowJoin) -> WindowJoin:
    """Return the same join with its sides exchanged."""
    return WindowJoin(
        join.right,
        join.left,
        tuple(sorted((b, a) for a, b in join.on)),
        tuple(replace(k, side=_OTHER[k.side]) for k in join.joined),
        tuple(replace(p, left=p.right, right=p.left, carries=_OTHER[p.carries]) for p in join.pairs),
        _sort_comparisons(KeyComparison(c.right, TURNED[c.operator], c.left) for c in join.compared),
    )


def _sort_comparisons(compared: Iterable[KeyComparison]) -> tuple[KeyComparison, ...]:
    return tuple(sorted(set(compared), key=str))


def _rename(plan: QueryPlan, join: WindowJoin) -> QueryPlan:
    """Name keys and aggregates by what they are made of, so that equal ones are one; the result keeps its names."""
    keys = {k.name: f"{k.side}_{k.source}" for k in join.joined}
    pairs = {p.aggregate.name: _pair_name(p) for p in join.pairs}
    joined = {keys[k.name]: replace(k, name=keys[k.name]) for k in join.joined}
    made = {pairs[p.aggregate.name]: _rename_pair(p, pairs[p.aggregate.name]) for p in join.pairs}
    normal = replace(join, joined=_in_order(joined), pairs=tuple(made[n] for n in sorted(made)))
    names = keys | pairs
    having = rename_columns(plan.having, names) if plan.having else None
    columns = tuple(rename_column(c, names) for c in plan.columns)
    top = with_keys(plan.top, lambda key: rename_sort_key(key, names))
    finish = replace(plan.finish, input=normal, columns=columns, having=having, top=top)
    return QueryPlan(replace(plan.root, input=finish))


def _pair_name(pair: PairAggregate) -> str:
    """Return a name that depends only on what an aggregate over pairs is made of."""
    return f"{pair.aggregate.function}_{pair.left}_{pair.right}_{_carries(pair)}"


def _carries(pair: PairAggregate) -> str:
    """Return whose state an aggregate carries; a count of pairs is a product, which carries either side's."""
    return LEFT if pair.aggregate.function == "count" else pair.carries


def _in_order(joined: dict[str, JoinedKey]) -> tuple[JoinedKey, ...]:
    return tuple(joined[n] for n in sorted(joined))


def _rename_pair(pair: PairAggregate, name: str) -> PairAggregate:
    """Rename an aggregate over pairs, without the text of its call, which names the streams in the user's order."""
    aggregate = replace(pair.aggregate, name=name, argument=pair.aggregate.argument and "of pairs")
    return replace(pair, aggregate=aggregate, carries=_carries(pair))


def rename_column(column: OutputColumn, names: dict[str, str]) -> OutputColumn:
    """Return a result column over renamed columns of the aggregation."""
    source = names.get(column.source, column.source) if column.source else None
    return replace(column, sql=rename_columns(column.sql, names), source=source)


def rename_sort_key(key: SortKey, names: dict[str, str]) -> SortKey:
    """Return a key of ORDER BY over renamed columns of the aggregation."""
    source = names.get(key.source, key.source) if key.source else None
    return replace(key, sql=rename_columns(key.sql, names), source=source)


def with_keys(top: TopRows | None, change: Callable[[SortKey], SortKey]) -> TopRows | None:
    """Return ORDER BY and LIMIT with other keys."""
    return None if top is None else replace(top, keys=tuple(map(change, top.keys)))
