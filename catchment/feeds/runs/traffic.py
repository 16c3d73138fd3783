"""What crosses the links of devices, measured and predicted, in the same units: data messages and bytes, each way.

What is predicted is what a placement needs (see `feeds/cloud/routes.py`): messages from shares and rates, bytes from
the size of a feed's own messages. Notices and control messages are counted apart: placement does not affect them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from catchment.feeds.cloud.edges import STAR, EdgeTree
from catchment.feeds.cloud.routes import CLOUD, Hosts, all_routes
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.channel import DATA, LinkTraffic
from catchment.feeds.protocol.codec import encode
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.runs.workload import Workload

WAYS = ("messages_up", "messages_down", "bytes_up", "bytes_down")
MAX_SAMPLED = 100_000  # most records that are read to find the size of messages


@dataclass(frozen=True)
class Totals:
    """Data messages and bytes that crossed all links, each way, up to an instant."""

    at_us: int
    messages_up: float = 0.0
    messages_down: float = 0.0
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    @classmethod
    def of(cls, links: Iterable[LinkTraffic], at_us: int) -> Totals:
        links = list(links)
        return cls(
            at_us,
            sum(link.up.messages[DATA] for link in links),
            sum(link.down.messages[DATA] for link in links),
            sum(link.up.bytes[DATA] for link in links),
            sum(link.down.bytes[DATA] for link in links),
        )

    def per_second_since(self, earlier: Totals) -> dict[str, float]:
        seconds = (self.at_us - earlier.at_us) / 1e6
        return {way: (getattr(self, way) - getattr(earlier, way)) / seconds for way in WAYS}


def predict_traffic(
    graph: ViewGraph, hosts: Hosts, rates: Mapping[str, float], sizes: Mapping[str, float], tree: EdgeTree = STAR
) -> dict[str, float]:
    """Return messages and bytes per second of a placement, on the links of the cloud itself."""
    found = dict.fromkeys(WAYS, 0.0)
    for feed, routes in all_routes(graph, hosts, tree):
        for way, shares in (("up", routes.uploads), ("down", routes.downloads)):
            messages = rates.get(feed, 0.0) * sum(share for link, share in shares.items() if tree.parent(link) == CLOUD)
            found[f"messages_{way}"] += messages
            found[f"bytes_{way}"] += messages * sizes.get(feed, 0.0)
    return found


def message_sizes(graph: ViewGraph, workload: Workload, from_us: int, boot: int = 0) -> dict[str, float]:
    """Return the bytes per message of each feed, by an early event that is numbered as after a while of running."""
    compiled = compile_feeds(graph.program)
    number = boot + 100
    sizes: dict[str, float] = {}
    for record in islice(workload.records(from_us), MAX_SAMPLED):
        for kind, values in compiled.feeds_of(record.stream, record.row):
            feed = f"{kind}@{record.device}"
            if feed not in sizes:
                sizes[feed] = float(len(encode(number, FeedEvent(feed, (number,), record.at_us, values))))
        if len(sizes) >= max(len(graph.feeds), len(workload.feed_rates)):
            break
    return sizes


def relative_gap(measured: Mapping[str, float], predicted: Mapping[str, float]) -> dict[str, float]:
    """Return how far each measurement is from its prediction, as a share of it."""
    return {
        way: abs(measured[way] - predicted[way]) / predicted[way] if predicted[way] else float(measured[way] > 0)
        for way in WAYS
    }
