"""How far is the forecast of a slice's updates usually off?

The forecasts of single keys add up to one of the slice: how many updates will be needed beyond those that wait now, for
new keys and for sent keys that return. When the slice is over it is known how many came. The deviation is the relative
error of that sum in recent slices, beyond what chance does to a count; the policy keeps a reserve for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from catchment.site.ewma import DecayedMean
from catchment.site.policies.spillway.instants import LEFT
from catchment.storage.codec import stored

_PRIOR_DEVIATION = 0.15  # relative error of a forecast before any was compared with what came
_SLICE_DECAY = 0.8  # weight of the slices so far, per finished slice
_MIN_FORECAST = 8.0  # updates; a smaller forecast is off mostly by chance
_MAX_LEFT = 0.5  # share of the slice left; earlier forecasts decide nothing

Forecasts = Mapping[int, tuple[float, int]]  # instant -> (updates that were forecast, misses until then)


@stored()
@dataclass
class ForecastDeviation:
    """The mean square of relative errors, recent slices counting more."""

    squares: DecayedMean[float] = field(default_factory=lambda: DecayedMean(_PRIOR_DEVIATION**2, 1.0))
    is_first_slice: bool = True  # there is nothing to forecast it by

    @property
    def share(self) -> float:
        """The usual error of a forecast, as a share of the forecast."""
        return float(np.sqrt(max(self.squares.total / self.squares.weight, 0.0)))

    def learn(self, forecasts: Forecasts, misses: int) -> None:
        """Compare the forecasts of a finished slice with the misses that it had in all."""
        if self.is_first_slice:
            self.is_first_slice = False
            return
        squares = [
            _relative_square(forecast, misses - misses_before)
            for instant, (forecast, misses_before) in forecasts.items()
            if LEFT[instant] <= _MAX_LEFT and forecast >= _MIN_FORECAST
        ]
        if squares:
            self.squares.add(float(np.mean(squares)), _SLICE_DECAY)


def _relative_square(forecast: float, came: int) -> float:
    # Relative to the greater of the two, so that one instant just before many keys came at once does not dominate.
    return float(((came - forecast) / max(came, forecast)) ** 2 - 1 / forecast)
