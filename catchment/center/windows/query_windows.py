"""The windows of one query at the center: partials in, revisions out.

See `catchment.center.core` for the invariants. A slice is kept while a window that contains it is open. A closed window
leaves only a small record; its rows are recalled from the result table when a repair touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from catchment.center.events import Action
from catchment.center.late.repair import LateRepair
from catchment.center.query import CenterQuery
from catchment.center.windows.close import WindowCloser
from catchment.center.windows.closed import SiteMarks
from catchment.center.windows.early import EarlyAnswers
from catchment.center.windows.looked_up import LookedUpVersions
from catchment.center.windows.open import OpenSlices, split_by_slice
from catchment.center.windows.outstanding import Outstanding
from catchment.center.windows.overflow import OverflowedWindows
from catchment.center.windows.publish import WindowPublisher
from catchment.center.windows.renewed import RenewedWindows
from catchment.center.windows.skipped import SkippedRecords
from catchment.center.windows.state import WindowsState
from catchment.center.windows.unfinished import UnfinishedAnswers
from catchment.quality.contract import Measure, WatchedQuantity, watched_quantities

# Of a join its sites tell how many records they have and lack; what pairs lack is learned (`windows/learned.py`).
RECORDS = (WatchedQuantity(Measure("count"), None, (), bounded=False),)
MakePublisher = Callable[[CenterQuery, Outstanding, WindowsState, LookedUpVersions], WindowPublisher]


class QueryWindows:
    """Open slices and published windows of one query."""

    def __init__(
        self, query: CenterQuery, state: WindowsState | None = None, make_publisher: MakePublisher = WindowPublisher
    ) -> None:
        self.query = query
        self.state = state or WindowsState()
        watched = RECORDS if query.join is not None else watched_quantities(query.fragment.aggregates)
        by_group = len(query.fragment.keys) == 1
        self.outstanding = Outstanding(query.window, by_group, self.state.outstanding, self.state.deferred)
        self.looked_up = LookedUpVersions(query.window, self.state.looked_up)
        publisher = make_publisher(query, self.outstanding, self.state, self.looked_up)
        self.unfinished = UnfinishedAnswers(query, self.state.unfinished, publisher)
        self.open = OpenSlices(query, self.state, self.outstanding.deferred)
        self.skipped = SkippedRecords(self.state, self.open)
        overflowed = OverflowedWindows(query.name, self.state, self.unfinished)
        self.renewed = RenewedWindows(self.state)
        self.early = EarlyAnswers(query, self.state, self.open, self.outstanding, publisher, watched, overflowed)
        self.closer = WindowCloser(
            query,
            self.state,
            self.open,
            self.outstanding,
            self.skipped,
            self.looked_up,
            publisher,
            self.early,
            watched,
            overflowed,
            self.renewed,
        )
        self.late = LateRepair(
            query, self.state, self.open, self.outstanding, publisher, self.closer, overflowed, self.renewed
        )

    def begin(self, start_us: int) -> None:
        """Answer from the first window on that starts at an instant or after."""
        self.open.from_us = start_us

    def merge(self, table: pa.Table, records: tuple[tuple[str, int, int], ...], now_us: int) -> None:
        """Merge partials into every open window that contains their slice; register them for every closed one."""
        parts = list(split_by_slice(table))
        taking = self.late.find_taking([slice_us for slice_us, _ in parts], records)
        for slice_us, rows in parts:
            self.open.add(slice_us, rows)
            self.late.add(slice_us, rows, taking[slice_us], now_us)
        for site, slice_us, count in records:
            self.open.count(site, slice_us, count)
            self.late.count(site, slice_us, count, taking[slice_us], now_us)

    def settle(self, marks: SiteMarks, now_us: int) -> Iterator[Action]:
        """Publish all that can be without a repair: windows that close now, better statuses, early answers."""
        yield from self.renewed.follow(self._settle(marks, now_us))

    def _settle(self, marks: SiteMarks, now_us: int) -> Iterator[Action]:
        yield from self.late.expire(now_us)
        yield from self.closer.close(marks, now_us)
        yield from self.closer.complete(marks, now_us)
        yield from self.closer.finalize(marks, now_us)
        yield from self.early.publish(now_us)

    def is_final_until(self, end_us: int) -> bool:
        """Return whether all windows that end by an instant are final, and were published so."""
        ends = (self.query.window_at(start_us).end_us for start_us in self.state.closed)
        return self.state.final_us >= end_us and all(end > end_us for end in ends)

    @property
    def settled_us(self) -> int:
        """The instant before which every window is final, and none waits for a repair."""
        return min((self.state.final_us, *self.state.late.tables))

    def note_revision(self, start_us: int, revision: int) -> None:
        """Count on from a revision of a closed window that was published beside what it does itself."""
        known = self.state.closed.get(start_us)
        if known is not None:
            known.revision = max(known.revision, revision)

    def is_due(self, furthest_us: int, read_marks: Callable[[], SiteMarks], now_us: int) -> bool:
        """Return whether `settle` would publish something though nothing has landed."""
        if self.early.is_due(now_us) or self.closer.is_close_due(furthest_us, now_us):
            return True
        return self.closer.is_final_due(read_marks, now_us)

    def snapshot(self) -> WindowsState:
        """Return its state, ready to be written down."""
        assert not self.state.expired, "a snapshot is taken between entries"
        self.open.merge_all()
        self.state.late.merge_all()
        return self.state

    def validate(self) -> None:
        """Assert the invariants that can be seen from inside."""
        self.open.validate()
        for start_us, known in self.state.closed.items():
            assert known.revision >= 1 or start_us in self.state.late, f"window {start_us} is closed without a revision"
            assert 0.0 <= known.coverage <= 1.0, f"window {start_us}: {known}"
