"""`catchment show quality`: how soon the answers of a view came, and whether their bounds held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.asking import CenterOption, ask
from catchment.cli.output import JsonFlag, emit
from catchment.cli.tables import plain_table

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]


def register(app: typer.Typer) -> None:
    """Add the command to the group `show`."""
    app.command(epilog="Example: catchment show quality traffic -p demo")(quality)


def quality(
    query: Annotated[str, typer.Argument(help="The name of a materialized view.")],
    project: ProjectOption = Path(),
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many windows to judge, the newest.")] = 1000,
    center: CenterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how soon windows were answered and exact, what bounds promised against what came true, and bytes sent."""
    emit(ask("show quality", project, center, query=query, limit=limit), as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    share = "no bound to judge" if answer["missed_share"] is None else f"{answer['missed_share']:.2%} missed"
    lines = [
        f"{answer['windows']:,} windows, {answer['exact_windows']:,} exact; {answer['revisions']:,} revisions with "
        f"{answer['rows']:,} rows",
        f"answered after {_wait(answer['latency_s'])}; exact after {_wait(answer['staleness_s'])}",
        f"bounds: {answer['promised']:,} promised, {share}, at most {answer['stated_share']:.2%} is stated",
        _sent(answer["traffic"]),
    ]
    rows = [
        {
            "column": c["column"],
            "status": c["status"],
            "values": c["values"],
            "promised": c["promised"],
            "missed": c["missed"],
            "bound": f"{c['mean_bound']:.2%}" if c["promised"] else "-",
            "error": f"{c['mean_error']:.2%}",
            "largest": f"{c['largest_error']:.2%}",
        }
        for c in answer["columns"]
    ]
    return Group(Text("\n".join(lines)), plain_table(rows, f"promised and achieved: {answer['query']}"))


def _sent(traffic: Mapping[str, Any] | None) -> str:
    if traffic is None:
        return "bytes: the view is not deployed"
    others = sorted({view for fragment in traffic["fragments"] for view in fragment["shared_with"]})
    shared = f", shared with {', '.join(others)}: {traffic['own_bytes']:,.0f} are its part" if others else ""
    return f"{traffic['bytes']:,} bytes sent since the sites started{shared}"


def _wait(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return "-"
    return f"{spread['median']:.1f} s (95%: {spread['p95']:.1f} s, most {spread['most']:.1f} s)"
