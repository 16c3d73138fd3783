"""An edge cloud as a core that a host makes durable: what happened in, messages to publish out. Pure.

The laws are those of `core.py`, twice: for the links to its devices, and for the link to the cloud. Each has an outbox
of its own, so that what waits for a cloud that cannot be reached keeps nothing from the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from catchment.feeds.cloud.broker_queue import BrokerQueue, SendDown
from catchment.feeds.cloud.core import MessageArrived, MessagesTaken
from catchment.feeds.cloud.device_channels import DeviceChannel, DeviceChannels, Numbers
from catchment.feeds.cloud.edge_cloud import EdgeAction, EdgeCloud, EdgeState
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import SendUp, boot_number
from catchment.feeds.protocol.channel import CONTROL, ChannelSender, LinkTraffic, WireCounter, at_device, traffic_class
from catchment.feeds.protocol.messages import Hello, Message, RateReport, RelayedMessage
from catchment.storage.codec import stored

MAX_STRANGERS = 10_000  # devices that the cloud has not admitted here, whose numbers are remembered


@stored()
@dataclass(frozen=True, slots=True)
class EdgeBegun:
    """A process of the edge cloud has begun."""


@stored()
@dataclass(frozen=True, slots=True)
class CloudSpoke:
    """The cloud sent these bytes."""

    data: bytes


@stored()
@dataclass(frozen=True, slots=True)
class UplinkTaken:
    """The broker of the cloud has taken every message below this number."""

    before: int


@stored()
@dataclass(frozen=True, slots=True)
class TimePassed:
    """Something is due."""


EdgeEvent = EdgeBegun | MessageArrived | CloudSpoke | MessagesTaken | UplinkTaken | TimePassed


@stored()
@dataclass(frozen=True)
class EdgeCoreState:
    """The state of an edge cloud and its links between two entries."""

    edge: EdgeState
    links: dict[str, Numbers]
    uplink: tuple[int, int | None]  # next number up, last number down
    outbox: list[SendDown]
    next_number: int
    dropped: int
    above: list[SendDown]  # for the cloud
    next_above: int
    dropped_above: int


class EdgeCore:
    """An edge cloud, its links, and the messages that are on their way to two brokers.

    A message for the cloud has the cloud's name where others have that of a device.
    """

    def __init__(self, edge: EdgeCloud) -> None:
        self.edge = edge
        self.links = DeviceChannels()
        self.sending = BrokerQueue()
        self.above = BrokerQueue()
        self.sends_up = ChannelSender()
        self.receives = at_device()

    def handle_all(self, events: Sequence[EdgeEvent], now_us: int) -> list[SendDown]:
        """Return the messages that follow from the events of one entry."""
        return [sent for event in events for sent in self._send(self._handle(event, now_us), now_us)]

    def _handle(self, event: EdgeEvent, now_us: int) -> Iterable[EdgeAction]:
        match event:
            case MessageArrived(device, data):
                message = None if device == CLOUD else self._link(device, now_us).receives.accept(data)
                return () if message is None else self.edge.from_device(device, message)
            case CloudSpoke(data):
                told = self.receives.accept(data)
                return () if told is None else self.edge.from_cloud(told, now_us)
            case MessagesTaken(before):
                self.sending.forget_taken(before)
            case UplinkTaken(before):
                self.above.forget_taken(before)
            case TimePassed():
                return self.edge.tick(now_us)
            case EdgeBegun():
                if self.edge.boot is None:  # above the numbers of an earlier life, of which nothing is known
                    self.sends_up.next_number = boot_number(now_us)
                return self.edge.begin(now_us)
        return ()

    def _send(self, actions: Iterable[EdgeAction], now_us: int) -> Iterable[SendDown]:
        for action in actions:
            is_up = isinstance(action, SendUp)
            place = CLOUD if isinstance(action, SendUp) else action.device
            sender = self.sends_up if is_up else self._link(place, now_us).sends
            outbox = self.above if is_up else self.sending
            data = sender.wrap(action.message)
            if outbox.is_full and _may_be_dropped(action.message):
                outbox.dropped += 1
            else:
                yield outbox.add(place, data)

    def _link(self, device: str, now_us: int) -> DeviceChannel:
        """Return the channel of a device; of those that are not attached, the oldest is forgotten at the bound."""
        found = self.links.of(device, now_us)
        attached = self.edge.attached
        if len(self.links.channels) > len(attached) + MAX_STRANGERS:
            self.links.forget(next(name for name in self.links.channels if name not in attached))
        return found

    def uplink_traffic(self) -> LinkTraffic:
        """Return what crossed the link to the cloud since this process began."""
        return LinkTraffic(self.sends_up.sent, self.receives.received)

    def reset_traffic(self) -> None:
        """Count traffic from now on."""
        self.links.reset_traffic()
        self.sends_up.sent = WireCounter()
        self.receives.received = WireCounter()

    # ---- state

    def snapshot(self) -> EdgeCoreState:
        return EdgeCoreState(
            self.edge.snapshot(),
            self.links.snapshot(),
            (self.sends_up.next_number, self.receives.last_number),
            list(self.sending.messages),
            self.sending.next_number,
            self.sending.dropped,
            list(self.above.messages),
            self.above.next_number,
            self.above.dropped,
        )

    def restore(self, state: EdgeCoreState) -> None:
        """Take a state; the core is new and has handled nothing."""
        self.edge.restore(state.edge)
        self.links.restore(state.links)
        self.sends_up.next_number, self.receives.last_number = state.uplink
        self.sending.restore(state.outbox, state.next_number, state.dropped)
        self.above.restore(state.above, state.next_above, state.dropped_above)


def _may_be_dropped(message: Message) -> bool:
    """Return whether a message is data, or will be said again.

    All others answer the cloud, so that what waits for one that is away is bounded.
    """
    said = message.message if isinstance(message, RelayedMessage) else message
    return traffic_class(said) != CONTROL or isinstance(said, Hello | RateReport)
