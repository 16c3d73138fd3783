"""`catchment repair`: what was shed of a view is repaired now, or windows that are final are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: catchment repair traffic --window '2026-03-01 12:00:00' -p my-project")(repair)


def repair(
    query: Annotated[str, typer.Argument(help="The name of a materialized view.")],
    window: Annotated[
        str | None, typer.Option(help="Compute the window again that starts then, from history; it must be final.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="With --window: all windows that start before this instant.")] = None,
    project: Annotated[Path, typer.Option("--project", "-p", help="The project folder.")] = Path(),
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask the sites to repair what was shed of a view as soon as their load allows; or compute windows again.

    With --window, windows beyond the repair horizon are computed again from the histories of the sites. Each is then
    replaced by one revision, unless a history no longer holds all of it.
    """
    if window is not None:
        start_us = _instant_us("--window", window)
        before_us = None if to is None else _instant_us("--to", to)
        answer = ask("repair windows", project, center, query=query, start_us=start_us, before_us=before_us)
        emit(answer, as_json, _told)
        return
    if to is not None:
        raise ConfigError("--to says where windows end, and no --window says where they begin", hint="add --window")
    answer = ask("repair", project, center, query=query)
    emit(answer, as_json, lambda a: f"asked {', '.join(a['sites'])} to repair what was shed of {query}")


def _instant_us(option: str, text: str) -> int:
    from catchment.query.view_start import ViewStart

    with suppress(ValueError):
        start = ViewStart.read(text)
        if start.at_us is not None:
            return start.at_us
    raise ConfigError(f"{option} is {text!r}", hint="write an instant, such as '2026-03-01 12:00:00' (UTC)")


def _told(answer: Mapping[str, Any]) -> str:
    from catchment.query.view_start import write_instant

    return (
        f"windows of {answer['view']} from {write_instant(answer['from_us'])} to {write_instant(answer['until_us'])} "
        f"are computed again by {answer['computed_by']}, which ends by itself: catchment show queries"
    )
