"""`catchment sites`: list, add, retire, move, replace and heal the sites of a project."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.progress import when
from catchment.cli.tables import plain_table
from catchment.errors import ConfigError

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
Name = Annotated[str, typer.Argument(help="The name of the site.", show_default=False)]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="The event time from which on it holds, such as '2026-01-31 06:00' (UTC); by default behind all that the "
        "center has heard.",
    ),
]

sites_app = typer.Typer(
    help="List, add, retire, move, replace and heal the sites of a project, whether or not it is running.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(sites_app, name="sites")


@sites_app.command("list", epilog="Example: catchment sites list -p my-project")
def list_all(project: ProjectOption = Path(), center: CenterOption = None, as_json: JsonFlag = False) -> None:
    """List the sites: what they do, since when they count, and how far they have come."""
    emit(ask("sites list", project, center), as_json, _render_sites)


@sites_app.command(epilog="Example: catchment sites add tokyo -p my-project")
def add(
    name: Name,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    start: From = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a site count from a window on; one that is not in catchment.toml is written there."""
    said = f"{name} counts from its boundary on; start it with: catchment site {name}{_of(project, center)}"
    emit(ask("sites add", project, center, name=name, from_us=_read_instant(start)), as_json, lambda _: said)


@sites_app.command(epilog="Example: catchment sites retire eu -p my-project --from '2026-01-31 06:00'")
def retire(
    name: Name,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    start: From = None,
    after: Annotated[
        str | None,
        typer.Option(
            help="Retire it when it has completed every window before this event time, such as '2026-01-31 06:00' "
            "(UTC); it counts until then."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a site count no more from a window on; what was merged of it stays, and no window waits for it."""
    if start is not None and after is not None:
        raise ConfigError("--from and --after are given", hint="--from retires it now, --after when it has come so far")
    said = f"{name} is retired; windows that it had not completed name it and are never called exact"
    if after is not None:
        said = f"{name} is retired by the center when it has completed every window before {after}"
    instants = {"from_us": _read_instant(start)} if after is None else {"after_us": _read_instant(after)}
    emit(ask("sites retire", project, center, name=name, **instants), as_json, lambda _: said)


@sites_app.command(epilog="Example: catchment sites move eu --to hub -p my-project")
def move(
    name: Name,
    to: Annotated[str, typer.Option(help="The next site on its route from now on, or the center.", show_default=False)],
    project: ProjectOption = Path(),
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a site or a relay send by another route, while everything runs; nothing is lost or counted twice."""
    answer = ask("sites move", project, center, name=name, to=to)
    route, moved = (" -> ".join(answer[key]) for key in ("route", "moved"))
    said = f"what {name} begins from now on goes by {moved}; what it has begun ends by {route}"
    emit(answer, as_json, lambda _: said)


@sites_app.command(epilog="Example: catchment sites replace eu -p my-project")
def replace(
    name: Name,
    project: ProjectOption = Path(),
    center: CenterOption = None,
    start: From = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a site whose disk was lost go on with an empty one; nothing is counted twice."""
    said = f"{name} may go on with an empty state folder; start it with: catchment site {name}{_of(project, center)}"
    emit(ask("sites replace", project, center, name=name, from_us=_read_instant(start)), as_json, lambda _: said)


@sites_app.command(epilog="Example: catchment sites heal eu -p my-project")
def heal(name: Name, project: ProjectOption = Path(), center: CenterOption = None, as_json: JsonFlag = False) -> None:
    """Let a site, relay or center with older or lost state come back: what was merged is computed again."""
    answer = ask("sites heal", project, center, name=name)
    again = f"{', '.join(answer['views'])} of all sites is computed again from history, but for windows that are final"
    said = f"{', '.join(answer['healed'])} may go on with whatever state is there; {again}"
    emit(answer, as_json, lambda _: said)


def _of(project: Path, center: str | None) -> str:
    """Return the option that names the project folder; none where it is on another machine."""
    return f" -p {project}" if center is None else ""


def _render_sites(answer: Mapping[str, Any]) -> RenderableType:
    rows = [
        {
            "site": site["site"],
            "state": site["state"],
            "streams": " ".join(site["streams"]) or "-",
            "counts from": when(site["counts_from_us"]),
            "passed": when(site["passed_us"]),
            "life": site["life"] + 1,
            "left out": site["left_out_records"],
        }
        for site in answer["sites"]
    ]
    return plain_table(rows, "sites")


def _read_instant(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ConfigError(f"cannot read the time {text!r}", hint="write it as '2026-01-31 06:00' (UTC)") from error
    aware = read if read.tzinfo else read.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1e6)
