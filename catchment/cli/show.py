"""Looking at a project: how it runs, what it has published and why, what was set aside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from catchment.cli.live import Rates, status_table
from catchment.cli.output import JsonFlag, emit
from catchment.config import Project
from catchment.errors import ConfigError
from catchment.timeline import format_duration

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
Query = Annotated[str, typer.Argument(help="The name of a materialized view.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many rows to show.")]

_META = {"window_start", "window_end", "bound", "published_at", "missing_sites", "revision", "coverage", "status"}

show_app = typer.Typer(help="Look at a project: status, results, windows, revisions, quarantine.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(show_app, name="show")


@show_app.command(epilog="Example: catchment show status -p demo")
def status(project: ProjectOption = Path(), as_json: JsonFlag = False) -> None:
    """How each site and the center do, as they last said."""
    state = Project.load(project).state_folder
    sites = {p.parent.name: json.loads(p.read_text()) for p in sorted(state.glob("sites/*/status.json"))}
    center = state / "center" / "status.json"
    if not sites and not center.exists():
        raise ConfigError(f"nothing has run in {state} yet", hint=f"catchment run {project}")
    answer = {"sites": sites, "center": json.loads(center.read_text()) if center.exists() else None}
    emit(answer, as_json, lambda a: status_table(a, Rates()))


@show_app.command(epilog="Example: catchment show results traffic -p demo -n 20")
def results(query: Query, project: ProjectOption = Path(), limit: Limit = 20, as_json: JsonFlag = False) -> None:
    """The newest rows of a query: the latest revision of each."""
    from catchment.center.results import read_results

    table = read_results(Project.load(project).state_folder, query)
    newest = table.sort_by([("window_start", "descending")]).slice(0, limit)
    emit(
        {"query": query, "rows": newest.to_pylist()},
        as_json,
        lambda a: result_table(a["rows"], f"{query}, newest first"),
    )


@show_app.command(epilog="Example: catchment show windows traffic -p demo")
def windows(query: Query, project: ProjectOption = Path(), limit: Limit = 20, as_json: JsonFlag = False) -> None:
    """The newest windows of a query: status, coverage, revision, and what is missing."""
    from catchment.center.results import newest_windows, read_windows

    log = newest_windows(read_windows(Project.load(project).state_folder, query))
    newest = (
        log.sort_by([("window_start", "descending")]).slice(0, limit).drop_columns(["entry", "step", "rows_changed"])
    )
    emit(
        {"query": query, "windows": newest.to_pylist()},
        as_json,
        lambda a: window_table(a["windows"], f"windows of {query}"),
    )


@show_app.command(epilog='Example: catchment show revisions traffic "2017-01-01 02:00" -p demo')
def revisions(
    query: Query,
    window: Annotated[
        str | None, typer.Argument(help="Start of a window, such as '2017-01-01 02:00'; absent: all.")
    ] = None,
    project: ProjectOption = Path(),
    limit: Limit = 50,
    as_json: JsonFlag = False,
) -> None:
    """Every published revision of a window, and why it was made."""
    from catchment.center.results import read_windows

    log = read_windows(Project.load(project).state_folder, query)
    if window is not None:
        log = log.filter(pc.equal(log["window_start"], _instant(window)))
        if not log.num_rows:
            raise ConfigError(f"query {query!r} has published no window that starts at {window!r} (UTC)")
    rows = log.slice(max(0, log.num_rows - limit)).drop_columns(["entry", "step"]).to_pylist()
    emit(
        {"query": query, "revisions": rows},
        as_json,
        lambda a: window_table(a["revisions"], f"revisions of {query}"),
    )


@show_app.command(epilog="Example: catchment show quarantine -p demo")
def quarantine(project: ProjectOption = Path(), limit: Limit = 20, as_json: JsonFlag = False) -> None:
    """Records that could not be used, word for word, with the reason."""
    import pyarrow.dataset as ds

    folders = sorted(Project.load(project).state_folder.glob("sites/*/quarantine/*"))
    rows: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for folder in folders:
        found = ds.dataset(folder, format="parquet", partitioning="hive").to_table(columns=["site", "_problem", "_raw"])
        for reason in found["_problem"].to_pylist():
            counts[reason] = counts.get(reason, 0) + 1
        rows += [{"site": r["site"], "stream": folder.name, "reason": r["_problem"], "record": r["_raw"]}
                 for r in found.slice(0, limit).to_pylist()]  # fmt: skip
    answer = {"counts": counts, "records": rows[:limit]}
    emit(
        answer,
        as_json,
        lambda a: plain_table(a["records"], "quarantine: " + (str(a["counts"]) if a["counts"] else "empty")),
    )


def result_table(rows: Sequence[Mapping[str, Any]], title: str) -> RenderableType:
    """Rows of a result: the window, the user's columns, and how sure they are."""
    shown = []
    for row in rows:
        own = {c: v for c, v in row.items() if c not in _META and v not in (row["window_start"], row["window_end"])}
        shown.append({"window": _window(row), **own, "error": _bound(row["bound"]), "status": _status(row)})
    return plain_table(shown, title)


def window_table(rows: Sequence[Mapping[str, Any]], title: str) -> RenderableType:
    """Windows: which, how far along, and why."""
    shown = [
        {
            "window": _window(row),
            "revision": row["revision"],
            "status": _status(row),
            "why": row["reason"],
            "published": row["published_at"],
        }
        for row in rows
    ]
    return plain_table(shown, title)


def plain_table(rows: Sequence[Mapping[str, Any]], title: str) -> RenderableType:
    """Rows as a table; nothing but the title if there are none."""
    table = Table(*(rows[0] if rows else ()), title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(_cell(v) for v in row.values()))
    return table


def _window(row: Mapping[str, Any]) -> str:
    length = round((row["window_end"] - row["window_start"]).total_seconds() * 1e6)
    return f"{_cell(row['window_start'])} + {format_duration(length)}"


def _bound(bound: Mapping[str, float | None]) -> str:
    stated = {name: error for name, error in bound.items() if error != 0}
    if not stated:
        return "none"
    return ", ".join(f"{name} {'?' if error is None else f'{error:.1%}'}" for name, error in stated.items())


def _status(row: Mapping[str, Any]) -> str:
    missing = f", without {', '.join(row['missing_sites'])}" if row["missing_sites"] else ""
    coverage = "" if row["coverage"] == 1 else f" {row['coverage']:.0%}"
    return f"{row['status']}{coverage}{missing}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d %H:%M:%S"))
    if isinstance(value, dict):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "; ".join(_cell(v) for v in value)
    return str(value)


def _instant(text: str) -> pa.Scalar:
    try:
        naive = pa.scalar(text.replace("T", " ").rstrip("Z")).cast(pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        raise ConfigError(f"cannot read the time {text!r}", hint="write it as '2017-01-01 02:00' (UTC)") from error
    return naive.cast(pa.timestamp("us", tz="UTC"))
