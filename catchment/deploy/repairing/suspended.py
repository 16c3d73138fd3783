"""Which views are suspended, where and why, by what the roles last wrote as their status; and how they are resumed.

A request to resume is left in the folder of each site where a fragment of the view is suspended, and of the center if
the view's answers are suspended there. The roles follow it at their next tick, or when they start. What was missed
meanwhile is read again from history; where that is not possible, windows stay `suspended`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.backfills import find_backfills, is_over
from catchment.deploy.reports.requests import request_resumption
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.submit import find_definition
from catchment.errors import ConfigError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.query.catalog import load_catalog

_TOLD = ("site", "fragment", "reason", "expression", "record", "from_us", "missed_us")


def describe_queries(project: Project) -> list[dict[str, Any]]:
    """Return every view: its fragments, who shares them, where it is suspended, and how far its past was read."""
    deployment = Deployment.plan(load_catalog(project))
    composed = [query.name for query in deployment.composed_queries]
    return [_describe_query(project, deployment.deployed, name) for name in (*deployment.deployed.views, *composed)]


def resume(project: Project, name: str) -> Mapping[str, Any]:
    """Ask every role where a view is suspended to resume it; return what each has missed so far."""
    deployment = Deployment.plan(load_catalog(project))
    deployed = deployment.deployed
    definition = find_definition(deployment, name)
    if definition is None:
        hint = did_you_mean(name, deployment.catalog.views)
        raise ConfigError(f"there is no view {name!r}", where=str(project.folder), hint=hint)
    name = definition
    found = list(find_suspensions(project, deployed, name))
    if not found:
        raise ConfigError(
            f"view {name!r} is not suspended",
            where=str(project.state_folder),
            hint="catchment show queries lists the views that are, and why",
        )
    for suspension in found:
        _request(project, name, suspension)
    shared = {v for s in found if s["fragment"] for v in views_of(deployed, s["fragment"])}
    return {"query": name, "resumed": found, "also_resumed": sorted(shared - {name})}


def sites_of(deployed: Deployed, name: str) -> list[str]:
    """Return the sites that a view answers for; none where it reads another view."""
    sources = (deployed.sharing.queries[part].demand.source for part in deployed.parts(name))
    return list(dict.fromkeys(site for source in sources for site in source.sites))


def find_suspensions(project: Project, deployed: Deployed, name: str) -> Iterator[dict[str, Any]]:
    """Yield where a view is suspended, and why: sites that run here tell it themselves, others through the center."""
    fragments = fragments_of(deployed, name)
    sites = sites_of(deployed, name)
    told = (read_status(project.state_folder / "center") or {}).get("queries", {}).get(name, {})
    local = {folder.name: read_status(folder) for folder in sorted(project.state_folder.glob("sites/*"))}
    for site, status in local.items():
        known = (status or {}).get("fragments", {})
        for fragment in sorted(fragments & known.keys()):
            if known[fragment].get("suspended") and site in sites:
                yield _entry({"site": site, "fragment": fragment, **known[fragment]["suspended"]})
    for site, suspension in told.get("suspended", {}).items():
        if not local.get(site):
            yield _entry({"site": site, **suspension})
    unfinished = told.get("unfinished")
    if unfinished and unfinished["reason"]:
        yield _entry({"site": project.center, "reason": unfinished["reason"], "missed_us": unfinished["windows_us"]})


def fragments_of(deployed: Deployed, view: str) -> frozenset[str]:
    """Return the fragments that a view takes its partials from."""
    return frozenset(deployed.derivation(part).fragment for part in deployed.parts(view))


def views_of(deployed: Deployed, fragment: str) -> list[str]:
    """Return the views that take their partials from a fragment."""
    return [view for view in deployed.views if fragment in fragments_of(deployed, view)]


def _describe_query(project: Project, deployed: Deployed, name: str) -> dict[str, Any]:
    fragments = sorted(fragments_of(deployed, name))
    suspensions = list(find_suspensions(project, deployed, name))
    past = list(find_backfills(project, fragments))
    state = "running" if all(is_over(backfill) for backfill in past) else "reading its past"
    others = {view for fragment in fragments for view in views_of(deployed, fragment)} - {name}
    return {
        "query": name,
        "state": "suspended" if suspensions else state,
        "sites": sites_of(deployed, name),
        "fragments": fragments,
        "shares_with": sorted(others),
        "suspended": suspensions,
        "past": past,
    }


def _request(project: Project, name: str, suspension: Mapping[str, Any]) -> None:
    if suspension["fragment"] is None:
        request_resumption(project.state_folder / "center", [name])
        return
    folder = project.site_folder(suspension["site"])
    if not folder.is_dir():
        raise ConfigError(
            f"view {name!r} is suspended at {suspension['site']!r}, which does not run from this state folder",
            where=str(project.state_folder),
            hint=f"run catchment resume {name} where that site runs",
        )
    request_resumption(folder, [suspension["fragment"]])


def _entry(suspension: Mapping[str, Any]) -> dict[str, Any]:
    return {key: suspension.get(key) for key in _TOLD}
