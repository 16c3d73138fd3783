"""The in-process bus: a persistent session per device, like an MQTT broker's, without sockets.

Each direction of each link keeps its order. While a device is away its downlink queue waits for it, up to
`max_queued` messages; past that new data is dropped and counted, as brokers do (the receiver also sees the
gap in the numbers). Instructions are few, and losing one would stall a move, so they are always queued. The
uplink queue belongs to a connected device only: what a device cannot send waits in its own outbox.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.protocol.channel import (
    CONTROL,
    ChannelReceiver,
    ChannelSender,
    LinkTraffic,
    at_cloud,
    at_device,
    traffic_class,
)
from catchment.feeds.protocol.messages import Downward, Upward

MAX_QUEUED = 10_000  # messages that wait for a device; past the bound new data is dropped


@dataclass
class BusSession:
    """Both directions of one device's link."""

    device_sends: ChannelSender = field(default_factory=ChannelSender)
    device_receives: ChannelReceiver[Downward] = field(default_factory=at_device)
    cloud_sends: ChannelSender = field(default_factory=ChannelSender)
    cloud_receives: ChannelReceiver[Upward] = field(default_factory=at_cloud)
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    connected: bool = False
    dropped: int = 0


class Bus:
    """Sessions of many devices with one cloud."""

    def __init__(self, max_queued: int = MAX_QUEUED, first_number: int = 0) -> None:
        self.max_queued = max_queued
        self.first_number = first_number  # number of the first message on each link
        self.sessions: dict[str, BusSession] = {}
        self.busy_up: dict[str, None] = {}  # devices with messages under way to the cloud
        self.busy_down: dict[str, None] = {}  # connected devices with messages under way to them

    def connect(self, device: str) -> None:
        session = self._session(device)
        session.connected = True
        if session.down:
            self.busy_down[device] = None

    def _session(self, device: str) -> BusSession:
        if device not in self.sessions:
            self.sessions[device] = BusSession(
                ChannelSender(self.first_number), cloud_sends=ChannelSender(self.first_number)
            )
        return self.sessions[device]

    def disconnect(self, device: str) -> None:
        self.sessions[device].connected = False
        self.busy_down.pop(device, None)

    def restart(self, device: str) -> None:
        """Forget the device's side of the session; its messages are then numbered as after a later boot."""
        old = self.sessions[device]
        old.device_sends = ChannelSender(old.device_sends.next_number, old.device_sends.sent)
        old.device_receives = ChannelReceiver(old.device_receives.expects, received=old.device_receives.received)

    def send_up(self, device: str, message: Upward) -> None:
        """Send a message of a connected device to the cloud."""
        session = self.sessions[device]
        if not session.connected:
            raise FeedError(f"device {device!r} sent a message while its link was down")
        session.up.append(session.device_sends.wrap(message))
        self.busy_up[device] = None

    def send_down(self, device: str, message: Downward) -> None:
        """Send a message of the cloud to a device, which may be away."""
        session = self._session(device)
        data = session.cloud_sends.wrap(message)
        if len(session.down) >= self.max_queued and traffic_class(message) != CONTROL:
            session.dropped += 1
        else:
            session.down.append(data)
            if session.connected:
                self.busy_down[device] = None

    def traffic(self) -> dict[str, LinkTraffic]:
        """Return what crossed each device's link."""
        sessions = self.sessions.items()
        return {name: LinkTraffic(s.device_sends.sent, s.device_receives.received) for name, s in sessions}

    def next_up(self, device: str) -> Upward | None:
        """Return the next message of a device for the cloud; None when it was a duplicate or unreadable."""
        session = self.sessions[device]
        data = session.up.popleft()
        if not session.up:
            del self.busy_up[device]
        return session.cloud_receives.accept(data)

    def next_down(self, device: str) -> Downward | None:
        """Return the next message of the cloud for a device; None when it was a duplicate or unreadable."""
        session = self.sessions[device]
        data = session.down.popleft()
        if not session.down:
            del self.busy_down[device]
        return session.device_receives.accept(data)
