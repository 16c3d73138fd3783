"""The in-process bus of a run with edge clouds: devices, edge clouds and the cloud, without sockets.

It stands where a `Bus` stands. What a device sends to its edge cloud, and the cloud to an edge cloud, is handed to that
edge cloud when it is carried, and goes on from there; each direction of each link keeps its order. What an edge cloud
has for the cloud waits while its link is down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from catchment.feeds.cloud.edge_cloud import EdgeAction, EdgeCloud
from catchment.feeds.device.device import SendUp
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.channel import LinkTraffic
from catchment.feeds.protocol.messages import Downward, Upward


class EdgeBus:
    """Sessions of devices with their edge clouds, and of these and all other devices with the cloud."""

    def __init__(self, edges: Iterable[EdgeCloud], edge_of: Mapping[str, str], max_queued: int = 10_000) -> None:
        self.edges = {edge.config.name: edge for edge in edges}
        self.edge_of = edge_of
        self.below = Bus(max_queued)  # between devices and edge clouds
        self.above = Bus(max_queued)  # to the cloud
        self.waiting: dict[str, deque[Upward]] = {name: deque() for name in self.edges}  # while a link is down
        self.now_us = 0

    def begin(self, now_us: int) -> None:
        """Let the edge clouds say hello."""
        for name, edge in self.edges.items():
            self.above.connect(name)
            self._act(name, edge.begin(now_us))

    def tick(self, now_us: int) -> None:
        """Let the edge clouds do what is due by now."""
        self.now_us = max(self.now_us, now_us)
        for name, edge in self.edges.items():
            self._act(name, edge.tick(self.now_us))

    def _act(self, name: str, actions: Iterable[EdgeAction]) -> None:
        for action in actions:
            if not isinstance(action, SendUp):
                self.below.send_down(action.device, action.message)
            elif self.above.sessions[name].connected:
                self.above.send_up(name, action.message)
            else:
                self.waiting[name].append(action.message)

    def _bus_of(self, device: str) -> Bus:
        return self.below if device in self.edge_of else self.above

    # ---- devices, and the links of edge clouds

    def connect(self, name: str) -> None:
        """Let the link of a device, or of an edge cloud, come up."""
        self._bus_of(name).connect(name)
        while self.waiting.get(name):
            self.above.send_up(name, self.waiting[name].popleft())

    def disconnect(self, name: str) -> None:
        """Let the link of a device, or of an edge cloud, go down."""
        self._bus_of(name).disconnect(name)

    def send_up(self, device: str, message: Upward) -> None:
        self._bus_of(device).send_up(device, message)

    @property
    def busy_down(self) -> dict[str, None]:
        return {**self.below.busy_down, **self.above.busy_down}

    def next_down(self, name: str) -> Downward | None:
        """Return the next message for a device; one for an edge cloud is handed to it."""
        message = self._bus_of(name).next_down(name)
        if name not in self.edges:
            return message
        if message is not None:
            self._act(name, self.edges[name].from_cloud(message, self.now_us))
        return None

    # ---- the cloud

    @property
    def busy_up(self) -> dict[str, None]:
        return {**self.below.busy_up, **self.above.busy_up}

    def next_up(self, name: str) -> Upward | None:
        """Return the next message for the cloud; one of a device for its edge cloud is handed to that."""
        message = self._bus_of(name).next_up(name)
        if name not in self.edge_of:
            return message
        edge = self.edge_of[name]
        if message is not None:
            self._act(edge, self.edges[edge].from_device(name, message))
        return None

    def send_down(self, name: str, message: Downward) -> None:
        self.above.send_down(name, message)

    def traffic(self) -> dict[str, LinkTraffic]:
        """Return what crossed each link."""
        return {**self.below.traffic(), **self.above.traffic()}
