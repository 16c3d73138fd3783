"""Aggregates over pairs of records of two streams: what each needs of either side, and which are refused.

An aggregate of one stream's columns needs that side's state and the number of records of the other side; `FILTER` is
split in the same way. Over columns of both streams only sums and averages of products can be split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

from sqlglot import exp

from catchment.aggregates import Aggregate
from catchment.aggregates.pair_states import can_repeat
from catchment.query.join import BOTH, LEFT, RIGHT, SIDES, PairAggregate
from catchment.query.planning.calls import AggregateSet, ParsedCall, resolve_inputs, restrict
from catchment.query.planning.scope import TypedExpression, make_typed
from catchment.query.planning.sides import JoinConditions, JoinSides
from catchment.query.sql.dialect import show
from catchment.query.types import sql_type

PRODUCTS = ("sum", "avg")  # the functions that may be over a product of columns of both streams
RECORDS = "records"  # the name of a side's count of its records


@dataclass(kw_only=True)
class PairAggregates(AggregateSet):
    """The distinct aggregates over pairs, by name; `sets` are the aggregates that the sides compute for them."""

    sides: JoinSides
    sets: dict[str, AggregateSet]
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
        if call.argument is None:
            return self._repeat(call, made, None, LEFT, split)
        value = resolve_inputs(call.argument, self.scope, what)
        found = self.sides.of(value)
        if len(found) > 1:
            return self._multiply(call, made, value, split)
        local = self.value(call, self.sides.local(value))
        return self._repeat(call, made, local, found[0] if found else LEFT, split)

    def _repeat(
        self, call: ParsedCall, made: Aggregate, value: TypedExpression | None, side: str, split: JoinConditions
    ) -> PairAggregate:
        """Return an aggregate that is the state of one side, repeated by the count of the other."""
        other = RIGHT if side == LEFT else LEFT
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
        type_ = made.argument_type
        assert type_ is not None
        names = {}
        for side, mine in factors.items():
            product = reduce(lambda a, b: exp.Mul(this=exp.paren(a), expression=exp.paren(b)), mine)
            own = make_typed(product, self.scope.text, f"the argument of {call.function},")
            cast = own if own.type == type_ else TypedExpression(f"CAST({own.sql} AS {sql_type(type_)})", type_)
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
