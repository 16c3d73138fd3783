"""`catchment submit` and `catchment drop`: add and drop views while a project runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.project_folder import OptionalProject, split_folder
from catchment.errors import QueryError
from catchment.units import format_bandwidth


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog="Examples: catchment submit another.sql -p my-project   |   catchment submit another.sql --center prod"
    )(submit)
    app.command(epilog="Examples: catchment drop totals -p my-project   |   catchment drop totals --center prod")(drop)


def submit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="A file of CREATE MATERIALIZED VIEW statements. A folder before it is the project."
        ),
    ],
    project: OptionalProject = None,
    center: CenterOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--plan", "--dry-run", help="Show what would change, on links too, and deploy nothing."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Deploy it even if a link would have to carry too much.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Add views to a project, running or not; each begins as its `start` says, else with what every site sees whole."""
    folder, file = split_folder(words, project, "a file")
    answer = ask("submit", folder, center, text=_read_statements(Path(file)), file=file, dry_run=dry_run, yes=yes)
    emit(answer, as_json, _render_submitted)


def drop(
    words: Annotated[
        list[str], typer.Argument(metavar="VIEW", help="The view to drop. A folder before it is the project.")
    ],
    project: OptionalProject = None,
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Drop a view, whether or not the project is running; its published answers are kept."""
    folder, view = split_folder(words, project, "a view")
    emit(ask("drop", folder, center, query=view), as_json, _render_dropped)


def _read_statements(path: Path) -> str:
    if not path.is_file():
        raise QueryError(f"there is no file {path}", hint="give a file with CREATE MATERIALIZED VIEW statements")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise QueryError("this file is not UTF-8 text", where=str(path)) from error


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
    lines += [_render_link(link) for link in answer["links"] if not answer["deployed"]]
    if not answer["deployed"]:
        lines.append("nothing was deployed: this was a dry run")
    return "\n".join(lines)


def _render_link(link: Mapping[str, Any]) -> str:
    now, then = format_bandwidth(link["now_bytes_per_s"]), format_bandwidth(link["then_bytes_per_s"])
    capacity = link["capacity_bytes_per_s"]
    of = f" of {format_bandwidth(capacity)}" if capacity else ""
    overflow = ", more than it can: answers would come late" if link["overflows"] else ""
    return f"{link['from']} to {link['to']}: {now} now, {then} then{of}{overflow}"


def _render_dropped(answer: Mapping[str, Any]) -> str:
    ended = ", ".join(answer["ended_fragments"]) or "none"
    return f"{answer['dropped']} is dropped; fragments that nothing else needs: {ended}"
