"""`catchment resume`: let a suspended view go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.progress import when


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: catchment resume traffic -p my-project")(resume)


def resume(
    query: Annotated[str, typer.Argument(help="The name of a materialized view.")],
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a suspended view go on with the next micro-batch; what it has missed is read again from history."""
    emit(ask("resume", project, center, query=query), as_json, _render)


def _render(answer: Mapping[str, Any]) -> str:
    lines = [f"{answer['query']} goes on at {row['site']}{_missed(row['missed_us'])}" for row in answer["resumed"]]
    if answer["also_resumed"]:
        lines.append(f"with it go on, because they share its fragment: {', '.join(answer['also_resumed'])}")
    return "\n".join(lines)


def _missed(missed_us: list[int] | None) -> str:
    if not missed_us:
        return ""
    first_us, last_us = missed_us
    return f"; it lacks records from {when(first_us)} to {when(last_us)}, which are read again where history has them"
