"""`catchment show`: how a project runs, what it has published and why, and what was set aside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.asking import CenterOption, SinkOption, ask
from catchment.cli.commands import show_order, show_quality, show_queries, show_sinks
from catchment.cli.output import JsonFlag, emit
from catchment.cli.progress import status_table, when
from catchment.cli.tables import plain_table, result_table, window_table

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
Query = Annotated[str, typer.Argument(help="The name of a materialized view.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many rows to show.")]

show_app = typer.Typer(
    help="Show the status, results, windows, contracts and late records of a project.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    show_order.register(show_app)
    show_quality.register(show_app)
    show_queries.register(show_app)
    show_sinks.register(show_app)
    app.add_typer(show_app, name="show")


@show_app.command(epilog="Example: catchment show status -p demo")
def status(project: ProjectOption = Path(), center: CenterOption = None, as_json: JsonFlag = False) -> None:
    """Show the last reported status of each site, relay and the center, and how old it is."""
    emit(ask("show status", project, center), as_json, status_table)


@show_app.command(epilog="Example: catchment show results traffic -p demo -n 20")
def results(
    query: Query,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    sink: SinkOption = None,
    limit: Limit = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show the newest rows of a view, each in its latest revision."""
    answer = ask("show results", project, center, query=query, sink=sink, limit=limit)
    emit(answer, as_json, lambda a: result_table(a["rows"], f"{query} by window, newest first"))


@show_app.command(epilog="Example: catchment show windows traffic -p demo")
def windows(
    query: Query,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    sink: SinkOption = None,
    limit: Limit = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show the newest windows of a view: status, coverage, revision, and what is missing."""
    answer = ask("show windows", project, center, query=query, sink=sink, limit=limit)
    emit(answer, as_json, lambda a: window_table(a["windows"], f"windows of {query}, newest first"))


@show_app.command(epilog='Example: catchment show revisions traffic "2017-01-01 02:00" -p demo')
def revisions(
    query: Query,
    window: Annotated[
        str | None, typer.Argument(help="Start of a window, such as '2017-01-01 02:00' (UTC); by default all windows.")
    ] = None,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    sink: SinkOption = None,
    limit: Limit = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show every published revision of a view's windows, and why each was made."""
    answer = ask("show revisions", project, center, query=query, sink=sink, window=window, limit=limit)
    emit(answer, as_json, lambda a: window_table(a["revisions"], f"revisions of {query}, oldest first"))


@show_app.command(epilog="Example: catchment show quarantine -p demo")
def quarantine(
    project: ProjectOption = Path(), center: CenterOption = None, limit: Limit = 20, as_json: JsonFlag = False
) -> None:
    """Show records that could not be used, as they arrived, with the reason."""
    emit(ask("show quarantine", project, center, limit=limit), as_json, _render_quarantine)


@show_app.command(epilog="Example: catchment show audit --center prod")
def audit(
    project: ProjectOption = Path(), center: CenterOption = None, limit: Limit = 50, as_json: JsonFlag = False
) -> None:
    """Show who changed what in a deployment, and when; refused changes too."""
    emit(ask("show audit", project, center, limit=limit), as_json, _render_audit)


def _render_quarantine(answer: Mapping[str, Any]) -> RenderableType:
    counts = ", ".join(f"{count:,} {reason}" for reason, count in answer["counts"].items())
    return plain_table(answer["records"], f"quarantine: {counts}" if counts else "quarantine")


def _render_audit(answer: Mapping[str, Any]) -> RenderableType:
    rows = [
        {
            "when": when(change["at_us"]),
            "who": change["who"],
            "change": " ".join([change["command"], *(str(v) for n, v in change["arguments"].items() if n != "text")]),
            "version": change["version"],
            "refused": change["refused"] or "-",
        }
        for change in answer["changes"]
    ]
    return plain_table(rows, "changes, oldest first")
