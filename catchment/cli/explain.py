"""EXPLAIN: what will run where, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import JsonFlag, emit
from catchment.config import Project
from catchment.query.build import plan_view
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
    project = Project.load(folder)
    catalog = load_catalog(project)
    views = [catalog.view(query)] if query else list(catalog.views.values())
    plans = [plan_view(view, catalog) for view in views]
    answer = {"views": [explain_data(plan, project) for plan in plans]}
    emit(answer, as_json, lambda _: "\n\n".join(explain_text(plan, project) for plan in plans))
