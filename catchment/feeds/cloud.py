"""The cloud: a control plane over a data plane. Pure; a driver carries its messages."""

from __future__ import annotations

from collections.abc import Iterable

from catchment.feeds.controller import Controller
from catchment.feeds.messages import FeedEvent, Upward
from catchment.feeds.router import DataPlane, Deliver
from catchment.feeds.routes import Hosts
from catchment.feeds.view_graph import ViewGraph


class Cloud:
    """Takes messages of devices and says what to send to devices."""

    def __init__(self, graph: ViewGraph, plane: DataPlane) -> None:
        self.plane = plane
        self.controller = Controller(graph, plane)

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Bring views to these hosts."""
        return self.controller.deploy(hosts)

    def receive(self, device: str, message: Upward) -> Iterable[Deliver]:
        """Answer one message; what it returns is to be sent, in order, before the next is handed in."""
        if not isinstance(message, FeedEvent):
            return self.controller.handle(device, message)
        return self.plane.absorb([message]) if self.controller.may_send(device, message.feed) else ()
