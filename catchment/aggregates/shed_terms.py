"""The sums that a sampled aggregate has beside its state, for its error bound: see `catchment.shedding.terms`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.catalogue import make_aggregate
from catchment.aggregates.grouped import floats_of, sum_integers
from catchment.storage.codec import stored

FUNCTION = "shed"
BOUNDED = ("count", "sum", "avg")  # the functions of which a sample has an error bound
_SUFFIX = "__terms"
_COUNT_SUMS = ("more", "g", "v")  # records that were not sampled, and two proxies of the error
_VALUE_SUMS = ("more", "more_x", "g", "g_x", "g_xx")  # the same for sums of values: also of x and x^2


@stored()
@dataclass(frozen=True)
class ShedTerms(Aggregate):
    """The sums beside one aggregate, whose function is `of`; the value is how many records were sampled."""

    of: str = "count"

    @property
    def bounded(self) -> bool:
        """Whether a sampled answer of the aggregate has a bound."""
        return self.of in BOUNDED

    @property
    def moments(self) -> Aggregate | None:
        """Return what must be aggregated of sampled records: their number, and for values mean and spread."""
        if not self.bounded:
            return None
        function = "count" if self.of == "count" else "var_pop"
        return make_aggregate(function, self.argument, self.argument_type, name=f"{self.name}__of")

    @property
    def sums(self) -> tuple[StateColumn, ...]:
        if not self.bounded:
            return ()
        names = _COUNT_SUMS if self.of == "count" else _VALUE_SUMS
        return tuple(self.column(name, pa.float64()) for name in names)

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column("kept", pa.int64()), *self.sums)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def lift_sql(self) -> tuple[str, ...]:
        """Return zeros: records that were not sampled add nothing."""
        return ("0L", *("0D" for _ in self.sums))

    def merge_sql(self) -> tuple[str, ...]:
        return tuple(f"sum({state.sql})" for state in self.states)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        return [pa.array(np.zeros(size, np.int64)), *(pa.array(np.zeros(size)) for _ in self.sums)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        kept, *sums = states
        added = (np.bincount(groups, weights=floats_of(s), minlength=size) for s in sums)
        return [sum_integers(kept, groups, size).fill_null(0), *(pa.array(a.astype(np.float64)) for a in added)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


def shed_terms(aggregate: Aggregate) -> ShedTerms:
    """Return the terms of an aggregate."""
    return ShedTerms(
        f"{aggregate.name}{_SUFFIX}", FUNCTION, aggregate.argument, aggregate.argument_type, aggregate.function
    )


def with_terms(aggregates: Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    """Return aggregates and the terms of each."""
    return (*aggregates, *map(shed_terms, aggregates))


def terms_in(aggregates: Sequence[Aggregate]) -> tuple[ShedTerms, ...]:
    """Return those of some aggregates that are terms."""
    return tuple(a for a in aggregates if isinstance(a, ShedTerms))
