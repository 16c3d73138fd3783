"""The sites at which fragments run follow the sites that their queries want."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from catchment.optimizer.sharing.demand import DemandSource, FragmentDemand, SharedQuery
from catchment.optimizer.sharing.share import SharingState


def sharing_at_sites(sharing: SharingState, planned: Iterable[SharedQuery]) -> SharingState:
    """Return a sharing with queries over the sites of their newest plans.

    A fragment runs where its queries want it. One that is being left has none: it comes to a site and goes with
    its stream, if it ran wherever some query wanted the stream.
    """
    sources = {query.name: query.demand.source for query in planned}
    queries = {n: _with_sites_of(q, sources.get(n)) for n, q in sharing.queries.items()}
    before = _wanted_sites(sharing.queries.values())
    after = _wanted_sites(queries.values())
    fragments: dict[str, FragmentDemand] = {}
    for name, demand in sharing.fragments.items():
        stream = demand.source.stream
        wanted = _wanted_sites(queries[user] for user in sharing.users(name)).get(stream)
        if wanted is None:
            ran_everywhere = set(demand.source.sites) >= set(before.get(stream, ()))
            stays = [site for site in demand.source.sites if site in after.get(stream, demand.source.sites)]
            wanted = after.get(stream, demand.source.sites) if ran_everywhere else tuple(stays)
        fragments[name] = _at_sites(demand, wanted)
    return replace(sharing, queries=queries, fragments=fragments)


def _with_sites_of(query: SharedQuery, planned: DemandSource | None) -> SharedQuery:
    """Return a query at the sites that it is planned for now."""
    if planned is None:
        return query
    source = replace(query.demand.source, sites=planned.sites, comes_by=planned.comes_by)
    return replace(query, demand=replace(query.demand, source=source))


def _wanted_sites(queries: Iterable[SharedQuery]) -> dict[str, tuple[str, ...]]:
    """Return the sites at which some query wants each stream."""
    found: dict[str, DemandSource] = {}
    for source in (query.demand.source for query in queries):
        known = found.setdefault(source.stream, source)
        found[source.stream] = known.unite_sites(source)
    return {stream: source.sites for stream, source in found.items()}


def _at_sites(demand: FragmentDemand, sites: tuple[str, ...]) -> FragmentDemand:
    """Return a demand at other sites; as it is where they are the same."""
    if set(sites) == set(demand.source.sites):
        return demand
    return replace(demand, source=replace(demand.source, sites=sites))
