"""What is known of each (slice, key), as columns of numbers.

A slot is a small integer that stands for one (slice, key) while its slice is open. Policies decide on slots alone, so
the same table serves a site core, whose keys are Arrow rows, and a simulator, whose keys are integers. Invariant: a
pending slot has records that have not been sent; a slot that is not pending has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats, Ints, Mask
from catchment.storage.codec import stored

Slots = Ints
Instants = int | Ints  # one for all, or one for each

_MIN_CAPACITY = 256
_COLUMN_TYPES = {
    "slice_us": np.int64,
    "identity": np.int64,  # hash of the key, the same in every slice
    "past_rate": np.float64,  # mean arrivals per slice of the key, in the slices before
    "arrivals": np.int64,
    "first_us": np.int64,
    "last_us": np.int64,
    "pending": np.bool_,
}


def _empty_columns() -> dict[str, npt.NDArray[Any]]:
    return {name: np.zeros(0, dtype=kind) for name, kind in _COLUMN_TYPES.items()}


@stored()
@dataclass(eq=False)
class SlotTable:
    """Growing columns, one row per slot: arrivals so far in the slice, first and last arrival, pending or not."""

    size: int = 0
    pending_rows: int = 0
    forgotten: int = 0  # times that slots of open slices were given up
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=_empty_columns, repr=False)

    @property
    def slice_us(self) -> Ints:
        return self.columns["slice_us"][: self.size]

    @property
    def identity(self) -> Ints:
        return self.columns["identity"][: self.size]

    @property
    def past_rate(self) -> Floats:
        return self.columns["past_rate"][: self.size]

    @property
    def arrivals(self) -> Ints:
        return self.columns["arrivals"][: self.size]

    @property
    def first_us(self) -> Ints:
        return self.columns["first_us"][: self.size]

    @property
    def last_us(self) -> Ints:
        return self.columns["last_us"][: self.size]

    @property
    def pending(self) -> Mask:
        return self.columns["pending"][: self.size]

    def add(self, slices_us: Ints, identities: Ints, past_rates: Floats, at_us: Instants) -> None:
        """Add a slot for each given slice and key; nothing has arrived for them yet."""
        start = self.size
        self._reserve(start + len(slices_us))
        self.size += len(slices_us)
        self.slice_us[start:] = slices_us
        self.identity[start:] = identities
        self.past_rate[start:] = past_rates
        self.arrivals[start:] = 0
        self.first_us[start:] = at_us
        self.last_us[start:] = at_us
        self.pending[start:] = False

    def add_arrivals(self, slots: Slots, arrivals: Ints, at_us: Instants) -> Mask:
        """Count records that came for these slots, each named once; return which were not pending (misses)."""
        misses = ~self.pending[slots]
        self.arrivals[slots] += arrivals
        self.last_us[slots] = at_us
        self.pending[slots] = True
        self.pending_rows += int(np.count_nonzero(misses))
        return misses

    def mark_sent(self, slots: Slots) -> None:
        """Note that these slots, all of them pending, are sent."""
        self.pending[slots] = False
        self.pending_rows -= len(slots)

    def pending_slots(self) -> Slots:
        return np.flatnonzero(self.pending)

    def keep(self, mask: Mask) -> Slots:
        """Forget all other slots and close up the slot numbers; return old slot -> new slot (-1: forgotten)."""
        renumbered = np.where(mask, np.cumsum(mask) - 1, -1)
        kept = int(mask.sum())
        for column in self.columns.values():
            column[:kept] = column[: self.size][mask]
        self.size = kept
        self.pending_rows = int(self.pending.sum())
        return renumbered

    def trim(self) -> None:
        """Give up spare capacity, so that a snapshot holds nothing but slots."""
        self.columns = {name: column[: self.size].copy() for name, column in self.columns.items()}

    def _reserve(self, size: int) -> None:
        capacity = len(self.columns["slice_us"])
        if size <= capacity:
            return
        room = max(size, 2 * capacity, _MIN_CAPACITY)
        for name, column in self.columns.items():
            self.columns[name] = np.zeros(room, dtype=column.dtype)
            self.columns[name][:capacity] = column
