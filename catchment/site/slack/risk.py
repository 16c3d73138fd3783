"""The chance that a window's answer is off, from what its sources owe it.

The missing part of a sum is a compound of records of known rate and second moment over an uncertain time: a normal
variable with the mean and variance computed here. For COUNT a record weighs 1; for AVG it weighs its excess over the
average, and the error is that of a ratio; a quantile can move in rank by no more than the missing share times
max(p, 1 - p).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, expm1, sqrt

import numpy as np

from catchment.quality.coverage import Measure
from catchment.site.slack.batch import Floats


@dataclass(frozen=True, slots=True)
class Owed:
    """What is in a window, what is owed to it, and the part of the measure that is missing (mean, deviation)."""

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


def owed(
    measure: Measure, held: tuple[float, float], rates: Floats, time: Floats, doubt: Floats, drift: Floats | None
) -> Owed:
    """What sources of these rates owe for these times; `drift` is the doubt in the rates, where it matters."""
    count, total = held
    rate, worth, power = rates.T
    missing_count, missing_total = float(rate @ time), float(worth @ time)
    each, noise = rate, rate
    if measure.name == "sum":
        each, noise = worth, power
    elif measure.name == "avg":
        average = (total + missing_total) / max(count + missing_count, 1e-300)
        each, noise = worth - average * rate, power - 2 * average * worth + average * average * rate
    variance = float(np.square(each) @ doubt + noise @ time)
    if drift is not None:
        variance += float((drift * np.square(each)) @ np.square(time))
    return Owed(count, total, missing_count, missing_total, float(each @ time), sqrt(max(variance, 0.0)))


def risk(measure: Measure, max_error: float, what: Owed, imputed: bool) -> float:
    """The chance that the answer is off by `max_error` or more; with `imputed`, that the estimate is."""
    if not what.missing_count:
        return 0.0
    if not what.count:
        return -expm1(-what.missing_count)
    eps = min(max_error / measure.rank_factor, 0.999) if measure.name == "quantile" else max_error
    if imputed:
        return 2.0 * _above(eps * _size(measure, what), what.deviation)
    if measure.name == "avg":
        allowed = eps * _size(measure, what)
        return _above(allowed - what.mean, what.deviation) + _above(allowed + what.mean, what.deviation)
    inside = what.total if measure.name == "sum" else what.count
    mean = what.mean if inside >= 0 else -what.mean
    high, low = eps * abs(inside) / (1.0 - eps), eps * abs(inside) / (1.0 + eps)
    return _above(high - mean, what.deviation) + _above(low + mean, what.deviation)


def bound(measure: Measure, z: float, what: Owed, imputed: bool) -> float:
    """The error that the answer stays under but for the chance that z stands for."""
    size = _size(measure, what)
    if not size:
        return 1.0 if what.missing_count else 0.0
    factor = measure.rank_factor if measure.name == "quantile" else 1.0
    return factor * ((0.0 if imputed else abs(what.mean)) + z * what.deviation) / size


def _size(measure: Measure, what: Owed) -> float:
    if measure.name in ("count", "quantile"):
        return what.count + what.missing_count
    return abs(what.total + what.missing_total)


def _above(distance: float, deviation: float) -> float:
    """P(X >= distance) of a centred normal variable; one without deviation is 0."""
    if deviation == 0.0:
        return 1.0 if distance <= 0.0 else 0.0
    return 0.5 * erfc(distance / (deviation * sqrt(2.0)))
