"""`catchment explain`: what will run where, before anything runs, and beside it what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchment.cli.asking import CenterOption, SinkOption, ask
from catchment.cli.output import JsonFlag, console, emit, notes
from catchment.cli.project_folder import OptionalProject, split_optional
from catchment.errors import ConfigError
from catchment.project.config import Project

if TYPE_CHECKING:
    from catchment.deploy.deployment import Deployment


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Examples: catchment explain -p my-project   |   catchment explain totals -p my-project --verbose   |   "
        "catchment explain -p my-project --analyze   |   catchment explain -p my-project --html plan.html"
    )(explain)


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VIEW",
            help="One view; by default all of them. A folder before it is the project.",
            show_default=False,
        ),
    ] = None,
    project_option: OptionalProject = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Put what was measured beside what is predicted from declared rates.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Add the plan of each view, its partials and every alternative.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the plan into this SVG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the picture and the text into this HTML file.")] = None,
    center: CenterOption = None,
    sink: SinkOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what runs at each site, what crosses each link and what the center does, before anything runs.

    Views that are answered elsewhere (`sink = 'tokyo'`) are explained by their names, or with --sink.
    """
    if center is not None:
        is_plain = not (verbose or svg or html or project_option)
        _explain_center(center, words or (), analyze, sink, as_json, is_plain=is_plain)
        return
    folder, query = split_optional(words or (), project_option, "one view")
    project = Project.load(folder)
    with notes.status("planning"):
        from catchment.control.answers import explained_part
        from catchment.deploy.deployment import Deployment
        from catchment.query.catalog import load_catalog
        from catchment.serve.explanation import explain_deployment
        from catchment.serve.explanation_text import WIDTH, explanation_text
        from catchment.serve.plan_picture import plan_html, plan_svg

        deployment = explained_part(Deployment.plan(load_catalog(project)), query, sink)
        views = [deployment.deployed.query_name(deployment.catalog.view(query).name)] if query else None
        answer = explain_deployment(deployment, views, analyze=analyze)
    if svg is not None:
        _write(svg, plan_svg(answer, answer["at"]))
    if html is not None:
        _write(html, plan_html(answer, answer["at"], project.name))
    width = min(console.width, WIDTH)
    emit(answer, as_json, lambda a: _verbose_text(deployment, a, width) if verbose else explanation_text(a, width))


def _explain_center(
    center: str, words: Sequence[str], analyze: bool, sink: str | None, as_json: bool, *, is_plain: bool
) -> None:
    """Explain what a center on another machine runs; its plans are not drawn here."""
    from catchment.serve.explanation_text import WIDTH, explanation_text

    if not is_plain or len(words) > 1:
        raise ConfigError(
            "with --center give a view or none, and neither a project folder, --verbose, --svg nor --html",
            hint="catchment explain totals --center prod",
        )
    width = min(console.width, WIDTH)
    answer = ask("explain", Path(), center, query=words[0] if words else None, analyze=analyze, sink=sink)
    emit(answer, as_json, lambda a: explanation_text(a, width))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    notes.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _verbose_text(deployment: Deployment, answer: Mapping[str, Any], width: int) -> str:
    from catchment.optimizer.sharing.explain_sharing import explain_text as sharing_text
    from catchment.query.explain import explain as explain_text
    from catchment.serve.explanation_text import explanation_text

    plans = {plan.name: plan for plan in deployment.plans}
    texts = []
    for view in answer["views"]:
        sides = view["sharing"].get("sides", (view["sharing"],))
        lines = [f"{sharing_text(side)}\n  evaluated at its sites: {side['evaluation']}" for side in sides]
        texts.append("\n".join([explain_text(plans[view["view"]], deployment.project), *lines]))
    return "\n\n".join([*texts, explanation_text(answer, width)])
