"""The ways of a segment from one end to the next: the direct link, and around it over sites that forward.

Segments are numbered and acknowledged between ends: a site that evaluates, a relay that merges, the center. Which end
follows on which is said by the routes (`catchment.project.routes`) and is not changed here. A way from one end to the
next may lead over forwarders: sites that hand a segment on and the answer back, and keep nothing. So whatever way a
segment takes it arrives where its number counts, and no way leads past a merge.

A site forwards if it listens, because others must find it; the center does not. Ways are chosen so that they differ:
the first carries a segment soonest, and each further one shares the fewest links with those before it, then carries it
soonest.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from catchment.errors import WireError
from catchment.project.config import Project
from catchment.project.routes import LinkName, Routes, carry_us

MAX_WAYS = 4  # from one end to the next
MAX_FORWARDERS = 3  # on one way

Way = tuple[str, ...]  # the sites from one end to the next, both included


@dataclass(frozen=True)
class Ways:
    """The ways of every end of a project."""

    project: Project
    routes: Routes

    @classmethod
    def of(cls, project: Project) -> Ways:
        """Return the ways of a project.

        There are several to the ends of the declared routes, on which all processes agree at any time; a site that was
        moved to another end sends over the link to it.
        """
        return cls(project, Routes.declared(project))

    def next_end(self, origin: str) -> str | None:
        """Return the end that the segments of a site or relay are numbered for; None if it sends to nobody else."""
        return self.routes.hops.get(origin)

    def from_end(self, origin: str) -> tuple[Way, ...]:
        """Return the ways of an end to the next one: first the direct link, then those around it, the best first."""
        end = self.next_end(origin)
        if end is None:
            return ()
        found: list[Way] = [(origin, end)]
        used = Counter(links_of(found[0]))
        while len(found) < MAX_WAYS:
            way = self._find(origin, end, used)
            if way is None or way in found:
                break
            found.append(way)
            used.update(links_of(way))
        return tuple(found)

    def time_us(self, way: Way) -> int:
        """Return how long a way takes to carry a segment, by what its links declare."""
        return sum(self._links_us[link] for link in links_of(way))

    @cached_property
    def forwarders(self) -> frozenset[str]:
        """The sites that lie on the way of others as forwarders."""
        return frozenset(site for origin in self.routes.hops for way in self.from_end(origin) for site in way[1:-1])

    def check(self, way: Sequence[str]) -> Way:
        """Refuse a way that segments of its first site may not take to its last; return it."""
        given = tuple(way)
        reason = self._fault(given)
        if reason is not None:
            raise WireError(
                f"{' -> '.join(given)[:500]} is not a way here: {reason}", hint="run every site from the same links"
            )
        return given

    def _fault(self, way: Way) -> str | None:
        if not 2 <= len(way) <= MAX_FORWARDERS + 2 or len(set(way)) < len(way):
            return f"a way has up to {MAX_FORWARDERS} forwarders, and no site twice"
        if self.next_end(way[0]) != way[-1]:
            return f"the segments of {way[0]!r} are not for {way[-1]!r}"
        for link in links_of(way):
            if link not in self.project.links:
                return f"there is no link from {link[0]!r} to {link[1]!r}"
        for site in way[1:-1]:
            if not self._forwards(site):
                return f"{site!r} does not forward"
        return None

    def _forwards(self, site: str) -> bool:
        return site != self.project.center and self.project.sites[site].listen is not None

    def _find(self, origin: str, end: str, used: Counter[LinkName]) -> Way | None:
        """Return the way that shares the fewest links with those used, by Dijkstra over (shared, time, sites).

        How many forwarders a way has is bounded, so a site is looked at again when it is reached over fewer links.
        """
        queue: list[tuple[int, int, Way]] = [(0, 0, (origin,))]
        fewest: dict[str, int] = {}  # links on the way, of the ways that were followed from a site
        while queue:
            shared, time_us, way = heapq.heappop(queue)
            site = way[-1]
            if site == end:
                return way
            if len(way) >= fewest.get(site, MAX_FORWARDERS + 2):
                continue
            fewest[site] = len(way)
            for link in self._leaving.get(site, ()):
                to = link[1]
                if to not in way and (to == end or self._forwards(to)):
                    reached = (shared + used[link], time_us + self._links_us[link], (*way, to))
                    heapq.heappush(queue, reached)
        return None

    @cached_property
    def _links_us(self) -> dict[LinkName, int]:
        links = self.project.running_links
        return {(a.origin, a.destination): carry_us(a.bandwidth_bytes_per_s, a.latency_us) for a in links}

    @cached_property
    def _leaving(self) -> dict[str, list[LinkName]]:
        leaving: dict[str, list[LinkName]] = {}
        for link in sorted(self._links_us):
            leaving.setdefault(link[0], []).append(link)
        return leaving


def links_of(way: Sequence[str]) -> tuple[LinkName, ...]:
    """Return the links of a way, in order."""
    return tuple(pairwise(way))
