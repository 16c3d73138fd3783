"""What every command does with its answer: a table for a person, one JSON document for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

console = Console()
notes = Console(stderr=True)  # progress and remarks: never mixed into a program's JSON

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def emit(answer: Mapping[str, Any], as_json: bool, render: Callable[[Mapping[str, Any]], RenderableType]) -> None:
    """Print an answer in the form that was asked for."""
    if as_json:
        typer.echo(json.dumps(answer, indent=2, default=str))
    else:
        console.print(render(answer))
