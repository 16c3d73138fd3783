"""`catchment simulate edge`: replay a trace through the policies of a site and compare traffic and staleness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from catchment.cli.output import JsonFlag, emit, notes, typed_command
from catchment.errors import SimulationError

_EXAMPLES = """Examples:

  catchment simulate edge trace.csv --window 60 --bandwidth 200

  catchment simulate edge trace.parquet --window 60 --bandwidth 200 --believed 2 --policies
  hybrid:0.25,hybrid:0.25+lru --json

  catchment simulate edge trace.csv --window 60 --bandwidth 200 --plot frontier.png
"""
DEFAULT_POLICIES = "streaming,batching,eager-optimal,hybrid:0.25,spillway"


def register(simulate_app: typer.Typer) -> None:
    """Add `edge` to the `simulate` commands."""
    simulate_app.command("edge", epilog=_EXAMPLES)(edge)


def edge(
    trace: Annotated[Path, typer.Argument(help="CSV or Parquet with the columns ts (seconds or timestamps) and key.")],
    window: Annotated[float, typer.Option(help="Length of the tumbling windows in seconds.")],
    bandwidth: Annotated[float, typer.Option(help="Bandwidth of the link in updates per second.")],
    believed: Annotated[
        float, typer.Option(help="The bandwidth that policies are told, as a multiple of the true one.")
    ] = 1.0,
    policies: Annotated[str, typer.Option(help="Names separated by commas, or `all`.")] = DEFAULT_POLICIES,
    plot: Annotated[Path | None, typer.Option(help="Draw the traffic/staleness frontier into this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay TRACE through policies that decide what leaves a site and when, and compare their cost.

    Traffic is updates sent per distinct key of a window (1 is the least possible); staleness is the time from
    the end of a window to the arrival of its last update behind a first-in, first-out link. Policies
    whose name ends in `-optimal` know the future.
    """
    from catchment.sim.edge.network import Bandwidth
    from catchment.sim.edge.plot import plot_frontier
    from catchment.sim.edge.simulate import EdgeScenario, all_policy_names, micros_of, simulate
    from catchment.sim.edge.traces import load_trace

    names = all_policy_names() if policies == "all" else [n.strip() for n in policies.split(",") if n.strip()]
    if not names:
        raise SimulationError("no policy was named", hint=f"say --policies {DEFAULT_POLICIES}")
    scenario = EdgeScenario(load_trace(trace), micros_of(window), Bandwidth((bandwidth,)), believed)
    outcomes = []
    for name in names:
        with notes.status(f"{name}: {scenario.trace.records:,} records"):
            outcomes.append(simulate(scenario, name))
    if plot is not None:
        title = f"{trace.name}: windows of {window:g} s, {bandwidth:g} updates/s"
        plot_frontier(outcomes, plot, title, typed_command())
        notes.print(f"frontier drawn in {plot}")
    emit({"policies": [o.to_dict() for o in outcomes]}, as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    table = Table("policy", "traffic", "staleness mean", "p95", "windows")
    for column in table.columns[1:]:
        column.justify = "right"
    for p in answer["policies"]:
        times = (_seconds(p[metric]) for metric in ("staleness_mean_s", "staleness_p95_s"))
        table.add_row(p["name"], f"{p['traffic_ratio']:.3f}", *times, str(len(p["windows"])))
    return table


def _seconds(value: float) -> str:
    """Format a staleness with three digits that mean something."""
    if value < 0.001:
        return "0 s" if value == 0 else "< 1 ms"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"
