"""A device as a process: records come in as JSON lines, notices and changes of its state go out.

    {"stream": "location", "row": {"lat": 48.1, "lon": 2.3, "speed": 1.0}}

A line that is no record is reported with its number, and the rest goes on. Lines are read only once the cloud has said
what to record, a hundred at a time at most, so whoever writes faster than the device can keep up is held back.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.device.feed_device import FeedDevice, Row

POLL_S = 0.05  # how long a poll waits for messages
MAX_LINES = 100  # that are read ahead, and recorded in one step
MAX_LINE_CHARS = 1_000_000

Report = Callable[[dict[str, Any]], None]


class LineReader:
    """Reads lines in a thread of its own, because reading may wait for ever; a few are read ahead."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.ended = False
        self._ready: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._ready.put(line)
        self._ready.put(None)

    def take(self) -> list[str]:
        """Take the lines that are ready."""
        taken: list[str] = []
        while not self.ended and len(taken) < MAX_LINES:
            try:
                line = self._ready.get_nowait()
            except queue.Empty:
                break
            if line is None:
                self.ended = True
            else:
                taken.append(line)
        return taken


@dataclass
class DeviceProcess:
    """One device between its input and its output."""

    device: FeedDevice
    reader: LineReader
    report: Report
    refused: int = 0
    notices: int = 0
    _line: int = 0
    _state: dict[str, Any] = field(default_factory=dict)

    def run(self, goes_on: Callable[[], bool], until_sent: bool = False) -> None:
        """Serve until told to end or, `until_sent`, until the input has ended and the broker has everything."""
        durable = self.device.durable
        self.report({"event": "begin", "boot": durable.core.config.boot, "recorded": durable.recorded})
        while goes_on():
            self.device.poll(POLL_S)
            self._report_state()
            if self.device.is_told:
                self._record(self.reader.take())
            self._hand_over()
            if until_sent and self.reader.ended and not self.device.status.waiting:
                return

    def _report_state(self) -> None:
        status = self.device.status
        state = {
            "connected": status.connected,
            "refusal": status.refusal,
            "told": status.told,
            "views": status.views,
            "error": status.last_error or None,
        }
        if state != self._state:
            self._state = state
            self.report({"event": "state", **state})

    def _record(self, lines: list[str]) -> None:
        rows: dict[int, tuple[str, Row]] = {}  # by number of line
        for line in lines:
            self._line += 1
            try:
                rows[self._line] = read_line(line)
            except FeedError as error:
                self._refuse(self._line, error)
        numbers = list(rows)
        for place, refused in (self.device.record_all(rows.values()) if rows else {}).items():
            self._refuse(numbers[place], refused)

    def _refuse(self, line: int, error: FeedError) -> None:
        self.refused += 1
        self.report({"event": "refused", "line": line, "reason": str(error)})

    def _hand_over(self) -> None:
        for numbered in self.device.notices():
            notice = numbered.notice
            self.report(
                {
                    "event": "notice",
                    "number": numbered.number,
                    "view": notice.view,
                    "key": list(notice.key),
                    "at_us": notice.at_us,
                    "row": self.device.named_values(notice),
                }
            )
            self.device.handled(numbered.number)
            self.notices += 1


def read_line(line: str) -> tuple[str, Row]:
    """Return the stream and the row of one line."""
    expected = 'expected {"stream": NAME, "row": {...}}'
    if len(line) > MAX_LINE_CHARS:
        raise FeedError(f"a line of {len(line)} characters is refused; {expected}")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FeedError(f"this is not JSON: {error}; {expected}") from None
    if not isinstance(record, dict) or set(record) != {"stream", "row"}:
        raise FeedError(f"found {line.strip()[:60]!r}; {expected}")
    if not isinstance(record["stream"], str) or not isinstance(record["row"], dict | list):
        raise FeedError(f"found {line.strip()[:60]!r}; {expected}")
    return record["stream"], record["row"]
