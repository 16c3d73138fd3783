"""`catchment demo`: three sites and a center on a real web log, and what goes wrong on a wide-area network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from catchment.cli.exit_codes import ExitCode
from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.progress import size
from catchment.cli.running import Report, Roles, check_unused, run_roles
from catchment.errors import ConfigError
from catchment.project.config import PROJECT_FILE, Project

if TYPE_CHECKING:
    from catchment.cli.demo.outside import Shipped
    from catchment.cli.demo.play import Play


LIGHT_SITE = "asia"  # of the option --light; the links and the load of the others are disturbed


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: catchment demo   |   catchment demo --page 8080")(demo)


def demo(
    folder: Annotated[Path, typer.Option(help="Where to put the demo project.")] = Path("demo"),
    page: Annotated[
        int | None,
        typer.Option("--page", help="Serve the dashboard meanwhile, at this port of this machine; 0 takes a free one."),
    ] = None,
    light: Annotated[
        bool,
        typer.Option("--light", help="Let one site be a light site: it sends its records, and the center evaluates."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Watch a real web log at three sites: late records, a cut link, an overload, a new view, and exact answers."""
    from catchment.cli.demo.play import Play

    lay_out(folder, light=light)
    notes.print(
        "A web log of ten hours arrives at three sites in a minute or two. Spark starts first.",
        highlight=False,
        soft_wrap=True,
    )
    play = Play.prepare(folder, quiet=as_json)
    deployment = play.deployment
    ended = run_roles(
        Roles(deployment, deployment.sites, True), page_port=page, wrap_uplink=play.links.wrap, watch=_watch(play)
    )
    if ended.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    emit(answer(play, folder), as_json, render)


def _watch(play: Play) -> Callable[[Callable[[], None]], Any]:
    @contextmanager
    def watching(stop: Callable[[], None]) -> Iterator[Report]:
        with play.screen.open():

            def report(status: Mapping[str, Any]) -> None:
                play.step(status)
                if play.finished:
                    stop()

            yield report

    return watching


def lay_out(folder: Path, *, light: bool = False) -> None:
    """Copy a fresh demo into a folder; refuse a folder that holds something else, or a demo that is running.

    With `light`, one of its sites does not compute.
    """
    from catchment.cli.demo.outside import ARRIVING

    with resources.as_file(resources.files("catchment") / "demo_project") as shipped:
        is_demo = (folder / PROJECT_FILE).is_file() and Project.load(folder).name == Project.load(shipped).name
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not is_demo):
            hint = "choose another folder with --folder"
            raise ConfigError(f"{folder} already exists and is not the demo", where=str(folder), hint=hint)
        check_unused(folder / "state")
        for old in ("state", ARRIVING):
            shutil.rmtree(folder / old, ignore_errors=True)
        shutil.copytree(shipped, folder, dirs_exist_ok=True)
    if light:
        settings = folder / PROJECT_FILE
        header = f"[sites.{LIGHT_SITE}]\n"
        settings.write_text(settings.read_text().replace(header, f"{header}compute = false\n"))


def answer(play: Play, folder: Path) -> dict[str, Any]:
    """Return what the demo has shown, in plain data."""
    stage = play.stage
    return {
        "rows": stage.outside.shipped.rows,
        "events": play.screen.events,
        "shown": [asdict(shown) for shown in stage.shown],
        "skipped": play.director.skipped,
        "check": play.recompute(),
        "costs": _costs(play),
        "folder": str(folder),
    }


def _costs(play: Play) -> list[dict[str, Any]]:
    stage = play.stage
    costs = [_cost("in all", stage.outside.shipped, stage.bytes_sent)]
    if stage.before_flood is not None:
        costs.insert(0, _cost("before the overload", *stage.before_flood))
    return costs


def _cost(when: str, shipped: Shipped, sent_bytes: int) -> dict[str, Any]:
    return {"when": when, **asdict(shipped), "sent_bytes": sent_bytes}


def render(answer: Mapping[str, Any]) -> RenderableType:
    """Show what happened, what it cost, whether the answers are right, and what to try next."""
    folder = answer["folder"]
    commands = (
        f"  catchment show revisions traffic -p {folder}\n"
        f'  catchment sql "SELECT country, sum(failed) AS failed FROM errors GROUP BY country" -p {folder}\n'
        f"  catchment dashboard -p {folder}"
    )
    return Group(
        _shown_table(answer["shown"]),
        _cost_table(answer["costs"]),
        Text(_checked(answer["check"])),
        Text(f"Try next:\n{commands}", no_wrap=True, overflow="ignore"),
    )


def _shown_table(shown: list[Mapping[str, str]]) -> RenderableType:
    table = Table("what happened", "the answer in time", "what became of it", title="What it showed")
    table.title_justify = "left"
    for row in shown:
        table.add_row(row["event"], row["first"], row["later"])
    return table


def _cost_table(costs: list[Mapping[str, Any]]) -> RenderableType:
    table = Table("sent over the WAN", title="What it cost", title_justify="left")
    for cost in costs:
        table.add_column(f"{cost['when']}:\n{cost['rows']:,} records", justify="right")
        table.add_column("of raw", justify="right")
    lines = {
        "every record": "raw_bytes",
        "every record, zstd": "zstd_bytes",
        "catchment": "sent_bytes",
    }
    for name, key in lines.items():
        cells = [(size(cost[key]), f"{cost[key] / cost['raw_bytes']:.1%}") for cost in costs]
        table.add_row(name, *(text for cell in cells for text in cell))
    return table


def _checked(check: Mapping[str, int]) -> str:
    rows = f"{check['rows']:,} rows of {check['windows']} windows of traffic"
    if check["different_rows"]:
        return f"Of {rows}, {check['different_rows']:,} DIFFER from a recomputation: please report this."
    bad = f"{check['quarantined']} records that cannot be read are in quarantine."
    return f"All {rows} equal a recomputation from the raw records (DuckDB). {bad}"
