"""Making the revisions of a window: what is published, and how it is described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from catchment.center.events import DeferredRows, Publish
from catchment.center.late.registry import WINDOW_COLUMN, LateRegistry
from catchment.center.query import CenterQuery
from catchment.center.shards.parts import count_rows, is_parts
from catchment.center.statuses import EARLY, EXACT, FINAL
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.learned import Totals, learned_columns, totals_of_answers
from catchment.center.windows.looked_up import LookedUpVersions
from catchment.center.windows.outstanding import Outstanding
from catchment.quality.merge_sites import Lateness
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import Window

if TYPE_CHECKING:  # the state holds what is unfinished, which knows the publisher
    from catchment.center.windows.state import WindowsState


class WindowPublisher:
    """Publishes the windows of one query of one stream: its answers are its merged partials."""

    def __init__(
        self, query: CenterQuery, outstanding: Outstanding, state: WindowsState, looked_up: LookedUpVersions
    ) -> None:
        self.query = query
        self._outstanding = outstanding
        self._looked_up = looked_up
        self._state = state
        self.row_schema = pa.schema([f for f in query.fragment.schema if f.name != SLICE_COLUMN])

    def deferred_rows(self, start_us: int) -> DeferredRows | None:
        """Return which rows of a window lack partials that were deferred, if any do."""
        return self._outstanding.deferred.rows(start_us)

    def answers(self, rows: pa.Table) -> pa.Table:
        """Return what is published of a window's merged rows."""
        return rows

    def fit_recalled(self, rows: pa.Table) -> pa.Table:
        """Return recalled rows with the types of the query's own; parts as they are."""
        return rows if is_parts(rows) else rows.cast(self.row_schema)

    def rows_to_recall(self, late: LateRegistry, starts_us: Sequence[int]) -> pa.Table:
        """Return (window_start_us, keys...) of the published rows that a repair of these windows publishes again."""
        if self.query.whole_windows or any(
            is_parts(table) for start_us in starts_us for table in late.tables[start_us]
        ):
            return pa.table({WINDOW_COLUMN: pa.array(starts_us, pa.int64())})
        return late.changed_keys(starts_us, list(self.query.fragment.key_names))

    def publish(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        """Publish all rows of a window that closes."""
        answers = self.answers(rows)
        is_early = known.awaited and not known.absent_sites and window.start_us not in self._state.renewed
        is_early = is_early and not self._outstanding.lacks_records(window.start_us)  # a sample tells no total
        if self.query.learns_errors and is_early and not is_parts(answers):
            self._learn_closed(window, answers)
        return self._next_revision(window, known, reason, answers, now_us)

    def revise(
        self,
        window: Window,
        known: ClosedWindow,
        reason: str,
        rows: pa.Table,
        published: pa.Table,
        changed: pa.Table,
        now_us: int,
    ) -> Publish:
        """Publish rows of a window: those that were published, into which the changed ones were merged."""
        assert count_rows(rows) >= count_rows(changed), "a repair publishes every row that late partials touch"
        if self.query.learns_errors and not is_parts(changed):
            self._state.learned.add(window.start_us, self._totals(changed))
        return self._next_revision(window, known, reason, rows, now_us)

    def publish_status(
        self, window: Window, known: ClosedWindow, reason: str, now_us: int, status: str | None = None
    ) -> Publish:
        """Publish that the status or the coverage of a window has changed, without rows."""
        if status == FINAL:
            self._state.learned.settle(window.start_us)
        empty = self.answers(self.row_schema.empty_table())
        revision = self._revision(window, known, reason, empty, now_us)
        return replace(revision, status=status or known.status, group_rates=None, has_answer=False)

    def publish_early(
        self,
        window: Window,
        revision: int,
        coverage: float,
        late: Lateness,
        rows: pa.Table,
        now_us: int,
        suspended: tuple[str, ...] = (),
    ) -> Publish:
        """Publish what an open window holds so far."""
        return Publish(
            query=self.query.name,
            window=window,
            revision=revision,
            status=EARLY,
            coverage=coverage,
            missing_sites=suspended,
            reason="early: the window is still open",
            rows=self.answers(rows),
            published_us=now_us,
            lowest_rate=self._outstanding.lowest_rate(window.start_us),
            late=late,
            group_rates=self._outstanding.group_rates(window.start_us),
            deferred=self.deferred_rows(window.start_us),
        )

    def _next_revision(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        known.revision += 1
        return self._revision(window, known, reason + self._shed_reason(window), rows, now_us)

    def _learn_closed(self, window: Window, answers: pa.Table) -> None:
        """Remember what a window had when it closed."""
        self._state.learned.close(window.start_us, self._totals(answers))

    def _totals(self, answers: pa.Table) -> Totals:
        return totals_of_answers(self.query.answers.aggregates, answers)

    def _lateness(self, window: Window, known: ClosedWindow) -> Lateness | None:
        """Return what late records may change of a window: as sites state it, or as it was of the windows before."""
        late = known.lateness
        if known.status == EXACT:
            self._state.learned.settle(window.start_us)
        if late is None or not self.query.learns_errors or late.is_counted:
            return late
        columns = learned_columns(self.query.answers.aggregates)
        return self._state.learned.lateness(window.start_us, columns, late, self._state.closed, self.query.late_delta)

    def _revision(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        as_of = self._looked_up.tell(window.start_us)
        return Publish(
            query=self.query.name,
            window=window,
            revision=known.revision,
            status=known.status,
            coverage=known.coverage,
            missing_sites=known.absent_sites,
            reason=reason + as_of,
            rows=rows,
            as_of=as_of,
            published_us=now_us,
            lowest_rate=self._outstanding.lowest_rate(window.start_us),
            late=self._lateness(window, known),
            sources=known.sources,
            group_rates=self._outstanding.group_rates(window.start_us),
            deferred=self.deferred_rows(window.start_us),
        )

    def _shed_reason(self, window: Window) -> str:
        reason = ""
        sites = ", ".join(self._outstanding.sites(window.start_us))
        if sites:
            rate = self._outstanding.lowest_rate(window.start_us)
            reason = f"; load was shed at {sites}, down to a share of {rate:.3g}"
        deferred = self.deferred_rows(window.start_us)
        if deferred is not None:
            places = ", ".join(place or "the center" for place in self._outstanding.deferred.places(window.start_us))
            least = min(share for _, share in deferred.shares)
            reason += f"; groups were deferred at {places}, down to a share of {least:.3g}"
        return reason
