"""The slot_table: what is known of each (slice, key), as columns of numbers.

A slot is a small integer that stands for one (slice, key) while its slice is open. Policies decide on slots
alone, so the same slot_table serves a core, whose keys are Arrow rows, and a simulator, whose keys are
integers. Invariant: a pending slot has records that have not been sent; a slot that is not pending has
none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Instants = int | npt.NDArray[np.int64]  # one for all, or one for each

_FIRST_CAPACITY = 256
COLUMNS = {
    "slice_us": np.int64,
    "identity": np.int64,  # of the key, the same in every slice
    "heat": np.float64,  # arrivals a slice of the key, in the slices before
    "arrivals": np.int64,
    "first_us": np.int64,
    "last_us": np.int64,
    "pending": np.bool_,
}


class SlotTable:
    """Growing columns, a row a slot: arrivals so far in the slice, first and last arrival, pending or not."""

    def __init__(self) -> None:
        self.size = 0
        self.pending_rows = 0
        self.forgotten = 0  # times that slots of open slices were given up
        self._columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.zeros(_FIRST_CAPACITY, dtype=kind) for name, kind in COLUMNS.items()
        }

    @property
    def slice_us(self) -> npt.NDArray[np.int64]:
        return self._columns["slice_us"][: self.size]  # type: ignore[return-value]

    @property
    def identity(self) -> npt.NDArray[np.int64]:
        return self._columns["identity"][: self.size]  # type: ignore[return-value]

    @property
    def heat(self) -> npt.NDArray[np.float64]:
        return self._columns["heat"][: self.size]  # type: ignore[return-value]

    @property
    def arrivals(self) -> npt.NDArray[np.int64]:
        return self._columns["arrivals"][: self.size]  # type: ignore[return-value]

    @property
    def first_us(self) -> npt.NDArray[np.int64]:
        return self._columns["first_us"][: self.size]  # type: ignore[return-value]

    @property
    def last_us(self) -> npt.NDArray[np.int64]:
        return self._columns["last_us"][: self.size]  # type: ignore[return-value]

    @property
    def pending(self) -> Mask:
        return self._columns["pending"][: self.size]  # type: ignore[return-value]

    def open(
        self,
        slices_us: npt.NDArray[np.int64],
        identity: npt.NDArray[np.int64],
        heat: npt.NDArray[np.float64],
        at_us: Instants,
    ) -> None:
        """New slots, one for each given slice and key; nothing has arrived for them yet."""
        start, self.size = self.size, self.size + len(slices_us)
        self._reserve(self.size)
        self.slice_us[start:] = slices_us
        self.identity[start:] = identity
        self.heat[start:] = heat
        self.arrivals[start:] = 0
        self.first_us[start:] = at_us
        self.last_us[start:] = at_us
        self.pending[start:] = False

    def arrive(self, slots: Slots, arrivals: npt.NDArray[np.int64], at_us: Instants) -> Mask:
        """Records came for these slots, each named once; tells which of them were not pending (misses)."""
        misses = ~self.pending[slots]
        self.arrivals[slots] += arrivals
        self.last_us[slots] = at_us
        self.pending[slots] = True
        self.pending_rows += int(np.count_nonzero(misses))
        return misses

    def leave(self, slots: Slots) -> None:
        """These slots, all pending, are sent."""
        self.pending[slots] = False
        self.pending_rows -= len(slots)

    def pending_slots(self) -> Slots:
        return np.flatnonzero(self.pending)

    def keep(self, mask: Mask) -> Slots:
        """Forget all other slots; slot numbers close up. Gives old slot -> new slot (-1: forgotten)."""
        renamed = np.where(mask, np.cumsum(mask) - 1, -1)
        kept = int(mask.sum())
        for name in COLUMNS:
            column = self._columns[name]
            column[:kept] = column[: self.size][mask]
        self.size = kept
        self.pending_rows = int(self.pending.sum())
        return renamed

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Its whole state, for a snapshot."""
        return {name: self._columns[name][: self.size].copy() for name in COLUMNS}

    @classmethod
    def from_columns(cls, columns: dict[str, npt.NDArray[np.generic]]) -> SlotTable:
        slot_table = cls()
        size = len(columns["slice_us"])
        slot_table._reserve(size)
        slot_table.size = size
        for name in COLUMNS:
            slot_table._columns[name][:size] = columns[name]
        slot_table.pending_rows = int(slot_table.pending.sum())
        return slot_table

    def _reserve(self, size: int) -> None:
        have = len(self._columns["slice_us"])
        if size <= have:
            return
        room = max(size, 2 * have)
        for name, column in self._columns.items():
            wider = np.zeros(room, dtype=column.dtype)
            wider[:have] = column
            self._columns[name] = wider
