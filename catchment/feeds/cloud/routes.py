"""Who sends what to whom, given where each view is computed; and how much that is.

Law: the source of a feed uploads it once, at the largest share that any other place wants of it, and each
device that computes a view over somebody else's feed downloads it at the largest share that its views want
(Chandramouli et al., VLDB'13, section 3.5.2). Between an edge cloud and the cloud it is the same: a feed crosses the
link once, at the largest share that is wanted beyond it. Control messages and notices are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.edges import STAR, EdgeTree
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.template import CLOUD_FEED
from catchment.feeds.language.view_graph import ViewGraph

CLOUD = CLOUD_FEED

Hosts = Mapping[str, str]  # view -> CLOUD, or the device or edge cloud that computes it
Instance = tuple[PhysicalView, str]  # a view at one host; while it moves there are two


@dataclass
class FeedRoutes:
    """The routes of one feed: the share that crosses each link upwards, and downwards, by what is at its lower end."""

    uploads: dict[str, float] = field(default_factory=dict)
    downloads: dict[str, float] = field(default_factory=dict)


def routes_of(feed: str, sources: Iterable[str], readers: Iterable[Instance], tree: EdgeTree = STAR) -> FeedRoutes:
    """Return the routes that take a feed from the places where it is born to the places where views read it."""
    needed = FeedRoutes()
    readers = list(readers)
    for source in sources:
        for view, host in readers:
            if host == source:
                continue
            share = view.share_of(feed)
            up, down = tree.way(source, host)
            for link in up:
                needed.uploads[link] = max(share, needed.uploads.get(link, 0.0))
            for link in down:
                needed.downloads[link] = max(share, needed.downloads.get(link, 0.0))
    return needed


def all_routes(graph: ViewGraph, hosts: Hosts, tree: EdgeTree = STAR) -> Iterator[tuple[str, FeedRoutes]]:
    """Yield the routes of every feed and view output that some view reads."""
    for feed, readers in graph.consumers.items():
        yield feed, routes_of(feed, [source_of(graph, hosts, feed)], [(v, hosts[v.name]) for v in readers], tree)


def source_of(graph: ViewGraph, hosts: Hosts, feed: str) -> str:
    """Return where a feed, or the output of a view, is born."""
    return graph.feeds[feed].device if feed in graph.feeds else hosts[feed]


@dataclass
class Traffic:
    """Data messages per second and link, each way."""

    up: dict[str, float] = field(default_factory=dict)
    down: dict[str, float] = field(default_factory=dict)

    def cost(self, upload_cost: float, download_cost: float) -> float:
        return upload_cost * sum(self.up.values()) + download_cost * sum(self.down.values())


def predict(graph: ViewGraph, hosts: Hosts, rates: Mapping[str, float], tree: EdgeTree = STAR) -> Traffic:
    """Return the traffic of a placement, from the events per second of each feed (and of views that others read)."""
    traffic = Traffic()
    for feed, routes in all_routes(graph, hosts, tree):
        rate = rates.get(feed, 0.0)
        for device, share in routes.uploads.items():
            traffic.up[device] = traffic.up.get(device, 0.0) + rate * share
        for device, share in routes.downloads.items():
            traffic.down[device] = traffic.down.get(device, 0.0) + rate * share
    return traffic


def check_hosts(graph: ViewGraph, hosts: Hosts, tree: EdgeTree = STAR) -> None:
    """Refuse a placement that forgets a view or puts one where none of its data is from."""
    for name in graph.views:
        host = hosts.get(name)
        if host is None:
            raise FeedError(f"the placement says nothing about {name!r}")
        if host != CLOUD and graph.program.templates[graph.views[name].template].stays_at_cloud:
            raise FeedError(f"{name!r} has a window or a table and is placed at {host!r}; possible: {CLOUD}")
        origins = graph.origins(name)
        if host != CLOUD and host not in origins and host not in tree.edges_above(origins):
            possible = ", ".join(sorted((origins | tree.edges_above(origins)) - {CLOUD}))
            raise FeedError(f"{name!r} is placed at {host!r}; possible: {CLOUD}, {possible}")
