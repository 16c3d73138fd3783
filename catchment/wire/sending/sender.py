"""The sender of one link sends what is in the outbox until it is acked, however often the link fails.

A few lanes (threads) share the link, so that one segment can be on the wire while others wait for their acks; each lane
has its own uplink. Nothing is lost by stopping or killing it at any time: the outbox is the only state.

Where several ways lead to the end that it sends to (`around`), all lanes use the one that
`wire.ways.way_chooser` names, and one thread more watches the ways and starts probes.

Where other senders go to the same neighbour (`tables_there`), a table that one of them has sent is only named by the
others, in brief frames. What is stored, counted as a segment and acknowledged is the whole frame at either end.

A link that fails is tried again after a delay that doubles up to `MAX_RETRY_S`, which is short, so that a link that is
back is soon used; delays are drawn at random within a factor of two, so that many sites do not come back at once. A far
side that has no room for now is left alone in the same way, by all lanes, and a segment that names a table which is not
there waits in the same way, alone. A refusal that the same bytes cannot overcome
is shown as `last_error` and tried again every `REFUSED_RETRY_S`: whoever mends the cause at the far side need not
restart the site. A disk error ends the sender; `raise_failure` raises it.

`stop` lets the calls under way end for `STOP_GRACE_S`; then it closes their connections, so that a link that hangs does
not hold up the process. What was under way is in the outbox, and is sent again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from catchment.timeline import Clock, SystemClock
from catchment.wire.frames import versions as frame_versions
from catchment.wire.frames.brief import name_tables, write_brief
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.frames.versions import choose_version, describe_versions
from catchment.wire.sending.dispatch import BACKLOG_SHARE, Dispatch, SendOrder
from catchment.wire.sending.link_meter import LinkCounters
from catchment.wire.sending.outbox import Outbox, Pending
from catchment.wire.sending.shaper import Shaper
from catchment.wire.sending.tables_there import NO_CLAIM, Claim, TablesThere
from catchment.wire.sending.uplink import (
    OTHER_HISTORY_HINT,
    Greeting,
    Introduction,
    LinkError,
    RefusedError,
    Uplink,
)
from catchment.wire.ways.way_chooser import WayRules
from catchment.wire.ways.way_switch import Line, WaySwitch

LANES = 4  # segments under way at once
FIRST_RETRY_S = 0.05  # delay after a link has failed; doubled with each further failure
MAX_RETRY_S = 2.0
REFUSED_RETRY_S = 10.0  # delay after a refusal that the same bytes cannot overcome
# Refusals of a segment that a new connection may mend: it reads the token again, or compares what both ends have.
RECONNECT_REASONS = ("unauthenticated", "already_taken", "other_history")
BUSY_REASONS = ("full", "too_fast", "closed")  # refusals of any segment for the time being
STOP_GRACE_S = 2.0  # how long calls under way may take after a stop
IDLE_CHECK_S = 0.5  # an append without a notify is found after this long
WATCH_S = 0.5  # how often it is decided which way to use, where there are several


class RetryDelay:
    """How long to wait before the next attempt: twice as long as before, up to a bound, and drawn at random.

    Law: the n-th delay since the last success is between half and all of min(FIRST_RETRY_S * 2^n, MAX_RETRY_S).
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._failures = 0

    def next_s(self) -> float:
        longest_s = min(FIRST_RETRY_S * 2**self._failures, MAX_RETRY_S)
        self._failures = min(self._failures + 1, 32)
        return self.draw_s(longest_s)

    def draw_s(self, longest_s: float) -> float:
        """Return a delay between half and all of the longest."""
        return self._random.uniform(longest_s / 2, longest_s)

    def reset(self) -> None:
        """Note a success."""
        self._failures = 0


@dataclass(frozen=True)
class Parcel:
    """What is sent for a segment: its frame, or a brief one; and the tables that it claims, which must be ended."""

    data: bytes
    claim: Claim = NO_CLAIM


