"""What a device may be asked to carry: bytes per second each way, and how many views it computes. Pure.

A device never computes more views, nor downloads more for them, than its budget allows: at the cloud neither counts, so
there is always a placement that keeps to it. What it uploads is what others compute over its feeds. That is kept
within the budget where some placement does so, and as near to it as possible where none does: an event that a view
needs is sent (Chandramouli et al., VLDB'13, section 4.6, which knows one bound of computation).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import cost_of_feeds
from catchment.feeds.cloud.routes import CLOUD, Hosts, all_routes
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.template import stream_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.protocol.codec import encode
from catchment.feeds.protocol.messages import FeedEvent

NO_BOUND = math.inf
ROUNDING = 1e-9  # a device is over its budget if it is so by more than this share of it
_NUMBER = 1_700_000_000_000  # of a message, as long as those of a device that was started in these years
_AT_US = 1_700_000_000_000_000
_TYPICAL = {"BIGINT": 12_345, "INT": 12_345, "DOUBLE": -12.3456789, "STRING": "twelve bytes", "BOOLEAN": True}

Rates = Mapping[str, float]


@dataclass(frozen=True)
class DeviceBudget:
    """The most that one device uploads and downloads per second, and the most views that it computes."""

    upload_bytes_per_s: float = NO_BOUND
    download_bytes_per_s: float = NO_BOUND
    views: float = NO_BOUND

    def __post_init__(self) -> None:
        if not min(self.upload_bytes_per_s, self.download_bytes_per_s, self.views) >= 0:
            raise FeedError(f"a budget is 0 or more, not {self}")

    @property
    def is_bound(self) -> bool:
        return self != DeviceBudget()

    def allows(self, load: DeviceLoad) -> bool:
        """Return whether a load is within what never may be exceeded: downloads and views."""
        return _within(load.download_bytes_per_s, self.download_bytes_per_s) and load.views <= self.views

    def excess(self, load: DeviceLoad) -> float:
        """Return the bytes per second by which uploads exceed the budget."""
        over = load.upload_bytes_per_s - self.upload_bytes_per_s
        return 0.0 if _within(load.upload_bytes_per_s, self.upload_bytes_per_s) else over


@dataclass
class DeviceLoad:
    """What a placement asks of one device."""

    upload_bytes_per_s: float = 0.0
    download_bytes_per_s: float = 0.0
    views: int = 0


def _within(used: float, bound: float) -> bool:
    return used <= bound + ROUNDING * max(1.0, bound if bound < NO_BOUND else 0.0)


@dataclass(frozen=True)
class Budgets:
    """The budget of every device, and of those that have one of their own."""

    every: DeviceBudget = field(default_factory=DeviceBudget)
    of_device: Mapping[str, DeviceBudget] = field(default_factory=dict)

    def of(self, device: str) -> DeviceBudget:
        return self.of_device.get(device, self.every)

    @property
    def are_bound(self) -> bool:
        """Whether any device has a bound at all."""
        return self.every.is_bound or any(budget.is_bound for budget in self.of_device.values())

    def exceeded(self, loads: Mapping[str, DeviceLoad]) -> list[str]:
        """Return the devices that compute or download more than they may."""
        return sorted(device for device, load in loads.items() if not self.of(device).allows(load))

    def excess(self, loads: Mapping[str, DeviceLoad]) -> float:
        """Return the bytes per second by which devices upload more than their budgets."""
        return sum(self.of(device).excess(load) for device, load in loads.items())

    def fit(
        self, graph: ViewGraph, hosts: Hosts, rates: Rates, costs: LinkCosts, movable: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return a placement with the cloud in place of devices that would be over their budgets.

        Of the views of such a device the one goes first that adds least to the cost at the cloud; only those that are
        `movable`, if that is given.
        """
        fitted = dict(hosts)
        if not self.are_bound:
            return fitted
        placed = ViewGraph(graph.program, graph.feeds, {n: v for n, v in graph.views.items() if n in fitted})
        names = set(placed.views if movable is None else movable)
        while True:
            over = self.exceeded(loads_of(placed, fitted, rates))
            leaving = [
                (_cost_at_cloud(placed, fitted, view, rates, costs), view.name)
                for view in placed.views.values()
                if view.name in names and fitted[view.name] in over
            ]
            if not leaving:
                return fitted
            fitted[min(leaving)[1]] = CLOUD


def loads_of(graph: ViewGraph, hosts: Hosts, rates: Rates) -> dict[str, DeviceLoad]:
    """Return what a placement asks of each device, by the sizes that messages are expected to have."""
    loads = {device: DeviceLoad() for device in graph.devices}
    for feed, routes in all_routes(graph, hosts):
        bytes_per_s = rates.get(feed, 0.0) * message_bytes(graph, feed)
        for device, share in routes.uploads.items():
            loads[device].upload_bytes_per_s += bytes_per_s * share
        for device, share in routes.downloads.items():
            loads[device].download_bytes_per_s += bytes_per_s * share
    for name in graph.views:
        if hosts[name] != CLOUD:
            loads[hosts[name]].views += 1
    return loads


def message_bytes(graph: ViewGraph, feed: str) -> int:
    """Return the bytes that a message of a feed, or of a view that others read, is expected to take.

    It is that of an event with values of usual lengths: what a DOUBLE or a STRING takes depends on what is in it.
    """
    program = graph.program
    if feed in graph.feeds:
        kind = graph.feeds[feed].kind
        stream = program.streams[stream_of(kind)]
        values = tuple(_TYPICAL[stream.type_of(column)] for column in program.pushed_columns[kind])
        key: tuple[int, ...] = (_NUMBER,)
    else:
        values = (_TYPICAL["DOUBLE"],) * len(program.templates[graph.views[feed].template].outputs)
        key = (_NUMBER, _NUMBER, 0)
    return len(encode(_NUMBER, FeedEvent(feed, key, _AT_US, values)))


def _cost_at_cloud(graph: ViewGraph, hosts: Hosts, view: PhysicalView, rates: Rates, costs: LinkCosts) -> float:
    """Return what it adds to the cost of messages if a view is computed at the cloud instead."""
    feeds = (*view.inputs, *((view.name,) if view.name in graph.consumers else ()))
    moved = {**hosts, view.name: CLOUD}
    return cost_of_feeds(graph, moved, feeds, rates, costs) - cost_of_feeds(graph, hosts, feeds, rates, costs)
