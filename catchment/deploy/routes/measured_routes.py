"""What senders have measured of their links, and routes that would be faster by it than those that run.

If a link carries much less than it declares, segments go around it where they can (`wire.ways.way_chooser`); where
another end would be reached much sooner, sites are moved there (`deploy.routes.route_mover`) if `reroute` is on, and
`explain` says it in any case. A route counts as better only if it carries a segment in half the time, so that what is
said does not change with every measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import REPORTED_AT, STOPPED, read_status
from catchment.deploy.routes.route_mover import BETTER, MeasuredLink, sites_on
from catchment.project.config import Project
from catchment.project.routes import SEGMENT_BYTES, LinkName, Routes, carry_us
from catchment.timeline import SECOND_US

LEAST_BYTES = SEGMENT_BYTES  # that a link must have carried; by less its goodput is not known
SILENT_US = 60 * SECOND_US  # after so long what a role has said of itself is not believed any more


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


def read_measured_links(deployment: Deployment, now_us: int | None = None) -> dict[LinkName, MeasuredLink]:
    """Return what the sites and relays whose state is here last said of the links that they send over.

    With a time, what was said long before is left out.
    """
    declared = deployment.routings.declared
    found: dict[LinkName, MeasuredLink] = {}
    for origin, hop in declared.hops.items():
        for folder in _sender_folders(deployment, origin):
            told = _read_fresh(folder, now_us)
            used = (told.get("ways") or {}).get("used") or [origin, hop]
            if used == [origin, hop]:  # what was measured of a way around says nothing of this link
                _note(found, (origin, hop), told)
            for exit_told in ({**told.get("sinks", {}), **told.get("exits", {})}).values():
                _note(found, (origin, exit_told["to"]), exit_told)
    return found


def are_all_heard(deployment: Deployment, now_us: int) -> bool:
    """Return whether every site that reads a stream has said something of itself lately, and runs."""
    told = [_read_fresh(deployment.project.site_folder(site), now_us) for site in deployment.sites]
    return all(status and not status.get(STOPPED) for status in told)


def _read_fresh(folder: Path, now_us: int | None) -> Mapping[str, Any]:
    told = read_status(folder) or {}
    is_old = now_us is not None and now_us - told.get(REPORTED_AT, 0) > SILENT_US
    return {} if is_old else told


def _sender_folders(deployment: Deployment, origin: str) -> list[Path]:
    """Return the folders of those who send from a site: a hub gives what is of its own streams to itself."""
    project = deployment.project
    if origin in deployment.routes.light:
        return [project.source_folder(origin)]
    if origin in deployment.routings.hubs:
        return [project.relay_folder(origin)]
    return [project.site_folder(origin)]


def _note(found: dict[LinkName, MeasuredLink], link: LinkName, told: Mapping[str, Any]) -> None:
    goodput, round_trip_s = told.get("goodput_bytes_per_s"), told.get("round_trip_s")
    is_known = bool(goodput) and round_trip_s is not None and told.get("bytes_sent", 0) >= LEAST_BYTES
    is_down = told.get("connected") is False and told.get("queued_bytes", 0) > 0
    if is_known or is_down:
        found.setdefault(link, MeasuredLink(goodput if is_known else None, round_trip_s if is_known else None, is_down))


def find_better_routes(project: Project, measured: Mapping[LinkName, MeasuredLink]) -> list[BetterRoute]:
    """Return the sites that would reach the center much sooner by another route, by what links were measured to carry.

    A link that was not measured carries what it declares; nothing is said of routes over one that declares nothing.
    """
    known = _as_measured(project, measured)
    now, then = Routes.of(project), Routes.declared(known)
    found = []
    for site in now.hops:
        route, better = now.route(site), then.route(site)
        times = _time_us(known, route), _time_us(known, better)
        if route == better or times[0] is None or times[1] is None or times[0] < BETTER * times[1]:
            continue
        found.append(BetterRoute(site, sites_on(now, site), times[0], sites_on(then, site), times[1]))
    return found


def _as_measured(project: Project, measured: Mapping[LinkName, MeasuredLink]) -> Project:
    """Return the project as if its links declared what was measured of them."""
    links = dict(project.links)
    for name, known in measured.items():
        if known.goodput_bytes_per_s is not None and known.round_trip_s is not None:
            latency_us = round(known.round_trip_s / 2 * SECOND_US)
            links[name] = replace(links[name], bandwidth_bytes_per_s=known.goodput_bytes_per_s, latency_us=latency_us)
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
