"""`catchment plan`: what queries share, where their parts would run, and what would cross each link."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from catchment.cli.output import JsonFlag, emit
from catchment.optimizer.choices import Planner, Strength
from catchment.units import format_bandwidth

_EPILOG = """Examples:

catchment plan examples/wan_workload

catchment plan examples/wan_workload --sharing none --planner greedy --json

catchment plan my-project --planner run

Nothing is run. Rates are declared in statistics.toml of the project. How it works: docs/internals/sharing.md"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", epilog=_EPILOG)(plan)


def plan(
    folder: Annotated[Path, typer.Argument(help="The project folder.", show_default=False)],
    sharing: Annotated[
        Strength,
        typer.Option(
            help="What queries share: none, strict (equal parts), full (derived parts too), max (all they can)."
        ),
    ] = Strength.FULL,
    planner: Annotated[
        Planner,
        typer.Option(help="greedy; exact, for up to 15 sites and 12 queries; or run, as a run places them."),
    ] = Planner.GREEDY,
    as_json: JsonFlag = False,
) -> None:
    """Show what queries would share, where they would run and what would cross each link, at declared rates."""
    from catchment.optimizer.placement.plan_json import write_plan
    from catchment.optimizer.placement.planner import check_plan_contracts, plan_wan, queries_of_catalog
    from catchment.optimizer.placement.topology import Topology
    from catchment.optimizer.sharing.link_traffic import bytes_over_links
    from catchment.optimizer.sharing.statistics import load_statistics
    from catchment.project.config import Project
    from catchment.project.routes import Routes
    from catchment.query.catalog import load_catalog

    project = Project.load(folder)
    catalog = load_catalog(project, star=planner is Planner.RUN)  # a run answers at the center
    statistics = load_statistics(project, catalog)
    made = plan_wan(
        queries_of_catalog(catalog),
        Topology.of_project(project),
        statistics,
        sharing,
        planner,
        bytes_of=bytes_over_links(Routes.of(project), statistics) if planner is Planner.RUN else None,
    )
    check_plan_contracts(made)
    emit(write_plan(made), as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    parts = {f["name"] for f in answer["fragments"]}
    queries = {q for f in answer["fragments"] for q in f["queries"]}
    rate = format_bandwidth(answer["wan_bytes_per_s"])
    served = _count(len(queries), "query", "queries")
    computed = _count(len(parts), "fragment", "fragments")
    head = f"{rate} over the WAN for {served}, {computed}."
    return Group(Text(head), Text(), _fragments(answer), _links(answer))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _fragments(answer: Mapping[str, Any]) -> Table:
    table = Table(title="fragments, where they are computed and merged")
    for column in ("fragment", "of", "at", "merged at", "serves"):
        table.add_column(column)
    table.add_column("sends", justify="right")
    for row in answer["fragments"]:
        sends = format_bandwidth(row["bytes_per_s"])
        places = (", ".join(row["computed_at"]), ", ".join(row["merged_at"]), ", ".join(row["queries"]))
        table.add_row(row["name"], row["origin"], *places, sends)
    return table


def _links(answer: Mapping[str, Any]) -> Table:
    table = Table(title="links")
    for column in ("from", "to"):
        table.add_column(column)
    for column in ("rate", "use"):
        table.add_column(column, justify="right")
    for row in answer["links"]:
        use = "" if row["utilisation"] is None else f"{100 * row['utilisation']:.1f} %"
        style = "bold red" if (row["utilisation"] or 0) > 1 else None
        table.add_row(row["from"], row["to"], format_bandwidth(row["bytes_per_s"]), use, style=style)
    return table
