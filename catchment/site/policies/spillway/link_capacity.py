"""How much can the link still carry before the slice is due?

Rate times time, if the rate stays what it was when last measured. On links that weaken towards the end of slices, for
instance because every site sends then, it does not; and while nothing is sent nothing is measured. So the course of the
slices before is remembered: what the link took after each instant, and its rate there. The forecast is that much, or
less in proportion when the rate is now below what it usually is at this instant; never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from catchment.arrays import Floats
from catchment.site.ewma import DecayedMean
from catchment.site.policies.spillway.instants import INSTANTS, LEFT, interpolate
from catchment.storage.codec import stored

_SLICE_DECAY = 0.5  # weight of the slices so far, per finished slice

Readings = Sequence[tuple[int, float]]  # (time in microseconds, updates per second), in order


def _no_curve() -> DecayedMean[Floats]:
    return DecayedMean(np.zeros(INSTANTS))


@stored()
@dataclass(eq=False)
class LinkCapacity:
    """At each instant of recent slices: the link's rate, and what it could have carried from then on."""

    carried: DecayedMean[Floats] = field(default_factory=_no_curve)
    rates: DecayedMean[Floats] = field(default_factory=_no_curve)

    def until_due(self, rate: float, left_s: float, span_s: float) -> float:
        """Return how many updates the link will carry in the time left."""
        if not self.carried.weight:
            return rate * left_s
        left = min(left_s / span_s, 1.0)
        usual_rate = interpolate(self.rates.total, left, float(self.rates.total[-1])) / self.rates.weight
        usual = interpolate(self.carried.total, left, 0.0) / self.carried.weight
        return usual * min(rate / max(usual_rate, 1e-9), 1.0)

    def learn(self, readings: Readings, due_us: int, span_s: float) -> None:
        """Take in a finished slice in which the rate had these readings, each valid until the next."""
        at_us = np.array([t for t, _ in readings], dtype=np.float64)
        rates = np.array([r for _, r in readings])
        carried = np.cumsum((rates * np.diff(at_us, append=due_us))[::-1])[::-1] / 1e6  # from each reading on
        left = (due_us - at_us) / (span_s * 1e6)
        # Before the first reading its rate held as well.
        longest = max(left[0], 1.0)
        first = carried[0] + rates[0] * (longest - left[0]) * span_s
        self.carried.add(np.interp(LEFT, [0.0, *left[::-1], longest], [0.0, *carried[::-1], first]), _SLICE_DECAY)
        valid = np.maximum(np.searchsorted(-left, -LEFT, "right") - 1, 0)  # the reading that holds at each instant
        self.rates.add(rates[valid], _SLICE_DECAY)
