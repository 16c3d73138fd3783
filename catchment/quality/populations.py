"""What a window holds and how it was sampled: the facts that every bound is computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from catchment.errors import QualityError


@dataclass(frozen=True, slots=True)
class Population:
    """The records of a window that an aggregate is about, as far as they are known.

    `std` is that of the population (divided by N). `value_range` is a promise that no value lies outside; without it,
    no inequality that needs bounded values is used. `kurtosis` is E(x - mean)^4 / std^4.
    """

    count: float
    mean: float = 1.0
    std: float = 0.0
    value_range: tuple[float, float] | None = None
    kurtosis: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.count) and self.count >= 0):
            raise QualityError(f"a window holds a finite number of records, at least 0, not {self.count!r}")
        if not math.isfinite(self.mean) or not (math.isfinite(self.std) and self.std >= 0):
            raise QualityError(f"a mean is finite and a std is at least 0: given {self.mean!r} and {self.std!r}")
        if self.value_range is not None and not self.value_range[0] <= self.mean <= self.value_range[1]:
            raise QualityError(f"the mean {self.mean!r} lies outside the value range {self.value_range}")
        if self.kurtosis is not None and not self.kurtosis >= 1.0:
            raise QualityError(f"a kurtosis is at least 1, not {self.kurtosis!r}")

    @property
    def second_moment(self) -> float:
        """E x^2."""
        return self.std**2 + self.mean**2

    def furthest(self, centre: float) -> float:
        """Return the largest |x - centre| that the value range allows; infinite where none is known."""
        if self.value_range is None:
            return math.inf
        return max(abs(self.value_range[0] - centre), abs(self.value_range[1] - centre))


@dataclass(frozen=True, slots=True)
class SampledPart:
    """What one site (or one stratum, or one stretch of time) gives to a window: its records, sampled at one rate."""

    population: Population
    rate: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise QualityError(f"a sampling rate is between 0 and 1, not {self.rate!r}")


@dataclass(frozen=True, slots=True)
class AggregateKind:
    """An aggregate by the law that bounds its error and, for a quantile, its rank."""

    law: str
    quantile: float | None = None


# Names of SQL functions, and what a command line may call them, by the law that bounds them.
_LAWS = {
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "variance": "variance",
    "var": "variance",
    "var_pop": "variance",
    "var_samp": "variance",
    "stddev": "stddev",
    "std": "stddev",
    "stddev_pop": "stddev",
    "stddev_samp": "stddev",
    "quantile": "quantile",
    "percentile": "quantile",
    "percentile_approx": "quantile",
    "median": "quantile",
    "min": "extreme",
    "max": "extreme",
    "distinct": "distinct",
    "count_distinct": "distinct",
    "approx_count_distinct": "distinct",
    "distinct_by_key": "count",
    "moments": "unbounded",
    "top_k": "unbounded",
    "approx_top_k": "unbounded",
}


def parse_aggregate(text: str) -> AggregateKind:
    """Return the kind of 'sum', 'AVG', 'quantile:0.95', 'median', ...

    'distinct_by_key' is a distinct count under a sampler that decides by the counted value and not by the record: such
    a count is a COUNT of sampled things.
    """
    name, _, parameter = text.strip().lower().partition(":")
    law = _LAWS.get(name)
    if law is None:
        raise QualityError(f"no bound is known for the aggregate {text!r}", hint="known: " + ", ".join(_LAWS))
    if law != "quantile":
        return AggregateKind(law)
    return AggregateKind(law, _parse_rank(text, name, parameter))


def _parse_rank(text: str, name: str, parameter: str) -> float:
    try:
        rank = 0.5 if name == "median" else float(parameter)
    except ValueError:
        rank = math.nan
    if not 0.0 < rank < 1.0:
        raise QualityError(f"{text!r} names no quantile between 0 and 1", hint="write quantile:0.95, or median")
    return rank


def check_delta(delta: float) -> None:
    """Refuse a delta, the chance of a miss (1 - confidence), that is no chance."""
    if not 0.0 < delta < 1.0:
        raise QualityError(f"delta is a chance between 0 and 1, not {delta!r}", hint="0.05 means 95% confidence")


def total_count(parts: Sequence[SampledPart]) -> float:
    """Return N, the number of records over all parts."""
    return math.fsum(part.population.count for part in parts)


def total_mean(parts: Sequence[SampledPart]) -> float:
    """Return the mean over all parts; 0 where there are no records."""
    count = total_count(parts)
    return math.fsum(p.population.count * p.population.mean for p in parts) / count if count else 0.0
