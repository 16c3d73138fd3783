"""How late answers are under a placement, in virtual time: what a link cannot carry waits before it.

Flows are fluid: a link that is asked for more than it carries lets all its flows through in proportion, and what waits
before it grows by the rest. So a byte that comes to a link after some seconds waits for what has gathered there by
then, and the answer to it is as late as the slowest way from a source to the sink.
"""

from __future__ import annotations

from collections.abc import Mapping

from catchment.optimizer.placement.cost import query_flows
from catchment.optimizer.placement.greedy import WanPlacement
from catchment.optimizer.placement.topology import LinkName


def link_delay_s(placement: WanPlacement, link: LinkName, after_s: float) -> float:
    """Return how long a byte takes over a link that has carried its flows for so many seconds."""
    known = placement.topology.links[link]
    asked = placement.rates.get(link, 0.0) / known.bandwidth_bytes_per_s
    return known.latency_s + max(0.0, asked - 1.0) * after_s


def answer_delays_s(placement: WanPlacement, after_s: float) -> dict[str, float]:
    """Return how late the answers of each query are after so many seconds, beyond the end of their window."""
    links = {link: link_delay_s(placement, link, after_s) for link in placement.topology.links}
    return {query: _delay_s(placement, query, links) for query in placement.graph.queries}


def _delay_s(placement: WanPlacement, query: str, links: Mapping[LinkName, float]) -> float:
    arrived: dict[str, float] = {}  # by operator: when the last of its inputs is there
    for name in placement.graph.queries[query]:  # inputs come first
        arrived[name] = max(
            (
                arrived[i] + sum(links[link] for link in _route(placement, query, i, name))
                for i in placement.graph.operators[name].inputs
            ),
            default=0.0,
        )
    return max(arrived.values(), default=0.0)


def _route(placement: WanPlacement, query: str, producer: str, reader: str) -> list[LinkName]:
    """Return the links from a producer to a reader of a query."""
    flows = query_flows(placement.graph, query, (reader,), placement.sites, placement.topology, placement.multicast)
    return [link for (_, link), made in flows if made == producer]
