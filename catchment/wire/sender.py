"""The sender of one link: sends what is in the outbox until it is acked, however often the link fails.

A few lanes (threads) share the link, so that one segment can be on the wire while others wait for their acks;
each lane has its own uplink. Nothing is lost by stopping or killing it at any time: the outbox is the only
state.

A link that fails is tried again after a delay that doubles up to `MAX_RETRY_S`, small, so that a returned
link is used soon. A refusal that the same bytes cannot overcome is kept as `last_error` and tried again every
`REFUSED_RETRY_S`: whoever mends the cause at the far side need not restart the site. A disk error ends the
sender; `check` raises it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from catchment.errors import CatchmentError, WireError
from catchment.timeline import Clock, SystemClock
from catchment.wire.codec import segment_sizes
from catchment.wire.counters import LinkCounters, LinkMeter
from catchment.wire.limits import DEFAULT_LIMITS, Limits
from catchment.wire.outbox import Outbox, Pending
from catchment.wire.refusal import LinkError, RefusedError
from catchment.wire.schedule import BACKLOG_SHARE, SendOrder
from catchment.wire.shaper import Shaper
from catchment.wire.transport import Uplink

LANES = 4  # segments under way at once
FIRST_RETRY_S = 0.05
MAX_RETRY_S = 2.0
REFUSED_RETRY_S = 10.0
IDLE_CHECK_S = 0.5  # an append without a notify is found after this long


class Sender:
    """Drains an outbox through uplinks made by `uplink_factory`."""

    def __init__(
        self,
        outbox: Outbox,
        uplink_factory: Callable[[], Uplink],
        shaper: Shaper | None = None,
        clock: Clock | None = None,
        *,
        lanes: int = LANES,
        backlog_share: float = BACKLOG_SHARE,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._outbox, self._make_uplink = outbox, uplink_factory
        self._shaper, self._clock = shaper or Shaper(), clock or SystemClock()
        self._order = SendOrder(limits.window, backlog_share)
        self._meter = LinkMeter()
        self._wire = threading.Lock()  # held while a segment goes onto the wire: one at a time
        self._changed = threading.Condition()  # guards what follows
        self._under_way: set[int] = set()
        self._held: dict[int, float] = {}  # refused numbers, and when to try them again
        self._tried: set[int] = set()
        self._connected = False
        self._last_error: str | None = None
        self._fatal: BaseException | None = None
        self._stopping = threading.Event()
        name = f"sender-{outbox.origin}-{outbox.destination}"
        self._lanes = [
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(lanes)
        ]

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def notify(self) -> None:
        """Something was appended to the outbox."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop after the calls under way; what is not acked stays in the outbox."""
        self._stopping.set()
        self._shaper.release()
        self.notify()
        for lane in self._lanes:
            if lane.is_alive():
                lane.join()

    def check(self) -> None:
        """Raise what ended the sender, if anything did."""
        if self._fatal is not None:
            raise self._fatal

    def snapshot(self) -> LinkCounters:
        with self._changed:
            return self._meter.snapshot(
                queued_bytes=self._outbox.size_bytes, connected=self._connected, last_error=self._last_error
            )

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until everything is acked; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._fatal is not None or self._is_idle(), timeout_s)

    def _is_idle(self) -> bool:
        return not self._under_way and not self._outbox.pending()

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        try:
            while not self._stopping.is_set():
                try:
                    with closing(self._make_uplink()) as uplink:
                        self._introduce(uplink)
                        retry_s = FIRST_RETRY_S
                        self._drain(uplink)
                except (LinkError, RefusedError) as error:
                    self._note_down(error)
                    self._stopping.wait(retry_s if error.retryable else REFUSED_RETRY_S)
                    retry_s = min(2 * retry_s, MAX_RETRY_S)
        except BaseException as error:  # noqa: BLE001 - a thread's end must not go unnoticed: check() raises it
            self._note_fatal(error)

    def _introduce(self, uplink: Uplink) -> None:
        """Connect, and learn what has landed without our knowing it."""
        expected = uplink.connect(self._outbox.origin, self._outbox.epoch)
        self._check_agreement(expected)
        landed = [p for p in self._outbox.pending() if p.sequence < expected]
        self._outbox.ack_below(expected)
        with self._changed:
            for segment in landed:
                self._count_ack(segment)
            if not self._connected:
                self._connected, self._last_error = True, None
                self._order.reconnected(self._outbox.next_sequence)
            self._changed.notify_all()

    def _check_agreement(self, expected: int) -> None:
        pending = self._outbox.pending()
        lowest = pending[0].sequence if pending else self._outbox.next_sequence
        if not lowest <= expected <= self._outbox.next_sequence:
            raise RefusedError(
                "wrong_epoch",
                f"the far side expects segment {expected}, "
                f"the outbox holds those from {lowest} to {self._outbox.next_sequence}",
                where=f"{self._outbox.origin} -> {self._outbox.destination}",
                hint="one of the two state folders is an old copy; restore its newest one, "
                "or run the site under a new name",
            )

    def _drain(self, uplink: Uplink) -> None:
        while not self._stopping.is_set():
            if not self._send_next(uplink):
                with self._changed:
                    self._changed.wait(IDLE_CHECK_S)

    def _send_next(self, uplink: Uplink) -> bool:
        """Send one segment; False if there is none to send."""
        with self._wire:
            start_s = self._now_s()
            segment = self._claim()
            data = self._outbox.read(segment.sequence) if segment else None
            if data is not None:
                self._shaper.transmit(len(data))
        if segment is None:
            return False
        try:
            if data is not None and not self._stopping.is_set():
                self._deliver(uplink, segment, data, start_s)
        finally:
            self._give_back(segment)
        return True

    def _deliver(self, uplink: Uplink, segment: Pending, data: bytes, start_s: float) -> None:
        sent_s = self._now_s()
        self._shaper.travel()
        self._note_sent(segment, data)
        try:
            acked = uplink.send(data)
        except RefusedError as error:
            self._hold(segment, error)
            return
        if acked != segment.sequence:
            raise LinkError(f"segment {segment.sequence} was sent, {acked} was acked")
        self._shaper.travel()
        self._outbox.ack(acked)
        with self._changed:
            self._count_ack(segment)
            self._meter.timed(segment.size_bytes, start_s, sent_s, self._now_s())

    def _claim(self) -> Pending | None:
        with self._changed:
            now_s = self._now_s()
            self._held = {n: until for n, until in self._held.items() if until > now_s}
            chosen = self._order.choose(self._outbox.pending(), self._under_way | self._held.keys())
            if chosen:
                self._under_way.add(chosen.sequence)
            return chosen

    def _give_back(self, segment: Pending) -> None:
        with self._changed:
            self._under_way.discard(segment.sequence)
            self._changed.notify_all()

    def _hold(self, segment: Pending, error: RefusedError) -> None:
        """One refused segment does not stop the others."""
        with self._changed:
            self._last_error = str(error)
            self._held[segment.sequence] = self._now_s() + (
                MAX_RETRY_S if error.retryable else REFUSED_RETRY_S
            )

    def _note_sent(self, segment: Pending, data: bytes) -> None:
        with self._changed:
            self._meter.sent(segment.size_bytes, segment_sizes(data), again=segment.sequence in self._tried)
            self._tried.add(segment.sequence)

    def _count_ack(self, segment: Pending) -> None:
        """Once, by whichever lane hears of it first; not for what an earlier process sent."""
        if segment.sequence in self._tried:
            self._tried.discard(segment.sequence)
            self._meter.acked(segment.size_bytes)

    def _note_down(self, error: WireError) -> None:
        with self._changed:
            self._connected, self._last_error = False, str(error)

    def _note_fatal(self, error: BaseException) -> None:
        with self._changed:
            self._connected, self._fatal = False, error
            self._last_error = str(error) if isinstance(error, CatchmentError) else repr(error)
            self._stopping.set()
            self._changed.notify_all()

    def _now_s(self) -> float:
        return self._clock.now_us() / 1e6
