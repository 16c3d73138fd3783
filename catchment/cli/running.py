"""Running some roles of a project in this process: checked first, watched while it lasts, stopped without loss."""

from __future__ import annotations

import importlib
import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.cli.library_output import divert_library_output
from catchment.cli.output import notes
from catchment.cli.progress import watching
from catchment.cli.run_log import LogChoice, LogFormat, write_log
from catchment.storage.lock import LOCK_FILE, lock_folder
from catchment.version import VERSION

if TYPE_CHECKING:
    from catchment.deploy.deployment import Deployment
    from catchment.deploy.processes.relay_runner import RelayRunner
    from catchment.project.config import Project
    from catchment.spark.pipelines.runner import Runner
    from catchment.wire.receiving.grpc_server import CallService
    from catchment.wire.sending.uplink import Uplink

Report = Callable[[Mapping[str, Any]], None]  # is given the status of a run, several times per second
Watch = Callable[[Callable[[], None]], AbstractContextManager[Report]]  # is given what stops the run
LOGS = "logs"  # the folder of a state folder that holds the logs of its processes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Roles:
    """What one process runs of a project."""

    deployment: Deployment
    sites: Sequence[str]
    with_center: bool

    @property
    def name(self) -> str:
        """The name of the process, which is that of its log."""
        return f"site-{self.site}" if self.role == "site" else self.role

    @property
    def role(self) -> str:
        """What the process is: a site, the center, or a run of all of them."""
        if not self.with_center:
            return "site"
        return "run" if self.sites else "center"

    @property
    def site(self) -> str | None:
        """The site that the process runs; None if it runs several."""
        if not self.with_center:
            return self.sites[0]
        return None if self.sites else self.deployment.project.center

    @property
    def log(self) -> Path:
        """Where the process logs what it does."""
        return self.deployment.project.state_folder / LOGS / f"{self.name}.log"

    @property
    def library_log(self) -> Path:
        """Where Java, gRPC and other libraries print to."""
        return self.log.with_suffix(".libraries.log")

    @property
    def needs_spark(self) -> bool:
        here = (*self.sites, *self.light_sites)
        return self.with_center or any(self.deployment.streams_at(s) or s in self.deployment.sinks for s in here)

    @property
    def light_sites(self) -> Sequence[str]:
        """The light sites whose records are evaluated by this process."""
        deployment = self.deployment
        center = [deployment.project.center] if self.with_center else []
        here = deployment.routes.relays if self.with_center and self.sites else self.sites
        return tuple(light for s in (*here, *center) for light in deployment.routes.light_sites_at(s))

    @property
    def spark_master(self) -> str | None:
        """The Spark master of the one site that runs here, if it declares one of its own."""
        if self.with_center or len(self.sites) != 1:
            return None
        return self.deployment.project.sites[self.sites[0]].spark_master

    @property
    def folders(self) -> Sequence[Path]:
        """The state folders that this process alone may use."""
        project = self.deployment.project
        relays = self.deployment.routings.hubs if self.with_center and self.sites else self.sites
        return (
            *(project.site_folder(s) for s in self.sites),
            *(project.relay_folder(s) for s in relays),
            *(project.site_folder(s) for s in self.light_sites),
            *(project.source_folder(s) for s in self.sites if project.is_light(s)),
            *([project.state_folder / "center"] if self.with_center else []),
            *(folder for part in self.deployment.sinks.values() for folder in self._sink_folders(part.project)),
        )

    def _sink_folders(self, part: Project) -> Sequence[Path]:
        """Return the folders that this process alone may use of those of a sink beside the center."""
        is_whole = self.with_center and bool(self.sites)
        center = [self.deployment.project.center] if self.with_center else []
        here = tuple(part.sites) if is_whole else (*self.sites, *center)
        answering = [part.state_folder / "center"] if part.center in here else []
        return (*answering, *(part.relay_folder(name) for name in here))


@dataclass(frozen=True)
class EndedRun:
    """The last status of a run, and whether a person interrupted it."""

    status: Mapping[str, Any]
    is_interrupted: bool


