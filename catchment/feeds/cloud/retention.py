"""What the hosts of views have to keep, given lifetimes and rates; and what follows where they cannot. Pure.

An event is kept for its lifetime and, where an input may be silent, for `away_us` more. Any view may be moved to the
cloud, so a program is refused when the cloud could not keep what all its views need. A device has a smaller bound:
views that need more than it keeps are computed at the cloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.routes import CLOUD, Hosts
from catchment.feeds.device.limits import CLOUD_LIMITS, HostLimits
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.template import stream_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.units import format_duration

EVENT_BYTES = 200  # what an event is expected to take on disk
SETTINGS = "[retention] in feeds.toml"

Rates = Mapping[str, float]


def capacity_of(limits: HostLimits) -> int:
    """Return how many events a host keeps, those on disk of the expected size."""
    return limits.memory_events + limits.disk_bytes // EVENT_BYTES


@dataclass(frozen=True)
class Retention:
    """The declared bounds of the cloud, and those of each device."""

    cloud: HostLimits = field(default_factory=lambda: CLOUD_LIMITS)
    device: HostLimits = field(default_factory=HostLimits)

    def check(self, graph: ViewGraph, rates: Rates) -> None:
        """Refuse views whose events the cloud could not keep at these rates; a rate that is not known counts as 0."""
        needed = events_to_keep(graph, graph.views.values(), CLOUD, rates, self.cloud.away_us)
        if sum(needed.values()) > capacity_of(self.cloud):
            raise self._refusal(graph, needed)

    def _refusal(self, graph: ViewGraph, needed: Mapping[str, float]) -> FeedError:
        total = sum(needed.values())
        longest = max((graph.program.templates[v.template] for v in graph.views.values()), key=lambda t: t.lifetime_us)
        lives = f"lifetimes of up to {format_duration(longest.lifetime_us)}"
        absence = f"{format_duration(self.cloud.away_us)} more for devices that are away"
        bounds = f"{self.cloud.memory_events:,} in memory, the rest in {self.cloud.disk_bytes:,} bytes on disk"
        disk_mb = max(1, round((total - self.cloud.memory_events) * EVENT_BYTES * 1.1 / 1e6))
        return FeedError(
            f"the cloud would have to keep {total:,.0f} events of {len(needed):,} feeds, for {lives} and {absence}; "
            f"it keeps {capacity_of(self.cloud):,}: {bounds}",
            where=f"{longest.where}, view {longest.name!r}",
            hint=f"shorten the lifetime, or set cloud_disk = '{disk_mb} MB' or more under {SETTINGS}",
        )

    def fit(self, graph: ViewGraph, hosts: Hosts, rates: Rates) -> dict[str, str]:
        """Return a placement with the cloud in place of devices that could not keep what their views need.

        The views that need most go first.
        """
        fitted = dict(hosts)
        by_device: dict[str, list[PhysicalView]] = {}
        for name, host in hosts.items():
            if host != CLOUD and name in graph.views:
                by_device.setdefault(host, []).append(graph.views[name])
        for device, views in by_device.items():
            for view in self._too_many(graph, device, views, rates):
                fitted[view.name] = CLOUD
        return fitted

    def _too_many(
        self, graph: ViewGraph, device: str, views: list[PhysicalView], rates: Rates
    ) -> Iterable[PhysicalView]:
        """Yield the views that a device has to give up."""

        def needs(some: Iterable[PhysicalView]) -> float:
            return sum(events_to_keep(graph, some, device, rates, self.device.away_us).values())

        if needs(views) <= capacity_of(self.device):
            return
        left = sorted(views, key=lambda view: (needs([view]), view.name))
        while left and needs(left) > capacity_of(self.device):
            yield left.pop()


class RetentionWatch:
    """Tells, once each time, that a running cloud cannot keep what its views need, and that a bound took events."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.is_short = False
        self.forgotten = 0

    def look(self, graph: ViewGraph, rates: Rates, forgotten: int) -> Iterator[str]:
        """Yield what is new, given the rates that were measured and how many events were forgotten so far."""
        was_short = self.is_short
        self.is_short = False
        try:
            self.retention.check(graph, rates)
        except FeedError as error:
            self.is_short = True
            if not was_short:
                yield f"at the measured rates {error}"
        if forgotten > self.forgotten:
            yield f"{forgotten - self.forgotten:,} events were let go at a bound; matches with them are lost"
        self.forgotten = forgotten


def events_to_keep(
    graph: ViewGraph, views: Iterable[PhysicalView], host: str, rates: Rates, away_us: int
) -> dict[str, float]:
    """Return how many events of each feed a host of these views has to keep at these rates."""
    seconds: dict[str, float] = {}
    shares: dict[str, float] = {}
    for view in views:
        template = graph.program.templates[view.template]
        if not template.is_pair and template.window is None and not graph.program.has_operator(template):
            continue  # an event of a view over one input meets nothing
        for row in view.rows:
            for feed, item in zip(row.inputs, template.inputs, strict=True):
                seconds[feed] = max((item.lifetime_us + away_us) / 1e6, seconds.get(feed, 0.0))
        for feed in view.inputs:
            is_own = feed in graph.feeds and graph.feeds[feed].device == host
            shares[feed] = max(1.0 if is_own else view.share_of(feed), shares.get(feed, 0.0))
    return {feed: _rate(graph, feed, rates) * shares[feed] * kept_s for feed, kept_s in seconds.items()}


def _rate(graph: ViewGraph, feed: str, rates: Rates) -> float:
    """Return the rate of a feed: as measured, else as its stream declares it."""
    if feed in rates or feed not in graph.feeds:
        return rates.get(feed, 0.0)
    return graph.program.streams[stream_of(graph.feeds[feed].kind)].rate or 0.0
