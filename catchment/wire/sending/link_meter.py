"""What went over a link: totals, rates over the recent past, and what updates cost in bytes.

Policies count in updates. A frame has a header, a checksum and the layout of its tables, whether it carries one row or
ten thousand; if that were spread over the rows, few rows would look expensive, and a link would look slow because
little was sent. So `WireSizes` separates what each row costs from what each frame costs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from catchment.wire.frames.codec import pack_table
from catchment.wire.messages import Message, Updates
from catchment.wire.sending.outbox import Pending

RECENT_SENDS = 64  # goodput and round trip are measured over this many sends

_NEWEST_WEIGHT = 0.2  # weight of the newest segment in the smoothed sizes
_MIN_RATIO = 0.01  # wire bytes per Arrow byte: rows are never free


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """A snapshot of one link.

    `bytes_sent` counts every attempt, as does `fragment_bytes` by the fragment that causes them; the latter counts also
    tables that were only named, because they had been sent for another sink, which are `spared_bytes` in all.
    `bytes_acked` and `segments` count each segment once. `goodput_bytes_per_s` is acked bytes over the time in which
    the link was in use, so an idle link does not lower it. The time that any ack takes however small its segment, the
    shortest recent round trip, is not counted as use of the link (but at most half of a send is left out for it).
    `round_trip_s` is from the last byte sent to the ack.
    """

    bytes_sent: int = 0
    bytes_acked: int = 0
    segments: int = 0
    resent: int = 0
    spared_bytes: int = 0
    fragment_bytes: Mapping[str, int] = field(default_factory=dict)
    goodput_bytes_per_s: float | None = None
    round_trip_s: float | None = None
    queued_bytes: int = 0
    connected: bool = False
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class _Sent:
    start_s: float
    end_s: float
    size_bytes: int
    round_trip_s: float


class LinkMeter:
    """Add up what a sender does; not safe for threads by itself."""

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_acked = 0
        self.segments = 0
        self.resent = 0
        self.spared_bytes = 0
        self._fragments: Counter[str] = Counter()
        self._recent: deque[_Sent] = deque(maxlen=RECENT_SENDS)

    def note_sent(self, size_bytes: int, fragments: Mapping[str, int], *, again: bool, spared_bytes: int = 0) -> None:
        self.bytes_sent += size_bytes
        self.spared_bytes += spared_bytes
        self._fragments.update(fragments)
        self.resent += again

    def note_acked(self, size_bytes: int) -> None:
        self.bytes_acked += size_bytes
        self.segments += 1

    def note_timing(self, size_bytes: int, start_s: float, sent_s: float, end_s: float) -> None:
        """Note that a segment took the link from `start_s`, was sent whole by `sent_s` and acked at `end_s`."""
        self._recent.append(_Sent(start_s, end_s, size_bytes, end_s - sent_s))

    def snapshot(self, *, queued_bytes: int, connected: bool, last_error: str | None) -> LinkCounters:
        busy_s = self._busy_s()
        trips = sorted(sent.round_trip_s for sent in self._recent)
        return LinkCounters(
            bytes_sent=self.bytes_sent,
            bytes_acked=self.bytes_acked,
            segments=self.segments,
            resent=self.resent,
            spared_bytes=self.spared_bytes,
            fragment_bytes=dict(self._fragments),
            goodput_bytes_per_s=sum(sent.size_bytes for sent in self._recent) / busy_s if busy_s > 0 else None,
            round_trip_s=trips[len(trips) // 2] if trips else None,
            queued_bytes=queued_bytes,
            connected=connected,
            last_error=last_error,
        )

    def _busy_s(self) -> float:
        """Return the length of the union of the recent sends' intervals."""
        total = 0.0
        reached = float("-inf")
        waited_s = min((sent.round_trip_s for sent in self._recent), default=0.0)
        for sent in sorted(self._recent, key=lambda s: s.start_s):
            end_s = sent.end_s - min(waited_s, (sent.end_s - sent.start_s) / 2)
            total += max(0.0, end_s - max(sent.start_s, reached))
            reached = max(reached, end_s)
        return total


@dataclass
class WireSizes:
    """Wire bytes per Arrow byte of the rows, and bytes of a frame with a single row, smoothed over segments."""

    ratio: float = 1.0
    frame_bytes: float = 0.0
    _has_ratio: bool = False
    _one_row_bytes: dict[pa.Schema, int] = field(default_factory=dict)  # wire bytes of a table with one row, by schema

    def note(self, messages: Sequence[Message], stored: Pending | None) -> None:
        """Learn from a segment that was put into an outbox, unless it has left it already."""
        tables = [m.table for m in messages if isinstance(m, Updates) and m.rows]
        if not tables or stored is None:
            return
        around_tables = stored.size_bytes - stored.table_bytes
        frame = around_tables + sum(self._measure_one_row(table) for table in tables)
        self.frame_bytes += (_NEWEST_WEIGHT if self.frame_bytes else 1.0) * (frame - self.frame_bytes)
        further_rows = sum(table.nbytes * (table.num_rows - 1) / table.num_rows for table in tables)
        if further_rows:
            ratio = max((stored.size_bytes - frame) / further_rows, _MIN_RATIO)
            self.ratio += (_NEWEST_WEIGHT if self._has_ratio else 1.0) * (ratio - self.ratio)
            self._has_ratio = True

    def _measure_one_row(self, table: pa.Table) -> int:
        """Return the wire bytes of such a table with a single row; one without rows lacks parts of its own."""
        known = self._one_row_bytes.get(table.schema)
        if known is None:
            known = self._one_row_bytes[table.schema] = len(pack_table(table.slice(0, 1)).data)
        return known
