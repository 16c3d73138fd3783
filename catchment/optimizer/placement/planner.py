"""The whole planner: views in, shared fragments and their sites out.

The steps are: normalise, share, make operators, place. A plan says what would cross the WAN at the declared rates;
nothing is deployed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from catchment.optimizer.choices import Planner, Strength
from catchment.optimizer.contracts import LinkLoad, check_contract
from catchment.optimizer.placement.cost import query_flows
from catchment.optimizer.placement.exact import TIME_LIMIT_S, place_exactly
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.local_search import improve
from catchment.optimizer.placement.operators import operators_of
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing import demand
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.share import BytesOf, SharingState, share
from catchment.optimizer.sharing.statistics import Statistics
from catchment.query.catalog import Catalog
from catchment.query.planning.build import plan_views

MAX_EXPLAINED = 20_000  # operators of a plan whose choices are kept
MAX_SEARCHED = 600  # most placed operators for a local search, whose rounds take time in their square


@dataclass(frozen=True)
class WanPlan:
    """What is shared, and where everything runs."""

    sharing: SharingState
    placement: WanPlacement
    statistics: Statistics
    optimal: bool = False

    @property
    def wan_bytes_per_s(self) -> float:
        return self.placement.cost.wan_bytes_per_s


def queries_of_catalog(catalog: Catalog) -> list[SharedQuery]:
    """Return the views of a catalog as sharing sees them."""
    return [query for plan in plan_views(catalog).values() for query in demand.queries_of_plan(plan, catalog)]


def plan_wan(
    queries: Iterable[SharedQuery],
    topology: Topology,
    statistics: Statistics,
    strength: Strength = Strength.FULL,
    planner: Planner = Planner.GREEDY,
    time_limit_s: float = TIME_LIMIT_S,
    bytes_of: BytesOf | None = None,
) -> WanPlan:
    """Plan queries together, in their order.

    `bytes_of` is what sharing minimises; absent, it is what leaves the sites of the streams.
    """
    sharing = share(queries, strength, bytes_of or statistics.sent_bytes_per_s)
    routed = strength in (Strength.FULL, Strength.MAX)
    return place_shared(sharing, topology, statistics, routed, planner, time_limit_s)


def place_shared(
    sharing: SharingState,
    topology: Topology,
    statistics: Statistics,
    multicast: bool,
    planner: Planner = Planner.GREEDY,
    time_limit_s: float = TIME_LIMIT_S,
) -> WanPlan:
    """Place what is shared; with `multicast`, one copy of a stream serves all its readers at a site."""
    empty = WanPlacement(topology, multicast, capacity=sharing.strength is not Strength.MAX)
    as_run = planner is Planner.RUN
    graph = operators_of(sharing, statistics, topology, as_run=as_run)
    placed = place_greedily(empty, graph, explains=len(graph.operators) <= MAX_EXPLAINED)
    if as_run:
        return WanPlan(sharing, placed, statistics)
    if len(placed.sites) <= MAX_SEARCHED:
        placed = improve(placed)
    if planner is Planner.GREEDY:
        return WanPlan(sharing, placed, statistics)
    exact = place_exactly(placed, time_limit_s)
    return WanPlan(sharing, exact.placement, statistics, exact.optimal)


def check_plan_contracts(plan: WanPlan) -> None:
    """Refuse a plan that sends a query with a contract over a link that cannot carry what it is given."""
    placed = plan.placement
    for name, query in plan.sharing.queries.items():
        if not query.has_contract:
            continue
        names = placed.graph.queries[name]
        flows = query_flows(placed.graph, name, names, placed.sites, placed.topology, placed.multicast)
        links = dict.fromkeys(link for (_, link), _ in flows)
        capacity = {link: placed.topology.links[link].bandwidth_bytes_per_s for link in links}
        check_contract(name, (LinkLoad(link, placed.rates[link], capacity[link]) for link in links))
