"""How every command prints its answer: a table for people, or one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from catchment.center.results.plain_json import to_plain_json
from catchment.errors import CatchmentError

console = Console()
notes = Console(stderr=True)  # progress and remarks: never mixed into a program's JSON

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def emit(answer: Mapping[str, Any], as_json: bool, render: Callable[[Mapping[str, Any]], RenderableType]) -> None:
    """Print an answer in the form that was asked for."""
    if as_json:
        typer.echo(json.dumps(to_plain_json(answer), indent=2, allow_nan=False))
        return
    shown = render(answer)
    if isinstance(shown, str):  # a plan or a path: nothing in it is markup, and its lines are its own
        console.print(shown, markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(shown, crop=False)  # a command to be copied may be longer than the line


def report(error: CatchmentError) -> None:
    """Print a user error: what is wrong, where, and what to do."""
    notes.print(Text("error: ", style="bold red") + Text(error.message), soft_wrap=True)
    for name, text in (("at", error.where), ("hint", error.hint)):
        if text:
            notes.print(f"  {name}: {text}", highlight=False, markup=False, soft_wrap=True)
