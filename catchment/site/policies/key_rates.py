"""How often each key came in the slices before: a decayed mean by the identity of the key, bounded.

An identity is a 64-bit hash of the key. Two keys that share one share a rate, which can only mislead a forecast, never
an answer. Bound: `MAX_KEYS`; at the bound the rarest keys are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
        positions = pc.index_in(
            pa.array(identities), value_set=pa.array(self.identities)
        )  # hashed: faster than a search
        known = np.asarray(positions.is_valid())
        return np.where(known, np.append(self.rates, 0.0)[np.asarray(positions.fill_null(-1))], 0.0)

    def learn(self, identities: Ints, arrivals: npt.NDArray[np.integer]) -> None:
        """Take in a finished slice in which these keys, each named once, had so many arrivals."""
        fresh, gained = _add_equal(identities, (1 - KEY_RATE_DECAY) * arrivals.astype(np.float64))
        rates = KEY_RATE_DECAY * self.rates
        positions = np.searchsorted(self.identities, fresh)
        is_known = np.append(self.identities, 0)[positions] == fresh
        is_known &= positions < len(self.identities)
        rates[positions[is_known]] += gained[is_known]
        known = np.insert(self.identities, positions[~is_known], fresh[~is_known])
        rates = np.insert(rates, positions[~is_known], gained[~is_known])
        frequent = rates >= max(_MIN_RATE, _least_rate_within_bound(rates))
        self.identities = known[frequent]
        self.rates = rates[frequent]


def _add_equal(identities: Ints, parts: Floats) -> tuple[Ints, Floats]:
    """Return sorted identities, each once, and the sums of their parts: two keys may share an identity."""
    if not len(identities):
        return identities, parts
    order = _order_of(identities)
    ordered = identities[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return ordered[first], np.add.reduceat(parts[order], first)


def _order_of(identities: Ints) -> Ints:
    """Return the places of the identities in ascending order.

    Numbers are sorted in half the time of places. So each identity carries its place in its lowest bits, which hashes
    hardly ever need to differ; where they do, places are sorted.
    """
    mask = (1 << len(identities).bit_length()) - 1
    packed = (identities & ~mask) | np.arange(len(identities))
    packed.sort()
    order = packed & mask
    ordered = identities[order]
    return order if (ordered[1:] >= ordered[:-1]).all() else np.argsort(identities, kind="stable")


def _least_rate_within_bound(rates: Floats) -> float:
    """Return the rate below which keys must go for `MAX_KEYS` to hold."""
    excess = len(rates) - MAX_KEYS
    if excess <= 0:
        return 0.0
    return float(np.nextafter(np.partition(rates, excess - 1)[excess - 1], np.inf))
