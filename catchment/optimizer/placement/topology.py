"""Sites and links as the planner sees them: which sites compute, what links can carry, the routes between sites.

Traffic between two sites takes the route that carries a segment soonest, as a run does (`catchment.project.routes`): a
link of their own, or links over others where those are faster. A site on the route only forwards.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from catchment.errors import PlanError
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.project.routes import carry_us

LinkName = tuple[str, str]


@dataclass(frozen=True)
class WanLink:
    """A directed link; bandwidth is infinite where nothing limits it."""

    origin: str
    destination: str
    bandwidth_bytes_per_s: float = math.inf
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise PlanError(
                f"the link {self.origin} -> {self.destination} has the bandwidth {self.bandwidth_bytes_per_s}",
                hint="bandwidths are positive",
            )
        if not 0 <= self.latency_s < math.inf:
            raise PlanError(
                f"the link {self.origin} -> {self.destination} has the latency {self.latency_s}",
                hint="latencies are 0 or more seconds",
            )

    @property
    def name(self) -> LinkName:
        return self.origin, self.destination

    @cached_property
    def cost_per_byte(self) -> float:
        """latency^2 / bandwidth: what Pietzuch et al. (ICDE'06) and Sana charge for one byte per second."""
        return self.latency_s**2 / self.bandwidth_bytes_per_s

    @cached_property
    def carry_us(self) -> int:
        """How long it takes to carry a segment, as a run compares routes."""
        bandwidth = None if math.isinf(self.bandwidth_bytes_per_s) else self.bandwidth_bytes_per_s
        return carry_us(bandwidth, round(self.latency_s * 1e6))


@dataclass(frozen=True)
class Topology:
    """Sites, those of them that can compute, and links between them."""

    sites: tuple[str, ...]
    compute_sites: tuple[str, ...]
    links: Mapping[LinkName, WanLink]
    _routes: dict[str, dict[str, tuple[LinkName, ...]]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for site in (*self.compute_sites, *(end for link in self.links for end in link)):
            if site not in self.sites:
                raise PlanError(f"the site {site!r} is not declared", hint=did_you_mean(site, self.sites))
        if not self.compute_sites:
            raise PlanError("no site can compute", hint="leave out compute = false for some site")

    @classmethod
    def of(cls, links: Mapping[LinkName, WanLink] | list[WanLink], source_only: tuple[str, ...] = ()) -> Topology:
        """Return the topology of some links; every site computes except those that are only sources."""
        named = links if isinstance(links, Mapping) else {link.name: link for link in links}
        sites = tuple(dict.fromkeys(end for link in named for end in link))
        return cls(sites, tuple(s for s in sites if s not in source_only), named)

    @classmethod
    def of_project(cls, project: Project) -> Topology:
        """Return the declared sites and links of a project."""
        links = {
            name: WanLink(*name, link.bandwidth_bytes_per_s or math.inf, link.latency_us / 1e6)
            for name, link in project.links.items()
        }
        computing = tuple(name for name, site in project.sites.items() if site.compute)
        return cls(tuple(project.sites), computing, links)

    def route(self, origin: str, destination: str) -> tuple[LinkName, ...] | None:
        """Return the links from one site to another, in order; None where there is no route."""
        if origin not in self._routes:
            self._routes[origin] = self._search(origin)
        return self._routes[origin].get(destination)

    def required_route(self, origin: str, destination: str) -> tuple[LinkName, ...]:
        """Return the route, or raise an error where there is none."""
        found = self.route(origin, destination)
        if found is None:
            raise PlanError(
                f"there is no route from site {origin!r} to site {destination!r}",
                hint=f'add to catchment.toml [[links]] from = "{origin}", to = "{destination}", or links over others',
            )
        return found

    @cached_property
    def computes(self) -> frozenset[str]:
        """The sites that can compute, to look one up."""
        return frozenset(self.compute_sites)

    @cached_property
    def _leaving(self) -> Mapping[str, list[WanLink]]:
        leaving: dict[str, list[WanLink]] = {site: [] for site in self.sites}
        for link in self.links.values():
            leaving[link.origin].append(link)
        return leaving

    def _search(self, origin: str) -> dict[str, tuple[LinkName, ...]]:
        """Return the routes from a site to all others, by Dijkstra over (time, number of links, names)."""
        found: dict[str, tuple[LinkName, ...]] = {}
        queue: list[tuple[int, int, str, tuple[LinkName, ...]]] = [(0, 0, origin, ())]
        while queue:
            time_us, links, site, route = heapq.heappop(queue)
            if site in found:
                continue
            found[site] = route
            for link in self._leaving.get(site, ()):
                taken_us = time_us + link.carry_us
                heapq.heappush(queue, (taken_us, links + 1, link.destination, (*route, link.name)))
        return found
