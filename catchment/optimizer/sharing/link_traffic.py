"""What a run sends over each link: the partials of every fragment, merged where routes of sites meet.

The first link of a light site carries its records instead, once for all fragments of their stream.
"""

from __future__ import annotations

from dataclasses import replace

from catchment.optimizer.contracts import LinkLoad, check_contract
from catchment.optimizer.sharing.demand import FragmentDemand
from catchment.optimizer.sharing.share import BytesOf, SharingState
from catchment.optimizer.sharing.statistics import Statistics
from catchment.project.config import Project
from catchment.project.routes import LinkName, Routes


def link_traffic(project: Project, sharing: SharingState, statistics: Statistics) -> dict[LinkName, float]:
    """Return the bytes per second on each link of a run."""
    return traffic_over(Routes.of(project), sharing, statistics)


def traffic_over(routes: Routes, sharing: SharingState, statistics: Statistics) -> dict[LinkName, float]:
    """Return the bytes per second on each link, if everything took these routes."""
    rates: dict[LinkName, float] = {}
    for demand in sharing.fragments.values():
        for link, rate in fragment_traffic(routes, demand, statistics).items():
            rates[link] = rates.get(link, 0.0) + rate
    for link, streams in record_links(routes, sharing).items():
        rates[link] = sum(statistics.raw_bytes_per_s(stream, link[0]) for stream in streams)
    return rates


def record_links(routes: Routes, sharing: SharingState) -> dict[LinkName, tuple[str, ...]]:
    """Return the links that records cross, each with their streams: the first ones of light sites."""
    born = {(site, d.source.stream) for d in sharing.fragments.values() for site in d.source.sites}
    found: dict[LinkName, tuple[str, ...]] = {}
    for site, stream in sorted(born):
        if site in routes.light:
            link = (site, routes.hops[site])
            found[link] = (*found.get(link, ()), stream)
    return found


def fragment_traffic(routes: Routes, demand: FragmentDemand, statistics: Statistics) -> dict[LinkName, float]:
    """Return the bytes per second of the partials of one fragment on each link of a run."""
    behind: dict[LinkName, list[str]] = {}
    for site in demand.source.sites:
        for link in routes.route(site)[1 if site in routes.light else 0 :]:
            behind.setdefault(link, []).append(site)
    return {link: statistics.merged_bytes_per_s(demand, sites) for link, sites in behind.items()}


def bytes_over_links(routes: Routes, statistics: Statistics) -> BytesOf:
    """Return the estimate that sharing minimises: bytes per second of a demand over all links of a run."""
    return lambda demand: sum(fragment_traffic(routes, demand, statistics).values())


def check_contracts(project: Project, sharing: SharingState, statistics: Statistics) -> None:
    """Refuse a query with a contract that a link could not keep, where the rates of its stream are known."""
    known = {n: d for n, d in sharing.fragments.items() if d.source.stream in statistics.streams}
    rates = link_traffic(project, replace(sharing, fragments=known), statistics)
    routes = Routes.of(project)
    for query in sharing.queries.values():
        source = query.demand.source
        if query.has_contract and source.stream in statistics.streams:
            links = dict.fromkeys(link for site in source.sites for link in routes.route(site))
            loads = (LinkLoad(link, rates[link], project.link(*link).bandwidth_bytes_per_s) for link in links)
            check_contract(query.name, loads)
