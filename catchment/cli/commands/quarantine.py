"""`catchment quarantine`: give records that could not be used another try."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.commands.show import quarantine as show_quarantine
from catchment.cli.output import JsonFlag, emit

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
StreamOrView = Annotated[str, typer.Argument(help="The name of a stream or a view.", show_default=False)]
SiteOption = Annotated[str | None, typer.Option("--site", help="Only at this site; by default at all that are here.")]

quarantine_app = typer.Typer(
    help="List records that could not be used, and give them another try.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(quarantine_app, name="quarantine")


@quarantine_app.command("list", epilog="Example: catchment quarantine list -p my-project")
def list_records(
    project: ProjectOption = Path(),
    limit: Annotated[int, typer.Option(help="How many records are printed.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List the records in quarantine, with the reason; the same as catchment show quarantine."""
    show_quarantine(project, limit=limit, as_json=as_json)


@quarantine_app.command(epilog="Example: catchment quarantine replay hits -p my-project --site eu")
def replay(
    name: StreamOrView, project: ProjectOption = Path(), site: SiteOption = None, as_json: JsonFlag = False
) -> None:
    """Give quarantined records another try, after what was wrong with them was corrected.

    Of a stream, those that it could not use are read again as a new file. Of a view, those that it has set aside
    (on_error = 'quarantine') are evaluated again by the sites, and merged once. Those that still cannot be used stay in
    quarantine, and those beyond the repair horizon are registered as late.
    """
    from catchment.deploy.repairing.quarantine import replay_quarantine

    emit(replay_quarantine(project, name, site), as_json, _render)


def _render(answer: Mapping[str, Any]) -> str:
    if "view" not in answer:
        return f"{answer['records']} records of {answer['stream']} are read again"
    lines = [f"{answer['records']} records that {answer['view']} has set aside are tried again"]
    waiting = [entry["site"] for entry in answer["sites"] if entry["suspended"]]
    if waiting:
        lines.append(f"at {', '.join(waiting)} when the view goes on: catchment resume {answer['view']}")
    return "\n".join(lines)
