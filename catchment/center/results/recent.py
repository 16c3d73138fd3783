"""The rows that a query has published lately, in memory: what a repair changes is mostly among them.

A repair is answered from here only if every row that it wants is here; a row that is not may be in the result table,
from an earlier life or a window that was forgotten. Bound: `max_bytes`; at it the windows that were published first are
forgotten, and read back from the table when they are wanted.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.center.late.registry import WINDOW_COLUMN, with_window
from catchment.center.results.newest_rows import last_rows

MAX_BYTES = 32 << 20


class RecentRows:
    """Rows (keys, states) by window, in the order in which they were published."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._windows: dict[int, list[pa.Table]] = {}
        self._bytes = 0

    def add(self, start_us: int, rows: pa.Table) -> None:
        """Remember rows of a window that are published now, in place of older ones of the same keys."""
        self._windows.setdefault(start_us, []).append(with_window(rows, start_us))
        self._bytes += rows.nbytes
        while self._bytes > self._max_bytes and self._windows:
            forgotten = self._windows.pop(next(iter(self._windows)))
            self._bytes -= sum(t.nbytes - t[WINDOW_COLUMN].nbytes for t in forgotten)

    def forget(self, start_us: int) -> None:
        """Forget a window: what was published of it holds no more."""
        forgotten = self._windows.pop(start_us, [])
        self._bytes -= sum(t.nbytes - t[WINDOW_COLUMN].nbytes for t in forgotten)

    def recall(self, wanted: pa.Table) -> pa.Table | None:
        """Return the newest states of (window_start_us, keys...); None if some of them are not here.

        Where whole windows are wanted (window_start_us), the newest revision of each has all its rows.
        """
        starts = pc.unique(wanted[WINDOW_COLUMN]).to_pylist()
        if not starts or any(start not in self._windows for start in starts):
            return None
        if wanted.column_names == [WINDOW_COLUMN]:
            return pa.concat_tables([self._windows[start][-1] for start in starts])
        rows = pa.concat_tables([table for start in starts for table in self._windows[start]])
        newest = rows.take(pa.array(last_rows(rows.select(wanted.column_names))))
        found = partials.select_matching(newest, wanted)
        return found if found.num_rows == wanted.num_rows else None
