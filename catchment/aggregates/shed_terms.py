"""The sums that a sampled aggregate has beside its state, for its error bound: see `catchment.shedding.terms`.

Where a record becomes several rows, it is in a sample with all of them or with none. So what is sampled are the
**record totals**: how many rows a record has in a group, and what their values sum up to. Their squares and products
are what the terms need (`RecordTotals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.catalogue import make_aggregate
from catchment.aggregates.grouped import floats_of, sum_integers
from catchment.arrays import Floats, Mask
from catchment.storage.codec import stored

FUNCTION = "shed"
BOUNDED = ("count", "sum", "avg")  # the functions of which a sample has an error bound
_SUFFIX = "__terms"
_COUNT_SUMS = ("more", "g", "v")  # records that were not sampled, and two proxies of the error
_TOTALS_SUMS = ("more", "g")  # of a count of rows: what was not sampled, and the proxy of the error
_VALUE_SUMS = ("more", "more_x", "g", "g_x", "g_xx")  # the same for sums of values: also of x and x^2


@stored(2, {1: dict})  # version 2 has clustered
@dataclass(frozen=True)
class ShedTerms(Aggregate):
    """The sums beside one aggregate, whose function is `of`; the value is how many records were sampled.

    `clustered`: a record may be several rows, which are sampled together.
    """

    of: str = "count"
    clustered: bool = False

    @property
    def bounded(self) -> bool:
        """Whether a sampled answer of the aggregate has a bound."""
        return self.of in BOUNDED

    @property
    def moments(self) -> Aggregate | None:
        """Return what must be aggregated of sampled records: their number, and for values mean and spread."""
        if not self.bounded or self.clustered:
            return None
        function = "count" if self.of == "count" else "var_pop"
        return make_aggregate(function, self.argument, self.argument_type, name=f"{self.name}__of")

    @property
    def sums(self) -> tuple[StateColumn, ...]:
        if not self.bounded:
            return ()
        names: tuple[str, ...] = _VALUE_SUMS
        if self.of == "count":
            names = _TOTALS_SUMS if self.clustered else _COUNT_SUMS
        return tuple(self.column(name, pa.float64()) for name in names)

    @property
    def totals(self) -> RecordTotals | None:
        """Return what must be summed up of the totals of sampled records, where these are several rows."""
        return RecordTotals(self.name, self.argument) if self.bounded and self.clustered else None

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


@dataclass(frozen=True)
class RecordTotals:
    """Sums over the records that have rows in a group, of an argument (None: every row counts).

    With c the number of a record's rows that have a value, and x the sum of these values: how many records have any
    (n), and the sums of c, x, c^2, c x and x^2.
    """

    name: str
    argument: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the sums."""
        return tuple(f"{self.name}__{of}" for of in ("n", "c", "x", "cc", "cx", "xx"))

    @property
    def of_record(self) -> tuple[str, str]:
        """The columns of c and x, per record and group."""
        return f"{self.name}__rows", f"{self.name}__value"

    def record_sql(self, argument: str | None) -> tuple[str, str]:
        """Return c and x as Spark SQL over the rows of a record and group."""
        if argument is None:
            return "CAST(count(1) AS DOUBLE)", "0D"
        return f"CAST(count({argument}) AS DOUBLE)", f"coalesce(sum(TRY_CAST({argument} AS DOUBLE)), 0D)"

    def sum_sql(self) -> tuple[str, ...]:
        """Return the sums as Spark SQL over the records of a group."""
        c, x = (f"`{column}`" for column in self.of_record)
        return tuple(f"sum({of})" for of in (f"if({c} > 0D, 1D, 0D)", c, x, f"{c} * {c}", f"{c} * {x}", f"{x} * {x}"))

    def sum_up(
        self, records: Groups, groups: Groups, size: int, values: Floats | None, has_value: Mask
    ) -> list[Floats]:
        """Return the sums of groups: `records` numbers the records of each group, `groups` has the group of each."""
        c = np.bincount(records[has_value], minlength=len(groups)).astype(np.float64)
        x = np.zeros(len(groups))
        if values is not None:
            np.add.at(x, records[has_value], values[has_value])
        of_groups = ((c > 0) * 1.0, c, x, c * c, c * x, x * x)
        return [np.bincount(groups, weights=of, minlength=size).astype(np.float64) for of in of_groups]


def shed_terms(aggregate: Aggregate) -> ShedTerms:
    """Return the terms of an aggregate."""
    return ShedTerms(
        f"{aggregate.name}{_SUFFIX}", FUNCTION, aggregate.argument, aggregate.argument_type, aggregate.function
    )


def with_terms(aggregates: Sequence[Aggregate], clustered: bool = False) -> tuple[Aggregate, ...]:
    """Return aggregates and the terms of each; `clustered` where a record may be several rows."""
    return (*aggregates, *(replace(shed_terms(aggregate), clustered=clustered) for aggregate in aggregates))


def find_terms(aggregate: Aggregate, aggregates: Sequence[Aggregate]) -> ShedTerms | None:
    """Return the terms of an aggregate among others, if they are there."""
    name = shed_terms(aggregate).name
    return next((terms for terms in terms_in(aggregates) if terms.name == name), None)


def terms_in(aggregates: Sequence[Aggregate]) -> tuple[ShedTerms, ...]:
    """Return those of some aggregates that are terms."""
    return tuple(a for a in aggregates if isinstance(a, ShedTerms))
