"""Closing windows, and following them until they are final.

A window closes when every site has passed its end, or `freshness` after the first one did, without the sites that are
missing. It is then completed when these have passed it too, and final when the repair horizon has passed as well.

A site may be away for longer than that. A window that was published a repair horizon ago, by the clock and by the event
time of the furthest site, is final without those that are still missing, and names them; so what is kept for a site
that is away is bounded, and what it brings later is registered, counted and not merged.

Each step costs what has changed since the one before, not what is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from catchment.center.events import Publish
from catchment.center.query import CenterQuery
from catchment.center.roster import lost_sites
from catchment.center.statuses import FINAL, LATE_ARE_OUT
from catchment.center.windows.closed import ClosedWindow, SiteMarks
from catchment.center.windows.early import EarlyAnswers
from catchment.center.windows.instants import SortedInstants
from catchment.center.windows.looked_up import LookedUpVersions
from catchment.center.windows.open import OpenSlices
from catchment.center.windows.outstanding import Outstanding
from catchment.center.windows.overflow import OverflowedWindows
from catchment.center.windows.publish import WindowPublisher
from catchment.center.windows.renewed import FORMER_STANDS, RenewedWindows
from catchment.center.windows.skipped import SkippedRecords
from catchment.center.windows.state import WindowsState
from catchment.errors import AggregateError
from catchment.quality.contract import WatchedQuantity
from catchment.timeline import START_OF_TIME_US, Window

LOOKED_UP_LATER = "late records were looked up"  # why a window that stays as it is says more
LATE_SAMPLED = "late records were sampled, or deferred"  # why a window that was exact is not


class WindowCloser:
    """Closes the windows of one query."""

    def __init__(
        self,
        query: CenterQuery,
        state: WindowsState,
        open_slices: OpenSlices,
        outstanding: Outstanding,
        skipped: SkippedRecords,
        looked_up: LookedUpVersions,
        publisher: WindowPublisher,
        early: EarlyAnswers,
        watched: Sequence[WatchedQuantity],
        overflowed: OverflowedWindows,
        renewed: RenewedWindows,
    ) -> None:
        self.query = query
        self._state = state
        self._open = open_slices
        self._outstanding = outstanding
        self._skipped = skipped
        self._looked_up = looked_up
        self._publisher = publisher
        self._early = early
        self._watched = watched
        self._overflowed = overflowed
        self._renewed = renewed
        self._closed = SortedInstants(state.closed)
        self._lacking = SortedInstants(start for start, known in state.closed.items() if known.is_lacking)
        self._knows_closing_times = False
        self._assessed: SiteMarks | None = None  # how far the sites had come when windows were last assessed

    def is_close_due(self, furthest_us: int, now_us: int) -> bool:
        """Return whether the next window has waited for its missing sites as long as it may."""
        window = self._open.first_window()
        if window is None or self.query.freshness_us is None or furthest_us < window.end_us:
            return False
        since = self._first_passed_us(window)
        return since is None or now_us - since >= self.query.freshness_us

    def is_final_due(self, read_marks: Callable[[], SiteMarks], now_us: int) -> bool:
        """Return whether a window is final by the clock alone, which passes though nothing lands any more."""
        oldest_us = next(iter(self._closed), None)
        if oldest_us is None or not self._has_horizon_passed(self._state.closed[oldest_us], now_us):
            return False
        final_us = self._final_us(read_marks(), now_us)
        return any(start_us not in self._state.late for start_us in self._ended_by(final_us))

    def close(self, marks: SiteMarks, now_us: int) -> Iterator[Publish]:
        """Close and publish, in order of time, the windows that are complete or have waited long enough."""
        self._note_furthest(marks.furthest_us, now_us)
        while (window := self._open.first_window()) is not None:
            missing = [site for site, mark in marks.marks.items() if mark < window.end_us]
            if missing and not self._has_waited(window, now_us):
                return
            yield self._close(window, missing, marks, now_us)

    def _close(self, window: Window, missing: Sequence[str], marks: SiteMarks, now_us: int) -> Publish:
        state = self._state
        counts = self._open.counts(window)
        early = state.early.pop(window.start_us, None)
        lacking = {site: self._expected_records(site, counts) for site in missing}
        known = ClosedWindow(early.revision if early else 0, counts, lacking, repaired=self.query.repair is not None)
        known.closed_at_us = now_us
        state.closed[window.start_us] = known
        self.assess(window, known, marks)
        if not known.absent_sites:
            state.usual = dict(counts)  # those of the window change with late records
        publish = self._publish(window, known, _why_closed(window, known, marks), now_us)
        state.closed_us = max(state.closed_us, window.end_us)
        state.furthest = [(mark, at) for mark, at in state.furthest if mark > state.closed_us]
        self._open.forget_closed(window)
        return publish

    def _publish(self, window: Window, known: ClosedWindow, why: str, now_us: int) -> Publish:
        """Return the answer of a window that closes: without rows, and without all its records, if it overflows."""
        try:
            rows = self._open.rows(window)
            publish = self._publisher.publish(window, known, why, rows, now_us)
        except AggregateError as error:
            self._overflowed.give_up(window.start_us, known, known.counts.copy(), error)
            self._lacking.add(window.start_us)
            empty = self._publisher.row_schema.empty_table()
            return self._publisher.publish(window, known, f"not answered: {error.message}", empty, now_us)
        if not known.skipped:
            self._early.note_closed(known, rows)
        return publish

    def give_up(self, starts_us: Iterable[int], reason: str, now_us: int) -> Iterator[Publish]:
        """Answer closed windows no more: a sum of their rows, which lie in parts, turned out not to fit."""
        for start_us in (start for start in starts_us if start in self._state.closed):
            known = self._state.closed[start_us]
            self._overflowed.give_up(start_us, known, known.counts.copy(), AggregateError(reason))
            self._lacking.add(start_us)
            yield self._publisher.publish_status(
                self.query.window_at(start_us), known, f"not answered: {reason}", now_us
            )

    def complete(self, marks: SiteMarks, now_us: int) -> Iterator[Publish]:
        """Publish the closed windows that a missing site has passed, or that have the last of what they lacked."""
        untold = self._looked_up.take_untold()
        for start_us in self._windows_to_assess(marks, untold):
            if start_us in self._state.late or self._renewed.is_pending(start_us):
                continue  # its repair, which is due when it makes the window whole, assesses it
            if self._renewed.is_kept(start_us):
                continue  # what sites state since then is of the answer that it did not take
            window = self.query.window_at(start_us)
            known = self._state.closed[start_us]
            skipped = known.skipped
            if self.assess(window, known, marks):
                yield self._publisher.publish_status(window, known, _why_changed(known, skipped), now_us)
            elif start_us in untold:
                yield self._publisher.publish_status(window, known, LOOKED_UP_LATER, now_us)

    def _windows_to_assess(self, marks: SiteMarks, noted: set[int]) -> list[int]:
        """Return the windows whose status may have changed since this was last asked, in order; `noted` among them."""
        noted = noted | self._outstanding.take_changed() | self._skipped.take_changed()
        changed = {start_us for start_us in noted if start_us in self._closed}
        before = self._assessed
        self._assessed = marks
        if before is None or before.marks.keys() != marks.marks.keys():
            return list(self._closed)
        if (before.lost, before.backfilling) != (marks.lost, marks.backfilling):
            return list(self._closed)
        if self.query.contract is not None and before != marks:
            return sorted({*self._lacking, *changed})
        size_us = self.query.window.size_us
        for site, mark_us in marks.marks.items():
            passed_us = before.marks.get(site, START_OF_TIME_US)
            if mark_us > passed_us:
                changed.update(self._lacking.between(passed_us - size_us + 1, mark_us - size_us + 1))
        return sorted(changed)

    def find_closed(self, start_us: int, now_us: int) -> ClosedWindow:
        """Return what is remembered of a closed window; one that nobody had records of is remembered from now on."""
        known = self._state.closed.get(start_us)
        if known is None:
            early = self._state.early.pop(start_us, None)  # of what it had before it was computed again
            known = ClosedWindow(early.revision if early else 0, {}, repaired=self.query.repair is not None)
            known.closed_at_us = now_us
            known.is_published = False
            self._state.closed[start_us] = known
            self._closed.add(start_us)
        return known

    def finalize(self, marks: SiteMarks, now_us: int) -> Iterator[Publish]:
        """Publish as final, and forget, the windows that the repair horizon has passed."""
        state = self._state
        self._note_closing_times(now_us)
        state.final_us = max(state.final_us, self._final_us(marks, now_us))
        self._renewed.forget_empty(state.final_us - self.query.window.size_us + 1)
        for start_us in self._ended_by(state.final_us):
            if start_us in state.late:
                continue  # its repair is due first
            owed = self._outstanding.lacks_records(start_us)
            if self._renewed.is_pending(start_us):
                self.assess(self.query.window_at(start_us), state.closed[start_us], marks)
                former = self._renewed.keeps_former(start_us, state.closed[start_us])
                if former is not None:
                    owed = former.owed  # what is awaited now is of the answer that it does not take
                    stands = self._publisher.publish_status(
                        self.query.window_at(start_us), former, FORMER_STANDS, now_us
                    )
                    yield replace(stands, reason=FORMER_STANDS, as_of="")  # what is known is of what came since
            self._renewed.forget(start_us)
            known = state.closed.pop(start_us)
            self._closed.discard(start_us)
            self._lacking.discard(start_us)
            self._outstanding.forget(start_us)
            self._skipped.forget(start_us)
            self._overflowed.forget(start_us)
            if not owed and not known.skipped:
                yield self._finalize(self.query.window_at(start_us), known, now_us)
        self._looked_up.forget_ended(state.final_us, state.closed)

    def _final_us(self, marks: SiteMarks, now_us: int) -> int:
        """Return until when windows are final: not while a site that is here may still send what it has shed, or its
        past."""
        horizon_us = self.query.repair_horizon_us
        waited_us = min(self._waited_until_us(now_us), marks.furthest_us - horizon_us)
        away = [site for site, mark_us in marks.marks.items() if mark_us < waited_us]
        final_us = max(min(marks.marks.values()) - horizon_us, waited_us)
        awaited_us = self._outstanding.earliest_awaited_us(away)  # is repaired however old it has grown
        if awaited_us is not None:
            final_us = min(final_us, awaited_us)
        return min([final_us, *(low_us for site, low_us, _ in marks.backfilling if site not in away)])

    def _waited_until_us(self, now_us: int) -> int:
        """Return the end of the newest window that was published a repair horizon ago, as were all before it."""
        waited_us = START_OF_TIME_US
        for start_us in self._closed:
            if not self._has_horizon_passed(self._state.closed[start_us], now_us):
                break
            waited_us = self.query.window_at(start_us).end_us
        return waited_us

    def _has_horizon_passed(self, known: ClosedWindow, now_us: int) -> bool:
        return known.closed_at_us is not None and now_us - known.closed_at_us >= self.query.repair_horizon_us

    def _note_closing_times(self, now_us: int) -> None:
        """Let the horizon of windows begin now that an earlier version has closed and did not say when."""
        if not self._knows_closing_times:
            for known in self._state.closed.values():
                known.closed_at_us = now_us if known.closed_at_us is None else known.closed_at_us
            self._knows_closing_times = True

    def _ended_by(self, end_us: int) -> list[int]:
        """Return the closed windows that end by an instant."""
        return self._closed.before(end_us - self.query.window.size_us + 1)

    def _finalize(self, window: Window, known: ClosedWindow, now_us: int) -> Publish:
        if known.awaited:  # what the horizon has passed is not waited for any more
            known.stop_awaiting()
        if known.left_out:
            return self._publisher.publish_status(window, known, LATE_ARE_OUT, now_us)
        without = f" without {', '.join(known.absent_sites)}" if known.absent_sites else ""
        return self._publisher.publish_status(window, known, f"the repair horizon has passed{without}", now_us, FINAL)

    def assess(self, window: Window, known: ClosedWindow, marks: SiteMarks) -> bool:
        """Take in what is known by now; return whether anything that is published of the window has changed."""
        before = known.status, known.absent_sites, known.skipped
        if not known.is_published:  # it is about to be, without the sites that have not passed its end
            known.is_published = True
            missing = [site for site in marks.marks if not marks.has_passed(site, window.end_us)]
            known.missing = {site: self._expected_records(site, known.counts) for site in missing}
        self._renewed.forget_lacking(window.start_us, known)
        for site in lost_sites(marks.lost, window):
            known.lost.setdefault(site, known.missing.get(site, self._expected_records(site, known.counts)))
        backfilling = lost_sites(marks.backfilling, window)
        for site in backfilling:
            known.missing.setdefault(site, self._expected_records(site, known.counts))
        known.owed = self._outstanding.lacks_records(window.start_us)
        known.shed = self._outstanding.lacking(window.start_us)
        known.skipped = self._skipped.of(window.start_us)
        known.assess(window.end_us, self._watched, marks, self.query.contract is not None, backfilling)
        self._renewed.note_lacking(window.start_us, known)
        self._closed.add(window.start_us)
        if known.is_lacking:
            self._lacking.add(window.start_us)
        else:
            self._lacking.discard(window.start_us)
        return before != (known.status, known.absent_sites, known.skipped)

    def _note_furthest(self, mark_us: int, now_us: int) -> None:
        """Remember when the furthest site came how far: every open window waits from then on, all at the same time."""
        furthest = self._state.furthest
        if self.query.freshness_us is not None and (not furthest or mark_us > furthest[-1][0]):
            furthest.append((mark_us, now_us))

    def _first_passed_us(self, window: Window) -> int | None:
        """Return when the first site passed the end of a window; None where that is not noted yet."""
        furthest = self._state.furthest
        place = bisect_left(furthest, window.end_us, key=lambda noted: noted[0])
        return furthest[place][1] if place < len(furthest) else None

    def _has_waited(self, window: Window, now_us: int) -> bool:
        since = self._first_passed_us(window)
        return since is not None and self.query.freshness_us is not None and now_us - since >= self.query.freshness_us

    def _expected_records(self, site: str, counts: Mapping[str, int]) -> int | None:
        """Return how many records of a missing site are still expected; None where nothing is usual yet."""
        usual = self._state.usual.get(site)
        return None if usual is None else max(usual - counts.get(site, 0), 0)


def _why_changed(known: ClosedWindow, skipped: Mapping[str, int]) -> str:
    if known.skipped != skipped:
        return f"suspended at {', '.join(sorted(known.skipped))}"
    if known.missing:
        return "a missing site has passed its end"
    if known.owed:
        return LATE_SAMPLED
    if known.lost:
        return f"nothing more comes of {', '.join(sorted(known.lost))}"
    return "every site that counts has passed its end"


def _why_closed(window: Window, known: ClosedWindow, marks: SiteMarks) -> str:
    missing = sorted({*known.missing, *known.lost})
    if known.skipped:
        without = f", without {', '.join(missing)}" if missing else ""
        return f"closed while suspended at {', '.join(sorted(known.skipped))}{without}"
    reading = sorted(lost_sites(marks.backfilling, window))
    if reading:
        return f"closed while {', '.join(reading)} read{'s' if len(reading) == 1 else ''} its past from history"
    if missing:
        return f"closed without {', '.join(missing)}"
    closings = [marks.closing(site, window.end_us) for site in known.awaited]
    reasons = sorted({closing.reason for closing in closings if closing is not None})
    if not reasons:
        return "closed: every site has passed its end"
    return f"closed under its contract ({', '.join(reasons)})"
