"""The core of an edge cloud: to the cloud above it, it is what a device is; to its devices, what the cloud is. Pure.

It has the data plane of a cloud and no control plane. The cloud decides where views are, and tells an edge cloud like a
device: compute this view, upload this share of a feed; and beyond that, hand this share to one of your devices. What
concerns one device is relayed. So events go up only as far as a view needs them, and notices come down.

Invariants: messages on each link leave in the order in which what they follow from came, which is what moves of views
rely on. An event that came from above does not go up again. A device is heard only with feeds that it was told to
upload, and with views that it was told to compute: the edge cloud has seen it told. It is attached when the edge cloud
has seen it admitted: a hello in the name of another device gets none of its notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.cloud_state import (
    RouterState,
    pack_instruction,
    put_router,
    take_router,
    unpack_instructions,
)
from catchment.feeds.cloud.controller import RELAYED_UP
from catchment.feeds.cloud.router import Deliver, Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import FIRST_HELLO_PAUSE_US, LAST_HELLO_PAUSE_US, SendUp, boot_number
from catchment.feeds.device.limits import CLOUD_LIMITS, HostLimits
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
    Notice,
    Program,
    RateReport,
    Refused,
    RelayedMessage,
    Reset,
    SetRoute,
    SetUpload,
    Uninstall,
    Upward,
)
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US

REPORT_EVERY_US = 10_000_000

EdgeAction = SendUp | Deliver


@dataclass(frozen=True)
class EdgeConfig:
    """What an edge cloud is told at its start."""

    name: str
    token: str | None = field(default=None, repr=False)
    limits: HostLimits = CLOUD_LIMITS
    report_every_us: int = REPORT_EVERY_US

    def __post_init__(self) -> None:
        if not self.name or self.name == CLOUD or self.report_every_us <= 0:
            raise FeedError(f"an edge cloud needs a name other than {CLOUD!r}, not {self.name!r}")


@stored()
@dataclass(frozen=True)
class EdgeState:
    """What an edge cloud knows between two entries of its journal."""

    boot: int | None
    program: bytes | None
    router: RouterState | None
    attached: list[str]
    told: dict[str, list[str]]
    ending: list[tuple[int, str, str]]  # token, device and view
    hello_again_us: int | None
    hello_pause_us: int
    reported_us: int | None
    matched: dict[str, int]
    refused: int


class EdgeCloud:
    """One edge cloud."""

    def __init__(self, config: EdgeConfig, functions: Functions = BUILT_IN, spool: Spool | None = None) -> None:
        self.config = config
        self.functions = functions
        self.spool = spool
        self.boot: int | None = None  # it changes when the edge cloud has forgotten what it was told
        self.program: ProgramForm | None = None
        self.router: Router | None = None  # there is none before a program is
        self.attached: dict[str, None] = {}  # devices that the cloud has admitted here
        self.told: dict[str, set[str]] = {}  # feeds that each device may send, and views that it computes
        self.ending: dict[int, tuple[str, str]] = {}  # token -> the device that was told to end a view
        self.refusal: str | None = None  # why the cloud does not take this edge cloud
        self.hello_again_us: int | None = None  # when to say hello again; None once it was answered
        self.hello_pause_us = FIRST_HELLO_PAUSE_US
        self.reported_us: int | None = None
        self.refused = 0  # messages that nothing was made of

    def begin(self, now_us: int) -> Iterator[EdgeAction]:
        """Begin a life, or go on with one: say hello, with the functions that there are now."""
        if self.boot is None:
            self.boot = boot_number(now_us)
        self.hello_pause_us = FIRST_HELLO_PAUSE_US
        yield from self._say_hello(now_us)

    def _say_hello(self, now_us: int) -> Iterator[EdgeAction]:
        assert self.boot is not None
        extra = tuple(sorted(set(self.functions) - set(BUILT_IN)))
        self.hello_again_us = now_us + self.hello_pause_us
        yield SendUp(Hello(self.boot, self.config.token, extra))

    def tick(self, now_us: int) -> Iterator[EdgeAction]:
        """Do what is due by now."""
        if self.hello_again_us is not None and now_us >= self.hello_again_us:
            self.hello_pause_us = min(2 * self.hello_pause_us, LAST_HELLO_PAUSE_US)
            yield from self._say_hello(now_us)
        if self.reported_us is None:
            self.reported_us = now_us
        elif self.is_report_due(now_us):
            matched = {} if self.router is None else self.router.take_matched()
            period_us = now_us - self.reported_us
            self.reported_us = now_us
            yield SendUp(RateReport(tuple(sorted(matched.items())), period_us))

    def is_due(self, now_us: int) -> bool:
        """Return whether there is something to do because time has passed."""
        says_hello = self.hello_again_us is not None and now_us >= self.hello_again_us
        return says_hello or self.reported_us is None or self.is_report_due(now_us)

    def is_report_due(self, now_us: int) -> bool:
        return self.reported_us is not None and now_us - self.reported_us >= self.config.report_every_us

    # ---- from devices

    def from_device(self, device: str, message: Upward) -> Iterator[EdgeAction]:
        """Take a message of a device."""
        if isinstance(message, FeedEvent):
            yield from self._take_event(device, message)
        elif isinstance(message, Notice):
            yield from self._take_notice(device, message)
        elif isinstance(message, RELAYED_UP):
            if isinstance(message, Confirmed):
                self._note_ended(device, message)
            yield SendUp(RelayedMessage(device, message))
        else:
            self.refused += 1

    def _take_event(self, device: str, event: FeedEvent) -> Iterator[EdgeAction]:
        if self.router is None or not self._admits(device, event):
            self.refused += 1
            return
        yield from self._carry(self.router.absorb([event]))

    def _admits(self, device: str, event: FeedEvent) -> bool:
        if event.feed not in self.told.get(device, ()):
            return False
        assert self.program is not None
        kind = event.feed.removesuffix(f"@{device}")
        return kind == event.feed or self.program.accepts(kind, event.values)  # a view is no feed of a device

    def _take_notice(self, device: str, notice: Notice) -> Iterator[EdgeAction]:
        if notice.view not in self.told.get(device, ()):
            self.refused += 1
        elif notice.notified in self.attached:
            yield Deliver(notice.notified, notice)
        else:
            yield SendUp(RelayedMessage(device, notice))

    def _note_ended(self, device: str, message: Confirmed) -> None:
        for token in message.tokens:
            owner, view = self.ending.get(token, (None, ""))
            if owner == device:
                del self.ending[token]
                self.told.get(device, set()).discard(view)

    def _carry(self, deliveries: Iterable[Deliver], from_above: FeedEvent | None = None) -> Iterator[EdgeAction]:
        """Send what the data plane gives: to devices here, and to the cloud what is wanted beyond."""
        for delivery in deliveries:
            message = delivery.message
            if isinstance(message, Notice):
                yield delivery if delivery.device in self.attached else SendUp(message)
            elif delivery.device != CLOUD:
                yield delivery
            elif message is not from_above:
                assert isinstance(message, FeedEvent)
                yield SendUp(message)

    # ---- from the cloud

    def from_cloud(self, message: Downward, now_us: int) -> Iterator[EdgeAction]:
        """Take a message of the cloud."""
        if isinstance(message, RelayedMessage):
            yield from self._relay(message)
        elif isinstance(message, Notice):
            yield Deliver(message.notified, message)
        elif isinstance(message, FeedEvent):
            if self.router is not None:
                yield from self._carry(self.router.absorb([message]), message)
        elif isinstance(message, Instructions):
            yield from self._obey(message)
        elif isinstance(message, Reset):
            yield from self._forget()
            yield from self._say_hello(now_us)
        elif message.boot == self.boot:
            self._be_answered(message, now_us)

    def _relay(self, relayed: RelayedMessage) -> Iterator[EdgeAction]:
        device, message = relayed.device, relayed.message
        if isinstance(message, Reset):  # the device has left, or is to be told everything anew
            self.attached.pop(device, None)
            self.told.pop(device, None)
        elif isinstance(message, Admitted):
            self.attached[device] = None
        elif isinstance(message, Instructions):
            for item in message.items:
                self._note_told(device, item)
        elif not isinstance(message, Refused | FeedEvent | Notice):
            self.refused += 1
            return
        yield Deliver(device, message)

    def _note_told(self, device: str, item: Instruction) -> None:
        if isinstance(item, SetUpload):
            self.told.setdefault(device, set()).add(item.feed)
        elif isinstance(item, Install):
            self.told.setdefault(device, set()).add(item.view.name)
            self.ending = {token: end for token, end in self.ending.items() if end != (device, item.view.name)}
        elif isinstance(item, Uninstall) and item.token:
            self.ending[item.token] = (device, item.view)

    def _be_answered(self, answer: Admitted | Refused, now_us: int) -> None:
        if isinstance(answer, Refused):
            self.refusal = answer.reason
            self.hello_pause_us = LAST_HELLO_PAUSE_US
            self.hello_again_us = now_us + LAST_HELLO_PAUSE_US
        else:
            self.refusal = None
            self.hello_again_us = None

    def _forget(self) -> Iterator[EdgeAction]:
        """Forget what was told, and have the devices forget it too."""
        for device in self.attached:
            yield Deliver(device, Reset())
        self.program = self.router = None
        self.attached.clear()
        self.told.clear()
        self.ending.clear()

    def _obey(self, message: Instructions) -> Iterator[EdgeAction]:
        """Follow instructions in order; one answer confirms them all."""
        tokens: list[int] = []
        since_us = START_OF_TIME_US
        for item in message.items:
            since_us = max(since_us, self._follow(item))
            if not isinstance(item, Program) and item.token:
                tokens.append(item.token)
        if tokens:
            yield SendUp(Confirmed(tuple(tokens), since_us))

    def _follow(self, item: Instruction) -> int:
        """Follow one instruction; return the time of the newest event that it may not hold for any more.

        A mark holds at once: what it asks about has come before it.
        """
        if isinstance(item, Program):
            self._load(item.form)
        elif self.router is None:
            self.refused += 1
        elif isinstance(item, SetUpload):
            self.router.set_route(item.feed, CLOUD, item.share)
            return self._newest_us([item.feed])
        elif isinstance(item, SetRoute):
            self.router.set_route(item.feed, item.device, item.share)
            return self._newest_us([item.feed])
        elif isinstance(item, Install):
            self.router.install(item.view)
            return self._newest_us(item.view.inputs)
        elif isinstance(item, Uninstall):
            self.router.uninstall(item.view)
        return START_OF_TIME_US

    def _newest_us(self, feeds: Iterable[str]) -> int:
        assert self.router is not None
        return max((self.router.newest_us(feed) or START_OF_TIME_US for feed in feeds), default=START_OF_TIME_US)

    def _load(self, form: ProgramForm) -> None:
        if self.program is not None and form.text == self.program.text:
            return
        self.program = form
        compiled = compile_form(form, self.functions)
        if self.router is not None:
            self.router.follow_program(compiled)
            return
        if self.spool is not None:
            self.spool.clear()  # what was kept before the edge cloud was told to forget is of no use
        self.router = Router(compiled, self.config.limits, self.spool)

    # ---- state

    def snapshot(self) -> EdgeState:
        """Return what it knows."""
        router = self.router
        return EdgeState(
            self.boot,
            None if self.program is None else pack_instruction(Program(self.program)),
            None if router is None else take_router(router),
            list(self.attached),
            {device: sorted(names) for device, names in self.told.items()},
            [(token, device, view) for token, (device, view) in self.ending.items()],
            self.hello_again_us,
            self.hello_pause_us,
            self.reported_us,
            {} if router is None else dict(router.publisher.matched),
            self.refused,
        )

    def restore(self, state: EdgeState) -> None:
        """Take a state; the edge cloud is new and has handled nothing."""
        self.boot = state.boot
        if state.program is not None:
            (program,) = unpack_instructions(state.program)
            assert isinstance(program, Program)
            self._load(program.form)
        if state.router is not None and self.router is not None:
            put_router(self.router, state.router)
            self.router.publisher.matched.update(state.matched)
        self.attached.update(dict.fromkeys(state.attached))
        self.told.update((device, set(names)) for device, names in state.told.items())
        self.ending.update((token, (device, view)) for token, device, view in state.ending)
        self.hello_again_us = state.hello_again_us
        self.hello_pause_us = state.hello_pause_us
        self.reported_us = state.reported_us
        self.refused = state.refused
