"""A join of streams within windows: answers over pairs of records, from what every stream aggregates alone.

Each side is aggregated per (slice, join keys, its own keys); pairs of records are never formed. n records of the left
and m of the right that agree in their keys are n * m pairs, so an aggregate of a left column is the left's state
repeated m times, and a sum of products is the product of the sums (`catchment.aggregates.pair_states`). This is eager
aggregation (Yan and Larson, "Eager Aggregation and Lazy Aggregation", VLDB 1995) with the network between its steps.

In an outer join the records of one side, or of both, that have no partner in the window are rows too, with nulls for
the columns of the other side. All records of a partial agree in everything that decides whether they have a partner, so
a partial has one or has none. What an expression of the missing side gives where its columns are null is computed by
the side that is there: as a key of its own (`JoinedKey.alone`), or as an aggregate (`PairAggregate.left_alone`).

Three streams and more are joined one after the other: the left side of a join may be a join itself. Its answers, keys
and states over pairs, are what a side would be that had aggregated the pairs as its records; so everything above holds
for it, and every stream still sends what it aggregates alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from catchment.aggregates import Aggregate, quote
from catchment.errors import QueryError
from catchment.query.fragment import Fragment, Key
from catchment.storage.codec import stored

LEFT, RIGHT, BOTH = "left", "right", "both"
SIDES = (LEFT, RIGHT)
OTHER = {LEFT: RIGHT, RIGHT: LEFT}
KINDS = {(): "", (LEFT,): "left outer", (RIGHT,): "right outer", SIDES: "full outer"}  # of joins, by what is preserved
SIDE_COLUMN = "side"
MAX_STREAMS = 8  # streams of one join
# The comparisons of two keys, each with the one that holds when the sides are exchanged.
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "<>": "<>"}


@stored(2, {1: dict})
@dataclass(frozen=True)
class JoinedKey:
    """A key of the answers: the key `source` of a side.

    Where a record of the other side has no partner, it is the key `alone` of that other side; None: it is null.
    """

    name: str
    side: str
    source: str
    alone: str | None = None

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise QueryError(f"a key is of the left or the right side, not of {self.side!r}")

    def __str__(self) -> str:
        return f"{self.side}.{self.source}" + (f", alone {OTHER[self.side]}.{self.alone}" if self.alone else "")


@stored()
@dataclass(frozen=True)
class RowCondition:
    """A condition of WHERE on a side that may be missing: a boolean key of that side, looked at after pairing.

    Where a record of the other side has no partner, the key `alone` of that other side says whether it holds.
    """

    side: str
    source: str
    alone: str

    def __str__(self) -> str:
        return f"{self.side}.{self.source}, alone {OTHER[self.side]}.{self.alone}"


@stored()
@dataclass(frozen=True)
class KeyComparison:
    """A further condition on pairs: how a key of the left side compares with one of the right."""

    left: str
    operator: str
    right: str

    def __post_init__(self) -> None:
        if self.operator not in TURNED:
            raise QueryError(f"pairs are compared by {', '.join(TURNED)}, not by {self.operator!r}")

    def __str__(self) -> str:
        return f"{LEFT}.{self.left} {self.operator} {RIGHT}.{self.right}"


@stored(2, {1: dict})
@dataclass(frozen=True)
class PairAggregate:
    """An aggregate over pairs, made of one aggregate of each side.

    `carries` says whose state it is: the left's, repeated by the count of the right; the right's, repeated by the count
    of the left; or of both, a sum of products. In an outer join `left_alone` is the aggregate of the left over its
    records without a partner, and `right_alone` that of the right; None: no such record counts.
    """

    aggregate: Aggregate
    left: str
    right: str
    carries: str
    left_alone: str | None = None
    right_alone: str | None = None

    def __post_init__(self) -> None:
        if self.carries not in (*SIDES, BOTH):
            raise QueryError(f"an aggregate over pairs carries the state of a side or of both, not of {self.carries!r}")

    def alone(self, side: str) -> str | None:
        """Return the aggregate of a side over its records without a partner; None: no such record counts."""
        return self.left_alone if side == LEFT else self.right_alone

    def __str__(self) -> str:
        alone = "".join(f", alone {side}.{self.alone(side)}" for side in SIDES if self.alone(side))
        if self.carries == BOTH:
            return f"{self.aggregate.function} of left.{self.left} * right.{self.right}{alone}"
        own, counts = (self.left, self.right) if self.carries == LEFT else (self.right, self.left)
        return f"{self.carries}.{own}, {OTHER[self.carries]}.{counts} times{alone}"


@stored(3, {1: dict, 2: dict})
@dataclass(frozen=True)
class Join:
    """The fragments of both sides, the keys in which pairs agree, and the aggregates over pairs.

    The left side may be a join itself. `preserved` are the sides whose records are rows also without a partner,
    `conditions` what WHERE asks of rows.
    """

    name: str
    left: Fragment | Join
    right: Fragment
    on: tuple[tuple[str, str], ...]
    keys: tuple[JoinedKey, ...]
    pairs: tuple[PairAggregate, ...]
    compared: tuple[KeyComparison, ...] = ()
    preserved: tuple[str, ...] = ()
    conditions: tuple[RowCondition, ...] = ()

    @property
    def condition(self) -> str:
        """The condition on pairs, as text for people."""
        own = describe_condition(self.on, self.compared)
        return f"{self.left.condition}, and these where {own}" if isinstance(self.left, Join) else own

    @cached_property
    def gives_alone(self) -> bool:
        """Whether records without a partner are rows, of this join or of one within it."""
        return bool(self.preserved) or (isinstance(self.left, Join) and self.left.gives_alone)

    def side(self, side: str) -> Fragment:
        """Return what a side aggregates: the fragment of a stream, or the answers of the join that it is."""
        if side == RIGHT:
            return self.right
        return self.left.answers if isinstance(self.left, Join) else self.left

    @cached_property
    def streams(self) -> dict[str, Fragment]:
        """The fragments of all streams, by their places in the join: left and right, or left_left, left_right, ..."""
        inner = self.left.streams if isinstance(self.left, Join) else None
        first = {LEFT: self.side(LEFT)} if inner is None else {own_name(LEFT, p): f for p, f in inner.items()}
        return {**first, RIGHT: self.right}

    @cached_property
    def places(self) -> dict[str, str]:
        """The places of streams in the join, by the names of their fragments."""
        return {fragment.name: place for place, fragment in self.streams.items()}

    @cached_property
    def pairing(self) -> Fragment:
        """The layout of all streams' partials in one table: the place of a row, and nulls for the others' columns."""
        keys = [Key(SIDE_COLUMN, quote(SIDE_COLUMN), pa.string())]
        aggregates: list[Aggregate] = []
        for place, fragment in self.streams.items():
            keys += [replace(k, name=own_name(place, k.name)) for k in fragment.keys]
            aggregates += [replace(a, name=own_name(place, a.name)) for a in fragment.aggregates]
        return self._fragment(tuple(keys), tuple(aggregates))

    @cached_property
    def answers(self) -> Fragment:
        """The layout of the answers, as partials."""
        found = {(s, k.name): k for s in SIDES for k in self.side(s).keys}
        keys = tuple(replace(found[k.side, k.source], name=k.name) for k in self.keys)
        return self._fragment(keys, tuple(p.aggregate for p in self.pairs))

    def _fragment(self, keys: tuple[Key, ...], aggregates: tuple[Aggregate, ...]) -> Fragment:
        first, *_ = fragments = list(self.streams.values())
        stream = " JOIN ".join(fragment.stream for fragment in fragments)
        return Fragment(self.name, stream, first.event_time, keys, aggregates, first.windows)


def describe_condition(on: tuple[tuple[str, str], ...], compared: tuple[KeyComparison, ...]) -> str:
    equal = (f"{LEFT}.{left} = {RIGHT}.{right}" for left, right in on)
    return " and ".join([*equal, *map(str, compared)])


def own_name(side: str, name: str) -> str:
    """Return the name of a side's column, or of a place in it, among those of both."""
    return f"{side}_{name}"
