"""`catchment show sinks`: where answers are delivered, how far, and what keeps them from being."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.output import JsonFlag, emit
from catchment.cli.progress import when
from catchment.cli.tables import plain_table
from catchment.project.config import Project


def register(app: typer.Typer) -> None:
    """Add the command to the group `show`."""
    app.command(epilog="Example: catchment show sinks -p demo")(sinks)


def sinks(
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Show every sink: what it delivers where, since when it is up to date or failing, and why."""
    from catchment.deploy.role_status import read_project_status
    from catchment.query.catalog import load_catalog

    opened = Project.load(project)
    told = read_project_status(opened).center.told.get("sinks", {})
    declared = load_catalog(opened).sinks.values()
    rows = [
        {
            "sink": sink.name,
            "view": sink.view,
            "connector": sink.connector.kind,
            "changes": sink.connector.changes,
            **told.get(sink.name, {"state": "not started", "since_us": None, "rows": 0, "failures": 0, "error": None}),
        }
        for sink in declared
    ]
    emit({"sinks": rows}, as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    if not answer["sinks"]:
        return Text("no sink is declared: CREATE SINK name FROM view WITH (connector = 'kafka', ...)")
    rows = [
        {
            "sink": s["sink"],
            "view": s["view"],
            "to": s["connector"],
            "state": s["state"],
            "since": when(s["since_us"]) if s["since_us"] is not None else "-",
            "rows": s["rows"],
            "failures": s["failures"],
        }
        for s in answer["sinks"]
    ]
    errors = [Text(f"{s['sink']}: {s['error']}") for s in answer["sinks"] if s["error"]]
    return Group(plain_table(rows, "sinks"), *errors)
