"""`catchment check`: whether a project could run, without running it; for CI and before a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from catchment.cli.exit_codes import ExitCode
from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.project_folder import FolderWord, OptionalProject, project_folder
from catchment.errors import CatchmentError, ConfigError

if TYPE_CHECKING:
    from catchment.deploy.deployment import Deployment


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: catchment check -p my-project   |   catchment check -p my-project --site eu --json")(
        check
    )


def check(
    folder: FolderWord = None,
    project: OptionalProject = None,
    site: Annotated[
        str | None, typer.Option(help="Check what this site needs: its data, its keys, and the far ends of its links.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a project without running it: statements, plans, data folders, keys, Java. Exit code 1 if it cannot run."""
    with notes.status("checking"):
        findings = [_look(name, ask) for name, ask in _questions(project_folder(folder, project), site)]
    wrong = [finding for finding in findings if finding["error"] is not None]
    emit({"ok": not wrong, "checks": findings}, as_json, _render)
    if wrong:
        raise typer.Exit(ExitCode.WRONG)


def _questions(folder: Path, site: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what is checked, in order; what needs a plan is checked only if there is one."""
    from catchment.deploy.deployment import Deployment
    from catchment.project.config import Project
    from catchment.query.catalog import load_catalog

    found: dict[str, Any] = {}

    def project() -> str:
        found["project"] = Project.load(folder)
        return f"{len(found['project'].sites)} sites, {len(found['project'].links)} links"

    def statements() -> str:
        catalog = load_catalog(found["project"])
        found["catalog"] = catalog
        return f"{len(catalog.streams)} streams, {len(catalog.tables)} tables, {len(catalog.views)} views"

    def plans() -> str:
        found["deployment"] = Deployment.plan(found["catalog"])
        return (
            f"{len(found['deployment'].plans)} views, {len(found['deployment'].deployed.sharing.fragments)} fragments"
        )

    yield "catchment.toml", project
    if "project" in found:
        yield "statements", statements
    if "catalog" in found:
        yield "plans", plans
    if "catalog" in found and found["catalog"].feed_views:
        yield "feeds", lambda: _check_feeds(folder)
    if "deployment" in found:
        yield from _questions_of_sites(found["deployment"], site)


def _check_feeds(folder: Path) -> str:
    """Check the feed views of a project, and the reference tables that they read."""
    from catchment.feeds.project import open_project

    feeds = open_project(folder)
    rows = sum(len(table) for table in feeds.read_reference().tables.values())
    return f"{len(feeds.program.templates)} templates over {len(feeds.program.streams)} streams, {rows} reference rows"


def _questions_of_sites(deployment: Deployment, site: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    sites = _chosen_sites(deployment, site)
    yield "data", lambda: _check_data(deployment, sites)
    if site in (None, deployment.project.center) and deployment.catalog.sinks:
        yield "sinks", lambda: _check_sinks(deployment)
    yield "keys", lambda: _check_keys(deployment, [*sites, *([] if site else [deployment.project.center])])
    yield "Java", _check_java
    if site is not None:
        yield f"link of {site}", lambda: _check_link(deployment, site)


def _chosen_sites(deployment: Deployment, site: str | None) -> list[str]:
    from catchment.project.options import did_you_mean

    if site is None:
        return list(deployment.sites)
    if site not in deployment.project.sites:
        raise ConfigError(f"there is no site {site!r}", hint=did_you_mean(site, deployment.project.sites))
    return [site]


def _check_data(deployment: Deployment, sites: list[str]) -> str:
    from catchment.deploy.preflight import check_sources, name_what_is_not_asked

    check_sources(deployment, sites)
    elsewhere = name_what_is_not_asked(deployment, sites)
    if not elsewhere:
        return f"what {', '.join(sites)} read is there"
    return f"what is on the disks of {', '.join(sites)} is there; not asked: {', '.join(elsewhere)}"


def _check_sinks(deployment: Deployment) -> str:
    from catchment.deploy.preflight import check_sinks

    return f"{', '.join(check_sinks(deployment))}: their settings are there; not asked: whether they take answers"


def _check_keys(deployment: Deployment, sites: list[str]) -> str:
    from catchment.keys.tokens import read_token

    told = "none are declared: only processes of one user on one machine can connect"
    for site in sites:
        files = deployment.project.security.files_of(site, deployment.project.folder)
        for path in (files.tls_cert, files.tls_key, files.tls_ca, files.token):
            if path is None:
                continue
            if not path.is_file():
                hint = "make it with `catchment keys init`, or copy it to this machine"
                raise ConfigError(f"site {site!r} needs {path}, which does not exist", where=str(path), hint=hint)
            told = f"those of {', '.join(sites)} are there"
        if files.token is not None:
            read_token(files.token)
    return told


def _check_java() -> str:
    from catchment.spark.session import find_java

    return str(find_java())


def _check_link(deployment: Deployment, site: str) -> str:
    """Check that something listens where a site sends to."""
    import socket

    from catchment.deploy.processes.connections import inbox_address

    if site == deployment.project.center:
        return "the center sends to nobody"
    to = deployment.routes.hops[site]
    address = inbox_address(deployment.project, to)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except OSError as error:
        raise ConfigError(
            f"site {site!r} sends to {to!r} at {address}, where nothing answers: {error}",
            hint="start it there, or check its address and the firewall between",
        ) from error
    return f"{to} listens at {address}"


def _look(name: str, ask: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": name, "found": ask(), "error": None, "where": None, "hint": None}
    except CatchmentError as error:
        return {"check": name, "found": None, "error": error.message, "where": error.where, "hint": error.hint}


def _render(answer: Mapping[str, Any]) -> RenderableType:
    return Group(*(line for finding in answer["checks"] for line in _lines(finding)))


def _lines(finding: Mapping[str, Any]) -> Iterator[Text]:
    if finding["error"] is None:
        yield Text.assemble(("ok     ", "green"), f"{finding['check']}: {finding['found']}")
        return
    yield Text.assemble(("wrong  ", "bold red"), f"{finding['check']}: {finding['error']}")
    for word in ("where", "hint"):
        if finding[word]:
            yield Text(f"         {'at' if word == 'where' else word}: {finding[word]}")
