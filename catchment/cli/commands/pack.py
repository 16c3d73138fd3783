"""`catchment pack`: what the workers of a Spark cluster need, in one archive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.output import JsonFlag, emit

_EPILOG = """Example: catchment pack environment.tar.gz

Then set environment in the table spark of catchment.toml."""


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(epilog=_EPILOG)(pack)


def pack(
    archive: Annotated[Path, typer.Argument(help="The archive to write; its name ends in .tar.gz.")],
    extra: Annotated[
        list[str] | None,
        typer.Option("--extra", help="An extra of catchment whose packages workers need; by default spark and kafka."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Pack catchment and the packages that it needs for the workers of a Spark cluster that do not have them."""
    from catchment.deploy.processes.packed_environment import WORKER_EXTRAS, pack_environment

    made = pack_environment(archive, extra or WORKER_EXTRAS)
    answer = {
        "archive": str(archive),
        "size_bytes": archive.stat().st_size,
        "catchment": made.catchment,
        "python": made.python,
        "machine": made.machine,
        "packages": list(made.packages),
    }
    emit(answer, as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    megabytes = answer["size_bytes"] / 1e6
    count = len(answer["packages"])
    return (
        f"{answer['archive']}: {count} packages for Python {answer['python']} on {answer['machine']}, "
        f'{megabytes:.0f} MB\nname it in catchment.toml: [spark] environment = "{Path(answer["archive"]).name}"'
    )
