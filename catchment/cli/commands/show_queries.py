"""`catchment show queries`: which views run, what they share, which read their past, and which are suspended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.progress import when
from catchment.cli.tables import plain_table


def register(app: typer.Typer) -> None:
    """Add the command to the group `show`."""
    app.command(epilog="Example: catchment show queries -p demo")(queries)


def queries(
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show every view: its sites, whether it runs, reads its past or is suspended, and who shares its fragments."""
    emit(ask("show queries", project, center), as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    rows = [
        {
            "view": q["query"],
            "state": q["state"],
            "sites": ", ".join(q["sites"]) or "-",
            "shares fragments with": ", ".join(q["shares_with"]) or "-",
        }
        for q in answer["queries"]
    ]
    details = [line for q in answer["queries"] for line in _explain(q)]
    return Group(plain_table(rows, "views"), *details)


def _explain(query: Mapping[str, Any]) -> Iterator[Text]:
    name = query["query"]
    for past in query["past"]:
        read = f"{past['read_batches']:,} of {past['batches']:,} batches, {past['records']:,} records"
        yield Text(f"{name} has read of its past at {past['site']}: {read}")
        if past["failure"]:
            yield Text(f"  it fails on a batch of its past: {past['failure']}")
        for low_us, high_us in past["lost_us"]:
            yield Text(f"  it cannot have all of {when(low_us)} to {when(high_us)}: windows there lack records")
    for suspension in query["suspended"]:
        yield Text(f"{name} is suspended at {suspension['site']}: {suspension['reason']}")
        if suspension["expression"]:
            yield Text(f"  expression: {suspension['expression']}")
        if suspension["record"]:
            yield Text(f"  record: {suspension['record']}")
        if suspension["missed_us"]:
            first_us, last_us = suspension["missed_us"]
            yield Text(f"  it lacks records of windows from {when(first_us)} to {when(last_us)}")
        if query["shares_with"]:
            yield Text(f"  suspended with it, by the same fragment: {', '.join(query['shares_with'])}")
        yield Text(f"  way out: catchment resume {name}, when the data is right again; or catchment drop {name}")
