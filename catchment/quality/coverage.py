"""Needed coverage: which share of a window's units must be in, for its answer to keep a contract.

A late record is one that was not sampled (Yang et al., HPM, section 1.2; Ji et al., AQ-K-slack). Let the received
units be a simple random sample of the window's N, cv the spread of a unit over its mean, z1 and z2 the one- and
two-sided normal quantiles of delta = 1 - confidence, and eps the allowed relative error (for a quantile: the allowed
error in rank). Then the coverage lam that keeps P(error >= eps) <= delta is

- COUNT: lam = 1 - eps;
- SUM: eps = q + z1 cv sqrt(q (1 - q) / N) for the missing share q = 1 - lam. It is a quadratic with two roots, and q is
  the **smaller** one: the larger has error eps with the wrong sign of z1;
- AVG: n0 = (z2 cv / eps)^2, lam = n0 / (n0 + N - 1);
- quantile p: n0 = z2^2 p (1 - p) / eps^2, lam = n0 / (n0 + N - 1).

**What the units are matters more than the formula.** Networks do not lose records at random: a stall hides whole
sources. `units_of_sources` states the same population with sources as its units; then N is their number, and cv is that
of their totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from statistics import NormalDist

import numpy as np

from catchment.arrays import Floats
from catchment.errors import QualityError
from catchment.quality.contract import Contract, Measure


@dataclass(frozen=True)
class Units:
    """The sampling units of a window: how many, and the coefficient of variation of what each contributes."""

    number: float
    cv: float = 0.0

    def __post_init__(self) -> None:
        if not self.number >= 1.0 or not self.cv >= 0.0:
            raise QualityError(f"a window has 1 unit or more and a cv of 0 or more, not {self.number} and {self.cv}")


def units_of_records(count: float, total: float, square: float) -> Units:
    """Return records as units, from their count, the sum and the sum of squares of their values."""
    if count < 1:
        raise QualityError(f"a population of records needs 1 record or more, not {count}")
    mean = total / count
    variance = max(square / count - mean * mean, 0.0)
    return Units(float(count), _variation(sqrt(variance), mean))


def units_of_sources(measure: Measure, totals: Floats, counts: Floats) -> Units:
    """Return sources as units, from the total and the number of records that each contributes to a window.

    For AVG a source matters by its excess over the common mean mu, T_s - mu N_s, and not by its size.
    """
    if len(totals) < 1 or len(totals) != len(counts):
        raise QualityError(f"{len(totals)} totals and {len(counts)} counts of sources do not make a population")
    weights = counts if measure.name in ("count", "quantile") else totals
    mean = float(np.mean(weights))
    excess = totals - totals.sum() / max(counts.sum(), 1e-300) * counts if measure.name == "avg" else weights - mean
    spread = float(np.sqrt(np.mean(np.square(excess))))
    return Units(len(totals), _variation(spread, mean))


def _variation(std: float, mean: float) -> float:
    """Return the coefficient of variation; units that are all 0 do not vary."""
    if std == 0.0:
        return 0.0
    return std / abs(mean) if mean else inf


def needed_coverage(measure: Measure, contract: Contract, units: Units) -> float:
    """Return the least coverage that keeps the contract."""
    eps = contract.max_error
    if measure.name == "count":
        return 1.0 - eps
    if measure.name == "sum":
        one_sided = NormalDist().inv_cdf(1.0 - contract.delta)
        return 1.0 - _smaller_root(eps, units, one_sided)
    two_sided = NormalDist().inv_cdf(1.0 - contract.delta / 2.0)
    spread = units.cv if measure.name != "quantile" else sqrt(measure.p * (1.0 - measure.p))
    return _sample_share((two_sided * spread / eps) ** 2, units.number)


def _smaller_root(eps: float, units: Units, z: float) -> float:
    """Return the missing share q with eps = q + z cv sqrt(q (1 - q) / N)."""
    c = z * z * units.cv**2 / units.number
    if c == inf:
        return 0.0
    b = 2.0 * eps + c
    # 2 eps^2 / (b + root) is (b - root) / (2 (1 + c)) without its cancellation.
    return 2.0 * eps * eps / (b + sqrt(max(b * b - 4.0 * (1.0 + c) * eps * eps, 0.0)))


def _sample_share(n0: float, number: float) -> float:
    """Return the share of a sample of n0 from an endless population, corrected for a finite one."""
    if n0 == inf:
        return 1.0
    return n0 / (n0 + number - 1.0) if n0 + number > 1.0 else 0.0
