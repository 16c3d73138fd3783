"""How many keys not seen yet will still come in this slice?

The slices before say how many came after each instant per key seen until then; the slice itself says how fast
new ones have been coming lately. Both are followed, because rates change from slice to slice and within one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.site.policies.spillway.key_returns import INSTANTS, LEFT

_KEEP = 0.6  # of a slice's weight when the next one is learned
_RECENT = 0.05  # share of a slice over which the rate of new keys is averaged
_DOUBT = 0.05  # of a slice's keys, as weight of the belief that this slice is like those before
_MOST_EXCESS = 2.0  # a sudden rate counts for no more than this times what the slices before say


class NewKeyForecast:
    """Decayed averages over the slices before: keys seen by each instant, and keys that came after it."""

    def __init__(self, resume: Mapping[str, Any] | None = None) -> None:
        self._weight = float(resume["weight"]) if resume else 0.0
        self._seen = np.asarray(resume["seen"], dtype=np.float64) if resume else np.zeros(INSTANTS)
        self._after = np.asarray(resume["after"], dtype=np.float64) if resume else np.zeros(INSTANTS)

    def to_come(self, seen: int, left: float, recent_rate: float) -> float:
        """New keys expected in the share left of the slice; `recent_rate` is new keys per slice, lately."""
        lately = recent_rate * left
        if not self._seen[-1]:  # nothing has ever come
            return lately
        usual = self._at(self._after, left) * self._scale(seen, left)
        return max(usual, min(lately, _MOST_EXCESS * usual))

    def learn(self, first_left: npt.NDArray[np.float64]) -> None:
        """A slice is over: the share that was left when each key first came."""
        after = np.searchsorted(np.sort(first_left), LEFT, "left").astype(np.float64)
        self._seen = _KEEP * self._seen + (len(first_left) - after)
        self._after = _KEEP * self._after + after
        self._weight = _KEEP * self._weight + 1

    def dump(self) -> dict[str, Any]:
        return {"weight": self._weight, "seen": self._seen.tolist(), "after": self._after.tolist()}

    def _scale(self, seen: int, left: float) -> float:
        """How much busier this slice is than those before; early in a slice there is little to tell it by."""
        usual = self._at(self._seen, left)
        doubt = _DOUBT * float(self._seen[0] + self._after[0]) / self._weight
        return (seen + doubt) / (usual + doubt)

    def _at(self, sums: npt.NDArray[np.float64], left: float) -> float:
        # Beyond the last instant both curves run straight on to their ends.
        return float(np.interp(left, [0.0, *LEFT[::-1]], [_end(sums, self._after), *sums[::-1]])) / self._weight


def _end(sums: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> float:
    return 0.0 if sums is after else float(sums[-1])


@dataclass
class NewKeyRate:
    """A moving average of new keys per slice, over the last few percent of it."""

    rate: float = 0.0
    seen: int = 0
    elapsed: float = 0.0

    def follow(self, seen: int, elapsed: float) -> float:
        if elapsed > self.elapsed:
            weight = 1 - np.exp(-(elapsed - self.elapsed) / min(_RECENT, elapsed))
            new = max(seen - self.seen, 0)  # a cache at its bound forgets keys
            self.rate += weight * (new / (elapsed - self.elapsed) - self.rate)
            self.seen, self.elapsed = seen, elapsed
        return self.rate
