"""The normal form of a join: both sides in theirs, in the order of their texts, so that `a JOIN b` is `b JOIN a`.

Joins of three streams and more keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from catchment.optimizer.normal_form.expressions import rename_columns
from catchment.query.join import (
    BOTH,
    LEFT,
    OTHER,
    RIGHT,
    SIDES,
    TURNED,
    JoinedKey,
    KeyComparison,
    PairAggregate,
    RowCondition,
)
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import OutputColumn, SortKey, TopRows, WindowAggregate, WindowJoin

_TURNED_CARRIES = {**OTHER, BOTH: BOTH}


_Names = Mapping[str, Mapping[str, str]]  # by side: the normal names of its keys and aggregates


@dataclass(frozen=True)
class _Side:
    """A side in normal form, and the names that its keys and aggregates have there."""

    node: WindowAggregate | WindowJoin
    names: dict[str, str]


def normalize_join(plan: QueryPlan, normalize: Callable[[QueryPlan], QueryPlan]) -> QueryPlan:
    """Return a plan of joined streams with all sides normal and in order, keys and aggregates named by content."""
    join = plan.answer
    assert isinstance(join, WindowJoin)
    made = _normal_join(join, iter([_normal_side(side, normalize) for side in plan.sides]))
    return _rename(plan, made)


def _normal_join(join: WindowJoin, sides: Iterator[_Side]) -> _Side:
    """Return a join over sides in normal form, which come in the order of their places."""
    left = _normal_join(join.left, sides) if isinstance(join.left, WindowJoin) else next(sides)
    right = next(sides)
    assert isinstance(right.node, WindowAggregate)
    names = {LEFT: left.names, RIGHT: right.names}
    made = replace(
        join,
        left=left.node,
        right=right.node,
        on=tuple(sorted({(left.names[a], right.names[b]) for a, b in join.on})),
        joined=tuple(_rename_sources(k, names) for k in join.joined),
        pairs=tuple(_rename_parts(p, names) for p in join.pairs),
        compared=_sort_comparisons(
            replace(c, left=left.names[c.left], right=right.names[c.right]) for c in join.compared
        ),
        conditions=_sort_conditions(_rename_condition(c, names) for c in join.conditions),
    )
    return _name_by_content(_in_order_of_texts(made))


def _in_order_of_texts(join: WindowJoin) -> WindowJoin:
    """Return a join of two streams with the lesser text first; a join that is a side stays on the left."""
    if isinstance(join.left, WindowJoin) or join.left.to_text() <= join.right.to_text():
        return join
    return _swap_sides(join, join.left)


def _normal_side(side: QueryPlan, normalize: Callable[[QueryPlan], QueryPlan]) -> _Side:
    normal = normalize(side)
    names = {c.name: c.source for c in normal.columns if c.source is not None}
    return _Side(normal.aggregate, names)


def _rename_sources(key: JoinedKey, names: _Names) -> JoinedKey:
    alone = key.alone and names[OTHER[key.side]][key.alone]
    return replace(key, source=names[key.side][key.source], alone=alone)


def _rename_parts(pair: PairAggregate, names: _Names) -> PairAggregate:
    return replace(
        pair,
        left=names[LEFT][pair.left],
        right=names[RIGHT][pair.right],
        left_alone=pair.left_alone and names[LEFT][pair.left_alone],
        right_alone=pair.right_alone and names[RIGHT][pair.right_alone],
    )


def _rename_condition(condition: RowCondition, names: _Names) -> RowCondition:
    source, alone = names[condition.side][condition.source], names[OTHER[condition.side]][condition.alone]
    return replace(condition, source=source, alone=alone)


def _swap_sides(join: WindowJoin, left: WindowAggregate) -> WindowJoin:
    """Return the same join with its sides exchanged."""
    return WindowJoin(
        join.right,
        left,
        tuple(sorted((b, a) for a, b in join.on)),
        tuple(replace(k, side=OTHER[k.side]) for k in join.joined),
        tuple(map(_swap_parts, join.pairs)),
        _sort_comparisons(KeyComparison(c.right, TURNED[c.operator], c.left) for c in join.compared),
        tuple(side for side in SIDES if OTHER[side] in join.preserved),
        _sort_conditions(replace(c, side=OTHER[c.side]) for c in join.conditions),
    )


def _swap_parts(pair: PairAggregate) -> PairAggregate:
    return replace(
        pair,
        left=pair.right,
        right=pair.left,
        carries=_TURNED_CARRIES[pair.carries],
        left_alone=pair.right_alone,
        right_alone=pair.left_alone,
    )


def _sort_comparisons(compared: Iterable[KeyComparison]) -> tuple[KeyComparison, ...]:
    return tuple(sorted(set(compared), key=str))


def _sort_conditions(conditions: Iterable[RowCondition]) -> tuple[RowCondition, ...]:
    return tuple(sorted(set(conditions), key=str))


def _name_by_content(join: WindowJoin) -> _Side:
    """Name keys and aggregates by what they are made of, so that equal ones are one."""
    keys = {k.name: f"{k.side}_{k.source}" + (f"_or_{k.alone}" if k.alone else "") for k in join.joined}
    pairs = {p.aggregate.name: _pair_name(p) for p in join.pairs}
    joined = {keys[k.name]: replace(k, name=keys[k.name]) for k in join.joined}
    made = {pairs[p.aggregate.name]: _rename_pair(p, pairs[p.aggregate.name]) for p in join.pairs}
    normal = replace(join, joined=_in_order(joined), pairs=tuple(made[n] for n in sorted(made)))
    return _Side(normal, keys | pairs)


def _rename(plan: QueryPlan, normal: _Side) -> QueryPlan:
    """Return a plan over a join in normal form; the result keeps its names."""
    names = normal.names
    having = rename_columns(plan.having, names) if plan.having else None
    columns = tuple(rename_column(c, names) for c in plan.columns)
    top = with_keys(plan.top, lambda key: rename_sort_key(key, names))
    finish = replace(plan.finish, input=normal.node, columns=columns, having=having, top=top)
    return QueryPlan(replace(plan.root, input=finish))


def _pair_name(pair: PairAggregate) -> str:
    """Return a name that depends only on what an aggregate over pairs is made of."""
    alone = "".join(f"_or_{side}_{pair.alone(side)}" for side in SIDES if pair.alone(side))
    return f"{pair.aggregate.function}_{pair.left}_{pair.right}_{_carries(pair)}{alone}"


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
