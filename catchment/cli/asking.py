"""How a command is run: over a project folder, or at a center somewhere else; the answer is the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import notes

CenterOption = Annotated[
    str | None,
    typer.Option(
        "--center",
        help="Ask the center at HOST:PORT, or of a profile in ~/.config/catchment/profiles.toml, instead of a project "
        "folder.",
        show_default=False,
    ),
]


SinkOption = Annotated[
    str | None,
    typer.Option(
        "--sink",
        help="The site whose answers are meant, of a view with the option sink. Without it, the center or, where that "
        "has not published the view, another one that has.",
        show_default=False,
    ),
]


def ask(command: str, folder: Path, center: str | None, **arguments: Any) -> Mapping[str, Any]:
    """Return the answer of a command over a project folder or, if one is named, of a center."""
    if center is not None:
        if folder != Path():
            raise typer.BadParameter(f"a center and a project folder are given: {center} and {folder}")
        from catchment.control.profiles import find_center

        with notes.status("asking"):
            return find_center(center).run(command, arguments)
    from catchment.control.commands import local_caller, run_command

    with notes.status("asking"):
        return run_command(folder, command, arguments, local_caller())
