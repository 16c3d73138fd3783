"""Querying results with SQL, without starting Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.cli.show import ProjectOption, plain_table
from catchment.config import Project
from catchment.errors import QueryError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="sql", epilog='Example: catchment sql "SELECT * FROM traffic ORDER BY bytes DESC LIMIT 5" -p demo')(sql)


def sql(
    statement: Annotated[str, typer.Argument(help="A SELECT over the project's views; NAME__revisions has every revision.")],
    project: ProjectOption = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Query what has been published, with SQL (DuckDB reads the tables; each view shows its latest revisions)."""
    import duckdb

    from catchment.center.results import read_results

    state = Project.load(project).state_folder
    names = sorted(p.name for p in (state / "results").glob("*") if p.is_dir())
    with duckdb.connect() as session:
        for name in names:
            session.register(name, read_results(state, name))
            session.register(f"{name}__revisions", read_results(state, name, revisions="all"))
        try:
            found = session.sql(statement).to_arrow_table()
        except duckdb.Error as error:
            views = ", ".join(names) or "none has published yet"
            raise QueryError(str(error).strip(), where=statement, hint=f"views are: {views}") from error
    emit({"rows": found.to_pylist()}, as_json, lambda a: plain_table(a["rows"], f"{found.num_rows} rows"))
