"""`catchment init`, `run`, `site` and `center`: make and run projects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from catchment.cli.exit_codes import ExitCode
from catchment.cli.log_options import LogFormatOption, LogLevelOption
from catchment.cli.output import JsonFlag, emit
from catchment.cli.project_folder import FolderWord, OptionalProject, project_folder
from catchment.cli.run_log import LogChoice, LogFormat, LogLevel
from catchment.cli.running import Roles, check_unused, run_roles
from catchment.errors import ConfigError
from catchment.project.config import PROJECT_FILE, QUERIES_FOLDER
from catchment.project.joined_site import SITE_FILE, JoinedSite
from catchment.project.template import template

if TYPE_CHECKING:
    from catchment.deploy.deployment import Deployment

NewFolder = Annotated[Path, typer.Argument(help="The project folder.", show_default=False)]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Stop after this many seconds. State is kept; a later run continues.")
]
PagePort = Annotated[
    int | None,
    typer.Option("--page", help="Serve the dashboard meanwhile, at this port of this machine; 0 takes a free one."),
]
ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project folder.")]

FIRST_QUERY = """\
-- Made-up records at every site, so that the project runs as it is; put your own stream here.
CREATE STREAM events (ts TIMESTAMP, kind STRING, amount DOUBLE)
  WITH (event_time = 'ts', connector = 'generator', rows_per_s = 100, keys = 5);

CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, kind, count(*) AS events, sum(amount) AS amount
  FROM events GROUP BY window(ts, '10 seconds'), kind;
"""


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Examples: catchment init my-project   |   catchment init my-project --from sales.csv")(init)
    app.command(epilog="Examples: catchment run -p my-project   |   catchment run -p my-project --once --json")(run)
    app.command(epilog="Examples: catchment site eu -p my-project   |   catchment site -p folder-with-site-toml")(site)
    app.command(epilog="Example: catchment center -p my-project")(center)


def init(
    folder: NewFolder,
    data: Annotated[
        Path | None,
        typer.Option("--from", help="Infer a stream and a first query from a file of CSV, JSON lines or Parquet."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a project folder with a commented catchment.toml and a first query."""
    made = {folder / PROJECT_FILE: template(), folder / QUERIES_FOLDER / "events.sql": FIRST_QUERY}
    if data is not None:
        from catchment.query.infer import infer_stream

        stream = infer_stream(data)
        made = {folder / PROJECT_FILE: template(), folder / QUERIES_FOLDER / f"{stream.name}.sql": stream.to_sql()}
    taken = [path for path in (folder, folder / QUERIES_FOLDER) if path.is_file()] + [p for p in made if p.exists()]
    if taken:
        raise ConfigError(f"{taken[0]} already exists", where=str(folder), hint="choose another folder")
    (folder / QUERIES_FOLDER).mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    names = ", ".join(str(path) for path in made)
    emit({"made": [str(p) for p in made]}, as_json, lambda _: f"made {names}\nnext: catchment run -p {folder}")


def run(
    folder: FolderWord = None,
    project: OptionalProject = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read the records that exist now, publish their answers, and stop.")
    ] = False,
    seconds: Seconds = None,
    page: PagePort = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: JsonFlag = False,
) -> None:
    """Run every site and the center of a project in one process, connected by sockets on loopback."""
    folder = project_folder(folder, project)
    deployment = _load(folder)
    roles = Roles(deployment, deployment.sites, True)
    log = LogChoice(log_format, log_level)
    _run(roles, folder, once=once, seconds=seconds, page=page, log=log, as_json=as_json)


