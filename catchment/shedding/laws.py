"""The two laws by which load can be divided: the rate that a query needs for an error, and its error at a rate.

Hoeffding's law (`catchment.quality.needs`) holds whatever the values are, and its rate for an error is C / error:
linear. What will be *seen* follows the variance. A record is kept with chance P and counted 1 / P times, so the
relative variance of the answer is c^2 (1 - P) / P, with c^2 = E y^2 / (N mean^2), y being what is summed; the rate for
an error is P = v / (v + error^2), v = (z c)^2: quadratic, and 1 only for an error of 0. Where rates are low, rates of
equal Hoeffding error give a query of few records too little and one of many too much. z is the normal quantile of
delta, so an error here is an *estimate* of what one window in 1 / delta exceeds; it is no promise. Contracts are
promises: they need the rate at which the bound that will be stated keeps them.

| aggregate | y | error |
|---|---|---|
| COUNT, SUM, AVG | 1, x, x - mean (and 1 / sqrt(N): how many are averaged varies too) | relative |
| variance, stddev | (x - mean)^2 by its kurtosis, 3 where none is known; half of that for the root | relative |
| quantile | "x is below it": q (1 - q) | of rank |
| min, max | no variance: the law of the records that are all missed, as in `needs` | of rank |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from statistics import NormalDist
from typing import TypeAlias

from catchment.quality.needs import Need, SampledAggregate, needed_rate
from catchment.quality.populations import Population, parse_aggregate

NORMAL_KURTOSIS = 3.0  # assumed where no kurtosis is known
AnyNeed: TypeAlias = "Need | VarianceNeed"


class Law(StrEnum):
    """A law by which an error follows from a rate."""

    HOEFFDING = "hoeffding"  # that of the paper: promised, whatever the values are; loose at low rates
    VARIANCE = "variance"  # an estimate of what will be seen, by the normal limit: no promise


def make_need(law: Law, aggregate: str, population: Population, delta: float) -> AnyNeed:
    """Return what a query needs by this law."""
    if law is Law.HOEFFDING:
        return Need(aggregate, population, delta)
    return VarianceNeed(aggregate, population, delta)


_UNBOUNDED = ("distinct", "unbounded")


@dataclass(frozen=True)
class VarianceNeed(SampledAggregate):
    """What one query needs: its rate for an error, and its error at a rate; errors fall as rates rise."""

    @cached_property
    def needs_every_record(self) -> bool:
        """Whether no rate below 1 helps: no records are expected, the mean is 0, or a sample does not bound it."""
        if self.population.count == 0 or self.kind.law in _UNBOUNDED:
            return True
        return self.kind.law in ("sum", "avg") and self.population.mean == 0.0

    @property
    def slope(self) -> float | None:
        """Return None, because the rate is no multiple of 1 / error; 0 where every record is needed."""
        return 0.0 if self.needs_every_record else None

    def rate(self, error: float) -> float:
        """Return the rate at which the answer is off by more than `error` about once in 1 / delta windows."""
        if self.needs_every_record or error <= 0.0:
            return 1.0
        if math.isinf(error):
            return 0.0
        return self._by_rank.rate(error) if self._by_rank else self._square / (self._square + error * error)

    def error(self, rate: float) -> float:
        """Return the error that about delta of the windows exceed: 0 at rate 1, infinite at rate 0."""
        if rate >= 1.0:
            return 0.0
        if self.needs_every_record or rate <= 0.0:
            return math.inf
        return self._by_rank.error(rate) if self._by_rank else math.sqrt(self._square * (1.0 - rate) / rate)

    def promised_rate(self, max_error: float) -> float:
        """Return the rate at which the bound that will be stated keeps a contract."""
        return (
            1.0 if self.needs_every_record else _promised_rate(self.aggregate, self.population, max_error, self.delta)
        )

    @cached_property
    def _by_rank(self) -> Need | None:
        return Need(self.aggregate, self.population, self.delta) if self.kind.law == "extreme" else None

    @cached_property
    def _square(self) -> float:
        """Return v, the square of the error at rate 1/2."""
        return _quantile(self.delta) ** 2 * self._spread / self.population.count

    @property
    def _spread(self) -> float:
        """Return E y^2 / (what the error is relative to)^2."""
        law = self.kind.law
        x = self.population
        if law == "count":
            return 1.0
        if law == "sum":
            return x.second_moment / x.mean**2
        if law == "avg":
            return (x.std / x.mean) ** 2 + 1.0 / x.count
        if law == "quantile":
            assert self.kind.quantile is not None
            return self.kind.quantile * (1.0 - self.kind.quantile)
        around = (x.kurtosis or NORMAL_KURTOSIS) - 1.0 + 1.0 / x.count
        return around if law == "variance" else around / 4.0


@cache
def _quantile(delta: float) -> float:
    return NormalDist().inv_cdf(1.0 - delta / 2.0)


@lru_cache(maxsize=1024)
def _promised_rate(aggregate: str, population: Population, max_error: float, delta: float) -> float:
    """Return the rate by bisection, which takes milliseconds; planners ask for it again and again."""
    return needed_rate(aggregate, population, max_error, delta)


def spare_limit(aggregate: str, square: float, centre: float, rate: float) -> float:
    """Return the size beyond which a value is better never shed; infinite if there is none.

    `square` is the mean square of the values that may be shed: for an AVG about `centre`, the mean of all, because its
    variance is about x - mean where that of a SUM is about x.

    If the record of a value x is always taken, 1 - P more records are read and the variance of a SUM falls by x^2 (1 -
    P) / P, where P is the rate; as many more records at a higher rate make it fall by E x^2 (1 - P) / P^2. The first is
    more where x^2 > E x^2 / P. At most the share P of the records lies beyond that (Chebyshev), so sparing at most
    doubles what is read.
    """
    if square <= 0.0:
        return math.inf
    return math.sqrt(square / rate) + (abs(centre) if parse_aggregate(aggregate).law == "avg" else 0.0)
