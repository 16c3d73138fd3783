"""Publishing the windows of a join: answers are made of pairs, and the partials of all streams are kept for repairs.

To everything else a join is one query: its slices hold the partials of all streams as rows of one pairing, its sites
are those of all streams, and a window closes when every one of them has passed its end with each stream that it has.
Late partials change every answer that they have a pair in: the pairing of a published window is kept in a table of its
own and recalled whole for its repair, so memory is bounded by what is open, and the cost of a repair by the windows
that it touches. In an outer join a late partial may also take rows back: those of records that had no partner until
then. So every revision of an outer join has all rows of its window, and replaces those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.events import Publish
from catchment.center.join.pairing import answer, changed_answers
from catchment.center.late.registry import WINDOW_COLUMN, LateRegistry
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.learned import changes_of_answers, sizes_of_answers
from catchment.center.windows.publish import WindowPublisher
from catchment.quality.merge_sites import Lateness
from catchment.query.join import Join
from catchment.timeline import Window


class JoinPublisher(WindowPublisher):
    """Publishes the answers of a join, with the rows of its pairing that they were made of."""

    @property
    def join(self) -> Join:
        assert self.query.join is not None
        return self.query.join

    def answers(self, rows: pa.Table) -> pa.Table:
        """Return the answers over all pairs of a window's partials."""
        return answer(self.join, rows)

    def rows_to_recall(self, late: LateRegistry, starts_us: Sequence[int]) -> pa.Table:
        """Return (window_start_us): the whole pairing of these windows."""
        return pa.table({WINDOW_COLUMN: pa.array(starts_us, pa.int64())})

    def publish(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        """Publish all answers of a window that closes, and keep its pairing."""
        return self._whole(replace(super().publish(window, known, reason, rows, now_us), kept=rows))

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
        """Publish what the pairs of an open window are so far."""
        return self._whole(super().publish_early(window, revision, coverage, late, rows, now_us, suspended))

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
        """Publish the answers that a changed partial has a pair in, or all, and keep the partials that changed."""
        whole = self.answers(rows)
        if self.query.learns_errors and window.start_us in self._state.learned.windows:
            self._learn_revised(window, published, whole)
        if self.join.gives_alone:
            return self._whole(replace(self._next_revision(window, known, reason, whole, now_us), kept=rows))
        kept = partials.select_matching(rows, changed.select(list(self.query.fragment.key_names)))
        answers = whole if self.query.whole_windows else changed_answers(self.join, rows, kept, whole)
        return replace(self._next_revision(window, known, reason, answers, now_us), kept=kept)

    def _learn_closed(self, window: Window, answers: pa.Table) -> None:
        sizes = sizes_of_answers(self.query.answers.aggregates, answers) if self.join.gives_alone else None
        self._state.learned.close(window.start_us, self._totals(answers), sizes)

    def _learn_revised(self, window: Window, published: pa.Table, answers: pa.Table) -> None:
        """Note what a window has now; where rows may be taken back, what was published of it is answered again."""
        totals = self._totals(answers)
        if not self.join.gives_alone:
            self._state.learned.revise(window.start_us, totals)
            return
        changes = changes_of_answers(self.query.answers, self.answers(published), answers)
        self._state.learned.change(window.start_us, totals, changes)

    def _whole(self, revision: Publish) -> Publish:
        """Let a revision of an outer join replace what was published of its window before."""
        return replace(revision, replaces=True) if self.join.gives_alone and revision.revision > 1 else revision
