"""From the views of a project to what is deployed, at its first run and ever after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from catchment.errors import PlanError
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import BytesOf, SharingState, Strength, share
from catchment.optimizer.sharing.statistics import Statistics
from catchment.project.config import Project
from catchment.project.routes import LinkName, Routes
from catchment.query.catalog import Catalog
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import DropView
from catchment.units import format_bandwidth


def live_catalog(declared: Catalog, deployed: Deployed | None) -> Catalog:
    """Return the declared views with those that were submitted, without those that were dropped."""
    if deployed is None:
        return declared
    gone = [DropView(n) for n in deployed.dropped if n in declared.views]
    came = [s for n, sql in deployed.submitted.items() if n not in declared.views for s in parse_sql(sql, "submitted")]
    return declared.add(*gone, *came)


def deploy_first(queries: Iterable[SharedQuery], strength: Strength, bytes_of: BytesOf) -> Deployed:
    """Return what is deployed when nothing was: all queries are shared at once."""
    return Deployed(share(queries, strength, bytes_of))


def deploy_again(deployed: Deployed, queries: Sequence[SharedQuery], strength: Strength) -> Deployed:
    """Return what is deployed after views were declared or taken away between two runs."""
    wanted = {q.view or q.name for q in queries}
    now = replace(deployed, sharing=replace(deployed.sharing, strength=strength))
    for name in [v for v in deployed.views if v not in wanted]:
        now = now.drop(name)
    for query in (q for q in queries if q.name not in deployed.sharing.queries):
        now = now.add(query)
    return now


def site_rates(sharing: SharingState, statistics: Statistics) -> dict[str, float]:
    """Return bytes a second that each site sends: the partials of every fragment of its streams, once."""
    rates: dict[str, float] = {}
    for demand in sharing.fragments.values():
        for site in demand.source.sites:
            rates[site] = rates.get(site, 0.0) + statistics.partials(demand, site)
    return rates


def link_rates(project: Project, sharing: SharingState, statistics: Statistics) -> dict[LinkName, float]:
    """Return bytes a second on each link of a run: what meets at a site goes on merged."""
    routes, rates = Routes.of(project), dict[LinkName, float]()
    for demand in sharing.fragments.values():
        for link, rate in fragment_rates(routes, demand, statistics).items():
            rates[link] = rates.get(link, 0.0) + rate
    return rates


def fragment_rates(routes: Routes, demand: FragmentDemand, statistics: Statistics) -> dict[LinkName, float]:
    """Return the same of one fragment."""
    behind: dict[LinkName, list[str]] = {}
    for site in demand.source.sites:
        for link in routes.way(site):
            behind.setdefault(link, []).append(site)
    return {link: statistics.merged(demand, sites) for link, sites in behind.items()}


def sent_over(routes: Routes, statistics: Statistics) -> BytesOf:
    """Return what a demand sends in bytes a second over all links of a run: what sharing makes least."""
    return lambda demand: sum(fragment_rates(routes, demand, statistics).values())


def check_contracts_of(project: Project, sharing: SharingState, statistics: Statistics) -> None:
    """Refuse a query with a contract that a link could not carry in time, where the rates of its stream are known."""
    streams = statistics.streams
    told = {n: d for n, d in sharing.fragments.items() if d.source.stream in streams}
    rates, routes = link_rates(project, replace(sharing, fragments=told), statistics), Routes.of(project)
    for query in sharing.queries.values():
        source = query.demand.source
        if query.has_contract and source.stream in streams:
            for link in dict.fromkeys(link for site in source.sites for link in routes.way(site)):
                _check_link(project, query, link, rates[link])


def _check_link(project: Project, query: SharedQuery, link: LinkName, rate: float) -> None:
    limit = project.link(*link).bandwidth_bytes_per_s
    if limit is not None and rate > limit:
        raise PlanError(
            f"the query {query.name!r} cannot meet its contract: the link {link[0]} -> {link[1]} would carry "
            f"{format_bandwidth(rate)} of {format_bandwidth(limit)}",
            hint='share more (sharing = "full"), give the link more bandwidth, or drop the contract',
        )
