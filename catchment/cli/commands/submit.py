"""`catchment submit` and `catchment drop`: add and drop views while a project runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.project.config import Project

Folder = Annotated[Path, typer.Argument(help="The project folder.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Example: catchment submit my-project another.sql")(submit)
    app.command(epilog="Example: catchment drop my-project totals")(drop)


def submit(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="A file of CREATE MATERIALIZED VIEW statements.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and deploy nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Add views to a project, running or not; each begins as its `start` says, else with what every site sees whole."""
    from catchment.deploy.submit import submit as submit_file

    emit(submit_file(Project.load(folder), file, dry_run=dry_run), as_json, _render_submitted)


def drop(
    folder: Folder,
    query: Annotated[str, typer.Argument(help="The view to drop.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Drop a view, whether or not the project is running; its published answers are kept."""
    from catchment.deploy.submit import drop as drop_query

    emit(drop_query(Project.load(folder), query), as_json, _render_dropped)


def _render_submitted(answer: Mapping[str, Any]) -> str:
    lines = []
    for row in answer["queries"]:
        shared = f"shares {row['fragment']} with {', '.join(row['shared_with'])}"
        lines.append(f"{row['query']}: {shared if row['shared_with'] else 'starts ' + row['fragment']}")
    for row in answer["replaced"]:
        lines.append(f"{row['query']} replaces {row['replaces']}, whose answers are kept")
        lines += row["difference"] or ["its plan is the same"]
    if answer["ended_fragments"]:
        lines.append(f"fragments that nothing needs any more: {', '.join(answer['ended_fragments'])}")
    if not answer["deployed"]:
        lines.append("nothing was deployed: this was a dry run")
    return "\n".join(lines)


def _render_dropped(answer: Mapping[str, Any]) -> str:
    ended = ", ".join(answer["ended_fragments"]) or "none"
    return f"{answer['dropped']} is dropped; fragments that nothing else needs: {ended}"
