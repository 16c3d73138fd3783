"""What went over a link: totals, and rates over the recent past."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

RECENT_SENDS = 64  # over which goodput and round trip are measured


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """A snapshot of one link. `bytes_sent` counts every attempt, as does `fragment_bytes` by the fragment
    that is the cause of them; `bytes_acked` and `segments` count each segment once.

    `goodput_bytes_per_s` is acked bytes over the time in which the link was in use, so an idle link does not
    lower it. What every ack takes however small its segment, the shortest recent round trip, is no use of the link
    (but at most half of a send is put down to it). `round_trip_s` is from the last byte sent to the ack.
    """

    bytes_sent: int = 0
    bytes_acked: int = 0
    segments: int = 0
    resent: int = 0
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
    """Adds up what a sender does; not safe for threads by itself."""

    def __init__(self) -> None:
        self.bytes_sent = self.bytes_acked = self.segments = self.resent = 0
        self._fragments: Counter[str] = Counter()
        self._recent: deque[_Sent] = deque(maxlen=RECENT_SENDS)

    def sent(self, size_bytes: int, fragments: Mapping[str, int], *, again: bool) -> None:
        self.bytes_sent += size_bytes
        self._fragments.update(fragments)
        self.resent += again

    def acked(self, size_bytes: int) -> None:
        self.bytes_acked += size_bytes
        self.segments += 1

    def timed(self, size_bytes: int, start_s: float, sent_s: float, end_s: float) -> None:
        """A segment took the link from `start_s`, was wholly sent at `sent_s` and acked at `end_s`."""
        self._recent.append(_Sent(start_s, end_s, size_bytes, end_s - sent_s))

    def snapshot(self, *, queued_bytes: int, connected: bool, last_error: str | None) -> LinkCounters:
        busy_s = self._busy_s()
        trips = sorted(sent.round_trip_s for sent in self._recent)
        return LinkCounters(
            self.bytes_sent,
            self.bytes_acked,
            self.segments,
            self.resent,
            dict(self._fragments),
            sum(sent.size_bytes for sent in self._recent) / busy_s if busy_s > 0 else None,
            trips[len(trips) // 2] if trips else None,
            queued_bytes,
            connected,
            last_error,
        )

    def _busy_s(self) -> float:
        """The length of the union of the recent sends' intervals."""
        total, reached = 0.0, float("-inf")
        waited_s = min((sent.round_trip_s for sent in self._recent), default=0.0)
        for sent in sorted(self._recent, key=lambda s: s.start_s):
            end_s = sent.end_s - min(waited_s, (sent.end_s - sent.start_s) / 2)
            total += max(0.0, end_s - max(sent.start_s, reached))
            reached = max(reached, end_s)
        return total
