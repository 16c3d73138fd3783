"""How much can the link still carry before the slice is due?

Rate times time, if the rate stays what it was when last measured. On links that weaken towards the end of
slices, for instance because every site sends then, it does not; and while nothing is sent nothing is
measured. So the course of the slices before is remembered: what the link took after each instant, and its
rate there. That much is counted upon, and less in proportion when the rate is now below what it usually is at
this instant; never more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from catchment.site.policies.spillway.key_returns import INSTANTS, LEFT, Floats

_KEEP = 0.5  # of what the slices before say when the next one is over

Readings = Sequence[tuple[int, float]]  # (time in microseconds, updates a second), in order


class LinkCapacity:
    """For each instant, the link's rate and what it could have carried from then on, over recent slices."""

    def __init__(self, resume: Mapping[str, Any] | None = None) -> None:
        self._carried = np.asarray(resume["carried"], dtype=np.float64) if resume else np.zeros(INSTANTS)
        self._rates = np.asarray(resume["rates"], dtype=np.float64) if resume else np.zeros(INSTANTS)
        self._weight = float(resume["weight"]) if resume else 0.0

    def until_due(self, rate: float, left_s: float, span_s: float) -> float:
        """Updates that the link will carry in the time left."""
        if not self._weight:
            return rate * left_s
        left = min(left_s / span_s, 1.0)
        usual_rate = _at(left, self._rates, float(self._rates[-1])) / self._weight
        usual = _at(left, self._carried, 0.0) / self._weight
        return usual * min(rate / max(usual_rate, 1e-9), 1.0)

    def learn(self, readings: Readings, due_us: int, span_s: float) -> None:
        """A slice is over in which the rate had these readings, each valid until the next."""
        at_us = np.array([t for t, _ in readings], dtype=np.float64)
        rates = np.array([r for _, r in readings])
        carried = np.cumsum((rates * np.diff(at_us, append=due_us))[::-1])[::-1] / 1e6  # from each reading on
        left = (due_us - at_us) / (span_s * 1e6)
        # Before the first reading its rate held as well.
        longest = max(left[0], 1.0)
        first = carried[0] + rates[0] * (longest - left[0]) * span_s
        curve = np.interp(LEFT, [0.0, *left[::-1], longest], [0.0, *carried[::-1], first])
        self._carried = _KEEP * self._carried + curve
        valid = np.maximum(np.searchsorted(-left, -LEFT, "right") - 1, 0)  # the reading of each instant
        self._rates = _KEEP * self._rates + rates[valid]
        self._weight = _KEEP * self._weight + 1

    def dump(self) -> dict[str, Any]:
        return {"carried": self._carried.tolist(), "rates": self._rates.tolist(), "weight": self._weight}


def _at(left: float, sums: Floats, end: float) -> float:
    """A sum at any share left; beyond the last instant it runs straight to its end."""
    return float(np.interp(left, [0.0, *LEFT[::-1]], [end, *sums[::-1]]))