def run_roles(
    roles: Roles,
    *,
    once: bool = False,
    seconds: float | None = None,
    quiet: bool = False,
    page_port: int | None = None,
    wrap_uplink: Callable[[Uplink], Uplink] = lambda uplink: uplink,
    watch: Watch | None = None,
    log: LogChoice = LogChoice(),  # noqa: B008 - it is frozen
) -> EndedRun:
    """Run until all is done, a signal comes or the time is over; with a port, serve the dashboard meanwhile.

    `watch` shows the run instead of the table of progress, and `wrap_uplink` may disturb its links.
    """
    _check(roles)
    with ExitStack() as stack:
        if page_port is not None:
            _serve_page(stack, roles.deployment.project, page_port)
        stack.enter_context(divert_library_output(roles.library_log))
        stack.enter_context(write_log(roles.log, log, roles.role, roles.site))
        is_quiet = quiet or log.format is LogFormat.JSON  # standard error is a program's
        return _run(roles, once, seconds, watch or (lambda stop: watching(is_quiet)), wrap_uplink)


def _serve_page(stack: ExitStack, project: Project, port: int) -> None:
    from catchment.serve.dashboard import DashboardServer

    server = stack.enter_context(DashboardServer(project, port=port))
    notes.print(f"dashboard: {server.url()}", highlight=False, soft_wrap=True)


def _check(roles: Roles) -> None:
    """Find what would make the run fail, before the seconds that Spark takes to start."""
    from catchment.deploy.preflight import check_sources
    from catchment.light.streams import light_streams

    for folder in roles.folders:
        check_unused(folder)
    check_sources(roles.deployment, roles.sites)
    for site in roles.light_sites:
        light_streams(site, roles.deployment.declared_at(site))  # what it cannot read is refused
    if roles.deployment.project.traces.endpoint is not None:
        importlib.import_module("catchment.deploy.reports.window_traces")  # a package that is missing is found here
    if roles.needs_spark:
        from catchment.spark.session import find_java

        find_java()


def _run(
    roles: Roles, once: bool, seconds: float | None, watch: Watch, wrap_uplink: Callable[[Uplink], Uplink]
) -> EndedRun:
    project = roles.deployment.project
    _log.info("catchment %s starts project %s", VERSION, project.name)
    closing = ExitStack()
    runner = _make_runner(roles, once, wrap_uplink, closing)
    try:
        with stop_on_signals(runner.stop) as interrupts:
            with notes.status("starting the streams"):
                runner.start()
            _log.info("started: %s", ", ".join((*roles.sites, *(["the center"] if roles.with_center else []))))
            with watch(runner.stop) as report:
                runner.run(report, seconds)
            return EndedRun(runner.status(), bool(interrupts))
    except Exception as failure:
        _log.error("the process ends: %s", failure, exc_info=True)
        raise
    finally:
        runner.close()
        _log.info("stopped; what was read and published is kept in %s", project.state_folder)
        closing.close()


def _make_runner(
    roles: Roles, once: bool, wrap_uplink: Callable[[Uplink], Uplink], closing: ExitStack
) -> Runner | RelayRunner:
    """Return what runs the roles, on a Spark session that `closing` ends; relays alone have none."""
    project = roles.deployment.project
    if not roles.needs_spark:
        from catchment.deploy.processes.relay_runner import RelayRunner

        return RelayRunner(roles.deployment, roles.sites, wrap_uplink=wrap_uplink)
    from catchment.spark.pipelines.runner import Runner
    from catchment.spark.session import make_session

    with notes.status("starting Spark"):
        warehouse = project.state_folder / "warehouse"
        spark = make_session(
            project.name, project.spark, master=roles.spark_master, warehouse=warehouse, folder=project.folder
        )
    closing.callback(spark.stop)
    services, publish = _open_services(project) if roles.with_center else ((), lambda deployment: None)
    return Runner(
        roles.deployment,
        spark,
        roles.sites,
        roles.with_center,
        once=once,
        wrap_uplink=wrap_uplink,
        services=services,
        on_reached=publish,
    )


def _open_services(project: Project) -> tuple[Sequence[CallService], Callable[[Deployment], None]]:
    """Return what a center answers beside its inbox, and what lets sites follow what it has reached."""
    from catchment.control.flight_sql import FlightSqlService
    from catchment.control.service import ControlService

    control = ControlService(project)
    return (control, FlightSqlService(project.state_folder)), control.publish


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[Sequence[int]]:
    """Stop at SIGTERM and at a first Ctrl-C; give the interrupts seen so far. A second Ctrl-C interrupts at once."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        notes.print("stopping: what has been read is kept (Ctrl-C again ends without waiting)", highlight=False)
        stop()

    before = signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


class _Holder:
    """Own the locks of folders: they are locked as long as it lives."""


def check_unused(folder: Path) -> None:
    """Check that no other process uses anything in a folder."""
    holder = _Holder()
    for lock in sorted(folder.rglob(LOCK_FILE)):
        lock_folder(lock.parent, holder)
