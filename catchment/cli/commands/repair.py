"""`catchment repair`: what was shed of a view is repaired now, or windows that are final are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.options import did_you_mean


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: catchment repair traffic --window '2026-03-01 12:00:00' -p my-project")(repair)


def repair(
    query: Annotated[str, typer.Argument(help="The name of a materialized view.")],
    window: Annotated[
        str | None, typer.Option(help="Compute the window again that starts then, from history; it must be final.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="With --window: all windows that start before this instant.")] = None,
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Ask the sites to repair what was shed of a view as soon as their load allows; or compute windows again.

    With --window, windows beyond the repair horizon are computed again from the histories of the sites. Each is then
    replaced by one revision, unless a history no longer holds all of it.
    """
    if window is not None:
        emit(_compute_again(project, query, window, to), as_json, _told)
        return
    if to is not None:
        raise ConfigError("--to says where windows end, and no --window says where they begin", hint="add --window")
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


def _compute_again(project: Path, query: str, window: str, to: str | None) -> dict[str, Any]:
    from catchment.deploy.repair_windows import repair_windows

    before_us = None if to is None else _instant_us("--to", to)
    return dict(repair_windows(project, query, _instant_us("--window", window), before_us))


def _instant_us(option: str, text: str) -> int:
    from catchment.query.view_start import ViewStart

    with suppress(ValueError):
        start = ViewStart.read(text)
        if start.at_us is not None:
            return start.at_us
    raise ConfigError(f"{option} is {text!r}", hint="write an instant, such as '2026-03-01 12:00:00' (UTC)")


def _told(answer: Mapping[str, Any]) -> str:
    from catchment.query.view_start import write_instant

    return (
        f"windows of {answer['view']} from {write_instant(answer['from_us'])} to {write_instant(answer['until_us'])} "
        f"are computed again by {answer['computed_by']}, which ends by itself: catchment show queries"
    )
