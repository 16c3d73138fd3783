"""Which keys leave first when the cache is to shrink (Heintz et al., HPDC'15, section 5.1.2).

Least recently used, or least frequently used in the slice with ties to the least recently used. Frequencies
count the whole slice, also across evictions, so a hot key that was once evicted is not taken for a cold one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from catchment.site.policies.base import SliceView
from catchment.site.slot_table import Slots

Eviction = Callable[[SliceView, int], Slots]

_RECENCY_BITS = 41  # microseconds since the slice began: over 25 days
_MOST_ARRIVALS = 2**21 - 1


def evict_lru(view: SliceView, count: int) -> Slots:
    """The `count` pending slots whose last arrival is longest ago."""
    return _least(view.pending, view.slot_table.last_us[view.pending], count)


def evict_lfu(view: SliceView, count: int) -> Slots:
    """The `count` pending slots with the fewest arrivals in the slice."""
    recency = np.clip(view.slot_table.last_us[view.pending] - view.start_us, 0, 2**_RECENCY_BITS - 1)
    frequency = np.minimum(view.slot_table.arrivals[view.pending], _MOST_ARRIVALS)
    return _least(view.pending, (frequency << _RECENCY_BITS) + recency, count)


EVICTIONS: dict[str, Eviction] = {"lru": evict_lru, "lfu": evict_lfu}


def _least(slots: Slots, order: npt.NDArray[np.int64], count: int) -> Slots:
    if count >= len(slots):
        return slots
    return slots[np.argpartition(order, count - 1)[:count]]
