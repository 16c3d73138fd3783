"""The states of the rows that a query has published lately: what a repair changes is mostly among them.

A copy of the newest rows of the result table, kept in memory so that a repair need not read them back. What is asked
for is given only if all of it is here; a row that is not may be in the table, from an earlier life or a window that
was forgotten. Bound: `max_bytes`; at it the windows that were published first are forgotten, and read back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.center.late.registry import WINDOW_COLUMN, with_window

MAX_BYTES = 32 << 20


class RecentRows:
    """Rows (keys, states) by window, in the order in which they were published."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._windows: dict[int, list[pa.Table]] = {}
        self._bytes = 0

    def note(self, start_us: int, rows: pa.Table) -> None:
        """These rows of a window are published now, in place of older ones of the same keys."""
        self._windows.setdefault(start_us, []).append(with_window(rows, start_us))
        self._bytes += rows.nbytes
        while self._bytes > self._max_bytes and self._windows:
            forgotten = self._windows.pop(next(iter(self._windows)))
            self._bytes -= sum(t.nbytes - t[WINDOW_COLUMN].nbytes for t in forgotten)

    def recall(self, wanted: pa.Table) -> pa.Table | None:
        """The newest states of (window_start_us, keys...); None if some of them are not here."""
        starts = pc.unique(wanted[WINDOW_COLUMN]).to_pylist()
        if not starts or any(start not in self._windows for start in starts):
            return None
        rows = pa.concat_tables([table for start in starts for table in self._windows[start]])
        codes, distinct = partials.group_codes(rows, wanted.column_names)
        newest = np.zeros(distinct.num_rows, dtype=np.int64)
        newest[codes] = np.arange(rows.num_rows)  # later assignments win
        found = partials.select_matching(rows.take(pa.array(np.sort(newest))), wanted)
        return found if found.num_rows == wanted.num_rows else None