def site(
    name: Annotated[
        str | None,
        typer.Argument(help="The site that this process runs; in a folder with a site.toml it is named there."),
    ] = None,
    project: ProjectOption = Path(),
    seconds: Seconds = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: JsonFlag = False,
) -> None:
    """Run one site of a project, as a source of streams, a relay for other sites, or both.

    A site with compute = false is a light site: it needs no Spark, and sends its records to where they are evaluated.

    In a folder with a site.toml it has joined a deployment: what it runs comes from its center, and is kept.
    """
    log = LogChoice(log_format, log_level)
    if (project / SITE_FILE).is_file() and not (project / PROJECT_FILE).is_file():
        from catchment.cli.joined_site import joined_deployment

        with joined_deployment(project, name, seconds) as deployment:
            _run_site(deployment, JoinedSite.load(project).name, project, seconds, log, as_json)
        return
    if name is None:
        hint = "catchment site NAME -p PROJECT; a folder with a site.toml names its site there"
        raise ConfigError("which site is it to run?", where=str(project), hint=hint)
    _run_site(_load(project), name, project, seconds, log, as_json)


def _run_site(
    deployment: Deployment, name: str, project: Path, seconds: float | None, log: LogChoice, as_json: bool
) -> None:
    from catchment.project.ways import Ways

    forwarders = sorted(Ways.of(deployment.project).forwarders)
    relays = [relay for part in deployment.parts for relay in (*part.routings.hubs, *part.standby_hubs)]
    possible = dict.fromkeys((*deployment.sites, *relays, *forwarders, *deployment.sinks))
    if name not in possible:
        raise ConfigError(
            f"site {name!r} has nothing to do: no view reads a stream from it, and no other site sends through it",
            where=str(project),
            hint=f"sites that have something to do: {', '.join(possible)}",
        )
    _check_addresses(deployment, name)
    if deployment.project.is_light(name):
        _run_light(deployment, name, project, seconds, log)
    _run(Roles(deployment, (name,), False), project, seconds=seconds, log=log, as_json=as_json)


def _run_light(deployment: Deployment, name: str, project: Path, seconds: float | None, log: LogChoice) -> NoReturn:
    """Run a light site: this process becomes a small one, which only reads, packs and sends."""
    from catchment.cli import light_process

    check_unused(deployment.project.source_folder(name))
    light_process.prepare(deployment, name)
    light_process.become(project, name, seconds, log)


def center(
    project: ProjectOption = Path(),
    seconds: Seconds = None,
    page: PagePort = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: JsonFlag = False,
) -> None:
    """Run the center of a project, which merges what its sites send and publishes the answers."""
    deployment = _load(project)
    _check_addresses(deployment, deployment.project.center)
    log = LogChoice(log_format, log_level)
    _run(Roles(deployment, (), True), project, seconds=seconds, page=page, log=log, as_json=as_json)


def _check_addresses(deployment: Deployment, site: str) -> None:
    """Check that other processes can find this one, and that it can find the next one on its way to the center."""
    from catchment.deploy.processes.connections import inbox_address

    for routes in (part.routes for part in deployment.parts):
        for name in {site, routes.hops.get(site, site)} & {routes.center, *routes.relays}:
            inbox_address(deployment.project, name)


def _load(folder: Path) -> Deployment:
    from catchment.deploy.deployment import Deployment

    return Deployment.load(folder)


def _run(
    roles: Roles,
    folder: Path,
    *,
    as_json: bool,
    log: LogChoice,
    once: bool = False,
    seconds: float | None = None,
    page: int | None = None,
) -> None:
    ended = run_roles(roles, once=once, seconds=seconds, quiet=as_json, page_port=page, log=log)
    answer = {
        "status": ended.status,
        "queries": [p.name for part in roles.deployment.parts for p in part.plans],
        "results": str(roles.deployment.project.state_folder),
        "interrupted": ended.is_interrupted,
    }
    emit(answer, as_json, lambda a: _say_where(a, folder))
    if ended.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _say_where(answer: Mapping[str, Any], folder: Path) -> str:
    """Say where the results are, and what to do next."""
    kept = "; the same command continues where it stopped" if answer["interrupted"] else ""
    view = answer["queries"][0]
    return f"results and state are in {answer['results']}{kept}\nnext: catchment show results {view} -p {folder}"
