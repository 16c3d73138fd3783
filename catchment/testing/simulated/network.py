"""A network that loses, duplicates, delays and reorders what it carries, as a sender and an inbox meet it.

A call is a request and its answer. The request may be lost, or come late, or twice, or long after its sender's process
has ended; the answer may be lost, and then nobody at the sender knows whether the request arrived. Over a way with
forwarders a call goes over one link after another, and its answer back.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from catchment.errors import WireError
from catchment.project.ways import Way
from catchment.testing.simulated.scheduler import Scheduler
from catchment.timeline import SECOND_US, Clock
from catchment.wire.sending.outbox import Outbox, Pending
from catchment.wire.sending.sender import REFUSED_RETRY_S, WATCH_S, Parcel, RetryDelay, Sender
from catchment.wire.sending.shaper import Shaper
from catchment.wire.sending.tables_there import Claim, TablesThere
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, RefusedError, Uplink
from catchment.wire.ways.way_switch import Line

TIMEOUT_US = 5 * SECOND_US  # how long a sender waits for an answer
OLD_MESSAGES = 32  # requests of the past that a link may deliver again
TABLE_WAIT_US = 20_000  # after which a sender looks again whether what another one sends is there
LANES = 2
GREETING_BYTES = 100

Request = Callable[[], int | Greeting]
Answer = int | Greeting | WireError
Reply = Callable[[Answer], None]
Handle = Callable[[Reply], None]  # what is done with a request where it arrives; it may answer later, or not at all


@dataclass
class LinkWeather:
    """How one link behaves now; shares are chances per message."""

    lost: float = 0.0
    doubled: float = 0.0
    replayed: float = 0.0  # an old message comes once more
    min_delay_us: int = 1_000
    max_delay_us: int = 2_000
    bytes_per_s: float | None = None
    carries_requests: bool = True
    carries_answers: bool = True
    is_jammed: bool = False  # messages pile up, and all come at once when the jam ends


@dataclass
class LinkEvents:
    """What has happened on a link."""

    sent_bytes: int = 0  # of requests
    lost_requests: int = 0
    lost_answers: int = 0
    doubled: int = 0
    replayed: int = 0
    jammed: int = 0
    overtaken: int = 0


@dataclass
class SimulatedLink:
    """One way from a sender to an inbox, and back."""

    scheduler: Scheduler
    chance: random.Random
    weather: LinkWeather = field(default_factory=LinkWeather)
    events: LinkEvents = field(default_factory=LinkEvents)
    usual_bytes_per_s: float | None = field(init=False)
    _free_us: int = 0  # when what was sent before has left
    _latest_us: int = 0  # the latest arrival so far
    _held: list[Callable[[], None]] = field(default_factory=list)
    _old: deque[Handle] = field(default_factory=lambda: deque(maxlen=OLD_MESSAGES))

    def __post_init__(self) -> None:
        self.usual_bytes_per_s = self.weather.bytes_per_s

    def call(self, request: Request, size_bytes: int, done: Reply) -> None:
        """Carry a request there and its answer back; `done` hears one answer, which may be that none came."""
        self.carry(lambda reply: reply(_answer(request)), size_bytes, done)

    def carry(self, handle: Handle, size_bytes: int, done: Reply) -> None:
        """Carry a request to whoever handles it, and back what that replies."""
        call = _Call(done)
        self.scheduler.after(TIMEOUT_US, lambda: call.finish(LinkError("no answer came in time")))
        self._old.append(handle)
        if not self.weather.carries_requests or self.chance.random() < self.weather.lost:
            self.events.lost_requests += 1
            return
        self._send(lambda: self._arrive(handle, call), size_bytes)
        if self.chance.random() < self.weather.doubled:
            self.events.doubled += 1
            self._send(lambda: handle(_ignore_answer), size_bytes)
        if self.chance.random() < self.weather.replayed:
            self.events.replayed += 1
            old = self.chance.choice(self._old)
            self._send(lambda: old(_ignore_answer), size_bytes)

    def throttle(self, bytes_per_s: float | None) -> None:
        """Carry this many bytes per second from now on; what waited for the link before is no longer in front."""
        self.weather.bytes_per_s = bytes_per_s
        self._free_us = self.scheduler.now_us

    def end_jam(self) -> None:
        """Let everything arrive that has piled up, in any order."""
        self.weather.is_jammed = False
        held = self._held
        self._held = []
        self.chance.shuffle(held)
        for arrive in held:
            self.scheduler.after(0, arrive)

    def _send(self, arrive: Callable[[], None], size_bytes: int) -> None:
        weather = self.weather
        self.events.sent_bytes += size_bytes
        self._free_us = max(self._free_us, self.scheduler.now_us)
        if weather.bytes_per_s is not None:
            self._free_us += round(size_bytes / weather.bytes_per_s * SECOND_US)
        arrival_us = self._free_us + self._delay_us()
        self.events.overtaken += arrival_us < self._latest_us
        self._latest_us = max(self._latest_us, arrival_us)
        self.scheduler.at(arrival_us, lambda: self._pass(arrive))

    def _pass(self, arrive: Callable[[], None]) -> None:
        if self.weather.is_jammed:
            self.events.jammed += 1
            self._held.append(arrive)
        else:
            arrive()

    def _arrive(self, handle: Handle, call: _Call) -> None:
        handle(lambda answer: self._reply(answer, call))

    def _reply(self, answer: Answer, call: _Call) -> None:
        if not self.weather.carries_answers or self.chance.random() < self.weather.lost:
            self.events.lost_answers += 1
            return
        self.scheduler.after(self._delay_us(), lambda: call.finish(answer))

    def _delay_us(self) -> int:
        return self.chance.randint(self.weather.min_delay_us, self.weather.max_delay_us)


@dataclass
class _Call:
    """A call that waits for its first answer."""

    done: Callable[[Answer], None]
    is_over: bool = False

    def finish(self, answer: Answer) -> None:
        if not self.is_over:
            self.is_over = True
            self.done(answer)


def _answer(request: Request) -> Answer:
    try:
        return request()
    except RefusedError as refusal:
        return refusal
    except LinkError as failure:
        return failure


def _ignore_answer(answer: Answer) -> None:
    """Do nothing: nobody waits for it."""


@dataclass(frozen=True)
class _Answered:
    """An uplink whose answer is known."""

    answer: Answer

    def connect(self, introduction: Introduction) -> Greeting:
        answer = self._answer()
        assert isinstance(answer, Greeting)
        return answer

    def send(self, data: bytes) -> int:
        answer = self._answer()
        assert isinstance(answer, int)
        return answer

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _answer(self) -> int | Greeting:
        if isinstance(self.answer, WireError):
            raise self.answer
        return self.answer


@dataclass(frozen=True)
class SimulatedHop:
    """One link of a way, and whether the site that it leads to is up to forward."""

    link: SimulatedLink
    is_up: Callable[[], bool] = lambda: True


class SimulatedSender(Sender):
    """The sender of a link whose lanes are events of the scheduler instead of threads.

    What it sends next, what it holds back and what it makes of answers is decided by the sender that it derives from.
    """

    def __init__(
        self,
        outbox: Outbox,
        link: SimulatedLink,
        clock: Clock,
        greet: Callable[[Introduction], Greeting],
        accept: Callable[[bytes], int],
        run: Callable[[Callable[[], None]], None],
        versions: tuple[int, ...],
        around: Mapping[Way, Sequence[SimulatedHop]] | None = None,
        on_change: Callable[[], None] = lambda: None,
        tables_there: TablesThere | None = None,
    ) -> None:
        """Send over a link to an inbox by `greet` and `accept`; `run` carries out what may fail at the sender.

        `versions` are those of the frames that it writes. `around` has the links of further ways to the same inbox;
        `on_change` is told when another one is used.
        """
        lines = [Line(way, _no_uplink, Shaper()) for way in around or {}]
        super().__init__(
            outbox, _no_uplink, clock=clock, lanes=0, versions=versions, around=lines, tables_there=tables_there
        )
        self._link = link
        self._hops = {**(around or {}), self.ways.current.way: (SimulatedHop(link),)}
        self._on_change = on_change
        self._used: dict[int, Line] = {}  # by lane
        self._greet = greet
        self._accept = accept
        self._carry_out = run
        self._delays = [RetryDelay(f"{outbox.origin} {lane}") for lane in range(LANES)]
        self._idle: set[int] = set()
        self._claims: dict[int, Claim] = {}  # by lane

    def start(self) -> None:
        for lane in range(LANES):
            self._connect(lane)
        if self.ways.has_several:
            self._later(round(WATCH_S * SECOND_US), self._watch_once)

    def stop(self) -> None:
        self._stopping.set()
        self._tables_there.leave(self)
        for claim in self._claims.values():  # as the ends of its threads do
            self._tables_there.end(claim, arrived=False)

    def notify(self) -> None:
        for lane in sorted(self._idle):
            self._idle.discard(lane)
            self._later(0, lambda lane=lane: self._claim(lane))  # type: ignore[misc]

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        self._link.scheduler.after(delay_us, lambda: None if self._stopping.is_set() else self._carry_out(action))

    def _connect(self, lane: int) -> None:
        introduction = self._introduction()
        lowest_unacked = self._outbox.lowest_unacked
        line = self._used[lane] = self.ways.current
        self._call_over(
            line,
            lambda: self._greet(introduction),
            GREETING_BYTES,
            self._hear(lambda answer: self._connected(lane, lowest_unacked, answer)),
        )

    def _call_over(self, line: Line, request: Request, size_bytes: int, done: Reply) -> None:
        """Call over all links of a way, one after another; a forwarder that is down answers nothing."""
        hops = self._hops[line.way]

        def carry(place: int, reply: Reply) -> None:
            hop = hops[place]
            if place == len(hops) - 1:
                hop.link.call(request, size_bytes, reply)
            else:
                hop.link.carry(lambda back: carry(place + 1, back) if hop.is_up() else None, size_bytes, reply)

        carry(0, done)

    def _connected(self, lane: int, lowest_unacked: int, answer: Answer) -> None:
        try:
            self._take_greeting(lane, lowest_unacked, _Answered(answer).connect(self._introduction()))
        except (LinkError, RefusedError) as error:
            self._lane_failed(lane, error)
            return
        self._delays[lane].reset()
        self.ways.note_answered(self._used[lane])
        self._claim(lane)

    def _claim(self, lane: int) -> None:
        line = self._used[lane]
        if self._is_left(line):
            self._connect(lane)
            return
        segment = self._dispatch.claim()
        data = self._outbox.read(segment.sequence) if segment is not None else None
        if segment is None or data is None:
            self._idle.add(lane)
            return
        packed = self._pack(segment, data)
        if packed is None:
            self._dispatch.give_back(segment)
            self._later(TABLE_WAIT_US, lambda: self._claim(lane))
            return
        start_s = self._dispatch.now_s()
        parcel = packed
        self._claims[lane] = parcel.claim
        self.ways.note_begun(line, segment.sequence, len(parcel.data))
        self._call_over(
            line,
            lambda: self._accept(parcel.data),
            len(parcel.data),
            self._hear(lambda answer: self._sent(lane, segment, parcel, start_s, answer)),
        )

    def _sent(self, lane: int, segment: Pending, parcel: Parcel, start_s: float, answer: Answer) -> None:
        line = self._used[lane]
        try:
            self._deliver(_Answered(answer), segment, parcel, start_s, line)
        except (LinkError, RefusedError) as error:
            self._give_back(segment, parcel, line)
            self._lane_failed(lane, error)
            return
        self._give_back(segment, parcel, line)
        self._claim(lane)

    # --- several ways ------------------------------------------------------------------------------------------------

    def _watch_once(self) -> None:
        change, probed = self.ways.step(self._outbox.size_bytes)
        if change is not None:
            self._on_change()
            self.notify()
        if probed is not None:
            self._probe_line(probed)
        self._later(round(WATCH_S * SECOND_US), self._watch_once)

    def _probe_line(self, line: Line) -> None:
        introduction = self._introduction()
        heard = self._hear(lambda answer: self._probe_answered(line, answer))
        self._call_over(line, lambda: self._greet(introduction), GREETING_BYTES, heard)

    def _probe_answered(self, line: Line, answer: Answer) -> None:
        segment = self._dispatch.smallest_pending()
        data = None if segment is None else self._outbox.read(segment.sequence)
        if not isinstance(answer, Greeting) or segment is None or data is None:
            self.ways.note_probed(line, None, answer if isinstance(answer, LinkError) else None)
            return
        start_s = self._dispatch.now_s()
        copied = data
        self._dispatch.note_sent(segment, len(copied))
        self.ways.note_copied(line, len(copied))
        heard = self._hear(lambda acked: self._copy_answered(line, segment, len(copied), start_s, acked))
        self._call_over(line, lambda: self._accept(copied), len(copied), heard)

    def _copy_answered(self, line: Line, segment: Pending, size_bytes: int, start_s: float, answer: Answer) -> None:
        if isinstance(answer, int):
            self._take_ack(segment, answer, size_bytes, start_s, start_s)
            self.ways.note_probed(line, size_bytes / max(self._dispatch.now_s() - start_s, 1e-6))
        else:
            self.ways.note_probed(line, None, answer if isinstance(answer, LinkError) else None)

    def _lane_failed(self, lane: int, error: LinkError | RefusedError) -> None:
        self._dispatch.lane_down(lane, error)
        self._note_failure(self._used[lane], error)
        delay = self._delays[lane]
        wait_s = delay.next_s() if error.retryable else delay.draw_s(REFUSED_RETRY_S)
        self._later(round(wait_s * SECOND_US), lambda: self._connect(lane))

    def _hear(self, take: Callable[[Answer], None]) -> Callable[[Answer], None]:
        """Return what hears an answer, unless the process of the sender has ended since."""

        def hear(answer: Answer) -> None:
            if not self._stopping.is_set():
                self._carry_out(lambda: take(answer))

        return hear


def _no_uplink() -> Uplink:
    raise AssertionError("a simulated sender calls its link")
