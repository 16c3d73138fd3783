"""`catchment sql`: query results without starting Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.commands.show import ProjectOption
from catchment.cli.output import JsonFlag, emit
from catchment.cli.tables import hide_engine_columns, plain_table
from catchment.project.config import Project
from catchment.units import parse_size


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="sql",
        epilog='Example: catchment sql "SELECT * FROM traffic ORDER BY bytes DESC LIMIT 5" -p demo',
    )(sql)


def sql(
    statement: Annotated[
        str, typer.Argument(help="A SELECT over views: NAME has the latest revision of each row, NAME__revisions all.")
    ],
    project: ProjectOption = Path(),
    with_all: Annotated[
        bool, typer.Option("--all", help="Show every column of SELECT *, also those that the engine adds.")
    ] = False,
    memory_limit: Annotated[str, typer.Option(help="How much memory the statement may take.")] = "2 GB",
    time_limit: Annotated[float, typer.Option(min=0.001, help="How many seconds it may take.")] = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Query published results with one SELECT in DuckDB's SQL, without starting Spark."""
    from catchment.center.results.sql import SqlLimits, query_results

    limits = SqlLimits(parse_size(memory_limit), time_limit)
    found = query_results(Project.load(project).state_folder, statement, limits)
    emit({"rows": found.to_pylist()}, as_json, lambda a: _render(a["rows"], with_all))


def _render(rows: Sequence[Mapping[str, Any]], with_all: bool) -> RenderableType:
    shown = rows if with_all else hide_engine_columns(rows)
    title = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    if shown is not rows:
        title += " (--all adds coverage, bounds, revisions and what is missing)"
    return plain_table(shown, title)
