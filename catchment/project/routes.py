"""The routes of a run: from each site, hop by hop over declared links, to the center.

The route of a site is the one that carries a segment to the center soonest, by what its links declare; plans take the
same routes. Every site on a route takes a segment whole before it sends on, so the times of the links add up. A link
that declares nothing takes no time beside that of its end, so where no link declares anything the fewest links win.

Every site has one next site, so the routes form a tree: what meets at a site goes on together, and can be merged there.
The declared routes follow from the project alone, so that all processes agree on them without a word. Sites may be
moved to another next site while everything runs (`Project.moved_hops`, which is part of what is deployed); what was
begun before ends on the routes on which it began (`catchment.project.routings`). From one end to the next a segment
takes the way that is measured to be the best (`catchment.project.ways`).

The records of a light site cross its first link as they are, and are evaluated at the end of it; no route goes through
a light site.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.sections import Link

LinkName = tuple[str, str]

SEGMENT_BYTES = 256 * 1024  # size of the segment whose time on the way is compared
HOP_US = 250_000  # how long a segment waits about at the end of a link: processes look at what has landed this often


def carry_us(bandwidth_bytes_per_s: float | None, latency_us: int) -> int:
    """Return how long a link takes to carry a segment to the next site, and how long that takes to see it."""
    sending_us = 0 if bandwidth_bytes_per_s is None else round(SEGMENT_BYTES / bandwidth_bytes_per_s * 1e6)
    return latency_us + sending_us + HOP_US


@dataclass(frozen=True)
class Routes:
    """The next site of each site that has a route to the center."""

    center: str
    hops: Mapping[str, str]
    light: frozenset[str] = frozenset()  # sites whose records are evaluated by the next one

    @classmethod
    def of(cls, project: Project) -> Routes:
        """Return the routes that are in force: those that are declared, but for the sites that were moved."""
        return cls.declared(project).moved(project.moved_hops)

    def moved(self, hops: Mapping[str, str]) -> Routes:
        """Return the routes with another next site for some sites; those that would go in a circle are refused."""
        if not hops:
            return self
        made = Routes(self.center, {**self.hops, **hops}, self.light)
        for site in made.hops:
            seen = [site]
            while seen[-1] != made.center:
                to = made.hops.get(seen[-1])
                if to is None or to in seen:
                    raise ConfigError(
                        f"{site!r} does not reach {made.center!r} by {' -> '.join(seen)}",
                        hint="a site was moved to a route that is not there any more: give it the links again",
                    )
                seen.append(to)
        return made

    @classmethod
    def declared(cls, project: Project) -> Routes:
        """Find the routes that links declare: Dijkstra from the center, against the links, by (time, links, names)."""
        hops: dict[str, str] = {}
        queue: list[tuple[int, int, str, str]] = [(0, 0, project.center, "")]
        while queue:
            time_us, links, site, hop = heapq.heappop(queue)
            if site in hops or (site == project.center and hop):
                continue
            if hop:
                hops[site] = hop
            for link in project.running_links:
                if link.destination == site:
                    taken_us = time_us + carry_us(link.bandwidth_bytes_per_s, link.latency_us)
                    heapq.heappush(queue, (taken_us, links + 1, link.origin, site))
        return cls(project.center, hops, frozenset(site for site in hops if project.is_light(site)))

    def reaches(self, site: str) -> bool:
        """Return whether there is a route from a site to the center."""
        return site == self.center or site in self.hops

    def route(self, site: str) -> tuple[LinkName, ...]:
        """Return the links from a site to the center, in order; none for the center itself."""
        links: list[LinkName] = []
        while site != self.center:
            links.append((site, self.hops[site]))
            site = self.hops[site]
        return tuple(links)

    @cached_property
    def relays(self) -> tuple[str, ...]:
        """The sites that others send through, those near the center first."""
        between = {hop for hop in self.hops.values() if hop != self.center}
        return tuple(sorted(between, key=lambda relay: (len(self.route(relay)), relay)))

    def sender(self, relay: str, origin: str) -> str | None:
        """Return which site sends the facts of `origin` to a relay; None where the relay is not on the route.

        A relay sends those of its own streams to itself.
        """
        if origin == relay:
            return origin
        return next((a for a, b in self.route(origin) if b == relay), None) if self.reaches(origin) else None

    def light_sites_at(self, site: str) -> tuple[str, ...]:
        """Return the light sites whose records are evaluated at a site."""
        return tuple(name for name, hop in self.hops.items() if hop == site and name in self.light)

    def next_inbox(self, site: str) -> str:
        """Return whose inbox the updates of a site's streams reach first: for a relay and the center, their own."""
        return site if site == self.center or site in self.relays else self.hops.get(site, self.center)

    def neighbours(self, inbox: str) -> frozenset[str]:
        """Return who sends to the inbox of the center or of a relay directly; itself too, if it has streams."""
        return frozenset({inbox, *(site for site, hop in self.hops.items() if hop == inbox)})

    def upstream(self, name: str) -> tuple[str, ...]:
        """Return a site or relay, and all that send through it."""
        if name == self.center:
            return (*self.hops, name)
        return tuple(site for site in self.hops if name in self.sites_on_route(site))

    def may_speak_for(self, sender: str, origin: str) -> bool:
        """Return whether facts of `origin` may come from `sender`: the origin itself, or a site on its route."""
        return self.reaches(origin) and sender in self.sites_on_route(origin)

    def sites_on_route(self, site: str) -> tuple[str, ...]:
        """Return the sites on a route, from the first to the last before the center."""
        return (site, *(hop for _, hop in self.route(site) if hop != self.center))


def first_link(project: Project, site: str) -> Link:
    """Return the link that a site's updates take first.

    Those of the center stay where they are, and so at first do those of a relay: no link shapes them. Nor are those of
    a light site, which are made where its records are evaluated.
    """
    routes = Routes.of(project)
    if site == project.center or site in routes.relays or project.is_light(site):
        return Link(site, f"{site} (here)")
    return outgoing_link(project, site)


def outgoing_link(project: Project, site: str) -> Link:
    """Return the link from a site to the next one on its route."""
    return project.link(site, Routes.of(project).hops.get(site, project.center))
