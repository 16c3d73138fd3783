"""What the scenes of the demo see and do: the status of the run, published windows, arriving records, cut links."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from catchment.cli.demo.director import Say, Scene, Wait
from catchment.cli.demo.outside import CutLinks, Outside, Shipped
from catchment.project.config import Project
from catchment.serve.window_log import WindowLog

Status = Mapping[str, Any]
Windows = Mapping[int, Mapping[str, Any]]  # beginning in seconds -> the newest entry of the window, with its history


@dataclass(frozen=True)
class Shown:
    """One thing that the demo has shown: what happened, the first answer, and what became of it."""

    event: str
    first: str
    later: str


@dataclass
class Stage:
    """One demo that runs. `pace_s` is the least time between two windows of arriving records."""

    project: Project
    outside: Outside
    links: CutLinks
    say: Say
    pace_s: float = 1.0
    status: Status = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)
    before_flood: tuple[Shipped, int] | None = None  # what was shipped and sent when the flood began
    _logs: dict[str, WindowLog] = field(default_factory=dict)
    _fed: int = 0  # windows of the log that have arrived
    _fed_at_s: float = 0.0

    # --- what it sees ------------------------------------------------------------------------------------------

    def windows(self, view: str = "traffic") -> Windows:
        """Return the published windows of a view."""
        log = self._logs.setdefault(view, WindowLog(self.project.state_folder, view))
        return {int(row["window_start"].timestamp()): row for row in log.poll()}

    def status_of(self, start_s: int) -> str | None:
        """Return the newest status of a window of `traffic`; None before it is published."""
        window = self.windows().get(start_s)
        return None if window is None else str(window["status"])

    def is_whole(self, start_s: int) -> bool:
        """Return whether a window of `traffic` is exact."""
        return self.status_of(start_s) in ("exact", "final")

    def site(self, name: str) -> Mapping[str, Any]:
        """Return the status of a site; nothing before it has one."""
        sites: Mapping[str, Mapping[str, Any]] = self.status.get("sites", {})
        return sites.get(name, {})

    @property
    def bytes_sent(self) -> int:
        """The bytes that went over links: partials of sites, and the records of a light one."""
        sources = self.status.get("sources", {})
        sites = self.status.get("sites", {})
        partials = sum(int(site["bytes_sent"]) for name, site in sites.items() if name not in sources)
        return partials + sum(int(source["sent_bytes"]) for source in sources.values())

    def requests(self, start_s: int) -> int:
        """Return how many requests a window has by its newest answer."""
        return sum(row["requests"] for row in self._rows(start_s))

    def largest_row(self, start_s: int) -> str:
        """Return the country and code with the most requests of a window, with their number and its bound."""
        row = max(self._rows(start_s), key=lambda row: row["requests"])
        bound = row["bound"].get("requests")
        spread = "" if not bound else f" ±{bound:.1%}"
        return f"{row['country']} {row['code']}: {row['requests']:,}{spread}"

    def _rows(self, start_s: int) -> list[dict[str, Any]]:
        from catchment.center.results.read import read_results

        instant = datetime.fromtimestamp(start_s, UTC)
        rows = read_results(self.project.state_folder, "traffic").to_pylist()
        return [row for row in rows if row["window_start"] == instant]

    # --- what it does ------------------------------------------------------------------------------------------

    @property
    def windows_left(self) -> int:
        return len(self.outside.windows) - self._fed

    def feed(self, count: int = 1, *, hold_at: str | None = None) -> Scene:
        """Let the next windows of records arrive at once, no sooner than the sites have read what came before."""
        if self.windows_left <= 0:
            return
        yield Wait(self._may_feed, "reading what has arrived")
        self._fed_at_s = time.monotonic()
        for _ in range(min(count, self.windows_left)):
            self.outside.feed(self.outside.windows[self._fed], hold_at=hold_at)
            self._fed += 1

    def feed_windows(self, count: int, *, at_once: int = 1) -> Scene:
        """Let some windows of records arrive, one after another or several at once."""
        for first in range(0, count, at_once):
            yield from self.feed(min(at_once, count - first))

    def feed_until(self, until: Callable[[], bool], what: str, most: int = 4) -> Generator[Wait, bool, bool]:
        """Let windows arrive until something holds, `most` of them; then wait for it. Return whether it came."""
        for _ in range(most):
            if until():
                return True
            yield from self.feed()
        reached = yield Wait(until, what)
        return reached

    @property
    def next_window_s(self) -> int:
        """The beginning of the window whose records arrive next."""
        return self.outside.windows[min(self._fed, len(self.outside.windows) - 1)]

    def _may_feed(self) -> bool:
        if time.monotonic() - self._fed_at_s < self.pace_s:
            return False
        return all(self.site(name).get("rows", 0) >= rows for name, rows in self.outside.fed_rows.items())


def clock(start_s: int) -> str:
    """Return the time of day of the beginning of a window."""
    return datetime.fromtimestamp(start_s, UTC).strftime("%H:%M")
