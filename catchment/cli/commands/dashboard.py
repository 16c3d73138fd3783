"""`catchment dashboard`: a live page about a deployment."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.running import stop_on_signals
from catchment.project.config import Project

DEFAULT_PORT = 8642


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: catchment dashboard -p demo   |   catchment dashboard -p demo --operator")(dashboard)


def dashboard(
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    port: Annotated[int, typer.Option(help="The port to listen on, on this machine only; 0 takes a free one.")] = (
        DEFAULT_PORT
    ),
    operator: Annotated[
        bool, typer.Option("--operator", help="Print an address that may also submit and drop views.")
    ] = False,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Stop after this many seconds.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Serve a live page about a project: sites, links, views, windows and why they changed, and a box for SQL."""
    from catchment.serve.access import AccessRole
    from catchment.serve.dashboard import DashboardServer

    role = AccessRole.OPERATOR if operator else AccessRole.READER
    with DashboardServer(Project.load(project), port=port) as server:
        url = server.url(role)
        emit({"url": url, "role": str(role)}, as_json, lambda a: a["url"])
        notes.print("Ctrl-C ends the page; nothing else stops", highlight=False)
        ended = threading.Event()
        with stop_on_signals(ended.set):
            ended.wait(seconds)
