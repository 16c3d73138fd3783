"""The instants of a slice at which the spillway remembers curves: spaced evenly on the logarithm of the time left."""

from __future__ import annotations

import numpy as np

from catchment.arrays import Floats

INSTANTS = 44
_SPACING = 0.8  # time left at an instant, as a share of the time left at the one before
LEFT = _SPACING ** np.arange(INSTANTS)  # shares of the slice that are left at the instants


def instant_of(left: float) -> int:
    """Return the instant nearest to a share left of the slice."""
    position = np.log(max(left, LEFT[-1])) / np.log(_SPACING)
    return int(min(round(float(position)), INSTANTS - 1))


def interpolate(curve: Floats, left: float, end: float) -> float:
    """Return the value of a curve at any share left; beyond the last instant it runs straight to its end."""
    return float(np.interp(left, [0.0, *LEFT[::-1]], [end, *curve[::-1]]))
