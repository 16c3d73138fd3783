"""What devices sent to a feed cloud on Spark: events in Parquet files, other messages in order in memory.

Every message has an arrival number. Events are flushed to files, one per flush, which appear whole or not at
all; the name of a file is the number of its last event. Control messages wait on the driver until every
event that arrived before them has been processed. Files whose events nothing can meet any more are deleted.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.feeds.protocol.messages import FeedEvent, Upward

EVENT_TYPES = {
    "arrival": "BIGINT",
    "feed": "STRING",
    "key": "STRING",
    "at_us": "BIGINT",
    "rank": "DOUBLE",
    "values": "STRING",
}
EVENT_SQL = ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
ARROW_TYPES = {
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "BOOLEAN": pa.bool_(),
}
_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in EVENT_TYPES.items()])

EventRow = tuple[int, str, str, int, float, str]


@dataclass(frozen=True, slots=True)
class Control:
    """A message that is not an event, and who sent it."""

    arrival: int
    device: str
    message: Upward


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file, with the span of event time in it."""

    path: Path
    oldest_us: int
    newest_us: int

    @property
    def last(self) -> int:
        return int(self.path.stem)


class Landing:
    """The folder of landed events, that of stored matches, and the control messages that wait."""

    def __init__(self, folder: Path) -> None:
        self.events_folder = folder / "events"
        self.matches_folder = folder / "matches"
        for path in (self.events_folder, self.matches_folder):
            path.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self.arrivals = 0
        self.rows: list[EventRow] = []  # events that are not yet in a file
        self.controls: deque[Control] = deque()
        self.newest: deque[tuple[int, str, int]] = deque()  # (arrival, feed, event time) of events not yet processed
        self.files: list[LandedFile] = []
        self.done = 0  # every event up to this arrival is processed

    def add(self, device: str, message: Upward) -> None:
        """Take one message in order of arrival."""
        with self.lock:
            self.arrivals += 1
            if isinstance(message, FeedEvent):
                self.rows.append(event_row(self.arrivals, message))
                self.newest.append((self.arrivals, message.feed, message.at_us))
            else:
                self.controls.append(Control(self.arrivals, device, message))

    def flush(self) -> None:
        """Write the events that have come since the last flush."""
        with self.lock:
            rows = self.rows
            self.rows = []
        if rows:
            self._write(self.events_folder, rows)

    def store_matches(self, matches: list[EventRow]) -> None:
        """Store matches of views that others read, for later batches."""
        if matches:
            self._write(self.matches_folder, matches)

    def _write(self, folder: Path, rows: list[EventRow]) -> None:
        columns = zip(zip(*rows, strict=True), _SCHEMA, strict=True)
        table = pa.Table.from_arrays([pa.array(c, field.type) for c, field in columns], schema=_SCHEMA)
        name = f"{max(row[0] for row in rows):015d}.parquet"
        pq.write_table(table, folder / f".{name}")
        (folder / f".{name}").rename(folder / name)
        times = [row[3] for row in rows]
        self.files.append(LandedFile(folder / name, min(times), max(times)))

    def earlier_files(self, lifetime_us: int) -> list[str]:
        """Return the processed files with events that those still to be processed may meet."""
        waiting = [f.oldest_us for f in list(self.files) if f.last > self.done]
        since_us = min(waiting, default=0) - lifetime_us
        return [str(f.path) for f in list(self.files) if f.last <= self.done and f.newest_us >= since_us]

    def mark_processed(self, arrival: int) -> tuple[dict[str, int], list[Control]]:
        """Note that events up to an arrival are processed; return how far feeds have come and what waited for that."""
        self.done = max(self.done, arrival)
        with self.lock:
            newest: dict[str, int] = {}
            while self.newest and self.newest[0][0] <= self.done:
                _, feed, at_us = self.newest.popleft()
                newest[feed] = max(at_us, newest.get(feed, at_us))
            ready_until = self.first_unprocessed()
            ready: list[Control] = []
            while self.controls and self.controls[0].arrival < ready_until:
                ready.append(self.controls.popleft())
        return newest, ready

    def first_unprocessed(self) -> int:
        """Return the arrival of the first event that is not yet processed; beyond everything when there is none."""
        return self.newest[0][0] if self.newest else self.arrivals + 1

    def delete_before(self, horizon_us: int) -> None:
        """Delete processed files whose events are all older than an instant."""
        for old in [f for f in list(self.files) if f.last <= self.done and f.newest_us < horizon_us]:
            self.files.remove(old)
            old.path.unlink(missing_ok=True)

    @property
    def reached_us(self) -> int:
        """The event time that all events of some file had reached: one device's fast clock does not advance it."""
        return max((f.oldest_us for f in list(self.files)), default=0)


def event_row(arrival: int, event: FeedEvent) -> EventRow:
    """Return an event as a row of a landed file."""
    key = json.dumps(list(event.key), separators=(",", ":"))
    return (arrival, event.feed, key, event.at_us, event.rank, json.dumps(list(event.values)))


def event_of(row: dict[str, Any]) -> FeedEvent:
    """Return the event of a row that Spark gave back."""
    return FeedEvent(row["feed"], tuple(json.loads(row["key"])), row["at_us"], tuple(json.loads(row["values"])))


def rows_of(kind: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return the result rows of one kind, in order of arrival."""
    return iter(sorted((r for r in rows if r["kind"] == kind), key=lambda r: r["arrival"]))
