"""How every command prints its answer: a table for people, or one JSON document for programs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from catchment.center.results.plain_json import to_plain_json
from catchment.errors import CatchmentError

_PLACE = re.compile(r"(?P<file>[^,]+):(?P<line>\d+):(?P<column>\d+)$")  # file:line:column

console = Console()
notes = Console(stderr=True)  # progress and remarks: never mixed into a program's JSON

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def typed_command() -> str:
    """Return the command as a person typed it, for a picture that says how it was made."""
    return shlex.join(["catchment", *sys.argv[1:]])


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
    for name, text in (("at", error.where), ("", _source_line(error.where)), ("hint", error.hint)):
        if text:
            notes.print(f"  {name}: {text}" if name else text, highlight=False, markup=False, soft_wrap=True)


def _source_line(where: str | None) -> str:
    """Return the line of a file that an error is at, with a caret under the place; nothing where there is none."""
    found = _PLACE.search(where or "")
    if found is None:
        return ""
    number, column = int(found["line"]), int(found["column"])
    try:
        lines = Path(found["file"]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    if not 1 <= number <= len(lines):
        return ""
    head = f"  {number:>4} | "
    before = "".join(c if c == "\t" else " " for c in lines[number - 1][: column - 1])
    return f"{head}{lines[number - 1]}\n{' ' * (len(head) - 2)}| {before}^"
