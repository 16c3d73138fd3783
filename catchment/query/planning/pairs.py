"""Aggregates over pairs of records of two sides: what each needs of either side, and which are refused.

An aggregate of one side's columns needs that side's state and the number of records of the other side; `FILTER` is
split in the same way. Over columns of both sides only sums and averages of products can be split. In an outer join a
side that is preserved also computes the aggregate over its own records alone, with nulls for the other side's columns.

A side is a stream, or a join of streams whose pairs are its records: what it computes is split once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import Aggregate
from catchment.aggregates.pair_states import can_repeat
from catchment.query.join import BOTH, LEFT, OTHER, RIGHT, SIDES, PairAggregate
from catchment.query.planning.calls import AggregateSet, ParsedCall, resolve_inputs, restrict
from catchment.query.planning.scope import TypedExpression
from catchment.query.planning.sides import JoinConditions, JoinSides, StreamNames
from catchment.query.sql.dialect import show

PRODUCTS = ("sum", "avg")  # the functions that may be over a product of columns of both sides
RECORDS = "records"  # the name of a side's count of its records


class SideAggregates(Protocol):
    """The aggregates that a side of a join computes for it."""

    def add_part(
        self,
        call: ParsedCall,
        value: exp.Expr | None,
        conditions: Sequence[exp.Expr],
        type_: pa.DataType | None,
        name: str,
    ) -> str:
        """Return the name of an aggregate of a value, in a type, over the side's records that meet conditions."""
        ...


@dataclass(kw_only=True)
class StreamAggregates(AggregateSet):
    """The aggregates that one stream computes, in the names of its fragment."""

    names: StreamNames

    def add_part(
        self,
        call: ParsedCall,
        value: exp.Expr | None,
        conditions: Sequence[exp.Expr],
        type_: pa.DataType | None,
        name: str,
    ) -> str:
        local = None if value is None else self.names.local(value)
        typed = _typed(self, call, local, type_)
        return self.put(call, _restricted(typed, [self.names.local(part) for part in conditions]), name).name


@dataclass(kw_only=True)
class PairAggregates(AggregateSet):
    """The distinct aggregates over pairs, by name; `parts` are the aggregates that the sides compute for them."""

    sides: JoinSides
    parts: dict[str, SideAggregates]
    preserved: tuple[str, ...] = ()
    pairs: dict[str, PairAggregate] = field(default_factory=dict)

    def add(self, call: ParsedCall, preferred: str | None = None) -> Aggregate:
        call = self.complete(call)
        made = super().add(call, preferred)
        if made.name not in self.pairs:
            what = f"an argument of {call.function}"
            condition = resolve_inputs(call.condition, self.scope, what) if call.condition else None
            value = resolve_inputs(call.argument, self.scope, what) if call.argument is not None else None
            self._add_pair(call, made, value, [] if condition is None else [condition])
        return made

    def add_part(
        self,
        call: ParsedCall,
        value: exp.Expr | None,
        conditions: Sequence[exp.Expr],
        type_: pa.DataType | None,
        name: str,
    ) -> str:
        made = self.put(call, _restricted(_typed(self, call, value, type_), conditions), name)
        if made.name not in self.pairs:
            self._add_pair(call, made, value, conditions)
        return made.name

    def _add_pair(
        self, call: ParsedCall, made: Aggregate, value: exp.Expr | None, conditions: Sequence[exp.Expr]
    ) -> None:
        if not can_repeat(made):
            raise self.scope.text.error(
                f"{call.function} of a join cannot be computed from its streams",
                call.node,
                hint="quantiles and top-k are for views of one stream; every other aggregate is possible in a join",
            )
        split = JoinConditions(self.sides)
        for condition in conditions:
            split.add(condition, call.node)
        if split.equal or split.compared:
            raise self._refuse(call)
        pair = self._split(call, made, value, split)
        alone = {side: self._alone(call, made, value, split, side) for side in self.preserved}
        self.pairs[made.name] = replace(pair, left_alone=alone.get(LEFT), right_alone=alone.get(RIGHT))

    def _split(self, call: ParsedCall, made: Aggregate, value: exp.Expr | None, split: JoinConditions) -> PairAggregate:
        found = self.sides.of(value) if value is not None else ()
        if value is not None and len(found) > 1:
            return self._multiply(call, made, value, split)
        return self._repeat(call, made, value, found[0] if found else LEFT, split)

    def _alone(
        self, call: ParsedCall, made: Aggregate, value: exp.Expr | None, split: JoinConditions, side: str
    ) -> str | None:
        """Return the aggregate of a side over its records without a partner; None if no such record can count."""
        missing = OTHER[side]
        conditions = [*split.of[side]]
        for part in split.of[missing]:
            left = self.sides.without(missing, part)
            if left is None:
                return None
            conditions.append(left)
        own = self.sides.without(missing, value) if value is not None else None
        if value is not None and own is None:
            return None
        name = RECORDS if own is None else made.name
        return self.parts[side].add_part(call, own, conditions, made.argument_type, name)

    def _repeat(
        self, call: ParsedCall, made: Aggregate, value: exp.Expr | None, side: str, split: JoinConditions
    ) -> PairAggregate:
        """Return an aggregate that is the state of one side, repeated by the count of the other."""
        other = OTHER[side]
        name = RECORDS if value is None else made.name
        own = self.parts[side].add_part(call, value, split.of[side], made.argument_type, name)
        count = ParsedCall(call.node, "count", None)
        counts = self.parts[other].add_part(count, None, split.of[other], None, RECORDS)
        left, right = (own, counts) if side == LEFT else (counts, own)
        return PairAggregate(made, left, right, side)

    def _multiply(self, call: ParsedCall, made: Aggregate, value: exp.Expr, split: JoinConditions) -> PairAggregate:
        """Return an aggregate that is the sum or the mean of products of both sides' columns."""
        factors: dict[str, list[exp.Expr]] = {s: [] for s in SIDES}
        for factor in _factors(value):
            found = self.sides.of(factor)
            if len(found) > 1 or made.function not in PRODUCTS:
                raise self._refuse(call)
            factors[found[0] if found else LEFT].append(factor)
        names = {}
        for side, mine in factors.items():
            product = reduce(lambda a, b: exp.Mul(this=exp.paren(a), expression=exp.paren(b)), mine)
            names[side] = self.parts[side].add_part(call, product, split.of[side], made.argument_type, made.name)
        return PairAggregate(made, names[LEFT], names[RIGHT], BOTH)

    def _refuse(self, call: ParsedCall) -> Exception:
        return self.scope.text.error(
            f"{show(call.node)} is over single pairs of records",
            call.node,
            hint="aggregate columns of one stream at a time, such as sum(a.x) - sum(b.y); of both, sum(a.x * b.y) and "
            "avg(a.x * b.y) are possible",
        )


def _typed(
    aggregates: AggregateSet, call: ParsedCall, value: exp.Expr | None, type_: pa.DataType | None
) -> TypedExpression | None:
    """Return the argument of an aggregate in a type; whatever is counted keeps its own."""
    if value is None:
        return None
    made = aggregates.value(call, value)
    return made if type_ is None or call.function == "count" else made.cast(type_)


def _restricted(value: TypedExpression | None, conditions: Sequence[exp.Expr]) -> TypedExpression | None:
    return restrict(value, exp.and_(*conditions) if conditions else None)


def _factors(value: exp.Expr) -> Iterator[exp.Expr]:
    bare = value.unnest()
    if isinstance(bare, exp.Mul):
        yield from _factors(bare.left)
        yield from _factors(bare.right)
    else:
        yield bare
