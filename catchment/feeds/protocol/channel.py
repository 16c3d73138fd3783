"""One direction of one device's link: numbered by the sender, duplicates dropped by the receiver.

Law: given a channel that may repeat messages but keeps the order of first sendings (MQTT at QoS 1), every
message is accepted once. A gap in the numbers means that a queue overflowed on the way: what is missing is
counted, never silent. A sender that restarts begins a new life, with a higher first number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from catchment.errors import WireError
from catchment.feeds.protocol.codec import decode, encode
from catchment.feeds.protocol.messages import (
    DOWNWARD,
    UPWARD,
    Downward,
    FeedEvent,
    Hello,
    Message,
    Notice,
    RelayedMessage,
    Upward,
)

DATA = "data"
NOTICE = "notice"
CONTROL = "control"


def traffic_class(message: Message) -> str:
    """Return the class that a message is counted in: data is what placement decides about."""
    if isinstance(message, RelayedMessage):
        return traffic_class(message.message)
    if isinstance(message, FeedEvent):
        return DATA
    return NOTICE if isinstance(message, Notice) else CONTROL


@dataclass
class WireCounter:
    """Messages and bytes of one direction, per traffic class."""

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, size: int) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += size


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """What crossed one device's link: sent by the device, and received by it."""

    up: WireCounter
    down: WireCounter


@dataclass
class ChannelSender:
    """Numbers and encodes what leaves."""

    next_number: int = 0
    sent: WireCounter = field(default_factory=WireCounter)

    def wrap(self, message: Message) -> bytes:
        data = encode(self.next_number, message)
        self.next_number += 1
        self.sent.count(traffic_class(message), len(data))
        return data


Accepted = TypeVar("Accepted", Upward, Downward)


@dataclass
class ChannelReceiver(Generic[Accepted]):
    """Accepts each message once, in order; only messages that may come from this direction."""

    expects: tuple[type, ...]
    last_number: int | None = None
    received: WireCounter = field(default_factory=WireCounter)
    duplicates: int = 0
    missing: int = 0
    refused: int = 0

    def accept(self, data: bytes) -> Accepted | None:
        """Return the message, or None when it is a duplicate or is refused."""
        try:
            number, message = decode(data)
        except WireError:
            self.refused += 1
            return None
        if not isinstance(message, self.expects):
            self.refused += 1
            return None
        return self._in_order(number, cast(Accepted, message), len(data))

    def _in_order(self, number: int, message: Accepted, size: int) -> Accepted | None:
        if self.last_number is not None and number <= self.last_number:
            self.duplicates += 1
            return None
        if self.last_number is not None and not isinstance(message, Hello):
            self.missing += number - self.last_number - 1
        self.last_number = number
        self.received.count(traffic_class(message), size)
        return message


def at_cloud() -> ChannelReceiver[Upward]:
    """Return what the cloud accepts of a device."""
    return ChannelReceiver(UPWARD)


def at_device() -> ChannelReceiver[Downward]:
    """Return what a device accepts of the cloud."""
    return ChannelReceiver(DOWNWARD)
