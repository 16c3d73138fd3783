"""EXPLAIN: what will run where, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.explain import explain as explain_text
from catchment.query.explain import explain_data


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: catchment explain demo   |   catchment explain demo traffic --json")(explain)


def explain(
    folder: Annotated[Path, typer.Argument(help="The project folder.")] = Path(),
    query: Annotated[str | None, typer.Argument(help="One view; absent: all of them.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the plan of each view: what runs at its sites, what crosses the links, what is finished at the center."""
    from catchment.optimizer.explain_sharing import explain_sharing
    from catchment.optimizer.explain_sharing import explain_text as sharing_text
    from catchment.spark.deploy import Deployment
    from catchment.spark.move import known_statistics

    project = Project.load(folder)
    deployment = Deployment.plan(load_catalog(project))
    wanted = deployment.catalog.view(query).name if query else None
    plans = [p for p in deployment.plans if wanted in (None, p.name)]
    statistics = known_statistics(deployment)
    shared = {p.name: explain_sharing(p.name, deployment.deployed, statistics, project) for p in plans}
    answer = {"views": [{**explain_data(p, project), "sharing": shared[p.name]} for p in plans]}
    texts = (explain_text(p, project) + "\n" + sharing_text(shared[p.name]) for p in plans)
    emit(answer, as_json, lambda _: "\n\n".join(texts))
