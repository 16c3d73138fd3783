"""`catchment whatif`: what a change would cost, before anything is deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.project_folder import FolderWord, OptionalProject, project_folder
from catchment.cli.tables import plain_table
from catchment.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Examples: catchment whatif -p my-project --rate events=x2   |   "
        "catchment whatif -p my-project --link edge:center=x0.5 --add-site tokyo=edge   |   "
        "catchment whatif -p my-project --query another.sql"
    )(whatif)


def whatif(
    folder: FolderWord = None,
    project: OptionalProject = None,
    add_site: Annotated[
        list[str] | None, typer.Option(help="NAME=LIKE: one more site, with the links and streams of another one.")
    ] = None,
    link: Annotated[
        list[str] | None, typer.Option(help="FROM:TO=xFACTOR or FROM:TO=BANDWIDTH: another bandwidth of a link.")
    ] = None,
    rate: Annotated[
        list[str] | None, typer.Option(help="STREAM=xFACTOR or STREAM=ROWS: other rows per second at every site.")
    ] = None,
    query: Annotated[list[Path] | None, typer.Option(help="A file of CREATE MATERIALIZED VIEW to add.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what would cross each link, and how soon views would answer, if something changed. Nothing is deployed."""
    if not any((add_site, link, rate, query)):
        raise ConfigError("nothing is changed", hint="give --add-site, --link, --rate or --query")
    with notes.status("planning"):
        from catchment.deploy.deployment import Deployment
        from catchment.serve.what_if import Changes, compare_changes

        changes = Changes(add_site or (), link or (), rate or (), query or ())
        answer = compare_changes(Deployment.load(project_folder(folder, project)), changes)
    emit(answer, as_json, _render)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    from catchment.serve.explanation_text import rate, seconds

    total = answer["wan_bytes_per_s"]
    head = f"{rate(total['now'])} over the WAN now, {rate(total['then'])} then"
    links = [
        {
            "link": f"{link['from']} -> {link['to']}",
            "now": _of(link["now"], "bytes_per_s", rate),
            "then": _of(link["then"], "bytes_per_s", rate),
            "in use now": _of(link["now"], "utilisation", _percent),
            "in use then": _of(link["then"], "utilisation", _percent),
        }
        for link in answer["links"]
    ]
    views = [
        {
            "view": view["view"],
            "answered after": _of(view["now"], "answered_after_s", seconds),
            "then after": _of(view["then"], "answered_after_s", seconds),
        }
        for view in answer["views"]
    ]
    remarks = [Text(line) for line in _fragment_lines(answer["fragments"])]
    return Group(Text(head), plain_table(links, "links"), plain_table(views, "views"), *remarks)


def _of(side: Mapping[str, Any] | None, key: str, show: Any) -> str:
    return "-" if side is None else str(show(side[key]))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _fragment_lines(fragments: list[Mapping[str, Any]]) -> Iterator[str]:
    """Say which fragments begin, end, run at other sites, or serve other views."""
    ended = {tuple(f["now"]["serves"]): f["now"] for f in fragments if f["then"] is None}
    begun = {tuple(f["then"]["serves"]) for f in fragments if f["now"] is None}
    for fragment in fragments:
        now, then, name = fragment["now"], fragment["then"], fragment["fragment"]
        if now is None:
            before = ended.get(tuple(then["serves"]), {"sites": []})
            added = [site for site in then["sites"] if site not in before["sites"]]
            yield f"new: {name} for {', '.join(then['serves'])}" + (f", also at {', '.join(added)}" if added else "")
        elif then is None and tuple(now["serves"]) not in begun:
            yield f"gone: {name}, which served {', '.join(now['serves'])}"
        elif then is not None and now["serves"] != then["serves"]:
            yield f"shared: {name} then serves {', '.join(then['serves'])}"
