"""Open slices: partials wait here, slice by slice, while a window that contains them is open."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.query import CenterQuery
from catchment.center.shards.parts import merge_fitting, merge_rows
from catchment.center.windows.deferred import DeferredGroups
from catchment.center.windows.instants import SortedInstants
from catchment.center.windows.state import WindowsState
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import START_OF_TIME_US, Window


class OpenSlices:
    """The partials and record counts of one query that no closed window has taken yet."""

    def __init__(self, query: CenterQuery, state: WindowsState, deferred: DeferredGroups | None = None) -> None:
        self.query = query
        self._deferred = deferred or DeferredGroups(query.window)
        self.from_us = START_OF_TIME_US  # windows that start before it are not answered
        self._state = state
        self._slices = SortedInstants(state.slices)
        self._counted = SortedInstants(state.records)
        self._keys = list(query.fragment.key_names)
        self._row_schema = pa.schema([f for f in query.fragment.schema if f.name != SLICE_COLUMN])

    def windows_of(self, slice_us: int) -> list[Window]:
        """Return the answered windows that contain a slice, earliest first."""
        return [w for w in self.query.window.containing(slice_us) if w.start_us >= self.from_us]

    def closed_windows_of(self, slice_us: int) -> list[Window]:
        """Return those that are closed already: what comes for them is late."""
        return [w for w in self.windows_of(slice_us) if w.end_us <= self._state.closed_us]

    def windows(self) -> Iterator[Window]:
        """Yield the open windows that have partials, or lack what was skipped or deferred, in the order they end."""
        found = heapq.merge(
            self._windows_with_partials(),
            self._still_open(sorted(self._state.skipped)),
            self._still_open(self._deferred.starts_us),
            key=lambda window: window.end_us,
        )
        return (window for window, _ in groupby(found))

    def _still_open(self, starts_us: Iterable[int]) -> Iterator[Window]:
        windows = (self.query.window_at(start_us) for start_us in starts_us if start_us >= self.from_us)
        return (window for window in windows if window.end_us > self._state.closed_us)

    def _windows_with_partials(self) -> Iterator[Window]:
        newest_end_us = self._state.closed_us
        for slice_us in self._slices:
            for window in self.windows_of(slice_us):  # what contains a later slice alone ends later
                if window.end_us > newest_end_us:
                    newest_end_us = window.end_us
                    yield window

    def first_window(self) -> Window | None:
        """Return the open window that ends first; None if no partials are here."""
        return next(self.windows(), None)

    def add(self, slice_us: int, rows: pa.Table) -> None:
        """Keep partials of a slice for every open window that contains it."""
        if self._has_open_window(slice_us):
            self._state.slices.setdefault(slice_us, []).append(rows)
            self._slices.add(slice_us)

    def replace(self, slice_us: int, rows: pa.Table) -> None:
        """Put the same partials, merged elsewhere, in the place of those of an open slice."""
        if slice_us in self._state.slices:
            self._state.slices[slice_us] = [rows]

    def count(self, site: str, slice_us: int, count: int) -> None:
        """Count raw records of a slice, which stand behind partials that were added."""
        if self._has_open_window(slice_us):
            counts = self._state.records.setdefault(slice_us, {})
            counts[site] = counts.get(site, 0) + count
            self._counted.add(slice_us)

    def rows(self, window: Window) -> pa.Table:
        """Return the merged partials of a window: (keys, states). A sum that does not fit is an `AggregateError`."""
        inside = self._slices.between(window.start_us, window.end_us)
        for slice_us in inside:
            self._merge_slice(slice_us)
        tables = [t.drop_columns([SLICE_COLUMN]) for s in inside for t in self._state.slices[s]]
        return self.combine(tables) if tables else self._row_schema.empty_table()

    def combine(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Merge tables of (keys, states), or put parts together."""
        return merge_rows(tables, self._keys, self.query.fragment.aggregates)

    def counts(self, window: Window) -> dict[str, int]:
        """Return the raw records of a window that are in, per site."""
        total: dict[str, int] = {}
        for slice_us in self._counted.between(window.start_us, window.end_us):
            for site, count in self._state.records[slice_us].items():
                total[site] = total.get(site, 0) + count
        return total

    def forget_closed(self, window: Window) -> None:
        """Drop the slices that only closed windows contain, now that one more is closed."""
        for slice_us in self._slices.before(window.end_us):
            if not self._has_open_window(slice_us):
                del self._state.slices[slice_us]
                self._slices.discard(slice_us)
        for slice_us in self._counted.before(window.end_us):
            if not self._has_open_window(slice_us):
                del self._state.records[slice_us]
                self._counted.discard(slice_us)

    def merge_all(self) -> None:
        """Leave one table per slice, so that writing the state down is cheap."""
        for slice_us in self._state.slices:
            self._merge_slice(slice_us)

    def _has_open_window(self, slice_us: int) -> bool:
        return any(w.end_us > self._state.closed_us for w in self.windows_of(slice_us))

    def _merge_slice(self, slice_us: int) -> None:
        tables = self._state.slices[slice_us]
        if len(tables) > 1:
            keys = [SLICE_COLUMN, *self._keys]
            self._state.slices[slice_us] = [merge_fitting(tables, keys, self.query.fragment.aggregates)]

    def validate(self) -> None:
        """Assert that every slice has an open window."""
        for slice_us in self._state.slices:
            ends = [w.end_us for w in self.windows_of(slice_us)]
            assert max(ends) > self._state.closed_us, f"slice {slice_us} is kept although all its windows are closed"


def split_by_slice(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the partials of each slice, in order."""
    starts = table[SLICE_COLUMN]
    slices = sorted(pc.unique(starts).to_pylist())
    for slice_us in slices:
        yield slice_us, table if len(slices) == 1 else table.filter(pc.equal(starts, slice_us))
