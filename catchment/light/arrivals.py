"""The records of one light site as they arrive at the site that evaluates them.

They come into an inbox of their own (`wire.receiving.inbox`: once each, in whatever order, acknowledged when they are
on disk), and go on into one folder of files per stream, from which the site that evaluates reads them like its own
(`catchment.receivers.landing`). They land in the order in which they were read, so that event time moves as it did
there: a segment waits in the inbox for those before it.

Exactly once: the name of a segment lands with its records, and a segment leaves the inbox only after that. So after a
crash between the two, its name is known, and it does not land again.

Bounds: while the files that wait to be read are `MAX_LANDED_BYTES`, nothing lands; then the inbox fills, and then the
outbox of the light site, which reads no more. `RECORD_LIMITS` bounds how far segments may be ahead of a missing one,
and so how many names must be known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from catchment.errors import WireError
from catchment.light.packing import unpack_lines
from catchment.light.streams import LightStream
from catchment.project.config import Project
from catchment.receivers.landing import LandingFolder, ReceivedLines
from catchment.storage.free_space import FreeSpace
from catchment.timeline import Clock
from catchment.wire.frames.limits import RECORD_LIMITS
from catchment.wire.messages import Records, Segment
from catchment.wire.receiving.inbox import Inbox

MAX_KEYS = 4 * RECORD_LIMITS.ahead_segments  # names of landed segments that are known
MAX_LANDED_BYTES = 10**9  # of one stream, that are not read yet
MAX_RUN_BYTES = 16 << 20  # of lines that land at once


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A segment in the inbox: its number, and the names with which its records land, each with their stream."""

    number: int
    keys: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, segment: Segment) -> _Waiting:
        keys = ((r.stream, _key(segment, place)) for place, r in enumerate(segment.records()) if r.rows)
        return cls(segment.sequence, tuple(keys))


class RecordArrivals:
    """Takes what a light site sends, and lets it land."""

    def __init__(self, project: Project, site: str, clock: Clock) -> None:
        self.site = site
        self._project = project
        self._clock = clock
        folder = project.arrivals_folder(site)
        free_space = FreeSpace(folder, project.limits.free_disk_bytes, clock)
        self.inbox = Inbox(folder / "inbox", RECORD_LIMITS, self._admit, free_space, clock)
        self._landing: dict[str, LandingFolder] = {}
        self._waiting: dict[int, _Waiting] = {}  # what is in the inbox, by position
        self.heard_us = 0  # when something last came
        self.rows = 0  # that landed, since the start

    def follow(self, streams: Iterable[LightStream]) -> None:
        """Take the records of these streams; of others they are refused, and wait at the light site."""
        for stream in streams:
            if stream.name not in self._landing:
                folder = self._project.arrived_folder(self.site, stream.name)
                landing = LandingFolder(folder, stream.connector.format, MAX_LANDED_BYTES, MAX_KEYS)
                landing.open()
                self._landing[stream.name] = landing

    def take(self) -> bool:
        """Let what is in the inbox land, as far as nothing before it is missing; return whether there was any."""
        self.inbox.raise_failure()
        for position in range(max(self._waiting, default=self.inbox.first_position - 1) + 1, self._end()):
            self._waiting[position] = _Waiting.of(self._read(position))
        ready = self._find_ready()
        may_land = bool(ready) and all(landing.has_room() for landing in self._landing.values())
        if may_land:
            self._land(ready)
        self._discard_landed()
        return may_land

    @property
    def is_drained(self) -> bool:
        """Whether everything that came has landed."""
        return self.inbox.last_position < self.inbox.first_position

    def status(self) -> dict[str, Any]:
        """Return what came and what waits, as plain JSON."""
        return {
            "rows": self.rows,
            "heard_us": self.heard_us or None,
            "inbox_bytes": self.inbox.size_bytes,
            "landed_bytes": sum(landing.waiting_bytes() for landing in self._landing.values()),
            "refused": dict(self.inbox.refused),
        }

    def _admit(self, segment: Segment) -> None:
        """Refuse what could not land: it would be acknowledged, and could not be refused any more."""
        for message in segment.messages:
            if not isinstance(message, Records):
                raise WireError(f"{segment.origin!r} is a light site, and sends a {type(message).__name__}")
            if message.stream not in self._landing:
                raise WireError(
                    f"{segment.origin!r} sends records of {message.stream!r}; known here are {sorted(self._landing)}",
                    hint="run every site from the same streams",
                )
            unpack_lines(message)
        self.heard_us = self._clock.now_us()

    def _find_ready(self) -> list[int]:
        """Return the positions of what has not landed, and before which nothing is missing, in the order of numbers."""
        complete = self.inbox.lowest_missing(self.site)
        found = [
            (waiting.number, position)
            for position, waiting in self._waiting.items()
            if waiting.number < complete and not self._has_landed(waiting)
        ]
        return [position for _, position in sorted(found)]

    def _land(self, positions: Iterable[int]) -> None:
        """Let segments land, in this order, as many as one file holds."""
        deliveries: dict[str, list[ReceivedLines]] = {}
        size = 0
        for position in positions:
            segment = self._read(position)
            size += sum(records.raw_bytes for records in segment.records())
            if deliveries and size > MAX_RUN_BYTES:
                break
            for place, records in enumerate(segment.records()):
                if records.rows:
                    lines = ReceivedLines(unpack_lines(records), records.rows, _key(segment, place), "landed")
                    deliveries.setdefault(records.stream, []).append(lines)
        for stream, landing in deliveries.items():
            self._landing[stream].land(landing)
            self.rows += sum(delivery.records for delivery in landing)

    def _discard_landed(self) -> None:
        """Remove from the inbox what has landed, as far as nothing else came before it."""
        end = self.inbox.first_position
        while end in self._waiting and self._has_landed(self._waiting[end]):
            del self._waiting[end]
            end += 1
        self.inbox.discard(end)

    def _has_landed(self, waiting: _Waiting) -> bool:
        return all(self._landing[stream].digest_of(key) is not None for stream, key in waiting.keys)

    def _read(self, position: int) -> Segment:
        return self.inbox.read_segments(position, position + 1)[0]

    def _end(self) -> int:
        return self.inbox.last_position + 1


def _key(segment: Segment, place: int) -> str:
    """Return the name of one message of a segment, which lands with its records."""
    return f"{segment.epoch}/{segment.sequence}/{place}"
