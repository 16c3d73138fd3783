"""Answers that could not be finished: the last step of a view has failed on a row of one of its windows.

The view is then suspended at the center, alone. Its windows go on merging, closing and being repaired; what they would
publish is written with its states and without its columns, and readers do not see it. When the view is resumed, these
windows are published again from their states.

Bound: `MAX_UNFINISHED` windows. Beyond it the oldest is given up: its answer stays unpublished, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.events import Action, AnswersSuspended, Publish, UnfinishedRevision
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.query import CenterQuery
from catchment.center.statuses import EARLY, SUSPENDED
from catchment.center.windows.publish import WindowPublisher
from catchment.storage.codec import stored

MAX_UNFINISHED = 10_000


@stored()
@dataclass
class UnfinishedState:
    """Why a view is suspended at the center, if it is, and its windows that are not finished, by their starts."""

    suspended: AnswersSuspended | None = None
    windows: dict[int, UnfinishedRevision] = field(default_factory=dict)
    given_up: int = 0


class UnfinishedAnswers:
    """Follows what one query publishes, and holds back what cannot be finished."""

    def __init__(self, query: CenterQuery, state: UnfinishedState, publisher: WindowPublisher) -> None:
        self.query = query
        self.state = state
        self._publisher = publisher

    def suspend(self, event: AnswersSuspended) -> None:
        """Hold back what follows; what was published last, of these windows, was not finished."""
        self.state.suspended = self.state.suspended or event
        for window in event.windows:
            if not window.overflows:
                self._add(window)

    def resume(self) -> None:
        """Finish what follows; what was held back is published when its states have been recalled."""
        self.state.suspended = None

    def follow(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield what follows from an event, unfinished where the view is suspended."""
        for action in actions:
            yield self._hold_back(action) if isinstance(action, Publish) else action

    def _hold_back(self, publish: Publish) -> Publish:
        start_us = publish.window.start_us
        is_held = start_us in self.state.windows
        if self.state.suspended is None and not is_held:
            return publish
        if publish.status != EARLY and (publish.rows.num_rows or is_held):
            self._add(UnfinishedRevision.of(publish))  # an open window is published again in any case
        return replace(publish, status=SUSPENDED, is_finished=False)

    def publish_recalled(self, starts_us: Iterable[int], states: pa.Table, now_us: int) -> Iterator[Publish]:
        """Publish windows that were held back; rows that still cannot be finished are left out."""
        for start_us in starts_us:
            held = self.state.windows.pop(start_us, None)
            if held is None:
                continue
            rows = states.filter(pc.equal(states[WINDOW_COLUMN], start_us)).drop_columns([WINDOW_COLUMN])
            yield Publish(
                query=self.query.name,
                window=self.query.window_at(start_us),
                revision=held.revision + 1,
                status=held.status,
                coverage=held.coverage,
                missing_sites=held.missing_sites,
                reason="resumed: its answers are finished now",
                rows=self._publisher.answers(self._publisher.fit_recalled(rows)),
                published_us=now_us,
                lowest_rate=held.lowest_rate,
                late=held.late,
                leaves_out_failing=True,
                deferred=self._publisher.deferred_rows(start_us),
            )

    def _add(self, window: UnfinishedRevision) -> None:
        self.state.windows[window.start_us] = window
        while len(self.state.windows) > MAX_UNFINISHED:
            del self.state.windows[min(self.state.windows)]
            self.state.given_up += 1
