"""The windows of a composed query: when they are published and revised, and with which status. Pure.

What a window of it answers is a function of the newest rows of the lower windows in it, so only their revisions are
remembered here; the rows are read from the result table of the lower view when they are wanted (`Compose`).

Invariants:
- A window is published first when every lower window in it is closed, and again in the entry that revises one of them.
- It is exact only when all of them are and no site is missing for one that had no rows yet, and final only when nothing
  in it can change any more. Then it is forgotten.
- Windows before `from_us` are not answered, because lower windows in them were closed before anyone listened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from catchment.center.composed.query import ComposedQuery
from catchment.center.events import Compose, Publish, RestatedWindow
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME, SUSPENDED
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US, Window

NEWEST_REVISION = 2**31 - 1  # of a lower window whose revision only its tables know


@stored()
@dataclass(frozen=True)
class LowerWindow:
    """What is known of a published window of the lower view."""

    revision: int
    status: str
    coverage: float
    missing_sites: tuple[str, ...]


@stored()
@dataclass
class ComposedWindow:
    """A window that is not final: the lower windows in it, by their starts, and what was published of it."""

    lowers: dict[int, LowerWindow] = field(default_factory=dict)
    revision: int = 0
    status: str = ""
    is_changed: bool = False  # whether rows of a lower window have changed since


@stored()
@dataclass
class ComposedState:
    """All that is remembered of a composed query."""

    query: ComposedQuery
    from_us: int = START_OF_TIME_US
    closed_us: int = START_OF_TIME_US  # the end of the newest window that was published
    final_us: int = START_OF_TIME_US  # every lower window that ends here or before is final
    windows: dict[int, ComposedWindow] = field(default_factory=dict)


@dataclass(frozen=True)
class LowerProgress:
    """How far a lower view has come, by the ends of its windows.

    Every window that ends at `passed_us` or before is closed, or empty so far; at `complete_us`, by all sites; at
    `final_us`, it changes no more. It answers from `begin_us` on; None: that is not known yet.
    """

    begin_us: int | None
    passed_us: int
    complete_us: int
    final_us: int


class ComposedWindows:
    """Follows what the lower view publishes."""

    def __init__(self, state: ComposedState) -> None:
        self.state = state
        self.query = state.query
        self._restated: dict[int, Window] = {}  # forgotten windows of which a lower one was published again just now

    def note(self, published: Publish | Compose) -> None:
        """Take in a revision or a status of a lower window; what is published early is not read."""
        if published.status == EARLY:
            return
        start_us = published.window.start_us
        if isinstance(published, Compose) and published.is_restated:
            self.note_restated([RestatedWindow(start_us, NEWEST_REVISION, FINAL, 1.0, ())])
            return
        lower = LowerWindow(published.revision, published.status, published.coverage, published.missing_sites)
        for window in self.query.reading(start_us):
            if window.start_us < self.state.from_us or self._is_forgotten(window):
                continue
            known = self.state.windows.setdefault(window.start_us, ComposedWindow())
            before = known.lowers.get(start_us)
            known.is_changed |= before is None or before.revision != lower.revision
            known.lowers[start_us] = lower

    def note_restated(self, windows: Sequence[RestatedWindow]) -> None:
        """Take in lower windows that were final and were published again; what is forgotten is published once more."""
        for restated in windows:
            lower = LowerWindow(restated.revision, restated.status, restated.coverage, restated.missing_sites)
            for window in self.query.reading(restated.start_us):
                known = self.state.windows.get(window.start_us)
                if known is not None:
                    known.is_changed = True
                    known.lowers[restated.start_us] = lower
                elif window.start_us >= self.state.from_us:
                    self._restated[window.start_us] = window

    def note_unfinished(self, starts_us: Sequence[int]) -> None:
        """Take in that answers of lower windows could not be finished: they have no rows until they are resumed."""
        for known in self.state.windows.values():
            for start_us in (s for s in starts_us if s in known.lowers):
                known.lowers[start_us] = replace(known.lowers[start_us], status=SUSPENDED)

    def _is_forgotten(self, window: Window) -> bool:
        return window.start_us not in self.state.windows and self.query.settled_us(window) <= self.state.final_us

    def settle(self, progress: LowerProgress, now_us: int) -> Iterator[Compose]:
        """Publish the windows that are due: newly closed, revised, or with another status."""
        yield from self._publish_restated(now_us)
        if progress.begin_us is None:
            return
        self._begin(progress.begin_us)
        self.state.final_us = max(self.state.final_us, progress.final_us)
        for start_us in sorted(self.state.windows):
            window = self.query.window_at(start_us)
            settled_us = self.query.settled_us(window)
            if progress.passed_us < settled_us:
                continue
            known = self.state.windows[start_us]
            status = _status(known, settled_us, progress)
            if known.is_changed or status != known.status:
                yield self._publish(window, known, status, now_us)
            if progress.final_us >= settled_us:
                del self.state.windows[start_us]

    def _publish_restated(self, now_us: int) -> Iterator[Compose]:
        """Publish forgotten windows again, by what their tables know of them."""
        for start_us in sorted(self._restated):
            window = self._restated.pop(start_us)
            reason = f"{self.query.lower} was computed again"
            yield Compose(self.query.name, window, 0, FINAL, 1.0, (), reason, now_us, (), True, is_restated=True)

    def progress(self, lower: LowerProgress) -> LowerProgress:
        """Return how far it has come itself, for a view that reads it."""
        size_us = self.query.lower_window.size_us + self.query.lookahead_us
        begin_us = None if lower.begin_us is None else max(self.state.from_us, lower.begin_us)
        return LowerProgress(begin_us, lower.passed_us - size_us, lower.complete_us - size_us, lower.final_us - size_us)

    def _begin(self, begin_us: int) -> None:
        """Leave out windows that begin, or look back to, before the lower view does."""
        if begin_us > START_OF_TIME_US:
            begin_us += self.query.lookback_us
        if begin_us > self.state.from_us:
            self.state.from_us = begin_us
            self.state.windows = {s: known for s, known in self.state.windows.items() if s >= begin_us}

    def _publish(self, window: Window, known: ComposedWindow, status: str, now_us: int) -> Compose:
        has_new_rows = known.is_changed
        reason = f"its windows of {self.query.lower} are {status}"
        if has_new_rows:
            revised = known.revision > 0
            reason = f"{self.query.lower} was revised" if revised else f"its windows of {self.query.lower} are closed"
            known.revision += 1
        known.is_changed = False
        known.status = status
        self.state.closed_us = max(self.state.closed_us, window.end_us)
        lowers = known.lowers
        return Compose(
            query=self.query.name,
            window=window,
            revision=known.revision,
            status=status,
            coverage=min(lower.coverage for lower in lowers.values()),
            missing_sites=tuple(sorted({site for lower in lowers.values() for site in lower.missing_sites})),
            reason=reason,
            published_us=now_us,
            lowers=tuple((start_us, lower.revision) for start_us, lower in sorted(lowers.items())),
            has_new_rows=has_new_rows,
        )


def _status(known: ComposedWindow, settled_us: int, progress: LowerProgress) -> str:
    statuses = {lower.status for lower in known.lowers.values()}
    if SUSPENDED in statuses:
        return SUSPENDED
    if statuses == {FINAL} and progress.final_us >= settled_us:
        return FINAL
    # Sites that compute their windows again begin behind what they had stated; what was exact stays so meanwhile.
    is_complete = progress.complete_us >= settled_us or known.status == EXACT
    return EXACT if statuses <= {EXACT, FINAL} and is_complete else ON_TIME


def in_order(composed: Sequence[ComposedQuery]) -> list[ComposedQuery]:
    """Return composed queries such that each comes after the one that it reads."""
    names = {query.name for query in composed}
    ordered: list[ComposedQuery] = []
    waiting = list(composed)
    while waiting:
        known = {query.name for query in ordered}
        ready = [query for query in waiting if query.lower not in names or query.lower in known]
        assert ready, "no view reads itself"
        ordered += ready
        waiting = [query for query in waiting if query not in ready]
    return ordered
