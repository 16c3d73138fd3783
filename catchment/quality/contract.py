"""Contracts: how wrong the answers of a query may be, which quantities are watched for it, and what each site keeps.

A contract allows a share of the windows to be off by too much. What is measured of a window is a sum, a count, an
average or a rank. Counts of conditions are sums of ones and zeros; aggregates whose error no coverage bounds (extremes,
spreads, distinct counts, top lists) are watched by the share of records that are in, and publish no bound while
something is late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catchment.aggregates import Aggregate
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.aggregates.shed_terms import ShedTerms
from catchment.arrays import Floats
from catchment.errors import QualityError
from catchment.storage.codec import stored

MEASURES = ("sum", "count", "avg", "quantile")
LATE_SHARE = 0.5  # what late records get of a contract that they share with samplers or sketches
# Ranks beyond these are watched as if they were there: too few records lie beyond them.
LEAST_RANK = 0.01
MOST_RANK = 0.99


@stored()
@dataclass(frozen=True)
class Contract:
    """At most a share `delta` = 1 - confidence of the windows may be off by `max_error` or more."""

    max_error: float
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name, share in (("max_error", self.max_error), ("confidence", self.confidence)):
            if not 0.0 < share < 1.0:
                raise QualityError(
                    f"{name} is a share strictly between 0 and 1, not {share!r}",
                    hint="a contract reads: max_error = 0.05, confidence = 0.95",
                )

    @property
    def delta(self) -> float:
        return 1.0 - self.confidence


def share_contract(contract: Contract, *, sampled: bool, sketched: bool) -> Contract:
    """Return the part of a contract that late records have, where samplers or sketches may add errors of their own.

    The chance of a miss is shared by whatever may miss (a union bound: no independence is assumed). The error is shared
    with samplers alone: an answer that lacks records and is sampled is off by at most the sum of both errors, and the
    error of a sketch is there even on all the data, so that no contract can ask it to be smaller.
    """
    error = LATE_SHARE * contract.max_error if sampled else contract.max_error
    delta = LATE_SHARE * contract.delta if sampled or sketched else contract.delta
    return Contract(error, 1.0 - delta)


@stored()
@dataclass(frozen=True)
class Measure:
    """What a window's answer measures, for judging its error: sum, count, avg, or the quantile of rank p."""

    name: str
    p: float = 0.5

    def __post_init__(self) -> None:
        if self.name not in MEASURES:
            raise QualityError(
                f"there is no measure {self.name!r}", hint="possible: sum, count, avg, median, quantile:0.9"
            )
        if not 0.0 < self.p < 1.0:
            raise QualityError(f"a quantile lies strictly between 0 and 1, not at {self.p!r}")

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Return the measure of 'sum', 'count', 'avg', 'median', 'quantile:0.9'."""
        name, _, rank = text.strip().lower().partition(":")
        if name == "median" and not rank:
            return cls("quantile", 0.5)
        if (name == "quantile") != bool(rank):
            raise QualityError(
                f"cannot read the measure {text!r}", hint="possible: sum, count, avg, median, quantile:0.9"
            )
        try:
            return cls(name, float(rank)) if rank else cls(name)
        except ValueError as cause:
            raise QualityError(f"the rank in {text!r} is not a number", hint="write quantile:0.9") from cause

    def __str__(self) -> str:
        return f"quantile:{self.p:g}" if self.name == "quantile" else self.name

    @property
    def rank_factor(self) -> float:
        """The most that a missing share q can move the rank of the quantile, as a multiple of q."""
        return max(self.p, 1.0 - self.p)


def relative_error(measure: Measure, count: npt.ArrayLike, total: npt.ArrayLike, n: float, t: float) -> Floats:
    """Return the error of answers made from (count, total) where the whole window has n records that sum to t.

    For a quantile the error is in rank, and this is the most it can be. Sums and averages over 0 are infinitely wrong
    unless they are equal.
    """
    counts = np.asarray(count, dtype=np.float64)
    totals = np.asarray(total, dtype=np.float64)
    if measure.name == "count":
        return _relative_distance(counts, n)
    if measure.name == "quantile":
        return measure.rank_factor * _relative_distance(counts, n)
    if measure.name == "sum":
        return _relative_distance(totals, t)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _relative_distance(totals / counts, t / n if n else 0.0)


def _relative_distance(values: Floats, truth: float) -> Floats:
    distance = np.abs(values - truth)
    if truth:
        return np.where(np.isnan(distance), np.inf, distance / abs(truth))
    return np.where(distance == 0.0, 0.0, np.inf)


@stored()
@dataclass(frozen=True)
class WatchedQuantity:
    """A quantity that a contract watches, and the columns of a query that it stands for.

    `value` is the Spark SQL of its values; None: every record counts 1. Only a `bounded` one publishes a bound.
    """

    measure: Measure
    value: str | None
    columns: tuple[str, ...]
    bounded: bool = True


def watched_quantities(aggregates: Sequence[Aggregate]) -> tuple[WatchedQuantity, ...]:
    """Return the quantities that a contract on these aggregates watches, each once, in their order."""
    columns: dict[tuple[Measure, str | None, bool], list[str]] = {}
    for aggregate in (a for a in aggregates if not isinstance(a, ShedTerms)):
        columns.setdefault(_quantity_of(aggregate), []).append(aggregate.name)
    return tuple(WatchedQuantity(m, value, tuple(names), bounded) for (m, value, bounded), names in columns.items())


def _quantity_of(aggregate: Aggregate) -> tuple[Measure, str | None, bool]:
    argument = aggregate.argument
    if isinstance(aggregate, ApproxPercentile | Percentile):
        rank = max(aggregate.ranks, key=lambda r: abs(r - 0.5))
        return Measure("quantile", min(max(rank, LEAST_RANK), MOST_RANK)), None, True
    if aggregate.function in ("sum", "avg"):
        return Measure(aggregate.function), f"CAST({argument} AS DOUBLE)", True
    if aggregate.function == "count" and argument is not None:
        return Measure("sum"), f"CASE WHEN ({argument}) IS NULL THEN 0.0D ELSE 1.0D END", True
    return Measure("count"), None, aggregate.function == "count"


def per_site_contract(
    contract: Contract, watched: Sequence[WatchedQuantity], sites: int
) -> tuple[Contract, tuple[WatchedQuantity, ...]]:
    """Return what each of several sites must keep, so that the answer joined from them keeps the whole contract.

    Returned are the contract of one site and what it watches: what is published first, then what only helps.

    - Error. Counts, ranks, and sums of one sign: if every part is off by less than eps, so is the whole, which is off
      by a weighted mean of the parts. An average is not: two sites whose averages differ and that lack different
      shares of their records are each right and together wrong. But where every site lacks less than eps' of its
      records and of their sum, the whole average is off by less than eps' / (1 - eps') (values of one sign): so with
      eps' = eps / (1 + eps) and both watched, averages are kept too.
    - Confidence. A window is off only if one of its parts is. If each of S sites is off in at most delta / S of the
      windows, the whole is in at most delta, however the misses of the sites fall together.
    """
    if sites <= 1:
        return contract, tuple(watched)
    averages = [quantity for quantity in watched if quantity.measure.name == "avg"]
    error = contract.max_error / (1.0 + contract.max_error) if averages else contract.max_error
    return Contract(error, 1.0 - contract.delta / sites), (*watched, *_behind_averages(averages, watched))


def _behind_averages(averages: Sequence[WatchedQuantity], watched: Sequence[WatchedQuantity]) -> list[WatchedQuantity]:
    """Return the sums and the count behind averages, where no published column stands for them."""
    if not averages:
        return []
    known = {(quantity.measure, quantity.value) for quantity in watched}
    wanted = [(Measure("sum"), average.value) for average in averages]
    wanted.append((Measure("count"), None))
    return [WatchedQuantity(measure, value, (), False) for measure, value in wanted if (measure, value) not in known]
