"""How far is the forecast of a slice's updates usually off?

The forecasts of single keys add up to one of the slice: how many updates will be needed beyond those that wait now, for
new keys and for sent keys that return. When the slice is over it is known how many were. By how much of itself the sum
was off in the slices before, beyond what chance does to a count, is the error that the policy keeps a reserve for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from catchment.site.policies.spillway.key_returns import LEFT

_FIRST_ERROR = 0.15  # of a forecast, before any was judged
_KEEP = 0.8  # of what was known of the error when the next slice is judged
_LEAST_JUDGED = 8.0  # updates: of fewer, chance is nearly all
_FIRST_JUDGED = 0.5  # share of the slice left: earlier forecasts decide nothing

Said = Mapping[int, tuple[float, int]]  # instant -> (updates that were forecast, misses until then)


class ForecastDeviation:
    """A decayed mean of squares."""

    def __init__(self, resume: Mapping[str, Any] | None = None) -> None:
        self._squares = float(resume["squares"]) if resume else _FIRST_ERROR**2
        self._judged = float(resume["judged"]) if resume else 1.0
        self._is_first = bool(resume["is_first"]) if resume else True

    @property
    def share(self) -> float:
        """By how much of itself a forecast is usually off."""
        return float(np.sqrt(max(self._squares / self._judged, 0.0)))

    def learn(self, said: Said, misses: int) -> None:
        """A slice is over that had so many misses in all. In the first one there was nothing to forecast by."""
        if self._is_first:
            self._is_first = False
            return
        pairs = [(forecast, misses - before) for i, (forecast, before) in said.items() if LEFT[i] <= _FIRST_JUDGED]
        # Of the greater of the two, so that no single instant, such as one just before many came at once, says it all.
        judged = [((came - f) / max(came, f)) ** 2 - 1 / f for f, came in pairs if f >= _LEAST_JUDGED]
        if judged:
            self._squares = _KEEP * self._squares + float(np.mean(judged))
            self._judged = _KEEP * self._judged + 1

    def dump(self) -> dict[str, Any]:
        return {"squares": self._squares, "judged": self._judged, "is_first": self._is_first}
