"""How often each key came in the slices before: a decayed mean by the identity of the key, bounded.

An identity is a 64-bit hash of the key. Two keys that share one share a rate, which can only mislead a forecast, never
an answer. Bound: `MAX_KEYS`; at the bound the rarest keys are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats, Ints
from catchment.storage.codec import stored

MAX_KEYS = 500_000
KEY_RATE_DECAY = 0.85  # weight of a key's rate so far, per finished slice
_MIN_RATE = 0.02  # arrivals per slice; keys below it are forgotten


def _no_identities() -> Ints:
    return np.empty(0, dtype=np.int64)


def _no_rates() -> Floats:
    return np.empty(0, dtype=np.float64)


@stored()
@dataclass(eq=False)
class KeyRates:
    """Sorted identities, and the mean arrivals per slice of each, recent slices counting more."""

    identities: Ints = field(default_factory=_no_identities)
    rates: Floats = field(default_factory=_no_rates)

    def lookup(self, identities: Ints) -> Floats:
        """Return the rate of each identity; unknown ones have a rate of 0."""
        if not len(self.identities):
            return np.zeros(len(identities))
        positions = np.minimum(np.searchsorted(self.identities, identities), len(self.identities) - 1)
        return np.where(self.identities[positions] == identities, self.rates[positions], 0.0)

    def learn(self, identities: Ints, arrivals: npt.NDArray[np.integer]) -> None:
        """Take in a finished slice in which these keys, each named once, had so many arrivals."""
        known, positions = np.unique(np.concatenate([self.identities, identities]), return_inverse=True)
        parts = np.concatenate([KEY_RATE_DECAY * self.rates, (1 - KEY_RATE_DECAY) * arrivals])
        rates = np.asarray(np.bincount(positions, parts, minlength=len(known)), dtype=np.float64)
        frequent = rates >= max(_MIN_RATE, _least_rate_within_bound(rates))
        self.identities = known[frequent]
        self.rates = rates[frequent]


def _least_rate_within_bound(rates: Floats) -> float:
    """Return the rate below which keys must go for `MAX_KEYS` to hold."""
    excess = len(rates) - MAX_KEYS
    if excess <= 0:
        return 0.0
    return float(np.nextafter(np.partition(rates, excess - 1)[excess - 1], np.inf))
