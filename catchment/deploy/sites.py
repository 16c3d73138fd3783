"""Sites are added, retired and replaced here, while a project runs or before it does.

An order is checked first: the project with the changed sites is planned in memory, and the record of what is deployed
is written only if that is right. The center finds the order at its next tick and decides the boundary: the event time
from which on the order holds, as stated or behind all that it has heard (`catchment.center.roster_changes`).

A site may also be retired later, when it has completed every window before an instant. The center looks at every tick
whether that is so, and then gives the order itself; so no window before the instant lacks anything of the site. One
that never comes that far goes on to count, until it is retired without waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catchment.center.core import CenterCore
from catchment.center.roster_changes import RosterChanges
from catchment.deploy.deployment import Deployment
from catchment.deploy.leaving_sites import note_leaving, read_leaving
from catchment.deploy.repairing.heal import refuse_light
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.routes.move_routes import move_routes
from catchment.deploy.routes.route_log import note_move
from catchment.deploy.routes.route_mover import RouteMove, sites_on
from catchment.deploy.store import DeploymentStore
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import CatchmentError, ConfigError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.option_kinds import site_name
from catchment.project.options import did_you_mean
from catchment.project.routings import Routings
from catchment.project.site_orders import SiteOrders
from catchment.query.catalog import load_catalog
from catchment.storage.files import write_durably
from catchment.timeline import SystemClock

Answer = Mapping[str, Any]

_log = logging.getLogger(__name__)


def add_site(folder: Path, name: str, from_us: int | None = None) -> Answer:
    """Let a site count; one that is not declared is declared, with a link to the center."""
    declared = Project.load(folder)
    path = folder / PROJECT_FILE
    before = path.read_bytes()
    if name not in declared.sites:
        _check_name(name)
        lines = f'\n[sites.{name}]\n\n[[links]]\nfrom = "{name}"\nto = "{declared.center}"\n'
        write_durably(path, before.rstrip() + b"\n" + lines.encode())
    try:
        answer = _order(folder, name, "added", lambda orders: orders.add(name, from_us))
    except Exception:
        write_durably(path, before)
        raise
    note_leaving(declared.state_folder, name, None)
    return answer


def retire_site(folder: Path, name: str, until_us: int | None = None) -> Answer:
    """Let a site count no more; what was merged of it stays."""
    _check_counts(folder, name)
    return _order(folder, name, "retired", lambda orders: orders.retire(name, until_us))


def retire_site_after(folder: Path, name: str, after_us: int) -> Answer:
    """Let a site count no more when it has completed every window before an instant; the center gives the order."""
    _check_counts(folder, name)
    project = Project.load(folder)
    declared = load_catalog(project)
    deployment = Deployment.plan(declared, DeploymentStore(project.state_folder).read())
    _refuse_relayed(deployment.routings, project, name)
    deployed = deployment.deployed
    Deployment.plan(declared, deployed.with_orders(deployed.orders.retire(name, after_us)))  # is it possible?
    note_leaving(project.state_folder, name, after_us)
    return {"version": deployed.version, "site": name, "retired": False, "after_us": after_us}


@dataclass
class LeavingSites:
    """Retires the sites of a running center that have come far enough."""

    watcher: DeploymentWatcher

    def step(self, core: CenterCore) -> None:
        """Give the orders that are due."""
        project = self.watcher.deployment.project
        rosters = RosterChanges(core.queries, core.frontiers, core.sites)
        for site, after_us in read_leaving(project.state_folder).items():
            if site not in self.watcher.deployment.sites:
                note_leaving(project.state_folder, site, None)
            elif rosters.has_completed(site, after_us):
                self._retire(site, after_us)

    def _retire(self, site: str, after_us: int) -> None:
        project = self.watcher.deployment.project
        try:
            retire_site(project.folder, site, after_us)
        except CatchmentError as error:  # what was possible when it was ordered no longer is
            _log.warning("site %s goes on to count: %s", site, error)
        note_leaving(project.state_folder, site, None)


def move_site(folder: Path, name: str, to: str) -> Answer:
    """Let a site or a relay send to another next site from the next slices on; what was begun ends by its own route."""
    project = Project.load(folder)
    declared = load_catalog(project)
    answer: dict[str, Any] = {}

    def make(now: Deployed | None) -> Deployed:
        deployment = Deployment.plan(declared, now)
        _check_move(deployment, name, to)
        before = deployment.routes
        made = move_routes(deployment, {name: to})
        if made is deployment.deployed:
            raise ConfigError(
                f"{name!r} is not moved to {to!r} now: a move before it is not over, windows are being computed again, "
                f"or a view or its contract does not allow the route",
                where=str(folder),
                hint="catchment explain shows what is left by moves; try again when that has ended",
            )
        answer.update(version=made.version, site=name, route=list(sites_on(before, name)))
        answer.update(moved=list(sites_on(Routings.of(replace(project, moved_hops=made.hops), {}).current, name)))
        return made

    DeploymentStore(project.state_folder).change(make)
    move = RouteMove({name: to}, name, tuple(answer["route"]), tuple(answer["moved"]), "it was asked for")
    note_move(project.state_folder, move, SystemClock().now_us())
    return answer


def _check_move(deployment: Deployment, name: str, to: str) -> None:
    """Refuse to move a site where it cannot send, or where it would go in a circle."""
    routes = deployment.routes
    where = str(deployment.project.folder / PROJECT_FILE)
    if name not in routes.hops or name in routes.light:
        known = [site for site in routes.hops if site not in routes.light]
        raise ConfigError(
            f"{name!r} is no site that computes and sends to the center",
            where=where,
            hint=did_you_mean(name, known),
        )
    deployment.project.link(name, to)
    if routes.hops[name] == to:
        raise ConfigError(f"{name!r} sends to {to!r} already", where=where, hint="catchment explain shows the routes")
    if to not in deployment.possible_ends:
        raise ConfigError(
            f"{to!r} has streams of its own and was no relay before, so that it cannot become one while it runs",
            where=where,
            hint=f"move {name!r} to one of {', '.join(sorted(deployment.possible_ends))}",
        )
    routes.moved({name: to})  # refuses a circle


def replace_site(folder: Path, name: str, from_us: int | None = None) -> Answer:
    """Let a site go on with an empty disk; what was merged of it stays, and nothing is counted twice."""
    _check_counts(folder, name)
    refuse_light(Project.load(folder), name)
    return _order(folder, name, "replaced", lambda orders: orders.replace(name, from_us))


def list_sites(folder: Path) -> Answer:
    """Return every site that is declared or was retired: what it does, since when it counts, how far it has come."""
    deployment = Deployment.load(folder)
    orders = deployment.deployed.orders
    told = read_status(deployment.project.state_folder / "center") or {}
    named = dict.fromkeys((*deployment.project.sites, *orders.retired, *told.get("sites", {})))
    return {"sites": [_describe(name, deployment, told) for name in named]}


def _describe(name: str, deployment: Deployment, told: Mapping[str, Any]) -> dict[str, Any]:
    known = told.get("sites", {}).get(name, {})
    marks = [q["marks_us"][name] for q in told.get("queries", {}).values() if q["marks_us"].get(name) is not None]
    return {
        "site": name,
        "state": _state_of(name, deployment),
        "streams": [stream.name for stream in deployment.streams_at(name)],
        "counts_from_us": known.get("counts_from_us"),
        "life": known.get("life", 0),
        "passed_us": min(marks, default=None),
        "left_out_records": known.get("left_out_records", 0),
    }


def _state_of(name: str, deployment: Deployment) -> str:
    if name in deployment.deployed.orders.retired:
        return "retired"
    if name in read_leaving(deployment.project.state_folder):
        return "leaving"
    if name not in deployment.project.sites:
        return "removed"
    if name == deployment.project.center:
        return "center"
    return "counts" if name in deployment.sites else "no stream"


def _check_name(name: str) -> None:
    try:
        site_name().read(name)
    except ValueError as error:
        raise ConfigError(
            f"{name!r} cannot be the name of a site", hint=f"it must be {site_name().expected}"
        ) from error


def _check_counts(folder: Path, name: str) -> None:
    deployment = Deployment.load(folder)
    if name not in deployment.sites:
        raise ConfigError(
            f"no stream that a view reads is born at {name!r}",
            where=str(folder),
            hint=did_you_mean(name, deployment.sites),
        )


def _order(folder: Path, name: str, what: str, change: Callable[[SiteOrders], SiteOrders]) -> Answer:
    project = Project.load(folder)
    declared = load_catalog(project)

    def make(now: Deployed | None) -> Deployed:
        _refuse_relayed(Routings.of(project, {}) if now is None else _routings(project, now), project, name)
        deployed = Deployment.plan(declared, now).deployed
        return Deployment.plan(declared, deployed.with_orders(change(deployed.orders))).deployed

    made = DeploymentStore(project.state_folder).change(make)
    return {"version": made.version, "site": name, what: True}


def _routings(project: Project, deployed: Deployed) -> Routings:
    return Routings.of(replace(project, moved_hops=deployed.hops), deployed.hops_of, deployed.hubs)


def _refuse_relayed(routings: Routings, project: Project, name: str) -> None:
    """Refuse an order of a site whose partials a relay merges with those of others, so that none can be left out."""
    is_behind = any(routes.hops.get(name, project.center) != project.center for routes in routings.every)
    if name in routings.hubs or is_behind:
        raise ConfigError(
            f"site {name!r} sends through other sites, or others through it: the center cannot tell its records apart",
            where=str(project.folder / PROJECT_FILE),
            hint=f'give it a link of its own first: [[links]] from = "{name}", to = "{project.center}"; '
            f"then, with every process stopped: catchment sites heal {name}",
        )
