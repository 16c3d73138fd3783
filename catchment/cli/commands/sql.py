"""`catchment sql`: query results without starting Spark."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.asking import CenterOption, SinkOption, ask
from catchment.cli.commands.show import ProjectOption
from catchment.cli.output import JsonFlag, emit, notes, report
from catchment.cli.tables import hide_engine_columns, plain_table
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.units import parse_size

if TYPE_CHECKING:
    from catchment.center.results.sql import SqlLimits


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="sql",
        epilog='Examples: catchment sql "SELECT * FROM traffic ORDER BY bytes DESC LIMIT 5" -p demo   |   '
        "catchment sql -p demo",
    )(sql)


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(
            help="A SELECT over views: NAME has the latest revision of each row, NAME__revisions all. "
            "Without one, a shell reads statements that end with ;."
        ),
    ] = None,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    sink: SinkOption = None,
    with_all: Annotated[
        bool, typer.Option("--all", help="Show every column of SELECT *, also those that the engine adds.")
    ] = False,
    memory_limit: Annotated[str, typer.Option(help="How much memory the statement may take.")] = "2 GB",
    time_limit: Annotated[float, typer.Option(min=0.001, help="How many seconds it may take.")] = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Query published results in DuckDB's SQL, one SELECT or a shell, without starting Spark."""
    memory_bytes = parse_size(memory_limit)
    if statement is not None:
        limits = {"memory_bytes": memory_bytes, "time_s": time_limit}
        answer = ask("sql", project, center, statement=statement, sink=sink, **limits)
        emit(answer, as_json, lambda a: _render(a["rows"], with_all))
        return
    if center is not None:
        raise ConfigError("with --center one statement is answered", hint='catchment sql "SELECT ..." --center prod')
    from catchment.center.results.sql import SqlLimits

    _open_shell(
        Project.load(project).answering_at(sink).state_folder, SqlLimits(memory_bytes, time_limit), with_all, as_json
    )


def _open_shell(state: Path, limits: SqlLimits, with_all: bool, as_json: bool) -> None:
    """Answer statements of a person at a terminal, or of another program through a pipe."""
    from catchment.cli.sql_shell import SqlShell, run_shell

    def say(line: str) -> None:
        if sys.stdin.isatty():
            notes.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(rows: Sequence[Mapping[str, Any]]) -> None:
        emit({"rows": rows}, as_json, lambda a: _render(a["rows"], with_all))

    def read_line(prompt: str) -> str:
        return input(prompt if sys.stdin.isatty() else "")

    run_shell(SqlShell(state, limits, show, say, report), read_line)


def _render(rows: Sequence[Mapping[str, Any]], with_all: bool) -> RenderableType:
    shown = rows if with_all else hide_engine_columns(rows)
    title = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    if shown is not rows:
        title += " (--all adds coverage, bounds, revisions and what is missing)"
    return plain_table(shown, title)
