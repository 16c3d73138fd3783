"""The messages between devices and the cloud.

Data (`FeedEvent`) and notices are facts: they carry a key, so a duplicate is recognised and any order is
harmless. Instructions from the cloud say what holds from now on and may be repeated; those with a token are
answered by `Confirmed`, which is how the cloud knows that a change of placement has taken hold.

A device registers itself: it says `Hello` when its link comes up, and again, with growing pauses, until the cloud has
answered with `Admitted` or `Refused`. Its identity is the name of its channel (the topic on MQTT), which the transport
vouches for; no message repeats it.

An edge cloud is to the cloud what a device is, and to its devices what the cloud is. What concerns one of its devices
crosses its link as `RelayedMessage`; events cross it once, whoever reads them beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from catchment.errors import FeedError
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.forms.program import VERSION, ProgramForm
from catchment.feeds.protocol.sampling import Key, rank_of
from catchment.timeline import START_OF_TIME_US


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event of a feed, or one match of a view that other views read."""

    feed: str
    key: Key
    at_us: int
    values: tuple[Any, ...]
    rank: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.feed or not self.key:
            raise FeedError(f"an event needs a feed and a key, not {self.feed!r} and {self.key!r}")
        if not START_OF_TIME_US < self.at_us < -START_OF_TIME_US:
            raise FeedError(f"an event of {self.feed!r} is at {self.at_us} us, which is no instant")
        object.__setattr__(self, "rank", rank_of(self.feed, self.key))


@dataclass(frozen=True, slots=True)
class Notice:
    """A view has something for a device.

    Its key is that of the match or, for a view that notifies once per period, the number of the period.
    """

    view: str
    notified: str
    key: Key
    at_us: int
    values: tuple[Any, ...] = field(compare=False)

    @property
    def identity(self) -> tuple[str, str, Key]:
        return (self.view, self.notified, self.key)


@dataclass(frozen=True, slots=True)
class Hello:
    """A device is there; `boot` changes when it has forgotten what it was told.

    `token` is the secret by which the device shows that it may use its name, where the cloud asks for one. `functions`
    are those that it has beside the ones that every device has: only then can it compute views that call them.
    """

    boot: int
    token: str | None = field(default=None, repr=False)
    functions: tuple[str, ...] = ()
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class RateReport:
    """Events per feed that a device produced, and matches per view that it computed, in the last period."""

    counts: tuple[tuple[str, int], ...]
    period_us: int

    def __post_init__(self) -> None:
        if self.period_us <= 0 or any(count < 0 for _, count in self.counts):
            raise FeedError(f"a rate report counts {self.counts} in {self.period_us} microseconds")


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The instructions with these tokens hold for every event later than `since_us`."""

    tokens: tuple[int, ...]
    since_us: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The cloud has registered the device that said hello with this boot; instructions follow."""

    boot: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The cloud does not take the device that said hello with this boot; it may say hello again later.

    Nothing else is sent to a refused device, and nothing that it sends is taken.
    """

    boot: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reset:
    """The cloud has begun a new life: forget what you were told, and say hello again."""


@dataclass(frozen=True, slots=True)
class Program:
    """What views of this device are made from."""

    form: ProgramForm = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetUpload:
    """Send this share of a feed from now on; 0 sends nothing. A token asks for confirmation."""

    feed: str
    share: float
    token: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FeedError(f"the share of {self.feed!r} to upload is {self.share}; expected 0 to 1")


@dataclass(frozen=True, slots=True)
class Install:
    """Compute this view; it replaces one of the same name."""

    view: PhysicalView
    token: int = 0


@dataclass(frozen=True, slots=True)
class Uninstall:
    """Stop computing this view."""

    view: str
    token: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Confirm as soon as your clock is past `after_us` and all earlier events are sent."""

    after_us: int
    token: int


@dataclass(frozen=True, slots=True)
class SetRoute:
    """Hand this share of a feed to a device that is attached to you; 0 hands on nothing. For edge clouds only."""

    feed: str
    device: str
    share: float
    token: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FeedError(f"the share of {self.feed!r} for {self.device!r} is {self.share}; expected 0 to 1")


Instruction = Program | SetUpload | Install | Uninstall | Mark | SetRoute


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions for one device, in order, in one message."""

    items: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class RelayedMessage:
    """A message of a device, or for one, on the link between its edge cloud and the cloud."""

    device: str
    message: Message

    def __post_init__(self) -> None:
        if isinstance(self.message, RelayedMessage):
            raise FeedError(f"a message for {self.device!r} is relayed twice; an edge cloud is under the cloud itself")


Upward = FeedEvent | Notice | Hello | RateReport | Confirmed | RelayedMessage
Downward = FeedEvent | Notice | Admitted | Refused | Reset | Instructions | RelayedMessage
Message = Upward | Downward

UPWARD: tuple[type, ...] = get_args(Upward)
DOWNWARD: tuple[type, ...] = get_args(Downward)
