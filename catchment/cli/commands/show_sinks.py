"""`catchment show sinks`: where answers are delivered, how far, and what keeps them from being."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.progress import when
from catchment.cli.tables import plain_table


def register(app: typer.Typer) -> None:
    """Add the command to the group `show`."""
    app.command(epilog="Example: catchment show sinks -p demo")(sinks)


def sinks(
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show every sink: what it delivers where, since when it is up to date or failing, and why."""
    emit(ask("show sinks", project, center), as_json, _render)


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
