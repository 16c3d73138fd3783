"""The routings of a run: the routes in force, and those on which what still runs was begun.

A site that is moved to another next site sends there only what begins then: a fragment keeps its routes from its first
segment to its last, and one that takes over from it has new ones. So what was acknowledged to a relay never bypasses
it, and the ends of a route change at a slice boundary of every site.

Numbers run from one end to the next, so a site or a relay has one **exit** for each end that it ever sent to: an outbox
with numbers of its own. The exit to the end of the declared route has the name of its sink (none for the center), any
other one that of the end behind it: `>hub`, or `tokyo>hub`.

What a site sends for others, as a relay, and what it sends of its own streams have numbers of their own too, and the
next inbox could not tell them apart. So a **hub**, a site that others send through or ever did, gives what is of its
own streams to its own inbox; and a site where streams are born becomes no hub later (`Deployment.possible_ends`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.sections import Link

_TO = ">"


def sink_of(exit_name: str) -> str:
    """Return the sink that an exit leads to; empty for the center."""
    return exit_name.partition(_TO)[0]


def end_of(exit_name: str) -> str | None:
    """Return the end that an exit leads to; None for that of the declared route."""
    return exit_name.partition(_TO)[2] or None


def leads_somewhere(project: Project, site: str, exit_name: str) -> bool:
    """Return whether there is a link to the end of an exit."""
    end = end_of(exit_name)
    return end is None or end == site or (site, end) in project.links


def exit_link(part: Project, site: str, to: str) -> Link:
    """Return the link to an end that a site sends to; what a relay sends to its own inbox crosses none."""
    return Link(site, f"{site} (here)") if site == to or part.is_light(site) else part.link(site, to)


@dataclass(frozen=True)
class Routings:
    """The routes of everything that is deployed for one sink."""

    declared: Routes
    current: Routes
    sink: str = ""
    moved: Mapping[str, Routes] = field(default_factory=dict)  # of fragments that were begun on other than the declared
    new_hubs: frozenset[str] = frozenset()  # sites that others were moved to, beside the declared relays

    @classmethod
    def of(cls, project: Project, hops_of: Mapping[str, Mapping[str, str]], new_hubs: Collection[str] = ()) -> Routings:
        """Return the routings of a project, in which some fragments were begun when sites had been moved."""
        declared = Routes.declared(project)
        made: dict[frozenset[tuple[str, str]], Routes] = {}  # most fragments were begun on the same
        for hops in (project.moved_hops, *hops_of.values()):
            key = frozenset(hops.items())
            if key not in made:
                made[key] = declared.moved(hops)
        moved = {fragment: made[frozenset(hops.items())] for fragment, hops in hops_of.items()}
        return cls(
            declared,
            made[frozenset(project.moved_hops.items())],
            project.sink,
            moved,
            frozenset(new_hubs) - {declared.center},
        )

    @classmethod
    def only(cls, routes: Routes) -> Routings:
        """Return the routings of a run in which no site was ever moved."""
        return cls(routes, routes)

    def of_fragment(self, fragment: str) -> Routes:
        """Return the routes that a fragment takes."""
        return self.moved.get(fragment, self.declared)

    @cached_property
    def every(self) -> tuple[Routes, ...]:
        """The routes in force, and others that some fragment still takes, or took."""
        found: list[Routes] = []
        for routes in (self.current, self.declared, *self.moved.values()):
            if routes not in found:
                found.append(routes)
        return tuple(found)

    @cached_property
    def hubs(self) -> tuple[str, ...]:
        """The sites that others send through, or ever did, those near the center first."""
        every = dict.fromkeys(relay for routes in self.every for relay in routes.relays)
        return tuple(dict.fromkeys((*every, *sorted(self.new_hubs))))

    def next_inbox(self, routes: Routes, site: str) -> str:
        """Return whose inbox what is of a site's own streams reaches first by some routes: that of a hub is its own."""
        return site if site in self.hubs else routes.next_inbox(site)

    def neighbours(self, inbox: str) -> frozenset[str]:
        """Return who sends to an inbox directly, by any of the routes."""
        return frozenset().union(*(routes.neighbours(inbox) for routes in self.every))

    def site_exit(self, fragment: str, site: str) -> str:
        """Return the exit by which a site sends a fragment."""
        end = self.next_inbox(self.of_fragment(fragment), site)
        return self.sink + _behind(end, self.declared.next_inbox(site))

    def relay_exit(self, fragment: str, relay: str) -> str:
        """Return the exit by which a relay sends a fragment on; for each sink there is a relay of its own."""
        return _behind(self.of_fragment(fragment).hops[relay], self.declared.hops[relay])


def _behind(end: str, declared_end: str) -> str:
    return "" if end == declared_end else f"{_TO}{end}"
