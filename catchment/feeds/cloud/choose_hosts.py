"""From a view graph and measured rates to a placement: who computes what.

Pair views over device feeds go through the demand graph and the optimal assignment; views that join the
same two feeds are placed together. A view over one device's feeds stays on that device. With views over
views the whole hierarchy is assigned at once; where a device's data comes to a view by both of its inputs
there is no proof of optimality, and such views go, inputs first, where they add least to the traffic.

A feed that is born at the cloud takes no upload. Views over such feeds are placed with the hierarchy, which knows
sources at the cloud: it is sent down only where that costs less than what the device would send up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from catchment.feeds.cloud.edges import STAR, EdgeTree
from catchment.feeds.cloud.routes import CLOUD, Hosts, Instance, routes_of, source_of
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.template import stream_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.assign import Assignment, assign, place
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.views_over_views.assign_views import assign_views
from catchment.feeds.placement.views_over_views.hierarchy import VIEW, Hierarchy

Rates = Mapping[str, float]
Strategy = Callable[[ViewGraph, Rates, LinkCosts], dict[str, str]]


PRIOR_PER_S = 1.0  # events per second of a feed of which nobody has reported or declared a rate


def expected_rates(graph: ViewGraph, reported: Rates) -> dict[str, float]:
    """Return the rates of all feeds: as reported, else the mean that was reported of their kind, else as declared."""
    known: dict[str, list[float]] = {}
    for feed in graph.feeds.values():
        if feed.name in reported:
            known.setdefault(feed.kind, []).append(reported[feed.name])
    means = {kind: sum(rates) / len(rates) for kind, rates in known.items()}
    unknown = {
        feed.name: means[feed.kind] if feed.kind in means else _declared_rate(graph, feed.kind)
        for feed in graph.feeds.values()
        if feed.name not in reported
    }
    return {**reported, **unknown}


def _declared_rate(graph: ViewGraph, kind: str) -> float:
    return graph.program.streams[stream_of(kind)].rate or PRIOR_PER_S


def all_at_cloud(graph: ViewGraph, rates: Rates, costs: LinkCosts) -> dict[str, str]:
    """Return every view at the cloud, except those over one device's feeds."""
    return {
        v.name: CLOUD if stays_at_cloud(graph, v) else _only_device(graph, v) or CLOUD for v in graph.views.values()
    }


def stays_at_cloud(graph: ViewGraph, view: PhysicalView) -> bool:
    """Return whether a view reads the matches of all hosts, which come together at the cloud."""
    return graph.program.templates[view.template].stays_at_cloud


def least_traffic(graph: ViewGraph, rates: Rates, costs: LinkCosts) -> dict[str, str]:
    """Return the cheapest placement, of views aside that read the matches of all hosts: those are at the cloud."""
    fixed = {v.name: CLOUD for v in graph.views.values() if stays_at_cloud(graph, v)}
    if fixed:
        others = ViewGraph(graph.program, graph.feeds, {n: v for n, v in graph.views.items() if n not in fixed})
        return {**least_traffic(others, rates, costs), **fixed}
    hosts = all_at_cloud(graph, rates, costs)
    uppers = [v for v in graph.views.values() if any(i in graph.views or _is_of_cloud(graph, i) for i in v.inputs)]
    if uppers and not any(meets_itself(graph, view) for view in graph.views.values()):
        return {**hosts, **place_hierarchy(graph, rates, costs)}
    hosts.update(_place_pairs(graph, rates, costs))
    return place_one_by_one(graph, hosts, uppers, rates, costs)


STRATEGIES: dict[str, Strategy] = {"ours": least_traffic, "cloud": all_at_cloud}


def demand_of(graph: ViewGraph, rates: Rates) -> DemandGraph | None:
    """Return the demand graph over device feeds; None when no view joins feeds of two devices."""
    demands: dict[tuple[str, str], float] = {}
    for view in _pairs(graph):
        for feed, other in (view.inputs, view.inputs[::-1]):
            wanted = rates.get(feed, 0.0) * view.share_of(feed)
            demands[feed, other] = max(wanted, demands.get((feed, other), 0.0))
    if not demands:
        return None
    return DemandGraph.from_named([s for s, _ in demands], [d for _, d in demands], list(demands.values()))


def assignment_of(graph: ViewGraph, rates: Rates, costs: LinkCosts) -> Assignment | None:
    """Return the optimal assignment of the pair views over device feeds."""
    demand = demand_of(graph, rates)
    if demand is None:
        return None
    owners = [graph.feeds[demand.name(number)].device for number in range(demand.devices)]
    return assign(demand, costs.to_device_costs(owners))


