"""The state that the lanes of a sender share: which segment each has, what was refused, whether the link is up.

`SendOrder` says which segment goes next: fresh ones first after an outage, the backlog beside them under a share of the
link. `Dispatch` is safe for threads and does no I/O of its own; a segment is never given to two lanes at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, Protocol

from catchment.errors import CatchmentError, WireError
from catchment.log_fields import about
from catchment.timeline import Clock
from catchment.wire.sending.link_meter import LinkCounters, LinkMeter
from catchment.wire.sending.outbox import Outbox, Pending
from catchment.wire.sending.uplink import LinkError, RefusedError

PROBED_SEGMENTS = 64  # of those that wait, a probe copies the smallest of so many
BACKLOG_SHARE = 0.5  # share of the bytes for the backlog while fresh segments wait too

_log = logging.getLogger(__name__)


class Queue(Protocol):
    """Segments that wait to be sent, by number."""

    def first_pending(self, start: int = 0, excluding: Collection[int] = ()) -> Pending | None:
        """Return the lowest from a number on that is not excluded."""
        ...


class SendOrder:
    """Choose the next segment. What was appended before the last reconnection is backlog, what came after it is fresh.

    Law: while fresh segments wait, the backlog has had at most `backlog_share` of the bytes since the reconnection,
    plus one segment; and it never starves. Within each kind the lowest number goes first; with a share of 1 it does of
    all. No number that is `ahead_segments` or more above the lowest pending one is chosen: the far side would refuse
    it.
    """

    def __init__(self, ahead_segments: int, backlog_share: float = BACKLOG_SHARE) -> None:
        if not 0 < backlog_share <= 1:
            raise WireError(f"the backlog's share of a link must be in (0, 1], not {backlog_share}")
        self._ahead_segments = ahead_segments
        self._backlog_share = backlog_share
        self._fresh_from = 0
        self._backlog_bytes = 0
        self._fresh_bytes = 0

    def note_reconnected(self, next_sequence: int) -> None:
        """Note that the link is back: what is appended from now on is fresh."""
        self._fresh_from = next_sequence
        self._backlog_bytes = 0
        self._fresh_bytes = 0

    def choose(self, queue: Queue, taken: Collection[int]) -> Pending | None:
        """Return the segment to send now, given those that wait and those under way or held back."""
        lowest = queue.first_pending()
        if lowest is None:
            return None
        end = lowest.sequence + self._ahead_segments
        backlog = _before(self._fresh_from, _before(end, queue.first_pending(0, taken)))
        fresh = _before(end, queue.first_pending(self._fresh_from, taken))
        chosen = backlog or fresh
        if backlog and fresh and not self._has_backlog_credit():
            chosen = fresh
        self._count(chosen)
        return chosen

    def _is_backlog(self, segment: Pending) -> bool:
        return segment.sequence < self._fresh_from

    def _has_backlog_credit(self) -> bool:
        if self._backlog_share == 1:
            return True
        return self._backlog_bytes < self._backlog_share * (self._backlog_bytes + self._fresh_bytes)

    def _count(self, chosen: Pending | None) -> None:
        if chosen is None:
            return
        if self._is_backlog(chosen):
            self._backlog_bytes += chosen.size_bytes
        else:
            self._fresh_bytes += chosen.size_bytes


def _before(end: int, segment: Pending | None) -> Pending | None:
    return segment if segment is not None and segment.sequence < end else None


class _Pause(NamedTuple):
    """A time in which something is not tried; it ends too when the clock is set back."""

    start_s: float
    end_s: float

    @classmethod
    def begin(cls, now_s: float, wait_s: float) -> _Pause:
        return cls(now_s, now_s + wait_s)

    def is_on(self, now_s: float) -> bool:
        return self.start_s <= now_s < self.end_s


class Dispatch:
    """The shared state of one link's lanes, which name themselves by a number; `on_acked` is told of each ack once."""

    def __init__(
        self, outbox: Outbox, order: SendOrder, clock: Clock, on_acked: Callable[[int], None] | None = None
    ) -> None:
        self._on_acked = on_acked
        self._outbox = outbox
        self._order = order
        self._clock = clock
        self._changed = threading.Condition()  # guards all that follows
        self._meter = LinkMeter()
        self._up: set[int] = set()  # lanes whose connection stands
        self._under_way: set[int] = set()
        self._held: dict[int, _Pause] = {}  # refused segments, and when to try them again
        self._tried: dict[int, int] = {}  # the bytes that were last sent for each segment that is not acknowledged
        self._link_error: str | None = None
        self._logged_error: str | None = None
        self._refused: str | None = None  # the reason for which the last attempt to connect was refused
        self._busy_error: str | None = None  # why the far side has no room for now
        self._paused: _Pause | None = None
        self._refusals: dict[int, str] = {}  # why segments are still refused, by number
        self._fatal: BaseException | None = None

    def now_s(self) -> float:
        return self._clock.now_us() / 1e6

    # ---- segments

    def claim(self) -> Pending | None:
        """Return the segment to send next, for the caller alone until it is given back."""
        with self._changed:
            now_s = self.now_s()
            if self._paused is not None and self._paused.is_on(now_s):
                return None
            self._held = {number: pause for number, pause in self._held.items() if pause.is_on(now_s)}
            chosen = self._order.choose(self._outbox, self._under_way | self._held.keys())
            if chosen:
                self._under_way.add(chosen.sequence)
            return chosen

    def smallest_pending(self) -> Pending | None:
        """Return the smallest of the first segments that wait or are under way."""
        return min(self._outbox.pending()[:PROBED_SEGMENTS], key=lambda segment: segment.size_bytes, default=None)

    def give_back(self, segment: Pending) -> None:
        with self._changed:
            self._under_way.discard(segment.sequence)
            self._changed.notify_all()

    def hold(self, segment: Pending, error: CatchmentError, wait_s: float) -> None:
        """Hold a refused segment back; the others go on meanwhile."""
        with self._changed:
            self._refusals[segment.sequence] = str(error)
            self._held[segment.sequence] = _Pause.begin(self.now_s(), wait_s)

    def pause(self, error: CatchmentError, wait_s: float) -> None:
        """Send nothing for a while: the far side has no room for any segment."""
        with self._changed:
            self._paused = _Pause.begin(self.now_s(), wait_s)
            self._busy_error = str(error)

    def note_missing(self, sequence: int, error: CatchmentError) -> None:
        """Note that a segment cannot be sent because the outbox no longer has it."""
        with self._changed:
            self._refusals[sequence] = str(error)

    def note_sent(self, segment: Pending, sent_bytes: int) -> None:
        """Note that a segment was sent in so many bytes, which are fewer than it has if tables are only named."""
        with self._changed:
            again = segment.sequence in self._tried
            spared_bytes = max(segment.size_bytes - sent_bytes, 0)
            self._meter.note_sent(sent_bytes, segment.fragment_bytes, again=again, spared_bytes=spared_bytes)
            self._tried[segment.sequence] = sent_bytes

    def note_acked(self, segment: Pending, sent_bytes: int, start_s: float, sent_s: float) -> None:
        """Note an ack: a lane took the link at `start_s` and had sent all bytes of the segment at `sent_s`."""
        with self._changed:
            self._busy_error = None
            self._count_ack(segment)
            self._meter.note_timing(sent_bytes, start_s, sent_s, self.now_s())

    def _count_ack(self, segment: Pending) -> None:
        """Count an ack once, by whichever lane hears of it first; not for what an earlier process sent."""
        self._refusals.pop(segment.sequence, None)
        sent_bytes = self._tried.pop(segment.sequence, None)
        if sent_bytes is not None:
            self._meter.note_acked(sent_bytes)
            if self._on_acked is not None:
                self._on_acked(segment.sequence)

    # ---- the link

    def lane_up(self, lane: int, arrived: Iterable[Pending]) -> None:
        """Note that a lane is connected and has learned which segments arrived although no ack was heard."""
        with self._changed:
            for segment in arrived:
                self._count_ack(segment)
            if not self._up:
                self._order.note_reconnected(self._outbox.next_sequence)
                self._log_link("is up")
            self._up.add(lane)
            self._link_error = None
            self._refused = None
            self._changed.notify_all()

    def lane_down(self, lane: int, error: LinkError | RefusedError) -> None:
        with self._changed:
            was_up = bool(self._up)
            self._up.discard(lane)
            self._link_error = str(error)
            self._refused = error.reason if isinstance(error, RefusedError) else None
            if was_up and not self._up:
                self._log_link(f"is down, and is tried again: {error}")
            if not error.retryable and self._link_error != self._logged_error:  # it is tried again, and logged once
                self._logged_error = self._link_error
                _log.warning(
                    "%s -> %s: %s",
                    self._outbox.origin,
                    self._outbox.destination,
                    self._link_error,
                    extra=about(site=self._outbox.origin),
                )

    def _log_link(self, told: str) -> None:
        origin = self._outbox.origin
        _log.info("the link %s -> %s %s", origin, self._outbox.destination, told, extra=about(site=origin))

    def fail(self, error: BaseException) -> None:
        """Record an error that no further attempt can mend."""
        with self._changed:
            self._up.clear()
            self._fatal = self._fatal or error
            self._changed.notify_all()

    # ---- for the sender

    def notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until something has changed, but no longer than this."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wait_until_empty(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._fatal is not None or self._is_empty(), timeout_s)

    def _is_empty(self) -> bool:
        return not self._under_way and self._outbox.is_empty

    def raise_failure(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    @property
    def refused(self) -> str | None:
        """The reason for which the far side refuses to be connected to; None if it does not, or does not answer."""
        with self._changed:
            return self._refused

    def snapshot(self) -> LinkCounters:
        with self._changed:
            return self._meter.snapshot(
                queued_bytes=self._outbox.size_bytes, connected=bool(self._up), last_error=self._last_error()
            )

    def _last_error(self) -> str | None:
        if self._fatal is not None:
            return str(self._fatal) or repr(self._fatal)
        return self._link_error or next(iter(self._refusals.values()), self._busy_error)
