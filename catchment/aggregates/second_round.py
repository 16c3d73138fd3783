"""The second round of a percentile: the few values that decide it, and its exact answer from those alone.

A KLL sketch of n records says between which two values a rank certainly lies, but for a chance of `MISSED`. So sites
need not send their values again: what is below such an interval is only counted, as minus infinity, what is above it
as infinity, and what is between two intervals as one value there. The multiset of that is small, merges like any other,
and has the same value at the asked ranks.

Law: `settle` gives the percentile of all records, or says why it cannot. It counts the records again and looks whether
every rank lies inside of its interval, so an interval that was missed is noticed and never published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from datasketches import kll_doubles_sketch

from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.sketches import read_sketch
from catchment.arrays import Floats, Ints
from catchment.errors import AggregateError

MISSED = 1e-6  # the chance that a rank lies outside of its interval, as far as the sketch is sub-Gaussian
STATED = 0.01  # the chance at which the library states the error of rank
ITEM_BYTES = 16  # of a value and its count, before compression


@dataclass(frozen=True)
class RankIntervals:
    """Where the asked ranks of some records lie: closed intervals of values, in order and apart.

    `records` is how many records there are, `most_values` how many lie inside of the intervals at the most.
    """

    intervals: tuple[tuple[float, float], ...]
    records: int
    most_values: int

    @property
    def most_bytes(self) -> int:
        """What the values inside of the intervals take at the most, before compression."""
        return ITEM_BYTES * self.most_values

    def unite(self, other: RankIntervals) -> RankIntervals:
        """Return the intervals of both, of records that may be the same."""
        joined: list[tuple[float, float]] = []
        for low, high in sorted((*self.intervals, *other.intervals)):
            if joined and low <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(high, joined[-1][1])
            else:
                joined.append((low, high))
        return RankIntervals(tuple(joined), self.records + other.records, self.most_values + other.most_values)

    def holds(self, value: float) -> bool:
        """Return whether a value is inside of an interval; NaN is greater than any other number."""
        if math.isnan(value):
            return math.isinf(self.intervals[-1][1])
        return any(low <= value <= high for low, high in self.intervals)

    def narrow_sql(self, number: str) -> str:
        """Return the Spark SQL that gives a number inside of an interval as it is, and any other as what it counts as.

        Between two intervals that is a value in the middle: where there is none, no number lies there either.
        """
        cases = []
        low = self.intervals[0][0]
        if not math.isinf(low):
            cases.append(f"WHEN {number} < {double_sql(low)} THEN {double_sql(-math.inf)}")
        for (_, end), (begin, _) in pairwise(self.intervals):
            cases.append(f"WHEN {number} <= {double_sql(end)} THEN {number}")
            cases.append(f"WHEN {number} < {double_sql(begin)} THEN {double_sql(_between(end, begin))}")
        high = self.intervals[-1][1]
        if not math.isinf(high):
            cases.append(f"WHEN {number} > {double_sql(high)} THEN {double_sql(math.inf)}")
        return f"CASE {' '.join(cases)} ELSE {number} END" if cases else number


def double_sql(value: float) -> str:
    """Return a double as Spark SQL that reads as the same double."""
    text = "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
    return f"CAST('{text}' AS DOUBLE)"


def find_intervals(aggregate: Percentile, sketch: bytes) -> RankIntervals:
    """Return where the ranks of a percentile lie, by the sketch of its records."""
    read = read_sketch(kll_doubles_sketch.deserialize, sketch, aggregate)
    records = int(read.n)
    stated = float(kll_doubles_sketch.get_normalized_rank_error(int(read.k), False))
    width = stated * math.sqrt(math.log(2.0 / MISSED) / math.log(2.0 / STATED)) + 2.0 / records
    found: list[tuple[float, float]] = []
    most_values = 0
    for rank in sorted(aggregate.ranks):
        low = -math.inf if rank - width <= 0.0 else float(read.get_quantile(rank - width))
        high = math.inf if rank + width >= 1.0 else float(read.get_quantile(rank + width))
        most_values += min(math.ceil(4.0 * width * records) + 2, records)
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return RankIntervals(tuple(found), records, min(most_values, records))


def settle(
    aggregate: Percentile, known: RankIntervals, values: Floats, counts: Ints
) -> tuple[tuple[float, int], ...] | str:
    """Return a small multiset with the exact percentiles of all records; or why they are not known.

    `values` and `counts` are the narrowed multiset of all records, in order. What is returned has the values at the
    asked ranks, and one value for all that lie between two of them.
    """
    records = int(counts.sum())
    if records != known.records:
        return f"histories hold {records} records of it, and {known.records} were merged"
    ends = np.cumsum(counts)
    places = _places(aggregate.ranks, records)
    kept = sorted({int(place) for place in np.searchsorted(ends, places, side="right")})
    if not all(known.holds(float(values[place])) for place in kept):
        return "a rank lies outside of the interval that its sketch gave"
    items: list[tuple[float, int]] = []
    first = 0
    for place in [*kept, len(values)]:
        if place > first:
            items.append((float(values[first]), int(counts[first:place].sum())))
        if place < len(values):
            items.append((float(values[place]), int(counts[place])))
        first = place + 1
    return tuple(items)


def _places(ranks: Sequence[float], records: int) -> list[int]:
    """Return the places, from 0, of the records that percentiles are interpolated between."""
    places: list[int] = []
    for rank in ranks:
        place = (records - 1) * rank
        places += [math.floor(place), math.ceil(place)]
    return places


def _between(low: float, high: float) -> float:
    """Return a value strictly between two, if there is one."""
    middle = low / 2.0 + high / 2.0
    if not low < middle < high:
        middle = math.nextafter(low, high)
    if not math.isfinite(middle):
        raise AggregateError(f"there is no number between {low} and {high}")
    return middle
