"""The state of a running fleet, for people who watch it: traffic second by second, and who computes what.

A board is sampled by the thread that drives the run and gives plain data; what shows it (a page, a log, a table)
holds copies only. Its memory is bounded: `HISTORY` samples, `TOP` devices.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from catchment.feeds.cloud.choose_hosts import all_at_cloud
from catchment.feeds.cloud.controller import FeedController
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.protocol.channel import CONTROL, NOTICE, LinkTraffic
from catchment.feeds.runs.traffic import Totals, predict_traffic

HISTORY = 600  # samples that are kept
MOVES = 20  # moves of views that are shown, the newest ones
TOP = 15  # devices that are shown, those with most views first
SMOOTHED_S = 5  # measured rates are over this many samples
PREDICT_EVERY = 5  # samples between two predictions: they cost more than a sample


class Board:
    """The state of one run."""

    def __init__(
        self,
        strategy: str,
        controller: FeedController,
        links: Callable[[], Mapping[str, LinkTraffic]],
        costs: LinkCosts,
        sizes: Mapping[str, float],
    ) -> None:
        self.strategy = strategy
        self.controller = controller
        self.links = links
        self.costs = costs
        self.sizes = sizes
        self.totals: deque[Totals] = deque(maxlen=SMOOTHED_S + 1)
        self.history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self.predicted: dict[str, dict[str, float]] = {}
        self.samples = 0
        self.redeployed = 0
        self.hosts: dict[str, str] | None = None  # at the last sample
        self.moves: deque[dict[str, Any]] = deque(maxlen=MOVES)

    def sample(self, now_us: int, redeployed: int) -> None:
        """Record what has crossed the links so far; to be called once per second."""
        self.redeployed = redeployed
        self.totals.append(Totals.of(self.links().values(), now_us))
        self._note_moves(now_us)
        if self.samples % PREDICT_EVERY == 0:
            self._predict()
        self.samples += 1
        if self.totals[-1].at_us > self.totals[0].at_us:
            measured = self.totals[-1].per_second_since(self.totals[0])
            cloud = self.predicted["all_at_cloud"]
            self.history.append(
                {
                    "at_s": round(now_us / 1e6, 1),
                    **{way: round(rate, 2) for way, rate in measured.items()},
                    "all_at_cloud": round(cloud["messages_up"] + cloud["messages_down"], 2),
                    "all_at_cloud_bytes": round(cloud["bytes_up"] + cloud["bytes_down"], 1),
                }
            )

    def _predict(self) -> None:
        controller = self.controller
        graph = self.controller.graph
        hosts = {
            "present": controller.current_hosts(),
            "all_at_cloud": all_at_cloud(graph, controller.rates, self.costs),
        }
        for name, placed in hosts.items():
            known = placed if len(placed) == len(graph.views) else hosts["all_at_cloud"]
            sizes = self._sizes_of(graph)
            self.predicted[name] = predict_traffic(graph, known, controller.rates, sizes, controller.tree)

    def _sizes_of(self, graph: ViewGraph) -> dict[str, float]:
        """Return the bytes per message of each feed; those that no recording tells have the mean of what was sent."""
        sent = self.totals[-1]
        mean = sent.bytes_up / sent.messages_up if sent.messages_up else 0.0
        return {feed: self.sizes.get(feed, mean) for feed in (*graph.feeds, *self.sizes)}

    def _note_moves(self, now_us: int) -> None:
        """Note which views have another host than at the last sample; those that came are not moves."""
        hosts = self.controller.current_hosts()
        before = self.hosts if self.hosts is not None else hosts
        for view, host in hosts.items():
            if before.get(view, host) != host:
                self.moves.append({"at_s": now_us // 1_000_000, "view": view, "from": before[view], "to": host})
        self.hosts = hosts

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data."""
        controller = self.controller
        links = self.links()
        hosts = Counter(controller.current_hosts().values())
        at_cloud = hosts.pop(CLOUD, 0)
        edges = [self._edge(name, hosts.pop(name, 0), links) for name in sorted(controller.tree.clouds)]
        return {
            "strategy": self.strategy,
            "views_at_cloud": at_cloud,
            "views_at_edges": sum(edge["views"] for edge in edges),
            "views_on_devices": sum(hosts.values()),
            "devices_that_compute": len(hosts),
            "devices_heard": len(controller.registered),
            "moving": len(controller.moving),
            "moved": controller.counters.moves_done,
            "redeployments": self.redeployed,
            "instructions": controller.counters.instructions,
            "notices": _count(links.values(), NOTICE),
            "control_messages": _count(links.values(), CONTROL),
            "predicted": dict(self.predicted),
            "history": list(self.history),
            "moves": list(self.moves)[::-1],
            "edges": edges,
            "top": [self._device(name, count, links) for name, count in hosts.most_common(TOP)],
        }

    def _edge(self, name: str, views: int, links: Mapping[str, LinkTraffic]) -> dict[str, Any]:
        controller = self.controller
        devices = controller.tree.devices_of(name)
        link = links.get(name)
        return {
            "edge": name,
            "heard": name in controller.registered_edges,
            "devices": len(devices),
            "views": views,
            "views_below": sum(host in devices for host in controller.current_hosts().values()),
            "sent": sum(link.up.messages.values()) if link else 0,
            "received": sum(link.down.messages.values()) if link else 0,
        }

    def _device(self, name: str, views: int, links: Mapping[str, LinkTraffic]) -> dict[str, Any]:
        rates = self.controller.rates
        link = links.get(name)
        return {
            "device": name,
            "views": views,
            "events_per_s": round(sum(rates.get(f, 0.0) for f in self.controller.feeds_of.get(name, ())), 3),
            "uploads": {f: round(s, 4) for f, s in self.controller.uploads_of(name).items()},
            "edge": (edge := self.controller.tree.edge_of.get(name)),
            "sent": None if edge else sum(link.up.messages.values()) if link else 0,  # its edge cloud knows
            "received": None if edge else sum(link.down.messages.values()) if link else 0,
        }


def _count(links: Iterable[LinkTraffic], kind: str) -> int:
    return sum(link.up.messages[kind] + link.down.messages[kind] for link in links)
