"""The core of a device: its own feed, what it uploads, what it downloads, its views. Pure.

`handle(event, now_us)` takes what happened and returns what to do: send a message, notify the user. It
reads no clock and does no I/O; a fleet, a simulation or an application drives it.

Invariants: events of one feed leave in order of time; an instruction with a token is confirmed once and
only after everything earlier was handed over; a notice is given to the user once. A device says hello until
it is answered. While the link is down, or the cloud refuses the device, messages wait in the outbox. At
`max_outbox` the oldest event is dropped and counted (notices and answers are few and are kept), so a device
that is away for very long loses matches of its own views only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.publisher import Publisher, RecentlySeen
from catchment.feeds.device.spool import Spool
from catchment.feeds.forms.compiled import compile_form
from catchment.feeds.forms.program import ProgramForm
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.protocol.messages import (
    Admitted,
    Confirmed,
    Downward,
    FeedEvent,
    Hello,
    Install,
    Instruction,
    Instructions,
    Mark,
    Notice,
    Program,
    RateReport,
    Refused,
    RelayedMessage,
    Reset,
    SetRoute,
    SetUpload,
    Upward,
)

FIRST_HELLO_PAUSE_US = 5_000_000  # before a hello that was not answered is repeated; it doubles each time
LAST_HELLO_PAUSE_US = 300_000_000


def boot_number(now_us: int) -> int:
    """Return a number above all that a life which began before has given to its events and messages.

    It counts microseconds since September 2020, so it holds for up to a million of them per second, and for a device
    that is killed and started again within a second.
    """
    return max(0, now_us - 1_600_000_000_000_000)


@dataclass(frozen=True)
class DeviceConfig:
    """What a device is told at its start; `boot` grows with every restart and numbers its events."""

    name: str
    boot: int = 0
    report_every_us: int = 10_000_000
    max_outbox: int = 10_000
    token: str | None = field(default=None, repr=False)
    limits: HostLimits = field(default_factory=HostLimits)

    def __post_init__(self) -> None:
        if not self.name or self.boot < 0 or self.report_every_us <= 0 or self.max_outbox <= 0:
            raise FeedError(f"a device needs a name and positive bounds, not {self!r}")


@dataclass(frozen=True, slots=True)
class Produced:
    """The device recorded something: one row of a stream, with all its declared columns."""

    stream: str
    row: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A message came from the cloud."""

    message: Downward


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The cloud can be reached."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The cloud cannot be reached."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class SendUp:
    """Hand this message to the transport."""

    message: Upward


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the user."""

    notice: Notice


DeviceEvent = Produced | Received | LinkUp | LinkDown | Tick
DeviceAction = SendUp | Notify


class Device:
    """One device."""

    def __init__(self, config: DeviceConfig, functions: Functions = BUILT_IN, spool: Spool | None = None) -> None:
        self.config = config
        self.functions = functions
        self.spool = spool
        self.publisher: Publisher | None = None
        self.program: ProgramForm | None = None
        self.uploads: dict[str, float] = {}
        self.numbers: dict[str, int] = {}  # next event number of each feed
        self.produced: Counter[str] = Counter()  # since the last rate report
        self.reported_us: int | None = None
        self.marks: list[Mark] = []
        self.connected = False
        self.refusal: str | None = None  # why the cloud does not take this device
        self.hello_again_us: int | None = None  # when to say hello again; None once it was answered
        self.hello_pause_us = FIRST_HELLO_PAUSE_US
        self.outbox: deque[Upward] = deque()
        self.dropped = 0  # events that left the outbox at its bound
        self.ignored = 0  # what came before a program, or is for edge clouds
        self.newest_us = 0
        self.notified = RecentlySeen()

    def handle(self, event: DeviceEvent, now_us: int) -> list[DeviceAction]:
        """Return what to do about an event."""
        self.newest_us = max(self.newest_us, now_us)  # a clock that steps back does not reorder the feed
        actions = list(self._dispatch(event))
        actions += self._due()
        return actions

    def _dispatch(self, event: DeviceEvent) -> Iterator[DeviceAction]:
        if isinstance(event, Produced):
            yield from self._produce(event)
        elif isinstance(event, Received):
            yield from self._receive(event.message)
        elif isinstance(event, LinkUp):
            yield from self._connect()
        elif isinstance(event, LinkDown):
            self.connected = False

    # ---- the device's own feed

    def _produce(self, event: Produced) -> Iterator[DeviceAction]:
        if self.publisher is None:
            return  # nobody has asked for anything yet
        for kind, values in self.publisher.program.feeds_of(event.stream, event.row):
            feed = f"{kind}@{self.config.name}"
            number = self.numbers.get(feed, self.config.boot)
            self.numbers[feed] = number + 1
            self.produced[feed] += 1
            yield from self._publish(FeedEvent(feed, (number,), self.newest_us, values))

    def _publish(self, event: FeedEvent) -> Iterator[DeviceAction]:
        """Upload an event that was born here, as far as it is wanted, and compute what follows from it."""
        yield from self._upload(event)
        yield from self._absorb(event)

    def _upload(self, event: FeedEvent) -> Iterator[DeviceAction]:
        if event.rank < self.uploads.get(event.feed, 0.0):
            yield from self._send(event)

    def _absorb(self, event: FeedEvent) -> Iterator[DeviceAction]:
        assert self.publisher is not None
        for item in self.publisher.absorb(event):
            if isinstance(item, FeedEvent):
                yield from self._upload(item)
            elif item.notified == self.config.name:
                yield from self._notify(item)
            else:
                yield from self._send(item)

    def _notify(self, notice: Notice) -> Iterator[DeviceAction]:
        if self.notified.first_time(notice.identity):
            yield Notify(notice)

    # ---- messages

    def _receive(self, message: Downward) -> Iterator[DeviceAction]:
        if isinstance(message, Instructions):
            yield from self._obey(message)
        elif isinstance(message, Notice):
            yield from self._notify(message)
        elif isinstance(message, Reset):
            self._forget()
            yield from self._say_hello()
        elif isinstance(message, Admitted | Refused):
            yield from self._be_answered(message)
        elif isinstance(message, RelayedMessage) or self.publisher is None:
            self.ignored += 1
        else:
            yield from self._absorb(message)

    def _obey(self, message: Instructions) -> Iterator[DeviceAction]:
        """Follow instructions in order; one answer confirms them all."""
        tokens = [token for item in message.items if (token := self._follow(item))]
        if tokens:
            yield from self._send(Confirmed(tuple(tokens), self.newest_us))

    def _follow(self, item: Instruction) -> int:
        """Follow one instruction; return the token to confirm, 0 for none."""
        if isinstance(item, Program):
            self._load(item.form)
            return 0
        if isinstance(item, Mark):
            self.marks.append(item)
            return 0
        if self.publisher is None or isinstance(item, SetRoute):
            self.ignored += 1
            return 0
        if isinstance(item, SetUpload):
            self.uploads[item.feed] = item.share
        elif isinstance(item, Install):
            self.publisher.host.install(item.view)
            self.publisher.host.begin(item.view.name, self.newest_us)
        else:
            self.publisher.host.uninstall(item.view)
        return item.token

    def _forget(self) -> None:
        self.publisher = self.program = None
        self.uploads.clear()
        self.marks.clear()

    def _load(self, form: ProgramForm) -> None:
        if self.program is not None and form.text == self.program.text:
            return
        self.program = form
        compiled = compile_form(form, self.functions)
        if self.publisher is not None:
            self.publisher.follow_program(compiled)
            return
        if self.spool is not None:
            self.spool.clear()  # what was kept before the device was told to forget is of no use
        self.publisher = Publisher(compiled, self.config.limits, self.spool)

    # ---- the link

    def _connect(self) -> Iterator[DeviceAction]:
        self.connected = True
        self.hello_pause_us = FIRST_HELLO_PAUSE_US
        yield from self._say_hello()
        yield from self._empty_outbox()

    def _say_hello(self) -> Iterator[DeviceAction]:
        extra = tuple(sorted(set(self.functions) - set(BUILT_IN)))
        self.hello_again_us = self.newest_us + self.hello_pause_us
        yield SendUp(Hello(self.config.boot, self.config.token, extra))

    def _be_answered(self, answer: Admitted | Refused) -> Iterator[DeviceAction]:
        """Note whether the cloud takes this device; while it does not, messages wait and hellos are rare."""
        if answer.boot != self.config.boot:
            return  # to an earlier life
        if isinstance(answer, Refused):
            self.refusal = answer.reason
            self.hello_pause_us = LAST_HELLO_PAUSE_US
            self.hello_again_us = self.newest_us + LAST_HELLO_PAUSE_US
            return
        self.refusal = None
        self.hello_again_us = None
        yield from self._empty_outbox()

    def _empty_outbox(self) -> Iterator[DeviceAction]:
        while self.outbox and self._can_send:
            yield SendUp(self.outbox.popleft())

    @property
    def _can_send(self) -> bool:
        return self.connected and self.refusal is None

    def _send(self, message: Upward) -> Iterator[DeviceAction]:
        if self._can_send:
            yield SendUp(message)
            return
        if len(self.outbox) >= self.config.max_outbox and isinstance(message, FeedEvent):
            self._drop_oldest_event()
        self.outbox.append(message)

    def _drop_oldest_event(self) -> None:
        for place, message in enumerate(self.outbox):
            if isinstance(message, FeedEvent):
                del self.outbox[place]
                self.dropped += 1
                return

    # ---- time

    def _due(self) -> Iterator[DeviceAction]:
        if self.connected and self.hello_again_us is not None and self.newest_us >= self.hello_again_us:
            self.hello_pause_us = min(2 * self.hello_pause_us, LAST_HELLO_PAUSE_US)
            yield from self._say_hello()
        due = [m for m in self.marks if self.newest_us > m.after_us]
        if due:
            self.marks = [m for m in self.marks if self.newest_us <= m.after_us]
            yield from self._send(Confirmed(tuple(m.token for m in due), self.newest_us))
        if self.reported_us is None:
            self.reported_us = self.newest_us
        elif self.newest_us - self.reported_us >= self.config.report_every_us and self._can_send:
            yield from self._report(self.newest_us - self.reported_us)

    def _report(self, period_us: int) -> Iterator[DeviceAction]:
        matched = self.publisher.matched if self.publisher else Counter()
        counts = tuple(sorted((self.produced + matched).items()))
        self.produced.clear()
        matched.clear()
        self.reported_us = self.newest_us
        yield from self._send(RateReport(counts, period_us))
