"""Which queries are computed again together, and from where on each of their fragments is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from catchment.optimizer.sharing.derive import Derivation
from catchment.optimizer.sharing.share import SharingState
from catchment.query.view_start import ViewStart
from catchment.timeline import START_OF_TIME_US


def queries_to_renew(
    sharing: SharingState, leaving: Collection[str], streams: Collection[str], sites: Collection[str]
) -> set[str]:
    """Return the queries over some streams at some sites, with all that share a fragment or a join with them.

    Of a stream with a fragment that is being left (`leaving`), it is all queries: who else needs it is not known here.
    """
    queries = sharing.queries
    left = {sharing.fragments[f].source.stream for f in leaving}
    found = {
        name
        for name, query in queries.items()
        if query.demand.source.stream in streams
        and (query.demand.source.stream in left or not set(sites).isdisjoint(query.demand.source.sites))
    }
    while True:
        views = {queries[name].view or name for name in found}
        fragments = {sharing.derivations[name].fragment for name in found}
        more = {n for n, q in queries.items() if (q.view or n) in views or sharing.derivations[n].fragment in fragments}
        if more == found:
            return found
        found = more


def earliest_starts(
    queries: Collection[str], derivations: Mapping[str, Derivation], starts: Mapping[str, ViewStart | None]
) -> dict[str, ViewStart]:
    """Return where each fragment of some queries begins: as early as any wants; the others begin with what comes."""
    found: dict[str, ViewStart] = {}
    for query in sorted(queries):
        fragment, start = derivations[query].fragment, starts.get(query)
        if start is not None and (fragment not in found or _instant_us(start) < _instant_us(found[fragment])):
            found[fragment] = start
    return found


def _instant_us(start: ViewStart) -> int:
    return START_OF_TIME_US if start.at_us is None else start.at_us
