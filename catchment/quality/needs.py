"""The inverse of the bounds: the sampling rate that an (error, confidence) contract needs.

`needed_rate` is the least rate at which the best bound keeps the contract. `Need` is the same question as a curve, for
the shed planner: the rate as a function of the error, in the closed forms that Hoeffding's inequality gives (Babcock et
al., equation 2, capped at 1). For COUNT and SUM the curve is C / error, so the planner can solve for the least worst
error exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from catchment.errors import QualityError
from catchment.quality.bounds import bound
from catchment.quality.populations import AggregateKind, Population, SampledPart, check_delta, parse_aggregate
from catchment.quality.tails import largest_root, log_term

LOWEST_RATE = 1e-9  # the lowest rate that is searched: one record in a thousand million
_HALVINGS = 60  # steps of a bisection of the logarithm of the rate: more than a float distinguishes


def needed_rate(aggregate: str, population: Population, max_error: float, delta: float) -> float:
    """Return the least rate at which the answer is off by more than `max_error` with chance at most delta, or 1."""
    check_delta(delta)
    if not max_error >= 0.0:
        raise QualityError(f"a contract's error is at least 0, not {max_error!r}")

    def keeps(rate: float) -> bool:
        return bound(aggregate, SampledPart(population, rate), delta).holds(max_error)

    if population.count == 0 or max_error == 0.0 or not keeps(math.nextafter(1.0, 0.0)):
        return 1.0
    low = LOWEST_RATE
    high = 1.0
    for _ in range(_HALVINGS):  # bisection, because a bound may fall in steps: whole records are kept
        middle = math.sqrt(low * high)
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class SampledAggregate:
    """An aggregate over a population, and the chance that a bound on it is missed."""

    aggregate: str
    population: Population
    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)
        parse_aggregate(self.aggregate)  # refuses an unknown one

    @cached_property
    def kind(self) -> AggregateKind:
        return parse_aggregate(self.aggregate)


@dataclass(frozen=True)
class Need(SampledAggregate):
    """What one query needs: the rate for an error, and the error at a rate. Errors fall as rates rise."""

    @cached_property
    def needs_every_record(self) -> bool:
        """Whether no rate below 1 promises anything, so that the query is never shed.

        That is so where no records are expected (whatever does come is rare, and its loss the whole answer), where the
        mean is 0 (any error is infinite relative to the answer), and where there is no bound at all.
        """
        if self.population.count == 0:
            return True
        if self.kind.law in ("count", "sum", "avg"):
            return self.kind.law != "count" and self.population.mean == 0.0
        return math.isinf(
            bound(self.aggregate, SampledPart(self.population, math.nextafter(1.0, 0.0)), self.delta).error
        )

    @cached_property
    def slope(self) -> float | None:
        """Return C, where the needed rate is C / error; 0 where every record is needed, else None."""
        if self.needs_every_record:
            return 0.0
        return self._spread * math.sqrt(self._unit) if self.kind.law in ("count", "sum") else None

    def rate(self, error: float) -> float:
        """Return the rate at which the answer is off by more than `error` with chance at most delta.

        Below some rate an average or a quantile has no bound at all. Above an error of 1 the curve therefore falls as
        that of a sum does, so that any load can be brought down to any capacity; `error` says what is still promised.
        """
        if self.needs_every_record or error <= 0.0:
            return 1.0
        if math.isinf(error):
            return 0.0
        if self.slope is None and error > 1.0:
            return self.rate(1.0) / error
        return min(1.0, self._rate(error))

    def _rate(self, error: float) -> float:
        if self.slope is not None:
            return self.slope / error
        if self.kind.law == "avg":
            return math.sqrt(self._unit * ((self._spread / error) ** 2 + 1.0))
        if self.kind.law == "quantile":
            centre, tilt = self._quantile_terms
            return math.sqrt(self._unit * (centre + tilt * error)) / error
        if self.kind.law == "extreme":
            return -math.expm1(math.log(self.delta) / (math.floor(error * self.population.count) + 1))
        return needed_rate(self.aggregate, self.population, error, self.delta)

    def promised_rate(self, max_error: float) -> float:
        """Return the rate that a contract needs."""
        return self.rate(max_error)

    def error(self, rate: float) -> float:
        """Return the error that a rate promises: 0 at rate 1, infinite at rate 0 or where nothing is promised."""
        if rate >= 1.0:
            return 0.0
        if self.needs_every_record or rate <= 0.0:
            return math.inf
        return self._error(rate)

    def _error(self, rate: float) -> float:
        if self.slope is not None:
            return self.slope / rate
        if self.kind.law == "avg":
            return float(largest_root(rate**2 - self._unit, 0.0, self._unit * self._spread**2))
        if self.kind.law == "quantile":
            centre, tilt = self._quantile_terms
            return min(1.0, float(largest_root(rate**2, self._unit * tilt, self._unit * centre)))
        return bound(self.aggregate, SampledPart(self.population, rate), self.delta).error

    @property
    def _unit(self) -> float:
        """Return ln(2 / delta) / (2 N), the square of the rate that a spread of 1 needs for an error of 1."""
        return log_term(self.delta) / (2.0 * self.population.count)

    @property
    def _spread(self) -> float:
        """Return sqrt(E y^2) / mean, y being what is summed: 1 for COUNT, x for SUM, x - mean for AVG."""
        if self.kind.law == "count":
            return 1.0
        around = self.population.std if self.kind.law == "avg" else math.sqrt(self.population.second_moment)
        return around / abs(self.population.mean)

    @property
    def _quantile_terms(self) -> tuple[float, float]:
        q = self.kind.quantile
        assert q is not None
        return q * (1.0 - q), abs(1.0 - 2.0 * q)
