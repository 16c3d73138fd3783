"""What a contract measures of a query: per aggregate, which error counts, and the values that it is made of.

A slack controller watches sums, counts, averages and ranks. Counts of conditions are sums of ones and zeros; aggregates
whose error no coverage bounds (extremes, spreads, distinct counts, top lists) are watched by the share of records that
are in, and publish no bound while something is late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.aggregates import Aggregate
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.quality.coverage import Measure
from catchment.storage.codec import stored

LEAST_RANK, MOST_RANK = 0.01, 0.99  # ranks beyond them are watched as if they were there


@stored()
@dataclass(frozen=True)
class Measured:
    """A watched quantity, the Spark SQL of its values (None: every record counts 1), and the columns it stands for."""

    measure: Measure
    value: str | None
    columns: tuple[str, ...]
    bounded: bool = True


def measured(aggregates: Sequence[Aggregate]) -> tuple[Measured, ...]:
    """What is watched of a query's aggregates, each distinct quantity once, in their order."""
    found: dict[tuple[Measure, str | None, bool], list[str]] = {}
    for aggregate in aggregates:
        measure, value, bounded = _watched(aggregate)
        found.setdefault((measure, value, bounded), []).append(aggregate.name)
    return tuple(Measured(m, v, tuple(columns), bounded) for (m, v, bounded), columns in found.items())


def _watched(aggregate: Aggregate) -> tuple[Measure, str | None, bool]:
    argument = aggregate.argument
    if isinstance(aggregate, ApproxPercentile):
        rank = max(aggregate.ranks, key=lambda r: abs(r - 0.5))
        return Measure("quantile", min(max(rank, LEAST_RANK), MOST_RANK)), None, True
    if aggregate.function in ("sum", "avg"):
        return Measure(aggregate.function), f"CAST({argument} AS DOUBLE)", True
    if aggregate.function == "count" and argument is not None:
        return Measure("sum"), f"CASE WHEN ({argument}) IS NULL THEN 0.0D ELSE 1.0D END", True
    return Measure("count"), None, aggregate.function == "count"
