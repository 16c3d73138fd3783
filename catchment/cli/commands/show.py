"""`catchment show`: how a project runs, what it has published and why, and what was set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.commands import show_order, show_quality, show_queries, show_sinks
from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.progress import status_table
from catchment.cli.tables import newest_first, plain_table, result_table, window_table
from catchment.cli.unknown_view import asking_about
from catchment.errors import ConfigError
from catchment.project.config import Project

if TYPE_CHECKING:
    import pyarrow as pa

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
Query = Annotated[str, typer.Argument(help="The name of a materialized view.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many rows to show.")]

show_app = typer.Typer(
    help="Show the status, results, windows, contracts and late records of a project.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    show_order.register(show_app)
    show_quality.register(show_app)
    show_queries.register(show_app)
    show_sinks.register(show_app)
    app.add_typer(show_app, name="show")


@show_app.command(epilog="Example: catchment show status -p demo")
def status(project: ProjectOption = Path(), as_json: JsonFlag = False) -> None:
    """Show the last reported status of each site, relay and the center, and how old it is."""
    from catchment.deploy.role_status import read_project_status
    from catchment.timeline import SystemClock

    loaded = Project.load(project)
    found = read_project_status(loaded)
    if not found.has_run:
        raise ConfigError(
            "nothing has run here yet", where=str(loaded.state_folder), hint=f"catchment run -p {project}"
        )
    emit(found.to_json(SystemClock().now_us()), as_json, status_table)


@show_app.command(epilog="Example: catchment show results traffic -p demo -n 20")
def results(query: Query, project: ProjectOption = Path(), limit: Limit = 20, as_json: JsonFlag = False) -> None:
    """Show the newest rows of a view, each in its latest revision."""
    from catchment.center.results.read import read_results

    loaded = Project.load(project)
    with notes.status("reading"), asking_about(loaded, query):
        table = read_results(loaded.state_folder, query)
    newest = newest_first(table).slice(0, limit)
    emit(
        {"query": query, "rows": newest.to_pylist()},
        as_json,
        lambda a: result_table(a["rows"], f"{query} by window, newest first"),
    )


@show_app.command(epilog="Example: catchment show windows traffic -p demo")
def windows(query: Query, project: ProjectOption = Path(), limit: Limit = 20, as_json: JsonFlag = False) -> None:
    """Show the newest windows of a view: status, coverage, revision, and what is missing."""
    from catchment.center.results.read import newest_windows, read_windows

    loaded = Project.load(project)
    with asking_about(loaded, query):
        log = newest_windows(read_windows(loaded.state_folder, query))
    newest = (
        log.sort_by([("window_start", "descending")]).slice(0, limit).drop_columns(["entry", "step", "rows_changed"])
    )
    emit(
        {"query": query, "windows": newest.to_pylist()},
        as_json,
        lambda a: window_table(a["windows"], f"windows of {query}, newest first"),
    )


@show_app.command(epilog='Example: catchment show revisions traffic "2017-01-01 02:00" -p demo')
def revisions(
    query: Query,
    window: Annotated[
        str | None, typer.Argument(help="Start of a window, such as '2017-01-01 02:00' (UTC); by default all windows.")
    ] = None,
    project: ProjectOption = Path(),
    limit: Limit = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show every published revision of a view's windows, and why each was made."""
    import pyarrow.compute as pc

    from catchment.center.results.read import read_windows

    loaded = Project.load(project)
    with asking_about(loaded, query):
        log = read_windows(loaded.state_folder, query)
    if window is not None:
        log = log.filter(pc.equal(log["window_start"], _instant(window)))
        if not log.num_rows:
            raise ConfigError(
                f"view {query!r} has published no window that starts at {window!r} (UTC)",
                where=str(project),
                hint=f"catchment show windows {query} -p {project} lists the windows",
            )
    rows = log.slice(max(0, log.num_rows - limit)).drop_columns(["entry", "step"]).to_pylist()
    emit(
        {"query": query, "revisions": rows},
        as_json,
        lambda a: window_table(a["revisions"], f"revisions of {query}, oldest first"),
    )


@show_app.command(epilog="Example: catchment show quarantine -p demo")
def quarantine(project: ProjectOption = Path(), limit: Limit = 20, as_json: JsonFlag = False) -> None:
    """Show records that could not be used, as they arrived, with the reason."""
    import pyarrow.dataset as ds

    counts: Counter[str] = Counter()
    records: list[dict[str, Any]] = []
    for folder in sorted(Project.load(project).state_folder.glob("sites/*/quarantine/*")):
        if not any(folder.glob("**/*.parquet")):
            continue  # all that was there was replayed or removed
        kept = ds.dataset(folder, format="parquet")
        for batch in kept.to_batches(columns=["_problem"]):  # one at a time: there may be more than fits into memory
            counts.update({str(c["values"]): c["counts"] for c in batch["_problem"].value_counts().to_pylist()})
        records += [
            {"site": r["site"], "stream": folder.name, "reason": r["_problem"], "record": r["_raw"]}
            for r in kept.head(limit, columns=["site", "_problem", "_raw"]).to_pylist()
        ]
    emit({"counts": counts, "records": records[:limit]}, as_json, _render_quarantine)


def _render_quarantine(answer: Mapping[str, Any]) -> RenderableType:
    counts = ", ".join(f"{count:,} {reason}" for reason, count in answer["counts"].items())
    return plain_table(answer["records"], f"quarantine: {counts}" if counts else "quarantine")


def _instant(text: str) -> pa.Scalar:
    import pyarrow as pa

    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ConfigError(f"cannot read the time {text!r}", hint="write it as '2017-01-01 02:00' (UTC)") from error
    return pa.scalar(read if read.tzinfo else read.replace(tzinfo=UTC), pa.timestamp("us", tz="UTC"))
