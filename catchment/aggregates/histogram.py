"""histogram(x, low, high, buckets): how many values lie in each of some equal parts of a range.

The bounds of the buckets are constants of the query, so counts of two sites, or of two slices, simply add up: no bucket
moves, whatever comes. What is below the range is counted first, and what is at its end or above last; NaN is greater
than any other number, as in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, AggregateCall, Groups, StateColumn
from catchment.aggregates.grouped import floats_of, sum_integers, valid_rows
from catchment.aggregates.totals import check_number
from catchment.arrays import Floats
from catchment.errors import AggregateError
from catchment.storage.codec import stored

MAX_BUCKETS = 64  # each is a column of the state
FORM = "write histogram(x, 0, 100, 10): from 0 to 100 in ten parts"


@stored()
@dataclass(frozen=True)
class Histogram(Aggregate):
    """Counts of values below `low`, in each of `buckets` equal parts up to `high`, and from `high` on."""

    low: float = 0.0
    high: float = 1.0
    buckets: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise AggregateError(
                f"a histogram goes from one number to a greater one, not from {self.low} to {self.high}",
                where=self.name,
                hint=FORM,
            )
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise AggregateError(
                f"a histogram has 1 to {MAX_BUCKETS} parts, not {self.buckets}", where=self.name, hint=FORM
            )

    @classmethod
    def from_call(cls, call: AggregateCall) -> Histogram:
        """Make the aggregate of a call: where it begins and ends, and in how many parts."""
        given = call.parameters
        are_numbers = all(isinstance(p, int | float) and not isinstance(p, bool) for p in given)
        if len(given) != 3 or not are_numbers or not isinstance(given[2], int):
            raise AggregateError("histogram lacks its range, or in how many parts it is", where=call.name, hint=FORM)
        low, high, buckets = given
        return cls(*call.head, float(low), float(high), buckets)  # type: ignore[arg-type]

    @cached_property
    def edges(self) -> Floats:
        """The bounds of the buckets, in order."""
        return np.linspace(self.low, self.high, self.buckets + 1)

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return tuple(self.column(f"bucket_{number}", pa.int64()) for number in range(self.buckets + 2))

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.int64())

    def lift_sql(self) -> tuple[str, ...]:
        x = f"CAST(({self.argument}) AS DOUBLE)"
        edges = [f"CAST('{edge!r}' AS DOUBLE)" for edge in self.edges.tolist()]
        inside = (f"{x} >= {a} AND {x} < {b}" for a, b in pairwise(edges))
        return tuple(f"count_if({holds})" for holds in (f"{x} < {edges[0]}", *inside, f"{x} >= {edges[-1]}"))

    def merge_sql(self) -> tuple[str, ...]:
        return tuple(f"coalesce(sum({state.sql}), 0L)" for state in self.states)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        known = valid_rows(values)
        places = np.searchsorted(self.edges, floats_of(values)[known], side="right")
        width = self.buckets + 2
        counts = np.bincount(groups[known] * width + places, minlength=size * width).reshape(size, width)
        return [pa.array(column.astype(np.int64)) for column in counts.T]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return [sum_integers(state, groups, size).fill_null(0) for state in states]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        counts = np.stack([np.asarray(state.fill_null(0), dtype=np.int64) for state in states], axis=1)
        offsets = np.arange(len(counts) + 1, dtype=np.int32) * counts.shape[1]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(counts.ravel())).cast(self.result_type)
