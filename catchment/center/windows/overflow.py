"""Windows whose sums do not fit into their types: they cannot be answered, and their records count as skipped.

Only merging shows it: every partial is fine by itself. The view is then suspended at the center, alone, so that
somebody is told; once it is resumed it goes on with its other windows. Nothing is merged into such a window any more:
what comes late is registered for good.
"""

from __future__ import annotations

from collections.abc import Mapping

from catchment.center.events import AnswersSuspended
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.state import WindowsState
from catchment.center.windows.unfinished import UnfinishedAnswers
from catchment.errors import AggregateError


class OverflowedWindows:
    """The windows of one query that cannot be merged."""

    def __init__(self, query: str, state: WindowsState, unfinished: UnfinishedAnswers) -> None:
        self._query = query
        self._state = state
        self._unfinished = unfinished

    def __contains__(self, start_us: int) -> bool:
        return start_us in self._state.overflowed

    def suspend(self, error: AggregateError) -> None:
        """Suspend the view at the center, with the reason."""
        self._unfinished.suspend(AnswersSuspended(self._query, (), f"{error.message}, over all sites"))

    def give_up(self, start_us: int, known: ClosedWindow, records: Mapping[str, int], error: AggregateError) -> None:
        """Leave these records of a window out, and take no more for it."""
        self.suspend(error)
        self._state.overflowed.add(start_us)
        skipped = self._state.skipped.setdefault(start_us, {})
        for site, count in records.items():
            skipped[site] = skipped.get(site, 0) + count
        known.skipped = dict(skipped)
        known.counts = {site: count - records.get(site, 0) for site, count in known.counts.items()}

    def give_up_late(self, start_us: int, known: ClosedWindow, late_records: int, error: AggregateError) -> None:
        """Leave late records of a window out. They were counted per site, and it is not known any more which ones."""
        left_out: dict[str, int] = {}
        for site, count in sorted(known.counts.items()):
            left_out[site] = min(count, late_records - sum(left_out.values()))
        self.give_up(start_us, known, left_out, error)

    def forget(self, start_us: int) -> None:
        """Stop following a window."""
        self._state.overflowed.discard(start_us)