def place_one_by_one(
    graph: ViewGraph,
    hosts: Hosts,
    views: Iterable[PhysicalView],
    rates: Rates,
    costs: LinkCosts,
    tree: EdgeTree = STAR,
) -> dict[str, str]:
    """Add views to a placement, each where it adds least to the traffic of those before it."""
    chosen = dict(hosts)
    views = list(views)
    pending = [v for v in views if _only_device(graph, v) is None and not stays_at_cloud(graph, v)]
    for view in pending:
        chosen.pop(view.name, None)
    for view in pending:
        sources = [source_of(graph, chosen, i) for i in view.inputs]
        candidates = list(dict.fromkeys([CLOUD, *sorted(tree.edges_above(sources)), *sources]))
        added = [added_cost(graph, chosen, (view, host), rates, costs, tree) for host in candidates]
        chosen[view.name] = candidates[added.index(min(added))]
    fixed = {v.name: CLOUD if stays_at_cloud(graph, v) else _only_device(graph, v) for v in views if v not in pending}
    return {**chosen, **{name: host for name, host in fixed.items() if host is not None}}


def _pairs(graph: ViewGraph) -> Iterable[PhysicalView]:
    for view in graph.views.values():
        born_on_devices = all(i in graph.feeds and not _is_of_cloud(graph, i) for i in view.inputs)
        joins_feeds = len(view.inputs) == 2 and born_on_devices
        if joins_feeds and _only_device(graph, view) is None:
            yield view


def _only_device(graph: ViewGraph, view: PhysicalView) -> str | None:
    """Return the device of a view whose data is all from one device."""
    origins = graph.origins(view.name)
    return next(iter(origins)) if len(origins) == 1 else None


def _place_pairs(graph: ViewGraph, rates: Rates, costs: LinkCosts) -> dict[str, str]:
    assignment = assignment_of(graph, rates, costs)
    if assignment is None:
        return {}
    demand = assignment.graph
    placed = place(assignment)
    sites = {
        frozenset({demand.name(a), demand.name(b)}): demand.name(site) if site != AT_CLOUD else None
        for a, b, site in zip(placed.src.tolist(), placed.dst.tolist(), placed.site.tolist(), strict=True)
    }
    feeds = {v.name: sites[frozenset(v.inputs)] for v in _pairs(graph)}
    return {name: CLOUD if feed is None else graph.feeds[feed].device for name, feed in feeds.items()}


def meets_itself(graph: ViewGraph, view: PhysicalView) -> bool:
    """Return whether one device's data comes to a view by both inputs (a view on one device aside)."""
    if _only_device(graph, view) is not None or len(view.inputs) < 2:
        return False
    return bool((graph.origins(view.inputs[0]) & graph.origins(view.inputs[1])) - {CLOUD})


def _is_of_cloud(graph: ViewGraph, feed: str) -> bool:
    return feed in graph.feeds and graph.feeds[feed].is_of_cloud


def place_hierarchy(graph: ViewGraph, rates: Rates, costs: LinkCosts) -> dict[str, str]:
    """Place all levels at once; a view on one device counts as a source of that device."""
    devices = {name: number for number, name in enumerate(graph.devices)}
    homes = {name: AT_CLOUD if feed.is_of_cloud else devices[feed.device] for name, feed in graph.feeds.items()}
    for view in graph.views.values():
        only = _only_device(graph, view)
        homes[view.name] = VIEW if only is None else devices.get(only, AT_CLOUD)
    number = {name: at for at, name in enumerate(homes)}
    placed = [name for name, home in homes.items() if home == VIEW]
    if not placed:
        return {}
    edges = [
        (number[feed], number[name], rates.get(feed, 0.0) * graph.views[name].share_of(feed))
        for name in placed
        for feed in graph.views[name].inputs
    ]
    hierarchy = Hierarchy.of(len(devices), list(homes.values()), *zip(*edges, strict=True))
    site = assign_views(hierarchy, costs.to_device_costs(graph.devices)).site
    return {name: CLOUD if (at := site[number[name]]) < 0 else graph.devices[at] for name in placed}


def cost_of_feeds(
    graph: ViewGraph, hosts: Hosts, feeds: Iterable[str], rates: Rates, costs: LinkCosts, tree: EdgeTree = STAR
) -> float:
    """Return what a placement costs per second for some feeds, and views that others read."""
    cost = 0.0
    for feed in feeds:
        readers = [(v, hosts[v.name]) for v in graph.consumers[feed]]
        routes = routes_of(feed, [source_of(graph, hosts, feed)], readers, tree)
        cost += rates.get(feed, 0.0) * costs.of_messages(routes.uploads, routes.downloads)
    return cost


def added_cost(
    graph: ViewGraph, hosts: Mapping[str, str], added: Instance, rates: Rates, costs: LinkCosts, tree: EdgeTree = STAR
) -> float:
    """Return the cost of one more view, given those that are placed."""
    cost = 0.0
    for feed in added[0].inputs:
        source = [source_of(graph, hosts, feed)]
        readers = [(v, hosts[v.name]) for v in graph.consumers[feed] if v.name in hosts]
        before = routes_of(feed, source, readers, tree)
        after = routes_of(feed, source, [*readers, added], tree)
        with_it = costs.of_messages(after.uploads, after.downloads)
        cost += rates.get(feed, 0.0) * (with_it - costs.of_messages(before.uploads, before.downloads))
    return cost
