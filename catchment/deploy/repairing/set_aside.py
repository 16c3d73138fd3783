"""Records that single views have set aside: what there is, and how they get another try.

A view with `on_error = 'quarantine'` goes on without the records that its expressions fail on; its stream and the other
views have used them. When what was wrong has been corrected, a request is left in the folder of each site that has such
records. The site follows it at its next tick, or when it starts (`catchment.site.retry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.housekeeping import QUARANTINE
from catchment.deploy.repairing.suspended import find_suspensions, fragments_of
from catchment.deploy.reports.requests import request_retries
from catchment.deploy.submit import find_definition
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.site.retry import SET_ASIDE_BY, read_folder_name


def retry_set_aside(project: Project, deployment: Deployment, view: str, site: str | None = None) -> dict[str, Any]:
    """Ask sites that run from this state folder to try again what a view has set aside there."""
    name = find_definition(deployment, view)
    assert name is not None, "whoever asks has found the view"
    deployed = deployment.deployed
    fragments = fragments_of(deployed, name)
    found = {place: count for place, count in _count_set_aside(project).items() if place[1] in fragments}
    chosen = {place: count for place, count in found.items() if site in (None, place[0])}
    if not chosen:
        elsewhere = sorted({place[0] for place in found})
        raise ConfigError(
            f"view {view!r} has set nothing aside{'' if site is None else f' at site {site!r}'}",
            where=str(project.state_folder),
            hint=f"it has something at {', '.join(elsewhere)}" if elsewhere else _hint(project, fragments),
        )
    suspended = {(s["site"], s["fragment"]) for s in find_suspensions(project, deployed, name)}
    for at, fragment in chosen:
        request_retries(project.site_folder(at), [fragment])
    sites = [
        {"site": at, "fragment": fragment, "records": count, "suspended": (at, fragment) in suspended}
        for (at, fragment), count in sorted(chosen.items())
    ]
    return {"view": view, "records": sum(chosen.values()), "sites": sites}


def _hint(project: Project, fragments: frozenset[str]) -> str:
    others = sorted({fragment for _, fragment in _count_set_aside(project)} - fragments)
    if not others:
        return "catchment show quarantine lists what there is"
    return (
        f"what is in quarantine was set aside by {', '.join(others)}, of other views or of a definition that was "
        "replaced: CREATE OR REPLACE MATERIALIZED VIEW with start reads all records again from history"
    )


def _count_set_aside(project: Project) -> Mapping[tuple[str, str], int]:
    """Return how many records fragments have set aside, by site and fragment; what a try has left included."""
    counts: dict[tuple[str, str], int] = {}
    for folder in project.state_folder.glob(f"sites/*/{QUARANTINE}/*/{SET_ASIDE_BY}*"):
        fragment, _ = read_folder_name(folder.name) or ("", 0)
        place = folder.parent.parent.parent.name, fragment
        for path in folder.glob("batch=*/*.parquet") if fragment else ():
            counts[place] = counts.get(place, 0) + pq.read_metadata(path).num_rows
    return counts
