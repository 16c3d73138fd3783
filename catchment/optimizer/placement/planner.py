"""The whole planner: views in, shared fragments and their places out.

Normalise, share, make operators, place. What is planned here is what would cross the WAN at the declared rates; it
deploys nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from catchment.errors import PlanError
from catchment.optimizer.placement.cost import query_flows, utilisation
from catchment.optimizer.placement.exact import TIME_LIMIT_S, place_exactly
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.local_search import improve
from catchment.optimizer.placement.operators import operators_of
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing import demand
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.share import BytesOf, SharingState, Strength, share
from catchment.optimizer.sharing.statistics import Statistics
from catchment.query.catalog import Catalog
from catchment.query.planning.build import plan_views
from catchment.units import format_bandwidth

# Above this many operators of queries the local search is left out: its rounds cost the square of them.
MAX_SEARCHED = 600


class Planner(StrEnum):
    """Who places: the greedy with a local search from where it ends, the exact program, or nobody: as a run does it,
    where each site computes its partials, sites on the way merge what meets there, and the sink answers."""

    GREEDY = "greedy"
    EXACT = "exact"
    RUN = "run"


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


def queries_of(catalog: Catalog) -> list[SharedQuery]:
    """Return the views of a catalog as sharing sees them."""
    return [query for plan in plan_views(catalog).values() for query in demand.queries_of(plan, catalog)]


def plan_wan(
    queries: Iterable[SharedQuery],
    topology: Topology,
    statistics: Statistics,
    strength: Strength = Strength.FULL,
    planner: Planner = Planner.GREEDY,
    time_limit_s: float = TIME_LIMIT_S,
    bytes_of: BytesOf | None = None,
) -> WanPlan:
    """Plan queries together, in their order. `bytes_of`: what sharing makes least; absent: what leaves the sources."""
    sharing = share(queries, strength, bytes_of or statistics.sent)
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
    """Place what is shared; `multicast`: one copy of a stream serves all its readers at a site."""
    empty = WanPlacement(topology, multicast, capacity=sharing.strength is not Strength.MAX)
    as_run = planner is Planner.RUN
    placed = place_greedily(empty, operators_of(sharing, statistics, topology, as_run=as_run))
    if as_run:
        return WanPlan(sharing, placed, statistics)
    if len(placed.sites) <= MAX_SEARCHED:
        placed = improve(placed)
    if planner is Planner.GREEDY:
        return WanPlan(sharing, placed, statistics)
    exact = place_exactly(placed, time_limit_s)
    return WanPlan(sharing, exact.placement, statistics, exact.optimal)


def check_contracts(plan: WanPlan) -> None:
    """Refuse a plan that sends a query with a contract over a link that cannot carry what it is given."""
    placed = plan.placement
    for name, query in plan.sharing.queries.items():
        if not query.has_contract:
            continue
        names = placed.graph.queries[name]
        for (_, link), _ in query_flows(placed.graph, name, names, placed.sites, placed.topology, placed.multicast):
            use = utilisation(link, placed.rates[link], placed.topology)
            if use is not None and use > 1:
                limit = placed.topology.links[link].bandwidth_bytes_per_s
                raise PlanError(
                    f"the query {name!r} cannot meet its contract: the link {link[0]} -> {link[1]} would carry "
                    f"{format_bandwidth(placed.rates[link])} of {format_bandwidth(limit)}",
                    hint="share more (--sharing full), give the link more bandwidth, or drop the contract",
                )
