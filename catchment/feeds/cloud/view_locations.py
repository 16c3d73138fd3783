"""Where each view is computed, and so what must be sent of each feed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.routes import CLOUD, FeedRoutes, Instance, routes_of
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.view_graph import ViewGraph


class ViewLocations:
    """The hosts of every view. While a view moves it has two: the current host, then the next."""

    def __init__(self, graph: ViewGraph, tree: EdgeTree) -> None:
        self.graph = graph
        self.tree = tree
        self.views: dict[str, PhysicalView] = {}
        self.hosts: dict[str, list[str]] = {}
        self.readers: dict[str, dict[str, None]] = {}  # feed or view -> the views that read it, in a fixed order
        self.installed: dict[str, dict[str, None]] = {}  # host -> its views
        self.retired: dict[str, list[str]] = {}  # view -> devices that have not yet confirmed its end

    def current_hosts(self) -> dict[str, str]:
        """Return where each view is, or is going."""
        return {name: hosts[-1] for name, hosts in self.hosts.items()}

    @property
    def held(self) -> set[str]:
        """The views that a host has, or a device may still have."""
        return {*self.hosts, *self.retired}

    def computes(self, device: str, view: str) -> bool:
        """Return whether a device computes a view, or was told to stop and may still have its last matches."""
        return device in self.hosts_and_retired(view)

    def hosts_and_retired(self, view: str) -> list[str]:
        """Return the hosts of a view, and those that were told to stop."""
        return [*self.hosts.get(view, ()), *self.retired.get(view, ())]

    def sources(self, feed: str) -> list[str]:
        """Return where a feed, or the output of a view, is produced."""
        source = self.graph.feeds.get(feed)
        return [source.device] if source else self.hosts.get(feed, [])

    def columns_of(self, feed: str) -> int:
        """Return how many columns the events of a device's feed have; 0 for a view, whose columns never change."""
        source = self.graph.feeds.get(feed)
        return 0 if source is None else len(self.graph.program.pushed_columns[source.kind])

    def instances(self, feed: str) -> Iterator[Instance]:
        """Yield the views that read a feed, once for each host."""
        for name in self.readers.get(feed, ()):
            for host in self.hosts[name]:
                yield self.views[name], host

    def needed_routes(self, feed: str) -> FeedRoutes:
        """Return the routes that a feed needs; a host that was told to stop may still have matches under way."""
        return self.routes_to(feed, [*self.sources(feed), *self.retired.get(feed, ())], self.instances(feed))

    def routes_to(self, feed: str, sources: Iterable[str], readers: Iterable[Instance]) -> FeedRoutes:
        """Return the routes that take a feed from these places to these views."""
        return routes_of(feed, sources, readers, self.tree)

    def add(self, view: PhysicalView, host: str) -> None:
        """Add a host to those of a view."""
        self.views[view.name] = view
        hosts = self.hosts.setdefault(view.name, [])
        if host not in hosts:
            hosts.append(host)
        for feed in view.inputs:
            self.readers.setdefault(feed, {})[view.name] = None
        self.installed.setdefault(host, {})[view.name] = None

    def remove_host(self, view: str, host: str) -> None:
        """Remove a host of a view; a device has yet to confirm that."""
        self.hosts[view].remove(host)
        self._retire(view, host)

    def remove(self, view: str) -> list[str]:
        """Remove a view; return the hosts that it had."""
        hosts = self.hosts.pop(view)
        for feed in self.views.pop(view).inputs:
            self.readers[feed].pop(view, None)
            if not self.readers[feed]:
                del self.readers[feed]
        for host in hosts:
            self._retire(view, host)
        return hosts

    def _retire(self, view: str, host: str) -> None:
        self.installed[host].pop(view, None)
        retired = self.retired.setdefault(view, [])
        if host != CLOUD and host not in retired:
            retired.append(host)
        if not retired:
            del self.retired[view]

    def forget_retired(self, view: str, device: str) -> None:
        """Note that a device has confirmed the end of a view: nothing of it is under way any more."""
        left = [d for d in self.retired.pop(view, []) if d != device]
        if left:
            self.retired[view] = left
