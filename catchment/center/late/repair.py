"""Where a late record is merged: registered for its closed windows first, merged into what was published by a repair.

A record that comes to a closed window is registered until a repair merges it; one that comes after the repair horizon,
or to a query without repair, is registered for good and never merged. None is silently dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.events import Action, Expired, Publish
from catchment.center.fragment_sources import RecordCounts
from catchment.center.late.registry import WINDOW_COLUMN, LatePartials
from catchment.center.query import CenterQuery, RepairRule
from catchment.center.roster import lost_sites
from catchment.center.shards.parts import concat_rows, is_parts, merge_fitting
from catchment.center.windows.close import WindowCloser
from catchment.center.windows.closed import SiteMarks
from catchment.center.windows.open import OpenSlices
from catchment.center.windows.outstanding import Outstanding
from catchment.center.windows.overflow import OverflowedWindows
from catchment.center.windows.publish import WindowPublisher
from catchment.center.windows.renewed import FORMER_STANDS, RenewedWindows
from catchment.center.windows.state import WindowsState
from catchment.errors import AggregateError
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import END_OF_TIME_US, Slicing, Window

LEFT_OUT = "late records were registered, not merged"  # the reason of a revision
RENEWED_TABLES = 16  # tables of partials that are held for a window before they are merged


class LateRepair:
    """Registers and repairs the late partials of one query."""

    def __init__(
        self,
        query: CenterQuery,
        state: WindowsState,
        open_slices: OpenSlices,
        outstanding: Outstanding,
        publisher: WindowPublisher,
        closer: WindowCloser,
        overflowed: OverflowedWindows,
        renewed: RenewedWindows,
    ) -> None:
        self.query = query
        self._state = state
        self._open = open_slices
        self._outstanding = outstanding
        self._publisher = publisher
        self._closer = closer
        self._overflowed = overflowed
        self._renewed = renewed
        self._slicing = Slicing.of([query.window])

    # --- registering ------------------------------------------------------------------------------------------

    def find_taking(self, slices_us: Iterable[int], records: RecordCounts) -> dict[int, list[Window]]:
        """Return the closed windows that take in what has come, by slice.

        A window whose former answer stands does so only if it has nothing of it. Records are counted by the slices of
        the fragment, which may be finer than the query's own, in which partials come: one partial may have records of
        several of them.
        """
        own_us = {slice_us: self._slicing.start_of(slice_us) for slice_us in (*slices_us, *(r[1] for r in records))}
        senders: dict[int, set[str]] = {slice_us: set() for slice_us in own_us.values()}
        for site, slice_us, _ in records:
            senders[own_us[slice_us]].add(site)
        taking = {
            slice_us: [
                w for w in self._open.closed_windows_of(slice_us) if not self._renewed.repeats(w.start_us, sites)
            ]
            for slice_us, sites in senders.items()
        }
        return {slice_us: taking[start_us] for slice_us, start_us in own_us.items()}

    def add(self, slice_us: int, rows: pa.Table, windows: Sequence[Window], now_us: int) -> None:
        """Register partials of a slice for the closed windows that take them in."""
        for window in windows:
            late = rows.drop_columns([SLICE_COLUMN])
            if self._is_repaired(window):
                self._state.late.register(window.start_us, late, slice_us, now_us)
                if self._renewed.is_pending(window.start_us):
                    self._bound_renewed(window.start_us)
            else:
                self._state.expired.setdefault(window.start_us, []).append(late)
                known = self._state.closed.get(window.start_us)
                if known is not None:
                    known.are_left_out = True

    def _bound_renewed(self, start_us: int) -> None:
        """Merge what waits for a window that is computed again, so that no more is held than a row per key."""
        tables = self._state.late.tables[start_us]
        if len(tables) >= RENEWED_TABLES:
            keys = list(self.query.fragment.key_names)
            self._state.late.tables[start_us] = [merge_fitting(tables, keys, self.query.fragment.aggregates)]

    def count(self, site: str, slice_us: int, count: int, windows: Sequence[Window], now_us: int) -> None:
        """Count raw records of a slice, where they are late, for the closed windows that take them in."""
        self._count_unmerged(site, self._count_renewed(site, slice_us, count, windows))
        if not windows:
            return
        repaired = [w.start_us for w in windows if self._is_repaired(w)]
        registered = [start_us for start_us in repaired if start_us in self._state.late]
        self._state.late_records += count
        if registered:  # else the query takes none of these records, and no repair will ever count them down
            self._state.late.count(registered, count)
        if not repaired:
            self._count_unmerged(site, count)
        for start_us in registered:
            self._closer.find_closed(start_us, now_us)
        for window in windows:
            known = self._state.closed.get(window.start_us)
            if known is not None:
                known.count_late(site, count, merged=window.start_us in repaired)

    def _count_renewed(self, site: str, slice_us: int, count: int, taking: Sequence[Window]) -> int:
        """Count raw records for the windows whose former answers stand.

        Return how many of them are in no answer, because they came together with others that are.
        """
        more = 0
        for window in self._open.closed_windows_of(slice_us):
            if window in taking:
                self._renewed.count_new(window.start_us, site, count)
            elif self._renewed.is_kept(window.start_us):
                more = max(more, self._renewed.count_again(window.start_us, site, count))
        return more

    def _count_unmerged(self, site: str, count: int) -> None:
        if count:
            self._state.unmerged_records += count
            of_sites = self._state.unmerged_of_sites
            of_sites[site] = of_sites.get(site, 0) + count

    def expire(self, now_us: int) -> Iterator[Action]:
        """Hand over what came too late to be merged."""
        for start_us, tables in sorted(self._state.expired.items()):
            window = self.query.window_at(start_us)
            yield Expired(self.query.name, window, concat_rows(tables), now_us)
            known = self._state.closed.get(start_us)
            if known is not None:
                yield self._publisher.publish_status(window, known, LEFT_OUT, now_us)
        self._state.expired.clear()

    def _is_repaired(self, window: Window) -> bool:
        """Return whether what comes late to a closed window is merged in the end."""
        if self.query.repair is None and not self._renewed.is_pending(window.start_us):
            return False
        if window.start_us in self._overflowed:
            return False
        return window.end_us > self._state.final_us

    # --- repairing --------------------------------------------------------------------------------------------

    def due(self, marks: SiteMarks, now_us: int, everything: bool = False) -> dict[str, tuple[int, ...]]:
        """Return the windows whose repair is due, by the reason why."""
        late = self._state.late
        if everything and late:
            return {"no more will come": late.starts_us}
        whole = tuple(start_us for start_us in late.starts_us if self._makes_whole(start_us, marks))
        found = {"every site has passed its end": whole} if whole else {}
        reason = late.why_due(self.query.repair or RepairRule(), now_us)
        if reason is not None:
            found = {reason: tuple(s for s in late.starts_us if s in whole or not self._renewed.is_pending(s))}
        return {why: starts for why, starts in found.items() if starts}

    def waiting(self) -> tuple[int, ...]:
        """Return the windows that wait for a repair of the answer that readers see."""
        return tuple(start_us for start_us in self._state.late.starts_us if not self._renewed.is_stale(start_us))

    def _makes_whole(self, start_us: int, marks: SiteMarks) -> bool:
        """Return whether a repair now makes the window exact, or must come before it is final."""
        if self._renewed.is_pending(start_us):
            return self._is_renewed(start_us, marks)
        end_us = self.query.window_at(start_us).end_us
        least_us = min(marks.marks.values())
        if least_us == END_OF_TIME_US or end_us <= max(least_us - self.query.repair_horizon_us, self._state.final_us):
            return True
        known = self._state.closed.get(start_us)
        if known is None or not known.is_lacking or self._outstanding.lacks_records(start_us):
            return False
        if lost_sites(marks.backfilling, self.query.window_at(start_us)):
            return False  # more of it comes, and is repaired with it
        return all(marks.has_passed(s, end_us) and marks.is_complete(s, end_us) for s in marks.marks)

    def _is_renewed(self, start_us: int, marks: SiteMarks) -> bool:
        """Return whether a window that is computed again is whole, will not get more, or lacks no more than before."""
        window = self.query.window_at(start_us)
        if window.end_us <= self._state.final_us:
            return True
        if lost_sites(marks.backfilling, window):
            return False
        if min(marks.marks.values()) == END_OF_TIME_US:
            return True
        known = self._state.closed[start_us]
        if self._outstanding.lacks_records(start_us) or self._renewed.lacking(start_us, known.counts):
            return False  # it had more before, and may have it again
        awaited = [
            s for s in marks.marks if not (marks.has_passed(s, window.end_us) and marks.is_complete(s, window.end_us))
        ]
        return self._renewed.were_missing(start_us, awaited)

    def rows_to_recall(self, starts_us: Sequence[int]) -> pa.Table:
        """Return which published rows a repair of these windows needs."""
        return self._publisher.rows_to_recall(self._state.late, starts_us)

    def repair(
        self, starts_us: Sequence[int], states: pa.Table, reason: str, marks: SiteMarks, now_us: int
    ) -> Iterator[Action]:
        """Merge what is registered for these windows into their published states, and publish what changed."""
        yield from self._renewed.follow(self._repair_all(starts_us, states, reason, marks, now_us))

    def _repair_all(
        self, starts_us: Sequence[int], states: pa.Table, reason: str, marks: SiteMarks, now_us: int
    ) -> Iterator[Action]:
        for start_us in starts_us:
            published = states.filter(pc.equal(states[WINDOW_COLUMN], start_us)).drop_columns([WINDOW_COLUMN])
            late = self._state.late.take(start_us)
            try:
                if self._renewed.is_stale(start_us):
                    publish = self._replace(late, start_us, reason, marks, now_us)
                else:
                    publish = self._repair(late, start_us, published, reason, marks, now_us)
            except AggregateError as error:
                yield from self._give_up(late, start_us, error, marks, now_us)
            else:
                yield publish

    def _give_up(
        self, late: LatePartials, start_us: int, error: AggregateError, marks: SiteMarks, now_us: int
    ) -> Iterator[Action]:
        """Register late partials for good, because with them a sum of the window would not fit."""
        window = self.query.window_at(start_us)
        known = self._closer.find_closed(start_us, now_us)
        self._overflowed.give_up_late(start_us, known, late.records, error)
        self._closer.assess(window, known, marks)
        self._state.unmerged_records += late.records
        yield Expired(self.query.name, window, late.partials, now_us)
        yield self._publisher.publish_status(window, known, f"late records are not merged: {error.message}", now_us)

    def _repair(
        self, late: LatePartials, start_us: int, published: pa.Table, reason: str, marks: SiteMarks, now_us: int
    ) -> Publish:
        window = self.query.window_at(start_us)
        changed = self._open.combine([late.partials])
        published = self._publisher.fit_recalled(published)
        rows = self._open.combine([published, changed])
        known = self._closer.find_closed(start_us, now_us)
        self._closer.assess(window, known, marks)
        told = f"late: {late.records} records{_in_rows(changed)}; {reason}"
        return self._publisher.revise(window, known, told, rows, published, changed, now_us)

    def _replace(self, late: LatePartials, start_us: int, reason: str, marks: SiteMarks, now_us: int) -> Publish:
        """Publish what a window holds that was computed again; or that its former answer stands, if it was better."""
        window = self.query.window_at(start_us)
        known = self._closer.find_closed(start_us, now_us)
        self._closer.assess(window, known, marks)
        former = self._renewed.keeps_former(start_us, known)
        if former is not None:
            return self._publisher.publish_status(window, former, FORMER_STANDS, now_us)
        rows = self._open.combine([late.partials])
        told = f"computed again: {late.records} records{_in_rows(rows)}; {reason}"
        return self._publisher.publish(window, known, told, rows, now_us)


def _in_rows(rows: pa.Table) -> str:
    """Return how many rows there are, as the end of a phrase; of parts that is not known before they are merged."""
    if is_parts(rows):
        return ""
    return f" in {rows.num_rows} {'row' if rows.num_rows == 1 else 'rows'}"
