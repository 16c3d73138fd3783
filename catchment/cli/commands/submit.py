"""`catchment submit` and `catchment drop`: add and drop views while a project runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.cli.project_folder import OptionalProject, split_folder
from catchment.project.config import Project


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Example: catchment submit another.sql -p my-project")(submit)
    app.command(epilog="Example: catchment drop totals -p my-project")(drop)


def submit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="A file of CREATE MATERIALIZED VIEW statements. A folder before it is the project."
        ),
    ],
    project: OptionalProject = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and deploy nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Add views to a project, running or not; each begins as its `start` says, else with what every site sees whole."""
    from catchment.deploy.submit import submit as submit_file

    folder, file = split_folder(words, project, "a file")
    emit(submit_file(Project.load(folder), Path(file), dry_run=dry_run), as_json, _render_submitted)


def drop(
    words: Annotated[
        list[str], typer.Argument(metavar="VIEW", help="The view to drop. A folder before it is the project.")
    ],
    project: OptionalProject = None,
    as_json: JsonFlag = False,
) -> None:
    """Drop a view, whether or not the project is running; its published answers are kept."""
    from catchment.deploy.submit import drop as drop_query

    folder, view = split_folder(words, project, "a view")
    emit(drop_query(Project.load(folder), view), as_json, _render_dropped)


def _render_submitted(answer: Mapping[str, Any]) -> str:
    lines = []
    for row in answer["queries"]:
        if "reads" in row:
            lines.append(f"{row['query']}: reads the windows of {row['reads']}, and nothing is sent for it")
            continue
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
