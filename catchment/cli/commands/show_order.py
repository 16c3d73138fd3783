"""`catchment show contracts` and `show late`: how contracts stand, and what became of late records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from catchment.cli.asking import CenterOption, SinkOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.tables import plain_table

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]
_SECOND = 1e6


def register(app: typer.Typer) -> None:
    """Add the commands to the group `show`."""
    app.command(epilog="Example: catchment show contracts -p demo")(contracts)
    app.command(epilog="Example: catchment show late traffic -p demo")(late)


def contracts(project: ProjectOption = Path(), center: CenterOption = None, as_json: JsonFlag = False) -> None:
    """Show, per site and view with a contract, how long it waits, whether it is kept and who holds it up."""
    emit(ask("show contracts", project, center), as_json, _render_contracts)


def late(
    query: Annotated[str, typer.Argument(help="The name of a materialized view.")],
    project: ProjectOption = Path(),
    center: CenterOption = None,
    sink: SinkOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the late records of a view: merged, waiting for repair, or registered because they came too late."""
    emit(ask("show late", project, center, query=query, sink=sink), as_json, _render_late)


def _render_contracts(answer: Mapping[str, Any]) -> RenderableType:
    rows = [
        {
            "site": c["site"],
            "view": c["view"],
            "controller": c["controller"],
            "waits s": c["slack_us"] / _SECOND,
            "kept": "yes" if c["contract_kept"] else _regained(c),
            "missed": f"{c['violations']:g} of {c['settled']:g}",
            "not waited for": " ".join([*c["idle"], *c["behind"]]) or "-",
        }
        for c in answer["contracts"]
    ]
    return plain_table(rows, "contracts")


def _regained(contract: Mapping[str, Any]) -> str:
    """Say how much event time without a violation it takes until the contract is kept again."""
    return f"again in {contract['windows_to_regain']:.0f} windows ({contract['regain_us'] / _SECOND:g} s)"


def _render_late(answer: Mapping[str, Any]) -> RenderableType:
    summary = (
        f"{answer['query']}: {answer['late_records']:,} late records, {answer['outstanding_records']:,} waiting for "
        f"repair, {answer['unmerged_records']:,} registered and not merged"
    )
    return Group(summary, plain_table(answer["registered"], "registered partials")) if answer["registered"] else summary
