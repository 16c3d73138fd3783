"""What a placement costs: bytes per second on each link, use of capacity, and the sum of rate x latency^2 / bandwidth.

A flow is one copy of an operator's output on one link. Without multicast each reader has a copy of its own. With
multicast (IN sharing of Sana, section 4.1.2; in catchment the inbox of a site) all readers at a site are served by one
copy, and a link carries it once, however many sites lie behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from catchment.optimizer.placement.operators import OperatorGraph
from catchment.optimizer.placement.topology import LinkName, Topology

Assignment = Mapping[tuple[str, str], str]  # (query, operator) -> site
Channel = tuple[str, ...]  # what is carried once: (producer,), or (producer, reader, its site)
Flow = tuple[Channel, LinkName]


@dataclass(frozen=True)
class Cost:
    """A cost, compared in this order: bytes beyond the capacity of links, bytes, and Sana's link cost."""

    overload: float
    wan_bytes_per_s: float
    link_cost: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.overload + other.overload,
            self.wan_bytes_per_s + other.wan_bytes_per_s,
            self.link_cost + other.link_cost,
        )

    @property
    def key(self) -> tuple[float, float, float]:
        return round(self.overload, 6), round(self.wan_bytes_per_s, 6), self.link_cost


def channel(producer: str, reader: str, site: str, multicast: bool) -> Channel:
    """Return the key of what is carried once from a producer to a reader at a site."""
    return (producer,) if multicast else (producer, reader, site)


def flows(graph: OperatorGraph, sites: Assignment, topology: Topology, multicast: bool) -> Iterator[tuple[Flow, str]]:
    """Yield every (flow, producer) of a deployment; equal flows are one."""
    for query, names in graph.queries.items():
        yield from query_flows(graph, query, names, sites, topology, multicast)


def query_flows(
    graph: OperatorGraph, query: str, names: Iterable[str], sites: Assignment, topology: Topology, multicast: bool
) -> Iterator[tuple[Flow, str]]:
    """Yield the flows into some operators of a query."""
    for reader in names:
        to = sites[query, reader]
        for producer in graph.operators[reader].inputs:
            made = channel(producer, reader, to, multicast)
            for link in topology.required_route(sites[query, producer], to):
                yield (made, link), producer


def link_rates(graph: OperatorGraph, sites: Assignment, topology: Topology, multicast: bool) -> dict[LinkName, float]:
    """Return the bytes per second on each link that carries something."""
    rates: dict[LinkName, float] = {}
    for (_, link), producer in dict(flows(graph, sites, topology, multicast)).items():
        rates[link] = rates.get(link, 0.0) + graph.operators[producer].rate
    return rates


def cost_of(rates: Mapping[LinkName, float], topology: Topology) -> Cost:
    """Return the cost of what links carry."""
    over = sum(max(0.0, r - topology.links[n].bandwidth_bytes_per_s) for n, r in rates.items())
    link_cost = sum(r * topology.links[n].cost_per_byte for n, r in rates.items())
    return Cost(over, sum(rates.values()), link_cost)


def utilisation(link: LinkName, rate: float, topology: Topology) -> float | None:
    """Return use over capacity, above 1 for a congested link; None where nothing limits the link."""
    capacity = topology.links[link].bandwidth_bytes_per_s
    return rate / capacity if math.isfinite(capacity) else None


def throughput(graph: OperatorGraph, sites: Assignment, topology: Topology, multicast: bool) -> dict[str, float]:
    """Return the share of each query's input that its most congested link lets through, all flows slowed alike."""
    rates = link_rates(graph, sites, topology, multicast)
    share = {n: min(1.0, topology.links[n].bandwidth_bytes_per_s / r) if r else 1.0 for n, r in rates.items()}
    return {
        query: min(
            (share[link] for (_, link), _ in query_flows(graph, query, names, sites, topology, multicast)), default=1.0
        )
        for query, names in graph.queries.items()
    }
