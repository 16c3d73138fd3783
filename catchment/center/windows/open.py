"""Open slices: partials wait here, slice by slice, while a window that contains them is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.center.query import CenterQuery
from catchment.center.windows.state import WindowsState
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import START_OF_TIME_US, Window


class OpenSlices:
    """The partials and record counts of one query that no closed window has taken yet."""

    def __init__(self, query: CenterQuery, state: WindowsState) -> None:
        self.query = query
        self.from_us = START_OF_TIME_US  # windows that start before it are not answered
        self._state = state
        self._keys = list(query.fragment.key_names)

    def windows_of(self, slice_us: int) -> list[Window]:
        """Return the answered windows that contain a slice, earliest first."""
        return [w for w in self.query.window.containing(slice_us) if w.start_us >= self.from_us]

    def closed_windows_of(self, slice_us: int) -> list[Window]:
        """Return those that are closed already: what comes for them is late."""
        return [w for w in self.windows_of(slice_us) if w.end_us <= self._state.closed_us]

    def windows(self) -> list[Window]:
        """Return the open windows that have partials, in the order they end."""
        found = {w for s in self._state.slices for w in self.windows_of(s) if w.end_us > self._state.closed_us}
        return sorted(found, key=lambda w: w.end_us)

    def add(self, slice_us: int, rows: pa.Table) -> None:
        """Keep partials of a slice for every open window that contains it."""
        if any(w.end_us > self._state.closed_us for w in self.windows_of(slice_us)):
            self._state.slices.setdefault(slice_us, []).append(rows)

    def count(self, site: str, slice_us: int, count: int) -> None:
        """Count raw records of a slice, which stand behind partials that were added."""
        counts = self._state.records.setdefault(slice_us, {})
        counts[site] = counts.get(site, 0) + count

    def rows(self, window: Window) -> pa.Table:
        """Return the merged partials of a window: (keys, states)."""
        inside = sorted(s for s in self._state.slices if window.start_us <= s < window.end_us)
        for slice_us in inside:
            self._merge_slice(slice_us)
        tables = [t.drop_columns([SLICE_COLUMN]) for s in inside for t in self._state.slices[s]]
        return self.combine(tables)

    def combine(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Merge tables of (keys, states)."""
        return partials.combine(pa.concat_tables(tables), self._keys, self.query.fragment.aggregates)

    def counts(self, window: Window) -> dict[str, int]:
        """Return the raw records of a window that are in, per site."""
        total: dict[str, int] = {}
        for slice_us, counts in self._state.records.items():
            if window.start_us <= slice_us < window.end_us:
                for site, count in counts.items():
                    total[site] = total.get(site, 0) + count
        return total

    def forget_closed(self, window: Window) -> None:
        """Drop the slices that only closed windows contain, now that one more is closed."""
        for slice_us in [s for s in self._state.slices if s < window.end_us]:
            if len(self.closed_windows_of(slice_us)) == len(self.windows_of(slice_us)):
                del self._state.slices[slice_us]

    def forget_final(self) -> None:
        """Drop the counts of slices whose windows are all final."""
        oldest_us = self._state.final_us - self.query.window.size_us
        for slice_us in [s for s in self._state.records if s not in self._state.slices and s < oldest_us]:
            del self._state.records[slice_us]

    def merge_all(self) -> None:
        """Leave one table per slice, so that writing the state down is cheap."""
        for slice_us in self._state.slices:
            self._merge_slice(slice_us)

    def _merge_slice(self, slice_us: int) -> None:
        tables = self._state.slices[slice_us]
        if len(tables) > 1:
            keys = [SLICE_COLUMN, *self._keys]
            merged = partials.combine(pa.concat_tables(tables), keys, self.query.fragment.aggregates)
            self._state.slices[slice_us] = [merged]

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