class Sender:
    """Drain an outbox through uplinks made by `uplink_factory`; started once, stopped once."""

    def __init__(
        self,
        outbox: Outbox,
        uplink_factory: Callable[[], Uplink],
        shaper: Shaper | None = None,
        clock: Clock | None = None,
        *,
        lanes: int = LANES,
        backlog_share: float = BACKLOG_SHARE,
        limits: WireLimits = DEFAULT_LIMITS,
        on_acked: Callable[[int], None] | None = None,
        functions: str = "",
        versions: tuple[int, ...] | None = None,
        around: Sequence[Line] = (),
        rules: WayRules | None = None,
        tables_there: TablesThere | None = None,
    ) -> None:
        self._outbox = outbox
        self._tables_there = tables_there or TablesThere()
        self._tables_there.join(self)
        self._takes_brief = False  # whether the far side completes brief frames
        self._versions = versions or frame_versions.SPOKEN_VERSIONS  # of frames, that it writes
        self._functions = functions  # what it says of its project's functions when it connects
        clock = clock or SystemClock()
        direct = Line((outbox.origin, outbox.destination), uplink_factory, shaper or Shaper())
        self._lines = (direct, *around)
        self.ways = WaySwitch(self._lines, clock, rules or WayRules())
        order = SendOrder(limits.ahead_segments, backlog_share)
        self._dispatch = Dispatch(outbox, order, clock, on_acked)
        self._stopping = threading.Event()
        self._uplinks: dict[int, tuple[Line, Uplink]] = {}  # by lane
        self._probe: tuple[threading.Thread, list[Uplink]] | None = None  # the last one, and what it has opened
        self._busy = RetryDelay(f"{outbox.origin} busy")  # while the far side has no room
        self._unknown_tables = RetryDelay(f"{outbox.origin} tables")  # while it lacks what brief frames name
        name = f"sender-{outbox.origin}-{outbox.destination}"
        self._lanes = [
            threading.Thread(target=self._run, args=(lane,), name=f"{name}-{lane}", daemon=True)
            for lane in range(lanes)
        ]
        if self.ways.has_several and lanes:
            self._lanes.append(threading.Thread(target=self._watch, name=f"{name}-ways", daemon=True))

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def notify(self) -> None:
        """Say that something was appended to the outbox."""
        self._dispatch.notify()

    def stop(self) -> None:
        """Stop after the calls under way, or when they take too long; what is not acked stays in the outbox."""
        self._stopping.set()
        self._tables_there.leave(self)
        for line in self._lines:
            line.shaper.release()
        self._dispatch.notify()
        self._join_lanes()
        for _, uplink in list(self._uplinks.values()):
            uplink.close()
        if self._probe is not None:
            for uplink in list(self._probe[1]):
                uplink.close()
        self._join_lanes()

    def _join_lanes(self) -> None:
        end_s = time.monotonic() + STOP_GRACE_S
        probing = [self._probe[0]] if self._probe is not None else []
        for thread in (*self._lanes, *probing):
            if thread.is_alive():
                thread.join(max(end_s - time.monotonic(), 0.0))

    def raise_failure(self) -> None:
        """Raise what ended the sender, if anything did."""
        self._dispatch.raise_failure()

    @property
    def refused(self) -> str | None:
        """The reason for which the far side refuses to be connected to; None if it does not, or does not answer."""
        return self._dispatch.refused

    def snapshot(self) -> LinkCounters:
        """Return what went over the link so far, and how it stands now."""
        return self._dispatch.snapshot()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until everything is acked, or the sender has failed; return False if that takes longer."""
        return self._dispatch.wait_until_empty(timeout_s)

    def _run(self, lane: int) -> None:
        delay = RetryDelay(f"{self._outbox.origin} {lane}")
        try:
            while not self._stopping.is_set():
                line = self.ways.current
                try:
                    with closing(line.open()) as uplink:
                        self._uplinks[lane] = line, uplink
                        self._introduce(uplink, lane)
                        self.ways.note_answered(line)
                        delay.reset()
                        self._drain(uplink, line)
                except (LinkError, RefusedError) as error:
                    if self._is_left(line):  # its connection was closed because of that
                        delay.reset()
                        continue
                    self._dispatch.lane_down(lane, error)
                    self._note_failure(line, error)
                    self._stopping.wait(delay.next_s() if error.retryable else delay.draw_s(REFUSED_RETRY_S))
        except BaseException as error:  # noqa: BLE001 - a thread's end must not go unnoticed: raise_failure() raises it
            self._stopping.set()
            self._dispatch.fail(error)

    def _is_left(self, line: Line) -> bool:
        """Return whether another line is used now, which a lane should try at once."""
        return self.ways.current is not line and not self._stopping.is_set()

    def _note_failure(self, line: Line, error: LinkError | RefusedError) -> None:
        """Note that a line has failed, or that its end has answered, though it refuses."""
        if isinstance(error, RefusedError):
            self.ways.note_answered(line)
        else:
            self.ways.note_failed(line, error)

    # ---- several ways

    def _watch(self) -> None:
        """Decide now and then which way to use, and probe others where that may pay."""
        try:
            while not self._stopping.wait(WATCH_S):
                change, probed = self.ways.step(self._outbox.size_bytes)
                if change is not None:
                    self._leave_old_lines()
                if probed is not None:
                    self._start_probe(probed)
        except BaseException as error:  # noqa: BLE001 - a thread's end must not go unnoticed: raise_failure() raises it
            self._stopping.set()
            self._dispatch.fail(error)

    def _leave_old_lines(self) -> None:
        """Close the connections of the way that was left; what was under way there is sent again over the other."""
        current = self.ways.current
        for line, uplink in list(self._uplinks.values()):
            if line is not current:
                uplink.close()
        self._dispatch.notify()

    def _start_probe(self, line: Line) -> None:
        opened: list[Uplink] = []
        name = f"sender-{self._outbox.origin}-probe"
        thread = threading.Thread(target=self._run_probe, args=(line, opened), name=name, daemon=True)
        self._probe = thread, opened
        thread.start()

    def _run_probe(self, line: Line, opened: list[Uplink]) -> None:
        try:
            with closing(line.open()) as uplink:
                opened.append(uplink)
                uplink.connect(self._introduction())
                rate = self._send_copy(uplink, line)
            self.ways.note_probed(line, rate)
        except RefusedError:  # the end has answered
            self.ways.note_probed(line, None)
        except LinkError as error:
            self.ways.note_probed(line, None, error)
        except BaseException as error:  # noqa: BLE001 - a thread's end must not go unnoticed: raise_failure() raises it
            self._stopping.set()
            self._dispatch.fail(error)

    def _send_copy(self, uplink: Uplink, line: Line) -> float | None:
        """Send a segment that waits over a way beside the used one; return bytes per second, None if none waits."""
        segment = self._dispatch.smallest_pending()
        data = None if segment is None else self._outbox.read(segment.sequence)
        if segment is None or data is None:
            return None
        with line.wire:
            start_s = self._dispatch.now_s()
            line.shaper.transmit(len(data))
        sent_s = self._dispatch.now_s()
        line.shaper.travel()
        self._dispatch.note_sent(segment, len(data))
        self.ways.note_copied(line, len(data))
        acked = uplink.send(data)
        line.shaper.travel()
        self._take_ack(segment, acked, len(data), start_s, sent_s)
        return len(data) / max(self._dispatch.now_s() - start_s, 1e-6)

    # ---- the far side

    def _introduce(self, uplink: Uplink, lane: int) -> None:
        """Connect, and learn what has arrived without an ack that was heard."""
        lowest_unacked = self._outbox.lowest_unacked
        greeting = uplink.connect(self._introduction())
        try:
            self._take_greeting(lane, lowest_unacked, greeting)
        except RefusedError as error:  # the far side should know it too
            with suppress(LinkError, RefusedError):
                uplink.connect(replace(self._introduction(), disagreement=error.message))
            raise

    def _introduction(self) -> Introduction:
        outbox = self._outbox
        former = " ".join(outbox.former_incarnations)
        return Introduction(outbox.origin, outbox.epoch, outbox.incarnation, functions=self._functions, former=former)

    def _take_greeting(self, lane: int, lowest_unacked: int, greeting: Greeting) -> None:
        """Forget what the far side has; `lowest_unacked` is what was not acknowledged when it was asked."""
        disagreement = self._find_disagreement(lowest_unacked, greeting)
        if disagreement:
            raise self._refusal("other_history", disagreement)
        outbox = self._outbox
        outbox.write_in(self._choose_version(greeting.versions))
        self._takes_brief = greeting.takes_brief
        arrived = outbox.pending_below(greeting.expected)
        outbox.ack_below(greeting.expected)
        for number in outbox.missing():
            self._dispatch.note_missing(number, self._refusal("wrong_epoch", f"segment {number} is not in the outbox"))
        self._dispatch.lane_up(lane, arrived)

    def _find_disagreement(self, lowest_unacked: int, greeting: Greeting) -> str | None:
        """Return in what the far side differs: it lacks what it had acknowledged, or has what was never stored.

        An old copy of a site's folder may have come to the same number with other segments: the chains differ then.
        """
        outbox = self._outbox
        expected = greeting.expected
        if not lowest_unacked <= expected <= outbox.next_sequence:
            return (
                f"the inbox at {outbox.destination!r} expects segment {expected} of {outbox.origin!r}; there all below "
                f"{lowest_unacked} are acked, and {outbox.next_sequence} is the next"
            )
        if greeting.chain is None:
            return None
        outbox.adopt_chain(expected, greeting.chain)
        mine = outbox.chain_at(expected)
        if mine is not None and mine != greeting.chain:
            return (
                f"{outbox.origin!r} has other segments below {expected} than the inbox at {outbox.destination!r} "
                f"received from it"
            )
        return None

    def _choose_version(self, read: tuple[int, ...]) -> int:
        """Return the version of the frames that both ends know."""
        version = choose_version(self._versions, read)
        if version is None:
            raise self._refusal(
                "unknown_version",
                f"the inbox at {self._outbox.destination!r} reads frames of {describe_versions(read)}, "
                f"{self._outbox.origin!r} writes {describe_versions(self._versions)}",
                "upgrade the older end; go by one release at a time",
            )
        return version

    def _refusal(self, reason: str, message: str, hint: str = OTHER_HISTORY_HINT) -> RefusedError:
        where = f"{self._outbox.origin} -> {self._outbox.destination}"
        return RefusedError(reason, message, where=where, hint=hint)

    def _drain(self, uplink: Uplink, line: Line) -> None:
        while not self._stopping.is_set() and not self._is_left(line):
            if not self._send_next(uplink, line):
                self._dispatch.wait(IDLE_CHECK_S)

    def _send_next(self, uplink: Uplink, line: Line) -> bool:
        """Send one segment; return False if there is none to send."""
        with line.wire:
            segment = self._dispatch.claim()
            data = self._outbox.read(segment.sequence) if segment else None
            parcel = None
            if segment is not None and data is not None:
                parcel = self._wait_and_pack(segment, data)
                start_s = self._dispatch.now_s()
                self.ways.note_begun(line, segment.sequence, len(parcel.data))
                line.shaper.transmit(len(parcel.data))
        if segment is None:
            return False
        try:
            if parcel is not None and not self._stopping.is_set():
                self._deliver(uplink, segment, parcel, start_s, line)
        finally:
            self._give_back(segment, parcel, line)
        return True

    def _wait_and_pack(self, segment: Pending, data: bytes) -> Parcel:
        """Return what to send for a segment, as soon as no other sender has one of its tables under way."""
        while not self._stopping.is_set():
            parcel = self._pack(segment, data)
            if parcel is not None:
                return parcel
            self._tables_there.wait(IDLE_CHECK_S)
        return Parcel(data)

    def _pack(self, segment: Pending, data: bytes) -> Parcel | None:
        """Return what to send for a segment; None while another sender has one of its tables under way."""
        if not self._takes_brief or not self._tables_there.are_shared:
            return Parcel(data)
        tables = name_tables(data, segment.table_sizes)
        claim = self._tables_there.claim([table.name for table in tables]) if tables else NO_CLAIM
        if claim is None:
            return None
        brief = write_brief(data, tables, claim.there) if tables else data
        if len(brief) > self._outbox.limits.frame_bytes:  # hardly: with what is around its pieces
            self._tables_there.end(claim, arrived=False)
            return Parcel(data)
        return Parcel(brief, claim)

    def _give_back(self, segment: Pending, parcel: Parcel | None, line: Line) -> None:
        """Let a segment be sent again, and its tables by others, unless they have arrived."""
        if parcel is not None:
            self._tables_there.end(parcel.claim, arrived=False)
        self.ways.note_ended(line, segment.sequence, arrived=False)
        self._dispatch.give_back(segment)

    def _deliver(self, uplink: Uplink, segment: Pending, parcel: Parcel, start_s: float, line: Line) -> None:
        sent_s = self._dispatch.now_s()
        line.shaper.travel()
        self._dispatch.note_sent(segment, len(parcel.data))
        try:
            acked = uplink.send(parcel.data)
        except RefusedError as error:
            if error.reason in RECONNECT_REASONS:
                raise
            if error.reason == "not_here":
                self._tables_there.forget()
                self._dispatch.hold(segment, error, self._unknown_tables.next_s())
            elif error.reason in BUSY_REASONS:
                self._dispatch.pause(error, self._busy.next_s())
            else:
                self._dispatch.hold(segment, error, MAX_RETRY_S if error.retryable else REFUSED_RETRY_S)
            return
        line.shaper.travel()
        self._take_ack(segment, acked, len(parcel.data), start_s, sent_s)
        self._tables_there.end(parcel.claim, arrived=True)
        self.ways.note_ended(line, segment.sequence, arrived=True)

    def _take_ack(self, segment: Pending, acked: int, sent_bytes: int, start_s: float, sent_s: float) -> None:
        if acked != segment.sequence:
            raise LinkError(f"segment {segment.sequence} was sent, {acked} was acked")
        self._busy.reset()
        self._unknown_tables.reset()
        self._outbox.ack(acked)
        self._dispatch.note_acked(segment, sent_bytes, start_s, sent_s)
