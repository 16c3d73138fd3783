"""A network that loses, duplicates, delays and reorders what it carries, as a sender and an inbox meet it.

A call is a request and its answer. The request may be lost, or come late, or twice, or long after its sender's process
has ended; the answer may be lost, and then nobody at the sender knows whether the request arrived.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from catchment.errors import WireError
from catchment.testing.scheduler import Scheduler
from catchment.timeline import SECOND_US, Clock
from catchment.wire.outbox import Outbox, Pending
from catchment.wire.sender import REFUSED_RETRY_S, RetryDelay, Sender
from catchment.wire.uplink import Greeting, Introduction, LinkError, RefusedError, Uplink

TIMEOUT_US = 5 * SECOND_US  # how long a sender waits for an answer
OLD_MESSAGES = 32  # requests of the past that a link may deliver again
LANES = 2
GREETING_BYTES = 100

Request = Callable[[], int | Greeting]
Answer = int | Greeting | WireError


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
    _free_us: int = 0  # when what was sent before has left
    _latest_us: int = 0  # the latest arrival so far
    _held: list[Callable[[], None]] = field(default_factory=list)
    _old: deque[Request] = field(default_factory=lambda: deque(maxlen=OLD_MESSAGES))

    def call(self, request: Request, size_bytes: int, done: Callable[[Answer], None]) -> None:
        """Carry a request there and its answer back; `done` hears one answer, which may be that none came."""
        call = _Call(done)
        self.scheduler.after(TIMEOUT_US, lambda: call.finish(LinkError("no answer came in time")))
        self._old.append(request)
        if not self.weather.carries_requests or self.chance.random() < self.weather.lost:
            self.events.lost_requests += 1
            return
        self._send(lambda: self._arrive(request, call), size_bytes)
        if self.chance.random() < self.weather.doubled:
            self.events.doubled += 1
            self._send(lambda: _ignore_answer(request), size_bytes)
        if self.chance.random() < self.weather.replayed:
            self.events.replayed += 1
            old = self.chance.choice(self._old)
            self._send(lambda: _ignore_answer(old), size_bytes)

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

    def _arrive(self, request: Request, call: _Call) -> None:
        answer = _answer(request)
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


def _ignore_answer(request: Request) -> None:
    _answer(request)


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
    ) -> None:
        """Send over a link to an inbox by `greet` and `accept`; `run` carries out what may fail at the sender.

        `versions` are those of the frames that it writes.
        """
        super().__init__(outbox, _no_uplink, clock=clock, lanes=0, versions=versions)
        self._link = link
        self._greet = greet
        self._accept = accept
        self._carry_out = run
        self._delays = [RetryDelay(f"{outbox.origin} {lane}") for lane in range(LANES)]
        self._idle: set[int] = set()

    def start(self) -> None:
        for lane in range(LANES):
            self._connect(lane)

    def stop(self) -> None:
        self._stopping.set()

    def notify(self) -> None:
        for lane in sorted(self._idle):
            self._idle.discard(lane)
            self._later(0, lambda lane=lane: self._claim(lane))  # type: ignore[misc]

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        self._link.scheduler.after(delay_us, lambda: None if self._stopping.is_set() else self._carry_out(action))

    def _connect(self, lane: int) -> None:
        introduction = self._introduction()
        lowest_unacked = self._outbox.lowest_unacked
        self._link.call(
            lambda: self._greet(introduction),
            GREETING_BYTES,
            self._hear(lambda answer: self._connected(lane, lowest_unacked, answer)),
        )

    def _connected(self, lane: int, lowest_unacked: int, answer: Answer) -> None:
        try:
            self._take_greeting(lane, lowest_unacked, _Answered(answer).connect(self._introduction()))
        except (LinkError, RefusedError) as error:
            self._lane_failed(lane, error)
            return
        self._delays[lane].reset()
        self._claim(lane)

    def _claim(self, lane: int) -> None:
        segment = self._dispatch.claim()
        data = self._outbox.read(segment.sequence) if segment is not None else None
        if segment is None or data is None:
            self._idle.add(lane)
            return
        start_s = self._dispatch.now_s()
        sent = data
        self._link.call(
            lambda: self._accept(sent),
            len(sent),
            self._hear(lambda answer: self._sent(lane, segment, sent, start_s, answer)),
        )

    def _sent(self, lane: int, segment: Pending, data: bytes, start_s: float, answer: Answer) -> None:
        try:
            self._deliver(_Answered(answer), segment, data, start_s, self.ways.current)
        except (LinkError, RefusedError) as error:
            self._dispatch.give_back(segment)
            self._lane_failed(lane, error)
            return
        self._dispatch.give_back(segment)
        self._claim(lane)

    def _lane_failed(self, lane: int, error: LinkError | RefusedError) -> None:
        self._dispatch.lane_down(lane, error)
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
