"""What a window is expected to lack at one site: the chance that its answer violates a contract, and its error bound.

The missing part of a sum is a compound of records of known rate and second moment over an uncertain time: a normal
variable with the mean and variance computed here. For COUNT a record weighs 1; for AVG it weighs its excess over the
average, and the error is that of a ratio; a quantile moves in rank by at most the missing share times max(p, 1 - p).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, expm1, sqrt
from statistics import NormalDist

import numpy as np

from catchment.arrays import Floats
from catchment.quality.contract import Measure

_LARGEST_SHARE = 0.999  # a rank error is turned into a missing share of at most this


@dataclass(frozen=True, slots=True)
class MissingPart:
    """What a window holds, what it is expected to lack, and the missing part of its measure (mean, deviation)."""

    count: float
    total: float
    missing_count: float
    missing_total: float
    mean: float
    deviation: float

    @property
    def coverage(self) -> float:
        whole = self.count + self.missing_count
        return self.count / whole if whole else 1.0

    def answer_size(self, measure: Measure) -> float:
        """Return the size of the whole answer, which errors are relative to."""
        if measure.name in ("count", "quantile"):
            return self.count + self.missing_count
        return abs(self.total + self.missing_total)


def missing_part(
    measure: Measure,
    held: tuple[float, float],
    rates: Floats,
    time_us: Floats,
    variance_us2: Floats,
    rate_variance: Floats | None = None,
) -> MissingPart:
    """Return what sources of these rates lack for these times; `held` is the count and total of the window so far.

    `rate_variance` is the relative variance of each rate, where the rates themselves are uncertain.
    """
    count, total = held
    records, values, squares = rates.T
    missing_count = float(records @ time_us)
    missing_total = float(values @ time_us)
    mean_rate = records
    noise_rate = records
    if measure.name == "sum":
        mean_rate = values
        noise_rate = squares
    elif measure.name == "avg":
        average = (total + missing_total) / max(count + missing_count, 1e-300)
        mean_rate = values - average * records
        noise_rate = squares - 2 * average * values + average * average * records
    variance = float(np.square(mean_rate) @ variance_us2 + noise_rate @ time_us)
    if rate_variance is not None:
        variance += float((rate_variance * np.square(mean_rate)) @ np.square(time_us))
    mean = float(mean_rate @ time_us)
    return MissingPart(count, total, missing_count, missing_total, mean, sqrt(max(variance, 0.0)))


def violation_risk(measure: Measure, max_error: float, part: MissingPart) -> float:
    """Return the chance that the answer made from what is in is off by `max_error` or more."""
    certain = certain_risk(part)
    if certain is not None:
        return certain
    share = max_share(measure, max_error)
    if measure.name == "avg":
        allowed = share * part.answer_size(measure)
        return tail_chance(allowed - part.mean, part.deviation) + tail_chance(allowed + part.mean, part.deviation)
    inside = part.total if measure.name == "sum" else part.count
    mean = part.mean if inside >= 0 else -part.mean
    most = share * abs(inside) / (1.0 - share)
    least = share * abs(inside) / (1.0 + share)
    return tail_chance(most - mean, part.deviation) + tail_chance(least + mean, part.deviation)


def certain_risk(part: MissingPart) -> float | None:
    """Return the risk where it needs no distribution: nothing is missing, or nothing is in."""
    if not part.missing_count:
        return 0.0
    if not part.count:
        return -expm1(-part.missing_count)
    return None


def max_share(measure: Measure, max_error: float) -> float:
    """Return the relative error that a contract allows; for a quantile, the missing share."""
    if measure.name == "quantile":
        return min(max_error / measure.rank_factor, _LARGEST_SHARE)
    return max_error


def error_bound(measure: Measure, delta: float, part: MissingPart) -> float:
    """Return the error that the answer made from what is in stays under, except with chance delta (normal limit)."""
    return relative_bound(measure, abs(part.mean) + normal_quantile(delta) * part.deviation, part)


def normal_quantile(delta: float) -> float:
    """Return the two-sided normal quantile: a normal variable is further out with chance delta."""
    return NormalDist().inv_cdf(1.0 - delta / 2.0)


def relative_bound(measure: Measure, distance: float, part: MissingPart) -> float:
    """Return the error (for a quantile: of rank) of an answer that is at most `distance` off in its measure."""
    size = part.answer_size(measure)
    if not size:
        return 1.0 if part.missing_count else 0.0
    factor = measure.rank_factor if measure.name == "quantile" else 1.0
    return factor * distance / size


def tail_chance(distance: float, deviation: float) -> float:
    """Return P(X >= distance) of a centred normal variable; one without deviation is 0."""
    if deviation == 0.0:
        return 1.0 if distance <= 0.0 else 0.0
    return 0.5 * erfc(distance / (deviation * sqrt(2.0)))
