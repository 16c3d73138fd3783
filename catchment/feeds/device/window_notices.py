"""Aggregates of matches per tumbling window and notified user, recomputed from the matches that a host keeps. Pure.

The view with the window reads the matches of pair views, wherever those are computed. A host keeps matches for the
window and `away_us` more; a window is closed when event time has passed its end by `GRACE_US`, and its notice then
has the aggregates of all matches in it. A match that comes later gives the notice again, exact by then. The key of a
notice is the number of the window and the number of matches, so a later notice of a window has a larger key, and
neither duplicates of matches nor a second computation after a restart give another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from catchment.feeds.device.view_host import Match, ViewHost
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.forms.window import WindowForm
from catchment.feeds.protocol.messages import Notice

GRACE_US = 2_000_000  # event time between the end of a window and its notice, for matches on their way


@dataclass
class WindowNotices:
    """Says when windows are closed, and what their notices are."""

    host: ViewHost
    reached_us: int | None = None

    def changed(self, match: Match) -> Iterator[Notice]:
        """Yield the notice of a closed window that a match belongs to."""
        name = self.host.installed[match.view].view.template
        window = self.host.program.windows[name]
        number = match.event.at_us // window.window_us
        if self._is_closed(number, window) and str(match.event.values[0]) == match.row.notified:
            yield from self._notices(name, window, [number], only=match.row.notified)

    def advance(self, at_us: int) -> Iterator[Notice]:
        """Take note of an event time; yield the notices of windows that are closed by it."""
        if not self.host.program.windows:
            return
        before_us = self._reached()
        if before_us is not None and at_us <= before_us:
            return
        self.reached_us = at_us
        for name, window in self.host.program.windows.items():
            first = None if before_us is None else (before_us - GRACE_US) // window.window_us
            last = (at_us - GRACE_US) // window.window_us
            if first != last:
                yield from self._notices(name, window, self._numbers(name, window, first, last))

    def _reached(self) -> int | None:
        """Return the event time that was reached; after a restart that of the events that were kept."""
        if self.reached_us is None:
            kept = [b.newest_us for b in self.host.retained.feeds.values() if b.newest_us is not None]
            self.reached_us = max(kept, default=None)
        return self.reached_us

    def _is_closed(self, number: int, window: WindowForm) -> bool:
        reached_us = self._reached()
        return reached_us is not None and (number + 1) * window.window_us + GRACE_US <= reached_us

    def _views(self, name: str) -> list[PhysicalView]:
        return [i.view for i in self.host.installed.values() if i.view.template == name]

    def _numbers(self, name: str, window: WindowForm, first: int | None, last: int) -> list[int]:
        """Return the windows from the first to before the last that have matches."""
        retained = self.host.retained
        low_us = -(2**62) if first is None else first * window.window_us
        found = {
            event.at_us // window.window_us
            for view in self._views(name)
            for event in retained.between(view.inputs[0], low_us, last * window.window_us - 1)
        }
        return sorted(found)

    def _notices(
        self, name: str, window: WindowForm, numbers: Iterable[int], only: str | None = None
    ) -> Iterator[Notice]:
        for number in numbers:
            rows = self._rows(name, window, number, only)
            for notified in sorted(rows):
                values = window.aggregate(rows[notified])
                key = (number, len(rows[notified]))
                yield Notice(name, notified, key, (number + 1) * window.window_us, values)

    def _rows(self, name: str, window: WindowForm, number: int, only: str | None) -> dict[str, list[tuple[Any, ...]]]:
        """Return the arguments of the aggregates for each user, or only one, with matches in a window."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        begin_us = number * window.window_us
        compiled = self.host.program.view(name)
        for view in self._views(name):
            view_rows = [row for row in view.rows if only is None or row.notified == only]
            if not view_rows:
                continue
            events = self.host.retained.between(view.inputs[0], begin_us, begin_us + window.window_us - 1)
            for row in view_rows:
                for event in events:
                    values = compiled.evaluate(row, [event.values], (event.at_us,))
                    if values is not None and event.rank < row.shares[0] and str(values[0]) == row.notified:
                        found.setdefault(row.notified, []).append(values[1:])
        return found
