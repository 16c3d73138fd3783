"""Requests to repair what was shed of a view, left in the folder of every site that has run or reported here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catchment.center.results.names import newest_name
from catchment.deploy.reports.requests import request_repairs
from catchment.deploy.reports.role_files import STATUS_FILE
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.query.catalog import load_catalog


def ask_for_repair(folder: Path, query: str) -> dict[str, Any]:
    """Ask the sites to repair what was shed of a view as soon as their load allows."""
    project = Project.load(folder)
    catalog = load_catalog(project)
    view = catalog.views.get(query)
    if view is None:
        raise ConfigError(f"there is no view {query!r}", where=str(folder), hint=did_you_mean(query, catalog.views))
    if not any(catalog.streams[name].shed for name in view.reads if name in catalog.streams):
        hint = "only a stream that is declared with shed = true is ever sampled"
        raise ConfigError(f"nothing of {query!r} is ever shed", where=view.where, hint=hint)
    known = (*project.state_folder.glob("sites/*/journal"), *project.state_folder.glob(f"sites/*/{STATUS_FILE}"))
    sites = sorted({path.parent for path in known})
    if not sites:
        raise ConfigError(
            "nothing has run here yet", where=str(project.state_folder), hint=f"catchment run -p {folder}"
        )
    for site_folder in sites:
        request_repairs(site_folder, [newest_name(project.state_folder, query)])
    return {"query": query, "sites": [site_folder.name for site_folder in sites]}
