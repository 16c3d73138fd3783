"""Edge clouds under the cloud: which device is attached to which, and the links between two places. Pure.

The places form a tree: the cloud, edge clouds and devices that are attached to it, and devices that are attached to
edge clouds. Every place but the cloud has one link, upwards, and is named for it. A feed crosses a link once, at the
largest share that is wanted beyond it (Chandramouli et al., VLDB'13, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from catchment.feeds.cloud.router import Deliver
from catchment.feeds.language.template import CLOUD_FEED
from catchment.feeds.protocol.messages import Notice, RelayedMessage


class EdgeTree:
    """The edge clouds that there are, and the devices attached to them; all others are attached to the cloud."""

    def __init__(self, clouds: Iterable[str] = ()) -> None:
        self.clouds = frozenset(clouds)
        self.edge_of: dict[str, str] = {}  # device -> its edge cloud

    def parent(self, place: str) -> str:
        """Return what a device or an edge cloud is attached to."""
        return CLOUD_FEED if place in self.clouds else self.edge_of.get(place, CLOUD_FEED)

    def way(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """Return the links that lead from a place to another: those upwards, then those downwards, from below."""
        up = self._links(source)
        down = self._links(target)
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        return up, down

    def _links(self, place: str) -> list[str]:
        """Return the links from a place to the cloud."""
        if place == CLOUD_FEED:
            return []
        edge = self.edge_of.get(place)
        return [place] if edge is None else [place, edge]

    def devices_of(self, edge: str) -> list[str]:
        """Return the devices that are attached to an edge cloud."""
        return [device for device, other in self.edge_of.items() if other == edge]

    def edges_above(self, places: Iterable[str]) -> frozenset[str]:
        """Return the edge clouds that these devices are attached to, and those among them."""
        return frozenset(self.edge_of.get(place, place) for place in places) & self.clouds

    def addressed(self, delivery: Deliver) -> Deliver:
        """Return a message for a device as one for the link that leads to it.

        A notice names its device, and says no more to an edge cloud than to the device itself.
        """
        edge = self.edge_of.get(delivery.device)
        if edge is None:
            return delivery
        message = delivery.message
        return Deliver(edge, message if isinstance(message, Notice) else RelayedMessage(delivery.device, message))


STAR = EdgeTree()  # every device is attached to the cloud


def folded(hosts: Mapping[str, str], tree: EdgeTree) -> dict[str, str]:
    """Return a placement as devices see it: an edge cloud is the cloud."""
    return {view: CLOUD_FEED if host in tree.clouds else host for view, host in hosts.items()}


def unfolded(star: Mapping[str, str], hosts: Mapping[str, str], tree: EdgeTree) -> dict[str, str]:
    """Return a placement over devices and cloud, with the edge clouds that `hosts` has for views off devices."""
    return {
        view: hosts[view] if host == CLOUD_FEED and hosts.get(view) in tree.clouds else host
        for view, host in star.items()
    }
