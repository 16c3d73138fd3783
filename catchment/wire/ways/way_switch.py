"""The ways of one sender as its threads share them: the lines that lead over them, which is used, and since when."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from catchment.log_fields import about
from catchment.project.ways import Way
from catchment.timeline import Clock
from catchment.wire.sending.shaper import Shaper
from catchment.wire.sending.uplink import Uplink
from catchment.wire.ways.way_chooser import WayChange, WayChooser, WayRules, WayStep, name_way

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """How a sender sends over one way: connections to the end, and the shape of the first link."""

    way: Way
    open: Callable[[], Uplink]
    shaper: Shaper
    declared_us: int | None = None  # how long the way takes to carry a segment, by what its links declare
    wire: threading.Lock = field(default_factory=threading.Lock)  # held while a segment goes onto it: one at a time


class WaySwitch:
    """Keeps a chooser for the threads of a sender; the first line is the preferred one."""

    def __init__(self, lines: Sequence[Line], clock: Clock, rules: WayRules) -> None:
        self._lines = {line.way: line for line in lines}
        self._clock = clock
        self._lock = threading.Lock()
        self._last_us = clock.now_us()
        self._set_back_us = 0  # by how much the clock was set back in all: times of the chooser only grow
        self._chooser = WayChooser(list(self._lines), rules, self._now_s())
        self._since_us = self._last_us
        self._changes = 0

    @property
    def has_several(self) -> bool:
        """Whether there is more than one way."""
        return len(self._lines) > 1

    @property
    def current(self) -> Line:
        """The line to use now."""
        with self._lock:
            return self._lines[self._chooser.current]

    def note_begun(self, line: Line, number: int, size_bytes: int) -> None:
        with self._lock:
            self._chooser.note_begun(line.way, number, size_bytes, self._now_s())

    def note_ended(self, line: Line, number: int, *, arrived: bool) -> None:
        with self._lock:
            self._chooser.note_ended(line.way, number, self._now_s(), arrived=arrived)
            if arrived:
                self._chooser.note_answered(line.way)

    def note_answered(self, line: Line) -> None:
        with self._lock:
            self._chooser.note_answered(line.way)

    def note_failed(self, line: Line, error: Exception) -> None:
        with self._lock:
            self._chooser.note_failed(line.way, str(error), self._now_s())

    def note_copied(self, line: Line, size_bytes: int) -> None:
        """Note that a probe has sent a copy of a segment."""
        with self._lock:
            self._chooser.state(line.way).bytes_sent += size_bytes

    def note_probed(self, line: Line, rate: float | None, error: Exception | None = None) -> None:
        with self._lock:
            self._chooser.note_probed(line.way, rate, None if error is None else str(error), self._now_s())

    def step(self, queued_bytes: int) -> tuple[WayChange | None, Line | None]:
        """Decide; return the change that was made, if any, and the line to probe, if one is due."""
        with self._lock:
            step: WayStep = self._chooser.step(queued_bytes, self._now_s())
            if step.change is not None:
                self._since_us = self._clock.now_us()
                self._changes += 1
                self._log_change(step.change)
            return step.change, None if step.probe is None else self._lines[step.probe]

    def status(self) -> dict[str, Any]:
        """Return which way is used, since when and why, and what is known of all, as plain JSON."""
        with self._lock:
            now_s = self._now_s()
            return {
                "used": list(self._chooser.current),
                "since_us": self._since_us,
                "reason": self._chooser.reason,
                "changes": self._changes,
                "congested": self._chooser.is_congested(now_s),
                "known": [self._describe(line, now_s) for line in self._lines.values()],
            }

    def bytes_by_link(self) -> dict[str, int]:
        """Return the bytes that took each first link, by the site that it leads to."""
        with self._lock:
            sent: dict[str, int] = {}
            for way in self._lines:
                sent[way[1]] = sent.get(way[1], 0) + self._chooser.state(way).bytes_sent
            return sent

    def _describe(self, line: Line, now_s: float) -> dict[str, Any]:
        state = self._chooser.state(line.way)
        return {
            "way": list(line.way),
            "bytes_sent": state.bytes_sent,
            "bytes_per_s": state.meter.rate(now_s),
            "probed_bytes_per_s": state.probed_rate,
            "probed_s_ago": None if state.probed_s is None else round(now_s - state.probed_s, 1),
            "declared_s": None if line.declared_us is None else line.declared_us / 1e6,
            "last_error": state.last_error,
        }

    def _log_change(self, change: WayChange) -> None:
        told = "segments for %s now go %s, no longer %s: %s"
        after = change.after
        _log.info(told, after[-1], name_way(after), name_way(change.before), change.reason, extra=about(site=after[0]))

    def _now_s(self) -> float:
        now_us = self._clock.now_us()
        self._set_back_us += max(0, self._last_us - now_us)
        self._last_us = now_us
        return (now_us + self._set_back_us) / 1e6
