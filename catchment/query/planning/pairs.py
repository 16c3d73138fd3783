"""Aggregates over pairs of records of two streams: what each needs of either side, and which are refused.

An aggregate of one stream's columns needs that side's state and the number of records of the other side; `FILTER` is
split in the same way. Over columns of both streams only sums and averages of products can be split. In an outer join a
side that is preserved also computes the aggregate over its own records alone, with nulls for the other side's columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce

from sqlglot import exp

from catchment.aggregates import Aggregate
from catchment.aggregates.pair_states import can_repeat
from catchment.query.join import BOTH, LEFT, OTHER, RIGHT, SIDES, PairAggregate
from catchment.query.planning.calls import AggregateSet, ParsedCall, resolve_inputs, restrict
from catchment.query.planning.scope import TypedExpression, make_typed
from catchment.query.planning.sides import JoinConditions, JoinSides
from catchment.query.sql.dialect import show

PRODUCTS = ("sum", "avg")  # the functions that may be over a product of columns of both streams
RECORDS = "records"  # the name of a side's count of its records


@dataclass(kw_only=True)
class PairAggregates(AggregateSet):
    """The distinct aggregates over pairs, by name; `sets` are the aggregates that the sides compute for them."""

    sides: JoinSides
    sets: dict[str, AggregateSet]
    preserved: tuple[str, ...] = ()
    pairs: dict[str, PairAggregate] = field(default_factory=dict)

    def add(self, call: ParsedCall, preferred: str | None = None) -> Aggregate:
        call = self.complete(call)
        made = super().add(call, preferred)
        if made.name not in self.pairs:
            self.pairs[made.name] = self._pair(call, made)
        return made

    def _pair(self, call: ParsedCall, made: Aggregate) -> PairAggregate:
        if not can_repeat(made):
            raise self.scope.text.error(
                f"{call.function} of a join cannot be computed from its two streams",
                call.node,
                hint="quantiles and top-k are for views of one stream; every other aggregate is possible in a join",
            )
        what = f"an argument of {call.function}"
        condition = resolve_inputs(call.condition, self.scope, what) if call.condition else None
        split = JoinConditions(self.sides).add(condition, call.node)
        if split.equal or split.compared:
            raise self._refuse(call)
        value = resolve_inputs(call.argument, self.scope, what) if call.argument is not None else None
        pair = self._split(call, made, value, split)
        alone = {side: self._alone(call, made, value, split, side) for side in self.preserved}
        return replace(pair, left_alone=alone.get(LEFT), right_alone=alone.get(RIGHT))

    def _split(self, call: ParsedCall, made: Aggregate, value: exp.Expr | None, split: JoinConditions) -> PairAggregate:
        if value is None:
            return self._repeat(call, made, None, LEFT, split)
        found = self.sides.of(value)
        if len(found) > 1:
            return self._multiply(call, made, value, split)
        local = self.value(call, self.sides.local(value))
        return self._repeat(call, made, local, found[0] if found else LEFT, split)

    def _alone(
        self, call: ParsedCall, made: Aggregate, value: exp.Expr | None, split: JoinConditions, side: str
    ) -> str | None:
        """Return the aggregate of a side over its records without a partner; None if no such record can count."""
        missing = OTHER[side]
        conditions = [*split.of[side], *(self.sides.without(missing, part) for part in split.of[missing])]
        left = self.sides.without(missing, value) if value is not None else None
        if None in conditions or (value is not None and left is None):
            return None
        parts = [self.sides.local(part) for part in conditions if part is not None]
        typed = self._typed_as(made, self.value(call, self.sides.local(left))) if left is not None else None
        name = RECORDS if typed is None else made.name
        return self.sets[side].put(call, restrict(typed, exp.and_(*parts) if parts else None), name).name

    def _typed_as(self, made: Aggregate, value: TypedExpression) -> TypedExpression:
        """Return a value in the type of an aggregate's argument."""
        type_ = made.argument_type
        return value if type_ is None or made.function == "count" else value.cast(type_)

    def _repeat(
        self, call: ParsedCall, made: Aggregate, value: TypedExpression | None, side: str, split: JoinConditions
    ) -> PairAggregate:
        """Return an aggregate that is the state of one side, repeated by the count of the other."""
        other = OTHER[side]
        own = self.sets[side].put(call, restrict(value, split.joint(side)), RECORDS if value is None else made.name)
        counts = self.sets[other].put(ParsedCall(call.node, "count", None), restrict(None, split.joint(other)), RECORDS)
        left, right = (own, counts) if side == LEFT else (counts, own)
        return PairAggregate(made, left.name, right.name, side)

    def _multiply(self, call: ParsedCall, made: Aggregate, value: exp.Expr, split: JoinConditions) -> PairAggregate:
        """Return an aggregate that is the sum or the mean of products of both sides' columns."""
        factors: dict[str, list[exp.Expr]] = {s: [] for s in SIDES}
        for factor in _factors(value):
            found = self.sides.of(factor)
            if len(found) > 1 or made.function not in PRODUCTS:
                raise self._refuse(call)
            factors[found[0] if found else LEFT].append(self.sides.local(factor))
        names = {}
        for side, mine in factors.items():
            product = reduce(lambda a, b: exp.Mul(this=exp.paren(a), expression=exp.paren(b)), mine)
            cast = self._typed_as(made, make_typed(product, self.scope.text, f"the argument of {call.function},"))
            names[side] = self.sets[side].put(call, restrict(cast, split.joint(side)), made.name).name
        return PairAggregate(made, names[LEFT], names[RIGHT], BOTH)

    def _refuse(self, call: ParsedCall) -> Exception:
        return self.scope.text.error(
            f"{show(call.node)} is over single pairs of records",
            call.node,
            hint="aggregate columns of one stream at a time; of both, sum(a.x * b.y) and avg(a.x * b.y) are possible",
        )


def _factors(value: exp.Expr) -> Iterator[exp.Expr]:
    bare = value.unnest()
    if isinstance(bare, exp.Mul):
        yield from _factors(bare.left)
        yield from _factors(bare.right)
    else:
        yield bare
