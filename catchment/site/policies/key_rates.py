"""How often each key came in the slices before: a decayed count by the identity of the key, bounded.

An identity is 64 bits of a hash of the key; two keys that share one share a count, which can only mislead a
forecast, never an answer. Bound: MAX_KEYS. At the bound the coldest keys are forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Identities = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_KEYS = 500_000
HEAT_KEEP = 0.85  # of a key's heat when the next slice is over
_LEAST = 0.02  # colder than this is forgotten


class KeyRates:
    """Sorted identities, and the average number of arrivals a slice of each, recent slices counting more."""

    def __init__(self, identities: Identities | None = None, heat: Floats | None = None) -> None:
        self.identities = np.empty(0, dtype=np.int64) if identities is None else identities
        self.heat = np.empty(0, dtype=np.float64) if heat is None else heat

    def of(self, identities: Identities) -> Floats:
        """The heat of each (0: not known)."""
        if not len(self.identities):
            return np.zeros(len(identities))
        place = np.minimum(np.searchsorted(self.identities, identities), len(self.identities) - 1)
        return np.where(self.identities[place] == identities, self.heat[place], 0.0)

    def learn(self, identities: Identities, arrivals: npt.NDArray[Any]) -> None:
        """A slice is over in which these keys, each named once, had so many arrivals."""
        every, place = np.unique(np.concatenate([self.identities, identities]), return_inverse=True)
        added = np.concatenate([HEAT_KEEP * self.heat, (1 - HEAT_KEEP) * arrivals])
        heat = np.asarray(np.bincount(place, added, minlength=len(every)), dtype=np.float64)
        kept = heat >= max(_LEAST, _bar(heat))
        self.identities, self.heat = every[kept], heat[kept]


def _bar(heat: Floats) -> float:
    """What is below this must go for the map to stay within its bound."""
    if len(heat) <= MAX_KEYS:
        return 0.0
    return float(np.nextafter(np.partition(heat, len(heat) - MAX_KEYS - 1)[len(heat) - MAX_KEYS - 1], np.inf))
