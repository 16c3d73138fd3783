"""`catchment repair`: ask for what was shed of a view to be repaired now, whatever its `repair` option says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.options import did_you_mean


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: catchment repair traffic -p my-project")(repair)


def repair(
    query: Annotated[str, typer.Argument(help="The name of a materialized view.")],
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Ask the sites to repair what was shed of a view as soon as their load allows."""
    emit(ask(project, query), as_json, lambda a: f"asked {', '.join(a['sites'])} to repair what was shed of {query}")


def ask(project: Path, query: str) -> dict[str, Any]:
    """Leave the request in the folder of every site that has run here."""
    from catchment.center.results.names import newest_name
    from catchment.deploy.role_files import request_repairs
    from catchment.query.catalog import load_catalog

    loaded = Project.load(project)
    catalog = load_catalog(loaded)
    view = catalog.views.get(query)
    if view is None:
        raise ConfigError(f"there is no view {query!r}", where=str(project), hint=did_you_mean(query, catalog.views))
    if not any(catalog.streams[name].shed for name in view.reads if name in catalog.streams):
        hint = "only a stream that is declared with shed = true is ever sampled"
        raise ConfigError(f"nothing of {query!r} is ever shed", where=view.where, hint=hint)
    sites = sorted(p.parent for p in loaded.state_folder.glob("sites/*/journal"))
    if not sites:
        raise ConfigError(
            "nothing has run here yet", where=str(loaded.state_folder), hint=f"catchment run -p {project}"
        )
    for folder in sites:
        request_repairs(folder, [newest_name(loaded.state_folder, query)])
    return {"query": query, "sites": [folder.name for folder in sites]}
