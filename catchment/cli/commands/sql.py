"""`catchment sql`: query results without starting Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.commands.show import ProjectOption
from catchment.cli.output import JsonFlag, emit
from catchment.cli.tables import plain_table
from catchment.project.config import Project


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
    as_json: JsonFlag = False,
) -> None:
    """Query published results with one SELECT in DuckDB's SQL, without starting Spark."""
    from catchment.center.results.sql import query_results

    found = query_results(Project.load(project).state_folder, statement)
    emit({"rows": found.to_pylist()}, as_json, lambda a: plain_table(a["rows"], f"{found.num_rows} rows"))
