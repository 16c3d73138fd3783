"""`catchment quarantine`: give records that could not be used another try."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.commands.show import quarantine as show_quarantine
from catchment.cli.output import JsonFlag, emit

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
StreamName = Annotated[str, typer.Argument(help="The name of the stream.", show_default=False)]
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
    stream: StreamName, project: ProjectOption = Path(), site: SiteOption = None, as_json: JsonFlag = False
) -> None:
    """Read the quarantined records of a stream again, after what was wrong with it was corrected.

    They leave the quarantine. Those that still cannot be used come back to it, and those beyond the repair horizon are
    registered as late.
    """
    from catchment.deploy.repairing.quarantine import replay_quarantine

    emit(replay_quarantine(project, stream, site), as_json, _render)


def _render(answer: Mapping[str, Any]) -> str:
    return f"{answer['records']} records of {answer['stream']} are read again"
