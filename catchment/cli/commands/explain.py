"""`catchment explain`: what will run where, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.project.config import Project


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: catchment explain my-project   |   catchment explain my-project totals --json")(
        explain
    )


def explain(
    folder: Annotated[Path, typer.Argument(help="The project folder.")] = Path(),
    query: Annotated[str | None, typer.Argument(help="One view; by default all of them.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what runs at each site, what crosses each link and what the center does, before anything runs."""
    from catchment.deploy.deployment import Deployment
    from catchment.deploy.rebalance import known_statistics
    from catchment.optimizer.sharing.explain_sharing import explain_sharing
    from catchment.optimizer.sharing.explain_sharing import explain_text as sharing_text
    from catchment.query.catalog import load_catalog
    from catchment.query.explain import explain as explain_text
    from catchment.query.explain import explain_data
    from catchment.vectorised.choose import explain_evaluation

    project = Project.load(folder)
    deployment = Deployment.plan(load_catalog(project))
    wanted = deployment.catalog.view(query).name if query else None
    plans = [p for p in deployment.plans if wanted in (None, p.name)]
    statistics = known_statistics(deployment)
    shared = {
        p.name: [explain_sharing(s.name, deployment.deployed, statistics, project) for s in p.sides] for p in plans
    }
    streams = deployment.catalog.streams
    evaluated = {
        plan.fragment.name: explain_evaluation(streams[plan.fragment.stream], plan, project)
        for plan, _ in deployment.fragment_plans()
    }
    for side in (side for sides in shared.values() for side in sides):
        side["evaluation"] = evaluated[side["fragment"]]
    answer = {"views": [{**explain_data(p, project), "sharing": _one_or_both(shared[p.name])} for p in plans]}
    texts = (
        "\n".join([explain_text(p, project), *(f"{sharing_text(s)}\n{_evaluation(s)}" for s in shared[p.name])])
        for p in plans
    )
    emit(answer, as_json, lambda _: "\n\n".join(texts))


def _one_or_both(sides: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what is said about a view's fragment; for a join, about the fragments of both sides."""
    return sides[0] if len(sides) == 1 else {"sides": list(sides)}


def _evaluation(side: Mapping[str, Any]) -> str:
    return f"  evaluated at its sites: {side['evaluation']}"
