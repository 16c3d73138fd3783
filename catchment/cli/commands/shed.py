"""`catchment shed`: decide where to sample a plan whose load exceeds its capacity, and bound the errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from catchment.cli.output import JsonFlag, emit
from catchment.errors import PlanError

if TYPE_CHECKING:
    from catchment.shedding.planner import PlacedSampler, ShedPlan

_EPILOG = """Examples:

catchment shed examples/shed/plan.json

catchment shed examples/shed/plan.json --capacity 0.5 --json

catchment shed examples/shed/plan.json --law variance

The keys of a plan: docs/guides/overload.md; what each guarantee means: docs/internals/shedding.md"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shed", epilog=_EPILOG)(shed)


def shed(
    plan: Annotated[Path, typer.Argument(help="The plan forest, as a JSON file.", show_default=False)],
    capacity: Annotated[float | None, typer.Option(help="Use this capacity instead of the plan's.")] = None,
    spare_free: Annotated[bool, typer.Option("--spare-free", help="Leave out samplers that save no load.")] = False,
    law: Annotated[
        str | None,
        typer.Option(help="Law that divides the load: hoeffding (errors are promises) or variance (estimates)."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Place samplers in a plan so that its load fits the capacity and the worst error is as small as possible.

    The load is in seconds of work per second. A query's error is the relative error (for a quantile, the rank error)
    that its answer exceeds with a chance of at most delta; by the law of variance, about delta. Where the load fits,
    nothing is shed.
    """
    from catchment.shedding.plan_json import read_forest, write_plan
    from catchment.shedding.planner import shed_load

    document = _read(plan)
    if capacity is not None and isinstance(document, dict):
        document["capacity"] = capacity
    if law is not None and isinstance(document, dict):
        document["law"] = law
    found = shed_load(read_forest(document, str(plan)), spare_free=spare_free)
    emit(write_plan(found), as_json, lambda answer: _render(found, answer))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"the plan cannot be read: {error.strerror or error}", where=str(path)) from error
    except ValueError as error:
        raise PlanError(f"the plan is not JSON: {error}", where=str(path)) from error


def _render(plan: ShedPlan, answer: Mapping[str, Any]) -> RenderableType:
    head = f"load {answer['load_before']:.4g} of a capacity of {plan.forest.capacity:.4g}"
    if not plan.samplers:
        summary = Text(f"{head}: it fits, nothing is shed.")
    else:
        summary = Text(f"{head}, shed to {answer['load_after']:.4g}; the worst error is {_percent(plan.max_error)}.")
    return Group(summary, Text(), _tree(plan), _table(plan))


def _tree(plan: ShedPlan) -> RenderableType:
    samplers = {sampler.before: sampler for sampler in plan.samplers}
    trees: dict[str, Tree] = {}
    for name in plan.forest.downward:
        label = _label(plan, name, samplers.get(name))
        parent = getattr(plan.forest.nodes[name], "input", None)
        trees[name] = trees[parent].add(label) if parent else Tree(label)
    return Group(*(trees[stream.name] for stream in plan.forest.streams), Text())


def _label(plan: ShedPlan, name: str, sampler: PlacedSampler | None) -> Text:
    from catchment.shedding.forest import OperatorNode, QueryNode, StreamNode

    node = plan.forest.nodes[name]
    label = Text()
    if sampler is not None:
        label.append(f"sample {sampler.rate:.4g} -> ", style="bold yellow")
    label.append(name, style="bold")
    if isinstance(node, StreamNode):
        label.append(f"  {node.rate:,.4g} tuples/s", style="dim")
    elif isinstance(node, OperatorNode):
        label.append(f"  {node.seconds_per_tuple:.3g} s per tuple, selectivity {node.selectivity:.3g}", style="dim")
    elif isinstance(node, QueryNode):
        label.append(f"  {node.aggregate}", style="dim")
    return label


def _table(plan: ShedPlan) -> Table:
    from catchment.shedding.laws import Law

    most = "at most" if plan.forest.law is Law.HOEFFDING else "about"
    table = Table(title=f"queries (each misses its error with a chance of {most} {plan.forest.delta:g})")
    for column in ("query", "aggregate"):
        table.add_column(column, no_wrap=True)
    for column in ("kept", "error", "proved", "contract"):
        table.add_column(column, justify="right")
    for query in plan.forest.queries:
        allowed = "" if query.max_error is None else _percent(query.max_error)
        kept = f"{plan.effective_rates[query.name]:.3g}"
        error = _percent(plan.errors[query.name])
        table.add_row(query.name, query.aggregate, kept, error, _best(plan, query.name), allowed)
    return table


def _best(plan: ShedPlan, name: str) -> str:
    """Return the best proved bound at the planned rate: Hoeffding's is looser, the law of variance proves nothing."""
    from catchment.quality.bounds import bound
    from catchment.quality.populations import SampledPart

    errors = [
        bound(need.aggregate, SampledPart(need.population, plan.rates[name, stratum]), plan.forest.delta).error
        for stratum, _ in plan.forest.strata(name)
        for need in plan.forest.needs[name, stratum]
    ]
    return _percent(max(errors, default=0.0))


def _percent(error: float) -> str:
    return f"{100 * error:.3g} %" if math.isfinite(error) else "no bound"
