"""Needed coverage: which share of a window's units must be in, for its answer to keep a contract.

A late record is one that was not sampled (Yang et al., HPM, section 1.2; Ji et al., AQ-K-slack). With the
received units a simple random sample of the window's N, cv the spread of a unit over its mean, z1 and z2 the
one- and two-sided normal quantiles of delta = 1 - confidence, and eps the allowed relative error (for a
quantile: the allowed error in rank), the coverage lam that keeps P(error >= eps) <= delta is

- COUNT, published as counted: lam = 1 - eps;
- SUM, published as summed: eps = q + z1 cv sqrt(q (1 - q) / N) for the missing share q = 1 - lam. It is a
  quadratic with two roots, and q is the **smaller** one: the larger has error eps with the wrong sign of z1;
- SUM or COUNT divided by its coverage, AVG: n0 = (z2 cv / eps)^2, lam = n0 / (n0 + N - 1);
- quantile p: n0 = z2^2 p (1 - p) / eps^2, lam = n0 / (n0 + N - 1).

**What the units are matters more than the formula.** Networks do not lose records at random: a stall hides
whole sources. `units_of_sources` states the same population with sources as its units; then N is their
number, and cv is that of their totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from catchment.errors import QualityError
from catchment.storage.codec import stored

Floats = npt.NDArray[np.float64]

MEASURES = ("sum", "count", "avg", "quantile")


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


@stored()
@dataclass(frozen=True)
class Measure:
    """What a window's answer measures, for judging its error: sum, count, avg, or the quantile p."""

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
        """'sum', 'count', 'avg', 'median', 'quantile:0.9'."""
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
        """The most that a missing share q can move the rank of the quantile p is q times this."""
        return max(self.p, 1.0 - self.p)


@dataclass(frozen=True)
class Units:
    """The sampling units of a window: how many, and the coefficient of variation of what each contributes."""

    number: float
    cv: float = 0.0

    def __post_init__(self) -> None:
        if not self.number >= 1.0 or not self.cv >= 0.0:
            raise QualityError(f"a window has 1 unit or more and a cv of 0 or more, not {self.number} and {self.cv}")


def units_of_records(count: float, total: float, square: float) -> Units:
    """Records as units: from their count, the sum and the sum of squares of their values."""
    if count < 1:
        raise QualityError(f"a population of records needs 1 record or more, not {count}")
    mean = total / count
    variance = max(square / count - mean * mean, 0.0)
    return Units(float(count), sqrt(variance) / abs(mean) if mean else (inf if variance else 0.0))


def units_of_sources(measure: Measure, totals: Floats, counts: Floats) -> Units:
    """Sources as units: from the total and the number of records that each contributes to a window.

    For AVG a source matters by its excess over the common mean mu, T_s - mu N_s, and not by its size.
    """
    if len(totals) < 1 or len(totals) != len(counts):
        raise QualityError(f"{len(totals)} totals and {len(counts)} counts of sources do not make a population")
    weights = counts if measure.name in ("count", "quantile") else totals
    mean = float(np.mean(weights))
    excess = totals - totals.sum() / max(counts.sum(), 1e-300) * counts if measure.name == "avg" else weights - mean
    spread = float(np.sqrt(np.mean(np.square(excess))))
    return Units(len(totals), spread / abs(mean) if mean else (inf if spread else 0.0))


def needed_coverage(measure: Measure, contract: Contract, units: Units, *, scaled: bool = False) -> float:
    """The least coverage that keeps the contract; `scaled` sums are published divided by their coverage."""
    eps, delta = contract.max_error, contract.delta
    if measure.name == "count" and not scaled:
        return 1.0 - eps
    if measure.name == "sum" and not scaled:
        return 1.0 - _smaller_root(eps, units, _one_sided(delta))
    share = units.cv if measure.name != "quantile" else sqrt(measure.p * (1.0 - measure.p))
    return _sample_share((_two_sided(delta) * share / eps) ** 2, units.number)


def error_at(measure: Measure, coverage: float, delta: float, units: Units, *, scaled: bool = False) -> float:
    """The error that a window of this coverage stays under but for a chance delta: the inverse of the above."""
    if not 0.0 <= coverage <= 1.0:
        raise QualityError(f"a coverage is a share between 0 and 1, not {coverage!r}")
    missing = 1.0 - coverage
    if measure.name == "count" and not scaled:
        return missing
    if measure.name == "sum" and not scaled:
        return missing + _one_sided(delta) * units.cv * sqrt(missing * coverage / units.number)
    share = sqrt(measure.p * (1.0 - measure.p)) if measure.name == "quantile" else units.cv
    if missing == 0.0:
        return 0.0
    return _two_sided(delta) * share * sqrt(missing / (coverage * max(units.number - 1.0, 1.0))) if coverage else inf


def _smaller_root(eps: float, units: Units, z: float) -> float:
    """The missing share q with eps = q + z cv sqrt(q (1 - q) / N)."""
    c = z * z * units.cv**2 / units.number
    if c == inf:
        return 0.0
    b = 2.0 * eps + c
    # 2 eps^2 / (b + root) is (b - root) / (2 (1 + c)) without its cancellation.
    return 2.0 * eps * eps / (b + sqrt(max(b * b - 4.0 * (1.0 + c) * eps * eps, 0.0)))


def _sample_share(n0: float, number: float) -> float:
    """A sample of n0 from an endless population, corrected for a finite one."""
    return 1.0 if n0 == inf else n0 / (n0 + number - 1.0) if n0 + number > 1.0 else 0.0


def _one_sided(delta: float) -> float:
    return NormalDist().inv_cdf(1.0 - delta)


def _two_sided(delta: float) -> float:
    return NormalDist().inv_cdf(1.0 - delta / 2.0)


def relative_error(measure: Measure, count: npt.ArrayLike, total: npt.ArrayLike, n: float, t: float) -> Floats:
    """The error of answers made from (count, total) where the whole window has n records that sum to t.

    For a quantile the error is in rank, and this is the most it can be; sums and averages over 0 are
    infinitely wrong unless they are equal.
    """
    counts, totals = np.asarray(count, dtype=np.float64), np.asarray(total, dtype=np.float64)
    if measure.name == "count":
        return _off(counts, n)
    if measure.name == "quantile":
        return measure.rank_factor * _off(counts, n)
    if measure.name == "sum":
        return _off(totals, t)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _off(totals / counts, t / n if n else 0.0)


def _off(values: Floats, truth: float) -> Floats:
    gap = np.abs(values - truth)
    if truth:
        return np.where(np.isnan(gap), np.inf, gap / abs(truth))
    return np.where(gap == 0.0, 0.0, np.inf)
