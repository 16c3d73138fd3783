"""What a run sends over each link: the partials of every fragment, merged where routes of sites meet.

The first link of a light site carries its records instead, once for all fragments of their stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    return {link: statistics.merged_bytes_per_s(demand, sites) for link, sites in _sites_behind(routes, demand).items()}


def _sites_behind(routes: Routes, demand: FragmentDemand) -> dict[LinkName, tuple[str, ...]]:
    """Return the sites whose partials of a fragment cross each link."""
    behind: dict[LinkName, tuple[str, ...]] = {}
    for site in demand.source.sites:
        for link in routes.route(site)[1 if site in routes.light else 0 :]:
            behind[link] = (*behind.get(link, ()), site)
    return behind


_Carried = tuple[LinkName, str, tuple[str, ...]]  # the link, what is computed, and of which sites


@dataclass(frozen=True)
class SummedTraffic:
    """The bytes per second that a link carries for all sinks together.

    Partials that a site sends to several sinks by one link cross it once; what that spares is not in `bytes_per_s`.
    Behind a relay, which merges for each sink by itself, they are repeated.
    """

    bytes_per_s: float = 0.0
    repeated_bytes_per_s: float = 0.0  # of these, partials that it carries for another sink too, but for once
    spared_bytes_per_s: float = 0.0


def traffic_of_sinks(
    parts: Iterable[tuple[Routes, SharingState]], statistics: Statistics
) -> dict[LinkName, SummedTraffic]:
    """Return what each link carries for several sinks, each with its routes; records cross it once for all of them."""
    partials: dict[LinkName, float] = {}
    repeated: dict[LinkName, float] = {}
    spared: dict[LinkName, float] = {}
    records: dict[LinkName, set[str]] = {}
    carried: dict[_Carried, bool] = {}  # what a link carries for a sink, and whether a site sends it there itself
    for routes, sharing in parts:
        here: dict[_Carried, bool] = {}
        for demand in sharing.fragments.values():
            for link, sites in _sites_behind(routes, demand).items():
                rate = statistics.merged_bytes_per_s(demand, sites)
                what = (link, demand.content, sites)
                here[what] = link[0] not in routes.relays
                if here[what] and carried.get(what):
                    spared[link] = spared.get(link, 0.0) + rate
                    continue
                partials[link] = partials.get(link, 0.0) + rate
                if what in carried:
                    repeated[link] = repeated.get(link, 0.0) + rate
        carried |= here
        for link, streams in record_links(routes, sharing).items():
            records.setdefault(link, set()).update(streams)
    raw = {link: sum(statistics.raw_bytes_per_s(s, link[0]) for s in sorted(found)) for link, found in records.items()}
    links = dict.fromkeys((*partials, *raw))
    return {
        link: SummedTraffic(
            partials.get(link, 0.0) + raw.get(link, 0.0), repeated.get(link, 0.0), spared.get(link, 0.0)
        )
        for link in links
    }


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
