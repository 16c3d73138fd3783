"""Which sites of a fragment are told apart, because some of its queries are about some of its sites only.

What has landed is merged before the queries take it, and they cannot take it apart again. So the partials of two
senders are merged only if the same queries want both. What comes by one neighbour of the center was merged on the way;
a deployment has only queries that want all of it or nothing (`DemandSource.can_leave_out`).
"""

from __future__ import annotations

from collections.abc import Sequence

from catchment.center.running_query import RunningQuery
from catchment.project.routings import Routings


def names_apart(queries: Sequence[RunningQuery]) -> frozenset[str]:
    """Return the fragments of which some query wants some sites only."""
    parts = [part for running in queries for part in running.sources.parts if part.query.named_sites]
    return frozenset(fragment for part in parts for fragment in part.fragments)


def find_alike(queries: Sequence[RunningQuery], routings: Routings, fragment: str, sender: str) -> tuple[str, ...]:
    """Return the sites whose partials of a fragment the same queries want as those of a sender; none: all sites."""
    parts = [part for running in queries for part in running.sources.parts if fragment in part.fragments]
    choices = {part.query.named_sites for part in parts if part.query.named_sites}
    if not choices:
        return ()
    routes = routings.of_fragment(fragment)
    members = {site for part in parts for site in part.roster.stays}
    behind = [site for site in members if routes.reaches(site) and sender in routes.sites_on_route(site)] or [sender]
    wanted = _wanting(choices, behind)
    alike = {site for site in members if _wanting(choices, [site]) == wanted}
    return tuple(sorted(alike | set(behind)))


def _wanting(choices: set[tuple[str, ...]], sites: Sequence[str]) -> frozenset[tuple[str, ...]]:
    return frozenset(choice for choice in choices if any(site in choice for site in sites))
