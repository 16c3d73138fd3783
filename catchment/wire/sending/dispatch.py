"""What the lanes of a sender are doing: which segment each has, what was refused, whether the link is up.

Safe for threads; it does no I/O but ask the outbox what is pending. A segment is never given to two lanes at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from catchment.errors import CatchmentError
from catchment.timeline import Clock
from catchment.wire.codec import segment_sizes
from catchment.wire.outbox import Outbox, Pending
from catchment.wire.sending.counters import LinkCounters, LinkMeter
from catchment.wire.sending.send_order import SendOrder


class Dispatch:
    """The shared memory of one link's lanes, which name themselves by a number."""

    def __init__(self, outbox: Outbox, order: SendOrder, clock: Clock) -> None:
        self._outbox, self._order, self._clock = outbox, order, clock
        self._changed = threading.Condition()  # guards all that follows
        self._meter = LinkMeter()
        self._up: set[int] = set()  # lanes whose connection stands
        self._under_way: set[int] = set()
        self._held: dict[int, float] = {}  # refused segments, and when to try them again
        self._tried: set[int] = set()
        self._link_error: str | None = None
        self._refusals: dict[int, str] = {}  # of segments that are still refused
        self._fatal: BaseException | None = None

    def now_s(self) -> float:
        return self._clock.now_us() / 1e6

    # ---- segments

    def claim(self) -> Pending | None:
        """The segment to send next, for the caller alone until it is given back."""
        with self._changed:
            now_s = self.now_s()
            self._held = {number: until for number, until in self._held.items() if until > now_s}
            chosen = self._order.choose(self._outbox.pending(), self._under_way | self._held.keys())
            if chosen:
                self._under_way.add(chosen.sequence)
            return chosen

    def give_back(self, segment: Pending) -> None:
        with self._changed:
            self._under_way.discard(segment.sequence)
            self._changed.notify_all()

    def hold(self, segment: Pending, error: CatchmentError, wait_s: float) -> None:
        """The segment was refused; the others go on meanwhile."""
        with self._changed:
            self._refusals[segment.sequence] = str(error)
            self._held[segment.sequence] = self.now_s() + wait_s

    def note_missing(self, sequence: int, error: CatchmentError) -> None:
        """A segment cannot be sent because the outbox no longer has it."""
        with self._changed:
            self._refusals[sequence] = str(error)

    def note_sent(self, segment: Pending, data: bytes) -> None:
        with self._changed:
            again = segment.sequence in self._tried
            self._meter.sent(segment.size_bytes, segment_sizes(data), again=again)
            self._tried.add(segment.sequence)

    def note_acked(self, segment: Pending, start_s: float, sent_s: float) -> None:
        """A lane took the link at `start_s`, had sent the segment wholly at `sent_s`, and has its ack now."""
        with self._changed:
            self._count_ack(segment)
            self._meter.timed(segment.size_bytes, start_s, sent_s, self.now_s())

    def _count_ack(self, segment: Pending) -> None:
        """Once, by whichever lane hears of it first; not for what an earlier process sent."""
        self._refusals.pop(segment.sequence, None)
        if segment.sequence in self._tried:
            self._tried.discard(segment.sequence)
            self._meter.acked(segment.size_bytes)

    # ---- the link

    def lane_up(self, lane: int, landed: Iterable[Pending]) -> None:
        """A lane is connected, and has learned of segments that landed although no ack was heard."""
        with self._changed:
            for segment in landed:
                self._count_ack(segment)
            if not self._up:
                self._order.reconnected(self._outbox.next_sequence)
            self._up.add(lane)
            self._link_error = None
            self._changed.notify_all()

    def lane_down(self, lane: int, error: CatchmentError) -> None:
        with self._changed:
            self._up.discard(lane)
            self._link_error = str(error)

    def fail(self, error: BaseException) -> None:
        """Something that no further attempt can mend."""
        with self._changed:
            self._up.clear()
            self._fatal = self._fatal or error
            self._changed.notify_all()

    # ---- for others

    def notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until something has changed, but not for long."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wait_until_empty(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._fatal is not None or self._is_empty(), timeout_s)

    def _is_empty(self) -> bool:
        return not self._under_way and not self._outbox.pending()

    def check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def snapshot(self) -> LinkCounters:
        with self._changed:
            return self._meter.snapshot(
                queued_bytes=self._outbox.size_bytes, connected=bool(self._up), last_error=self._last_error()
            )

    def _last_error(self) -> str | None:
        if self._fatal is not None:
            return str(self._fatal) or repr(self._fatal)
        return self._link_error or next(iter(self._refusals.values()), None)
