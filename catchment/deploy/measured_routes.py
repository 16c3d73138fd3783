"""Routes by what links were measured to carry, beside those that run.

Routes follow from what links declare, so that all processes agree on them without a word, and the ends of a route do
not change while it runs. If a link carries much less than it declares, segments go around it where they can
(`catchment.wire.ways.way_chooser`); where another end would be reached much sooner, `explain` says so, and a person declares
what the link carries. A route counts as better only if it carries a segment in half the time, so that what is said does
not change with every measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import read_status
from catchment.project.config import Project
from catchment.project.routes import SEGMENT_BYTES, LinkName, Routes, carry_us
from catchment.timeline import SECOND_US

BETTER = 2.0  # how many times sooner another route must carry a segment
LEAST_BYTES = SEGMENT_BYTES  # that a link must have carried; by less its goodput is not known


@dataclass(frozen=True)
class MeasuredLink:
    """What a sender has measured of its link."""

    goodput_bytes_per_s: float
    round_trip_s: float


@dataclass(frozen=True)
class BetterRoute:
    """A site whose segments would arrive much sooner by another route, with the times of both as measured."""

    site: str
    route: tuple[str, ...]
    time_us: int
    better: tuple[str, ...]
    better_us: int

    def to_json(self) -> dict[str, Any]:
        """Return it for `explain`."""
        return {
            "site": self.site,
            "route": list(self.route),
            "seconds": self.time_us / SECOND_US,
            "better": list(self.better),
            "better_seconds": self.better_us / SECOND_US,
        }


def read_measured_links(deployment: Deployment) -> dict[LinkName, MeasuredLink]:
    """Return what the sites and relays whose state is here last said of the links that they send over."""
    routes = deployment.routes
    found: dict[LinkName, MeasuredLink] = {}
    for origin, hop in routes.hops.items():
        told = read_status(_sender_folder(deployment.project, routes, origin)) or {}
        used = (told.get("ways") or {}).get("used") or [origin, hop]
        if used == [origin, hop]:  # what was measured of a way around says nothing of this link
            _note(found, (origin, hop), told)
        for exit_told in (told.get("sinks") or {}).values():
            _note(found, (origin, exit_told["to"]), exit_told)
    return found


def _sender_folder(project: Project, routes: Routes, origin: str) -> Path:
    if origin in routes.light:
        return project.source_folder(origin)
    return project.relay_folder(origin) if origin in routes.relays else project.site_folder(origin)


def _note(found: dict[LinkName, MeasuredLink], link: LinkName, told: Mapping[str, Any]) -> None:
    goodput, round_trip_s = told.get("goodput_bytes_per_s"), told.get("round_trip_s")
    if goodput and round_trip_s is not None and told.get("bytes_sent", 0) >= LEAST_BYTES:
        found.setdefault(link, MeasuredLink(goodput, round_trip_s))


def find_better_routes(project: Project, measured: Mapping[LinkName, MeasuredLink]) -> list[BetterRoute]:
    """Return the sites that would reach the center much sooner by another route, by what links were measured to carry.

    A link that was not measured carries what it declares; nothing is said of routes over one that declares nothing.
    """
    known = _as_measured(project, measured)
    now, then = Routes.of(project), Routes.of(known)
    found = []
    for site in now.hops:
        route, better = now.route(site), then.route(site)
        times = _time_us(known, route), _time_us(known, better)
        if route == better or times[0] is None or times[1] is None or times[0] < BETTER * times[1]:
            continue
        found.append(BetterRoute(site, _sites_on(route), times[0], _sites_on(better), times[1]))
    return found


def _as_measured(project: Project, measured: Mapping[LinkName, MeasuredLink]) -> Project:
    """Return the project as if its links declared what was measured of them."""
    links = {
        name: replace(
            link,
            bandwidth_bytes_per_s=measured[name].goodput_bytes_per_s,
            latency_us=round(measured[name].round_trip_s / 2 * SECOND_US),
        )
        if name in measured
        else link
        for name, link in project.links.items()
    }
    return replace(project, links=links)


def _time_us(known: Project, route: tuple[LinkName, ...]) -> int | None:
    """Return how long a route carries a segment; None if nothing is known of one of its links."""
    total_us = 0
    for name in route:
        link = known.links[name]
        if link.bandwidth_bytes_per_s is None:
            return None
        total_us += carry_us(link.bandwidth_bytes_per_s, link.latency_us)
    return total_us


def _sites_on(route: tuple[LinkName, ...]) -> tuple[str, ...]:
    return (route[0][0], *(link[1] for link in route))
