"""What changes at the center by what is deployed: events that bring a core there, and none where it already is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from catchment.center.composed.query import ComposedQuery
from catchment.center.core import CenterCore
from catchment.center.events import (
    ComposedAdded,
    Event,
    QueryAdded,
    QueryDropped,
    QueryMoved,
    QueryRenewed,
    RosterChange,
    SiteHealed,
    SiteJoined,
    SiteReplaced,
    SiteRetired,
)
from catchment.center.query import CenterQuery
from catchment.project.site_orders import SiteOrders


def roster_changes(
    core: CenterCore, queries: Iterable[CenterQuery], orders: SiteOrders, neighbours: Collection[str] = ()
) -> Iterator[RosterChange]:
    """Yield the events that bring the rosters of running queries to the sites that are deployed.

    `neighbours` are those that send to the center directly.
    """
    wanted = {part.name: part.sites for query in queries for part in query.parts}
    running = {p.query.name: p.roster.present for q in core.queries.values() for p in q.sources.parts}
    for site, life in orders.lives.items():
        if core.sites.lives.get(site, 0) < life and orders.is_healed(site):
            yield SiteHealed(site, life, site in neighbours)
        elif core.sites.lives.get(site, 0) < life:
            yield SiteReplaced(site, life, orders.boundaries.get(site))
    for sites, others, change in ((wanted, running, SiteJoined), (running, wanted, SiteRetired)):
        parts: dict[str, list[str]] = {}
        for name in wanted.keys() & running.keys():
            for site in (s for s in sites[name] if s not in others[name]):
                parts.setdefault(site, []).append(name)
        for site, names in sorted(parts.items()):
            yield change(tuple(sorted(names)), site, orders.boundaries.get(site))


def query_changes(
    core: CenterCore, queries: Iterable[CenterQuery], begun: Mapping[str, Collection[str]]
) -> Iterator[Event]:
    """Yield the events that bring a core to the queries that are deployed; none where it is there already.

    `begun` are the fragments that were begun during a run, each with those that end where it begins.
    """
    wanted = {q.name: q for q in queries}
    yield from (QueryDropped(name) for name in list(core.queries) if name not in wanted)
    for name, query in wanted.items():
        if name not in core.queries:
            yield QueryAdded(query, any(part.source_fragment in begun for part in query.parts))
            continue
        if core.queries[name].query.renewal != query.renewal:
            yield QueryRenewed(query)
            continue
        for part in query.parts:
            fragment = part.source_fragment
            newest = core.queries[name].sources.newest_fragment(part.name)
            if part.derivation is not None and newest != fragment:
                yield QueryMoved(name, part.derivation, fragment in begun, newest in begun.get(fragment, ()))


def composed_changes(core: CenterCore, composed: Sequence[ComposedQuery]) -> Iterator[Event]:
    """Yield the events that bring a core to the views of views that are deployed."""
    wanted = {query.name for query in composed}
    yield from (QueryDropped(name) for name in list(core.composed) if name not in wanted)
    yield from (ComposedAdded(query) for query in composed if query.name not in core.composed)
