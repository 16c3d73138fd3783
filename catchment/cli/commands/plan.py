"""`catchment plan`: what queries share, where their parts would run, and what would cross each link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.project_folder import FolderWord, OptionalProject, project_folder
from catchment.cli.tables import plain_table
from catchment.optimizer.choices import Planner, Strength
from catchment.project.config import Project

if TYPE_CHECKING:
    from catchment.optimizer.placement.planner import WanPlan

Rates = list[dict[str, Any]]  # of each stream: its rows per second, and how they are known

_EPILOG = """Examples:

catchment plan -p my-project

catchment plan -p examples/wan_workload --planner greedy

catchment plan -p examples/wan_workload --planner greedy --sharing none --json

Nothing is run. Rates are declared in statistics.toml of the project. How it works: docs/internals/sharing.md"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", epilog=_EPILOG)(plan)


def plan(
    folder: FolderWord = None,
    project: OptionalProject = None,
    sharing: Annotated[
        Strength,
        typer.Option(
            help="What queries share: none, strict (equal parts), full (derived parts too), max (all they can)."
        ),
    ] = Strength.FULL,
    planner: Annotated[
        Planner,
        typer.Option(
            help="run: what a run does, and explain shows. greedy; or exact, for up to 15 sites and 12 queries: what "
            "could be saved if parts ran anywhere and answers were wanted anywhere, at declared rates."
        ),
    ] = Planner.RUN,
    as_json: JsonFlag = False,
) -> None:
    """Show what queries share, where their parts run and what crosses each link."""
    loaded = Project.load(project_folder(folder, project))
    make = _plan_run if planner is Planner.RUN else _plan_freely
    with notes.status("planning"):
        from catchment.optimizer.placement.plan_json import write_plan
        from catchment.optimizer.placement.planner import check_plan_contracts

        made, rates = make(loaded, sharing, planner)
        check_plan_contracts(made)
        answer = {**write_plan(made), "rates": rates}
    emit(answer, as_json, _render)


def _plan_run(project: Project, sharing: Strength, planner: Planner) -> tuple[WanPlan, Rates]:
    """Return what a run does, or would do with another sharing, at the rates that are known."""
    from catchment.deploy.deployment import Deployment
    from catchment.deploy.rebalance import known_statistics
    from catchment.optimizer.placement.planner import place_shared, plan_wan, queries_of_catalog
    from catchment.optimizer.placement.topology import Topology
    from catchment.optimizer.sharing.link_traffic import bytes_over_links
    from catchment.query.catalog import load_catalog
    from catchment.serve.explanation import explain_rates

    deployment = Deployment.plan(load_catalog(project))
    known = known_statistics(deployment)
    rates = list(explain_rates(deployment, known))
    topology = Topology.of_project(project)
    if sharing is Strength.FULL:
        return place_shared(deployment.deployed.sharing, topology, known, multicast=True, planner=planner), rates
    queries = queries_of_catalog(deployment.catalog)
    bytes_of = bytes_over_links(deployment.routes, known)
    return plan_wan(queries, topology, known, sharing, planner, bytes_of=bytes_of), rates


def _plan_freely(project: Project, sharing: Strength, planner: Planner) -> tuple[WanPlan, Rates]:
    """Return what a planner that may place everything anywhere would do, at declared rates."""
    from catchment.optimizer.placement.planner import plan_wan, queries_of_catalog
    from catchment.optimizer.placement.topology import Topology
    from catchment.optimizer.sharing.statistics import load_statistics
    from catchment.query.catalog import load_catalog

    catalog = load_catalog(project, star=False)
    known = load_statistics(project, catalog)
    rates = [
        {"stream": name, "rows_per_s": dict(known.of(name).rows_per_s), "origin": "declared"} for name in known.streams
    ]
    return plan_wan(queries_of_catalog(catalog), Topology.of_project(project), known, sharing, planner), rates


def _render(answer: Mapping[str, Any]) -> RenderableType:
    from catchment.serve.explanation_text import rate, rate_lines

    parts = {f["name"] for f in answer["fragments"]}
    queries = {q for f in answer["fragments"] for q in f["queries"]}
    served = _count(len(queries), "query", "queries")
    computed = _count(len(parts), "fragment", "fragments")
    head = f"{rate(answer['wan_bytes_per_s'])} over the WAN for {served}, {computed}."
    fragments = plain_table(list(_fragments(answer)), "fragments, where they are computed and merged")
    return Group(Text(head), Text(), fragments, plain_table(_links(answer), "links"), *map(Text, rate_lines(answer)))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _fragments(answer: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield a row for each fragment and each place where it is computed."""
    from catchment.serve.explanation_text import rate

    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in answer["fragments"]:
        at = "at their sites" if row["computed_at"] == [row["origin"]] else ", ".join(row["computed_at"])
        alike.setdefault((row["name"], at), []).append(row)
    for (name, at), rows in alike.items():
        yield {
            "fragment": name,
            "records of": ", ".join(row["origin"] for row in rows),
            "computed": at,
            "merged at": ", ".join(rows[0]["merged_at"]),
            "serves": ", ".join(rows[0]["queries"]),
            "sends": rate(sum(row["bytes_per_s"] for row in rows)),
        }


def _links(answer: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    from catchment.serve.explanation_text import rate

    return [
        {
            "link": f"{row['from']} -> {row['to']}",
            "carries": rate(row["bytes_per_s"]),
            "in use": "-" if row["utilisation"] is None else f"{row['utilisation']:.1%}",
        }
        for row in answer["links"]
    ]
