"""How many keys not seen yet will still come in this slice?

Earlier slices say how many came after each instant per key seen until then; the slice itself says how fast new ones
have been coming lately. Both are followed, because rates change from slice to slice and within one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from catchment.arrays import Floats
from catchment.site.ewma import DecayedMean, move_average
from catchment.site.policies.spillway.instants import INSTANTS, LEFT, interpolate
from catchment.storage.codec import stored

_SLICE_DECAY = 0.6  # weight of the slices so far, per finished slice
_RATE_SPAN = 0.05  # share of a slice over which the rate of new keys is averaged
_PRIOR_SHARE = 0.05  # weight of the belief that this slice is like those before, as a share of a slice's keys
_MAX_EXCESS = 2.0  # a sudden rate counts for at most this multiple of what the slices before say


def _no_curve() -> DecayedMean[Floats]:
    return DecayedMean(np.zeros(INSTANTS))


@stored()
@dataclass(eq=False)
class NewKeyForecast:
    """Over the slices before: keys seen by each instant, and keys that came after it."""

    seen: DecayedMean[Floats] = field(default_factory=_no_curve)
    after: DecayedMean[Floats] = field(default_factory=_no_curve)

    def to_come(self, seen: int, left: float, recent_rate: float) -> float:
        """Return the new keys expected in the share left; `recent_rate` is new keys per slice, lately."""
        at_recent_rate = recent_rate * left
        if not self.seen.total[-1]:  # no key has ever come
            return at_recent_rate
        usual = interpolate(self.after.total, left, 0.0) / self.after.weight * self._scale(seen, left)
        return max(usual, min(at_recent_rate, _MAX_EXCESS * usual))

    def learn(self, first_left: Floats) -> None:
        """Take in a finished slice: the share of it that was left when each key first came."""
        after = np.searchsorted(np.sort(first_left), LEFT, "left").astype(np.float64)
        self.seen.add(len(first_left) - after, _SLICE_DECAY)
        self.after.add(after, _SLICE_DECAY)

    def _scale(self, seen: int, left: float) -> float:
        """Return how much busier this slice is than those before; early in a slice there is little to tell it by."""
        usual = interpolate(self.seen.total, left, float(self.seen.total[-1])) / self.seen.weight
        prior = _PRIOR_SHARE * float(self.seen.total[0] + self.after.total[0]) / self.seen.weight
        return (seen + prior) / (usual + prior)


@stored()
@dataclass
class NewKeyRate:
    """A moving average of new keys per slice, over the last few percent of the slice."""

    rate: float = 0.0
    seen: int = 0
    elapsed: float = 0.0

    def follow(self, seen: int, elapsed: float) -> float:
        """Account for the keys that came since the last call; return the rate."""
        step = elapsed - self.elapsed
        if step > 0:
            gain = 1 - float(np.exp(-step / min(_RATE_SPAN, elapsed)))
            new_keys = max(seen - self.seen, 0)  # a cache at its bound forgets keys
            self.rate = move_average(self.rate, new_keys / step, gain)
            self.seen = seen
            self.elapsed = elapsed
        return self.rate
