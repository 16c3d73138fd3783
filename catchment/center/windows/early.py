"""Early answers: what an open window holds so far, published again and again until it closes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from catchment.center.events import Publish
from catchment.center.query import CenterQuery
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.open import OpenSlices
from catchment.center.windows.outstanding import Outstanding
from catchment.center.windows.overflow import OverflowedWindows
from catchment.center.windows.publish import WindowPublisher
from catchment.center.windows.recent import EarlyWindow, Totals, totals_of
from catchment.center.windows.state import WindowsState
from catchment.errors import AggregateError
from catchment.quality.contract import WatchedQuantity
from catchment.quality.merge_sites import Lateness
from catchment.timeline import Window


class EarlyAnswers:
    """Publishes the open windows of one query every `early_us`, if the query asks for that."""

    def __init__(
        self,
        query: CenterQuery,
        state: WindowsState,
        open_slices: OpenSlices,
        outstanding: Outstanding,
        publisher: WindowPublisher,
        watched: Sequence[WatchedQuantity],
        overflowed: OverflowedWindows,
    ) -> None:
        self.query = query
        self._state = state
        self._open = open_slices
        self._outstanding = outstanding
        self._publisher = publisher
        self._watched = watched
        self._overflowed = overflowed

    def is_due(self, now_us: int) -> bool:
        """Return whether early answers are due and an open window has changed since it was last published early."""
        return self._is_time(now_us) and any(self._has_changed(window) for window in self._open.windows())

    def publish(self, now_us: int) -> Iterator[Publish]:
        """Publish the open windows that have changed, if it is time."""
        if not self._is_time(now_us):
            return
        self._state.early_at_us = now_us
        for window in self._open.windows():
            if self._has_changed(window):
                try:
                    publish = self._publish(window, now_us)
                except AggregateError as error:
                    self._overflowed.suspend(error)
                else:
                    yield publish

    def note_closed(self, known: ClosedWindow, rows: pa.Table) -> None:
        """Learn from a window that closes what windows usually hold, with the most that it may lack.

        A window that lacks records of which nothing is known, or shed ones, does not tell.
        """
        if self.query.early_us is None or known.owed or known.missing:
            return
        late = known.lateness or Lateness(0.0, 0.0)
        if late.records is None:
            return
        totals = [_add(total, late, q) for total, q in zip(self._totals(rows), self._watched, strict=True)]
        self._state.recent.add(round(sum(known.counts.values()) + late.records), tuple(totals))

    def _publish(self, window: Window, now_us: int) -> Publish:
        records = self._records(window)
        known = self._state.early.setdefault(window.start_us, EarlyWindow(0, 0))
        known.records = records
        rows = self._open.rows(window)
        known.revision += 1
        recent = self._state.recent
        shed = self._outstanding.lacking(window.start_us)
        totals = self._totals(rows)
        if self._outstanding.lacks_records(window.start_us):
            totals = (None,) * len(totals)  # those of a sample: not comparable with what windows usually hold
        late = recent.lateness(self._watched, float(records), totals, self.query.late_delta)
        coverage = recent.coverage(records + shed) * (records / (records + shed) if records else 1.0)
        suspended = tuple(sorted(self._state.skipped.get(window.start_us, {})))
        return self._publisher.publish_early(window, known.revision, coverage, late, rows, now_us, suspended)

    def _is_time(self, now_us: int) -> bool:
        return self.query.early_us is not None and now_us - self._state.early_at_us >= self.query.early_us

    def _has_changed(self, window: Window) -> bool:
        known = self._state.early.get(window.start_us)
        return self._records(window) != (known.records if known is not None else 0)

    def _records(self, window: Window) -> int:
        return sum(self._open.counts(window).values())

    def _totals(self, rows: pa.Table) -> Totals:
        return totals_of(self._watched, self.query.fragment.aggregates, rows)


def _add(total: float | None, late: Lateness, quantity: WatchedQuantity) -> float | None:
    """Return a total with the most that it lacks; None where that is not known."""
    if total is None or not late.records:
        return total
    amount = late.of(quantity.columns[0]).amount if quantity.columns else None
    return None if amount is None else total + amount
