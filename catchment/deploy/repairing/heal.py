"""Lost or doubted state is healed here: what was merged of a site is computed again from histories, and replaced.

What a relay or the center has merged of several sites cannot be taken apart again. So the windows of every view that
reads a stream of the site are computed again by all sites of that stream, by new fragments (`Deployed.renew`), from
their histories and with what they read from now on, and the center replaces what it has
(`catchment.center.windows.renewed`). The site goes on with whatever state it has, in a new life. Behind a relay that is
healed, every site is; and if the center is, everybody, and everything that histories still hold is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.store import DeploymentStore
from catchment.errors import ConfigError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.options import did_you_mean
from catchment.query.catalog import load_catalog
from catchment.query.view_start import ViewStart

Answer = Mapping[str, Any]


def heal(folder: Path, name: str) -> Answer:
    """Let a site, a relay or the center come back with whatever state it has; compute again what was merged of it."""
    deployment = Deployment.load(folder)
    refuse_light(deployment.project, name)
    healed = _who_is_healed(deployment, name)
    streams = sorted({stream.name for site in healed for stream in deployment.streams_at(site)})
    told = {part.project.sink: _told(part, name) for part in deployment.parts}
    declared = load_catalog(deployment.project)
    views: list[str] = []

    def make(now: Deployed | None) -> Deployed:
        planned = Deployment.plan(declared, now)
        deployed = planned.deployed
        for repair in deployed.repairs:  # its windows are read again from histories that are about to change
            deployed = deployed.drop(repair)
        if now is None:
            deployed = _beyond_all_before(deployed, healed)
        renewed = deployed.renew(streams, healed, _starts(deployed, told[""]))
        sinks = {s: d.renew(streams, healed, _starts(d, told.get(s, {}))) for s, d in deployed.sinks.items()}
        changed = [(deployed, renewed), *((deployed.sinks[sink], made) for sink, made in sinks.items())]
        views[:] = sorted({view for before, after in changed for view in _renewed_views(before, after)})
        for _, after in changed:
            _refuse_without_history(planned, after)
        whole = renewed.with_sinks(sinks).with_orders(deployed.orders.heal(healed))
        return Deployment.plan(declared, whole).deployed

    made = DeploymentStore(deployment.project.state_folder).change(make)
    return {"version": made.version, "healed": list(healed), "views": views}


def _told(part: Deployment, healed: str) -> Mapping[str, Any]:
    """Return what was last said of the queries that are answered at a site; nothing if that one is healed itself."""
    if healed == part.project.center:
        return {}
    told: Mapping[str, Any] = (read_status(part.project.state_folder / "center") or {}).get("queries", {})
    return told


def refuse_light(project: Project, name: str) -> None:
    """Refuse to begin the state of a light site anew: what it would send again could not be told from what was sent."""
    if name in project.sites and project.is_light(name):
        raise ConfigError(
            f"{name!r} is a light site, whose state cannot be begun anew",
            where=str(project.folder / PROJECT_FILE),
            hint=f"restore {project.source_folder(name)}; or, if it is lost, give the site another name",
        )


def _beyond_all_before(deployed: Deployed, names: Collection[str]) -> Deployed:
    """Return a first deployment whose version and lives are beyond those of a record that was lost.

    They are taken from the clock, because nobody knows the old ones: names of fragments must not be used again.
    """
    seconds = int(time.time())
    return replace(deployed, version=seconds, orders=replace(deployed.orders, lives=dict.fromkeys(names, seconds)))


def _renewed_views(before: Deployed, after: Deployed) -> list[str]:
    queries = after.sharing.queries
    return sorted({q.view or n for n, q in queries.items() if after.renewals.get(n, 0) > before.renewals.get(n, 0)})


def _who_is_healed(deployment: Deployment, name: str) -> tuple[str, ...]:
    """Return a site, or a relay with all that send through it or did; for the center or another sink, everybody.

    So it is for a hub to which sites were moved: who ever sent there is not remembered, and its inbox knew them all.
    """
    known = {*deployment.sites, *(relay for part in deployment.parts for relay in part.routings.hubs)}
    moved_to = {hub for part in deployment.parts for hub in part.deployed.hubs}
    if name == deployment.project.center or name in deployment.sinks or name in moved_to:
        return tuple(sorted(known))
    if name not in known:
        raise ConfigError(
            f"no stream that a view reads is born at {name!r}, and nobody sends through it",
            where=str(deployment.project.folder),
            hint=did_you_mean(name, known),
        )
    every = (routes for part in deployment.parts for routes in part.routings.every)
    upstream = {site for routes in every for site in routes.upstream(name)}
    return tuple(sorted(known & upstream))


def _starts(deployed: Deployed, told: Mapping[str, Any]) -> dict[str, ViewStart | None]:
    """Return from where on each query is computed again, as the center last said: its first window that is not final.

    What the center says may be old; then it is too early, which costs reading and changes nothing. One that has not
    begun begins as it would have.
    """
    found: dict[str, ViewStart | None] = {}
    for name, query in deployed.sharing.queries.items():
        status = told.get(query.view or name)
        if status is not None and not status["has_begun"]:
            found[name] = deployed.starts.get(deployed.derivation(name).fragment)
        else:
            found[name] = ViewStart(None if status is None else status["changeable_from_us"])
    return found


def _refuse_without_history(deployment: Deployment, renewed: Deployed) -> None:
    """Refuse to compute again what no site has kept."""
    streams = {q.demand.source.stream for n, q in renewed.sharing.queries.items() if n in renewed.renewals}
    refuse_without_history(
        deployment,
        streams,
        hint="let the site go on with an empty state folder, without what it had: catchment sites replace",
    )


def refuse_without_history(deployment: Deployment, streams: Collection[str], hint: str) -> None:
    """Refuse to compute again what is answered from streams of which no site keeps history."""
    unkept = [stream for stream in sorted(streams) if not _keeps_history(deployment, stream)]
    if unkept:
        raise ConfigError(
            f"no history is kept of {', '.join(unkept)}, so that nothing of it can be computed again",
            where=str(deployment.project.folder / PROJECT_FILE),
            hint=hint,
        )


def _keeps_history(deployment: Deployment, stream: str) -> bool:
    return deployment.project.defaults.keeps_history(deployment.catalog.streams[stream].history)
