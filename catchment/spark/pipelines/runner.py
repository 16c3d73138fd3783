"""Running a project: any set of its sites, the center, or all of it in one process, on one Spark session.

Sites and the center speak over real sockets in every case; in one process they are wired on loopback. The runner
is the only part that waits: it ticks the pipelines, reports their state, and ends when every stream has ended.
A process of relays alone needs no Spark and has a runner of its own (`catchment.deploy.processes.relay_runner`).

A light site is two parts: its source, which reads and sends, and its pipeline, which runs in the process of the site
that evaluates, beside the inbox that it gives its partials to (`catchment.light.in_process`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from catchment.center.pipeline import CenterPipeline
from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.connections import Connections, inbox_address
from catchment.deploy.processes.expiry import ExpiryWatch
from catchment.deploy.processes.forwarding import ForwardServers
from catchment.deploy.processes.housekeeping import SiteHousekeeping
from catchment.deploy.processes.relay_runner import TICK_S, Report, StatusCadence, end_former_lives, open_window_traces
from catchment.deploy.processes.relays import Relays
from catchment.deploy.rebalance import Rebalancer
from catchment.deploy.repairing.second_rounds import SecondRounds
from catchment.deploy.reports.role_files import (
    open_state_folder,
    refuse_changed_streams,
    refuse_redefined_views,
    write_status,
)
from catchment.deploy.sites import LeavingSites
from catchment.deploy.watcher import DeploymentWatcher
from catchment.light.in_process import LightSites
from catchment.project.config import Project
from catchment.project.routes import outgoing_link
from catchment.project.routings import exit_link
from catchment.receivers.site_receivers import SiteReceivers
from catchment.shedding.monitor import LoadMonitor
from catchment.spark.evaluation.evaluator import SparkEvaluator
from catchment.spark.pipelines.center_role import CenterRole
from catchment.spark.pipelines.shedding import MakeMonitor
from catchment.spark.pipelines.sink_roles import SinkRoles
from catchment.spark.pipelines.site import SitePipeline
from catchment.spark.pipelines.site_status import site_status
from catchment.spark.session import make_session
from catchment.spark.sources.lookup_tables import LookupTables
from catchment.timeline import Clock, SystemClock
from catchment.wire.messages import Segment
from catchment.wire.receiving.grpc_server import CallService
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.uplink import Uplink

if TYPE_CHECKING:
    from catchment.feeds.runs.cloud_role import FeedCloudRole


@dataclass
class Runner:
    """Runs some roles of a project in this process."""

    deployment: Deployment
    spark: SparkSession
    sites: Sequence[str]
    with_center: bool
    clock: Clock = field(default_factory=SystemClock)
    once: bool = False
    on_segment: Callable[[Segment], None] = lambda segment: None  # called with every segment that is about to land
    wrap_uplink: Callable[[Uplink], Uplink] = lambda uplink: uplink  # where a test puts faults onto the wire
    make_monitor: MakeMonitor = LoadMonitor  # makes what decides how streams are shed
    services: Sequence[CallService] = ()  # answer beside the inbox of the center
    on_reached: Callable[[Deployment], None] = lambda deployment: None  # called with what the center has reached

    def __post_init__(self) -> None:
        self.project = self.deployment.project
        self._closing = ExitStack()
        self._stop = threading.Event()
        self._cadence = StatusCadence()
        self._center: CenterRole | None = None
        self.feeds: FeedCloudRole | None = None
        self.pipelines: list[SitePipeline] = []
        self._housekeeping: dict[str, SiteHousekeeping] = {}
        self._receivers: dict[str, SiteReceivers] = {}
        self.light = LightSites(self.project, self.clock)
        self.watcher = DeploymentWatcher(self.deployment)
        self.rebalancer = Rebalancer(self.watcher)
        self.second_rounds = SecondRounds(self.watcher)
        self.leaving_sites = LeavingSites(self.watcher)
        self._traces = open_window_traces(self.deployment, self.clock, self._closing)
        functions = self.deployment.catalog.functions.summary
        self.connections = Connections(
            self.project,
            self.clock,
            self.wrap_uplink,
            self._traces,
            functions,
            self.services,
            self.light.inboxes,
        )
        self.forwarding = ForwardServers(self.connections)
        self._expiry = ExpiryWatch(self.connections, self.clock)
        self.relays = Relays(
            self.deployment,
            lambda site: site in self._hosted,
            self.clock,
            self._relay_sender,
            self.connections.serve_relay,
            self._traces,
            self.forwarding.status,
        )
        self.sinks = SinkRoles(
            self.connections, self.clock, self._every_site_here, self._address, spark=self.spark, watcher=self.watcher
        )

    def start(self) -> None:
        """Start the center first, so that sites find it listening; then the relays, then the sites."""
        open_state_folder(self.project.state_folder)
        self.watcher.begin()
        self.light.follow_arrivals(self.deployment, self._evaluated_here())
        if self.with_center:
            self._center = CenterRole(
                self.deployment, self.spark, self.clock, self.connections, self.on_segment, self._traces
            )
            self.watcher.acknowledge()
            self.on_reached(self.deployment)
            self._center.start(self._closing)
            self.connections.addresses[self.project.center] = self._center.address
        self._closing.callback(self.relays.close)
        self.relays.start()
        self.connections.addresses.update(self.relays.addresses())
        self._closing.callback(self.forwarding.close)
        self.forwarding.start(site for site in self._hosted if site not in self.connections.addresses)
        self._closing.callback(self.sinks.close)
        self.sinks.follow(self.deployment)
        self._closing.callback(self.light.stop)
        if self.with_center and self.deployment.catalog.feed_views:
            self._start_feeds()
        self.light.start_sources(self.deployment, self._light_sources_here(), self._light_sender, once=self.once)
        for site in self._pipelines_here():
            self._start_site(site)

    def _start_feeds(self) -> None:
        """Serve the devices of feed views; what they find are records of streams that are born at the center."""
        from catchment.feeds.runs.cloud_role import FeedCloudRole

        self.feeds = FeedCloudRole(self.project, self.deployment.catalog, self.clock, once=self.once)
        self._closing.callback(self.feeds.stop)
        self.feeds.start()

    def _pipelines_here(self) -> tuple[str, ...]:
        """Return the sites whose pipelines run in this process: its own that compute, and light ones."""
        own = [s for s in self.sites if not self.project.is_light(s) and self.deployment.streams_at(s)]
        return (*own, *self._evaluated_here())

    def _evaluated_here(self) -> tuple[str, ...]:
        """Return the light sites whose records are evaluated in this process."""
        inboxes = (*self.relays.names, *([self.project.center] if self.with_center else []))
        found = (s for name in inboxes for s in self.deployment.routes.light_sites_at(name))
        return tuple(site for site in found if self.deployment.streams_at(site))

    def _light_sources_here(self) -> tuple[str, ...]:
        """Return the light sites whose records are read in this process."""
        return tuple(s for s in self.sites if self.project.is_light(s) and self.deployment.streams_at(s))

    @property
    def _hosted(self) -> Sequence[str]:
        """The sites that this process runs, also those where nothing is read; all of the project, if it runs whole."""
        return tuple(self.project.sites) if self.with_center and self.sites else self.sites

    def _every_site_here(self) -> frozenset[str]:
        """Return the sites that this process runs, with the center if it does."""
        return frozenset((*self._hosted, *([self.project.center] if self.with_center else [])))

    @property
    def center(self) -> CenterPipeline | None:
        """The center, if it runs in this process."""
        return None if self._center is None else self._center.pipeline

    @cached_property
    def _evaluator(self) -> SparkEvaluator:
        return SparkEvaluator(self._tables)

    @cached_property
    def _tables(self) -> LookupTables:
        return LookupTables(self.spark, self.deployment.catalog.tables, self.project.folder, self.clock)

    def _start_site(self, site: str) -> None:
        self._refuse_changes(site)
        is_light = self.project.is_light(site)
        if not is_light:
            self._receivers[site] = self._start_receiving(site)
        pipeline = SitePipeline(
            self.spark,
            self.project,
            site,
            self.deployment.streams_at(site),
            self.deployment.fragments_at(site),
            self._evaluator,
            partial(self._local_sender if is_light else self._sender, site),
            self.clock,
            self.make_monitor,
            self._traces,
            self.deployment.deployed.orders,
            self.light.arrivals.get(site),
            partial(self.light.is_arriving, site),
            sinks=self._sink_projects(),
        )
        if site in self._receivers:
            pipeline.heard_us = self._receivers[site].heard_us
        self.pipelines.append(pipeline)
        housekeeping = SiteHousekeeping(
            pipeline.folder,
            self.project.limits,
            self.clock,
            pipeline.needed_batches,
            lambda stream: self.deployment.catalog.streams[stream].event_time,
            lambda stream: pipeline.needed_batches(stream).owed,
            pipeline.reducer.stored_history,
        )
        self._housekeeping[site] = housekeeping
        pipeline.compact = lambda: housekeeping.compact([state.stream.name for state in pipeline.states])
        self._closing.callback(pipeline.stop)
        pipeline.start(once=self.once)

    def _refuse_changes(self, site: str) -> None:
        """Refuse views and streams that were changed under the state of a site, whichever sink they are for."""
        for part in self.deployment.parts:
            folder = self.project.site_folder(site)
            sink = part.project.sink
            refuse_redefined_views(folder / f"views_at_{sink}" if sink else folder, part.plans)
        refuse_changed_streams(self.project.site_folder(site), self.deployment.streams_at(site))

    def _sink_projects(self) -> dict[str, Project]:
        """Return the project as it is to each sink beside the center."""
        return {sink: part.project for sink, part in self.deployment.sinks.items()}

    def _start_receiving(self, site: str) -> SiteReceivers:
        """Take what is sent to a site from now on; with `once`, only what has landed before is read."""
        receivers = SiteReceivers(self.project, site)
        streams = self.deployment.declared_at(site)
        receivers.prepare(streams)
        if not self.once:
            self._closing.callback(receivers.stop)
            receivers.follow(streams)
        return receivers

    def run(self, report: Report | None = None, seconds: float | None = None) -> None:
        """Tick until every stream has ended and is answered, or `stop` is called, or the time is over."""
        deadline = None if seconds is None else self.clock.now_us() + seconds * 1e6
        while not self._stop.wait(TICK_S):
            self._tick()
            if self._cadence.is_due(self._activity()):
                status = self.status()
                self._write_status(status)
                if report is not None:
                    report(status)
            if self.finished or (deadline is not None and self.clock.now_us() > deadline):
                return

    def stop(self) -> None:
        """Ask `run` to return."""
        self._stop.set()

    def close(self) -> None:
        """Stop everything, the sites first."""
        try:
            self._write_status(self.status(), stopped=True)
        finally:
            self._closing.close()

    @property
    def finished(self) -> bool:
        """Return whether everything here is done.

        A site is done when all is read, sent and acknowledged; the center when all has landed, and no site has more to
        say.
        """
        if not all(p.finished for p in self.pipelines):
            return False
        if self._center is None and not self.pipelines and self.forwarding.running:
            return False  # it forwards for others until it is stopped
        once = self.once and bool(self.pipelines)
        if not self.relays.is_finished(once) or not self.sinks.is_finished(once):
            return False
        return self._center is None or self._center.is_finished(once)

    def status(self) -> Mapping[str, Any]:
        """Return the state of every role in this process."""
        sites = {p.site: self._site_status(p) for p in self.pipelines}
        center = None if self._center is None else self._center.status(self.watcher.refused)
        feeds = {} if self.feeds is None else {"feeds": self.feeds.status()}
        return {
            "sites": sites,
            "relays": self.relays.status(),
            "center": center,
            "sources": self.light.status(),
            "sinks": self.sinks.status(),
            **feeds,
        }

    def _site_status(self, pipeline: SitePipeline) -> Mapping[str, Any]:
        return {
            **site_status(pipeline),
            "storage": self._housekeeping[pipeline.site].status(),
            **self._received_status(pipeline.site),
            "certificate_expires_us": self._expiry.expiry_us(pipeline.site),
            "forwarded": self.forwarding.status(pipeline.site),
            "tables": self._tables.status(),
        }

    def _received_status(self, site: str) -> dict[str, Any]:
        """Return what came to a site over HTTP and MQTT; of a light site, what came from it."""
        if site in self.light.arrivals:
            return {"arrivals": self.light.arrivals[site].status(), "receivers": {}}
        return {"receivers": self._receivers[site].status()}

    def _follow(self) -> None:
        """Bring every role of this process to what is deployed now, the center first."""
        found = self.watcher.poll()
        if found is not None:
            self.deployment = found
            self.relays.follow(found)
            self.connections.addresses.update(self.relays.addresses())
            self.sinks.follow(found)
            if self._traces is not None:
                self._traces.follow(found)
            if self._center is not None:
                self._center.follow(found)
        if self._center is not None:
            self.watcher.acknowledge()
            if found is not None:
                self.on_reached(found)
            self.rebalancer.step(self._center.pipeline.core, self.clock.now_us())
            self.second_rounds.step(self._center.pipeline)
            self.leaving_sites.step(self._center.pipeline.core)
        if self.watcher.sites_may_follow():
            self._follow_sites()
        outboxes = [*(p.outbox for p in self.pipelines), *(r.outbox for r in self.relays.running.values())]
        outboxes += self.sinks.outboxes()
        end_former_lives(outboxes, self.deployment.deployed.orders)

    def _follow_sites(self) -> None:
        self.light.follow_arrivals(self.deployment, self._evaluated_here())
        for pipeline in self.pipelines:
            self._refuse_changes(pipeline.site)
            if not self.once and pipeline.site in self._receivers:
                self._receivers[pipeline.site].follow(self.deployment.declared_at(pipeline.site))
            streams = self.deployment.streams_at(pipeline.site)
            pipeline.deploy(streams, self.deployment.fragments_at(pipeline.site), self._sink_projects())
        running = {p.site for p in self.pipelines}
        whole = self.with_center and bool(self.pipelines) and bool(self.sites)
        if whole:  # a query may read a stream that nobody read before
            self.sites = self.deployment.sites
        for site in self._pipelines_here() if whole else self._evaluated_here():
            if site not in running:
                self._start_site(site)
        self.light.start_sources(self.deployment, self._light_sources_here(), self._light_sender, once=self.once)

    def _tick(self) -> None:
        self._follow()
        self.light.tick()
        for pipeline in self.pipelines:
            pipeline.exits.raise_failure()
            pipeline.tick()
            self._housekeeping[pipeline.site].tick([state.stream.name for state in pipeline.states])
        self._stop_without_readers()
        if self.feeds is not None:
            self.feeds.tick()
        self.relays.tick()
        self.sinks.tick()
        if self._center is not None:
            self._center.tick()

    def _activity(self) -> object:
        """Return something that is another after anything has been read, sent, landed, merged or deployed."""
        sites = [(p.host.next_sequence, p.outbox.next_sequence, p.outbox.lowest_unacked) for p in self.pipelines]
        relays = [(r.host.next_sequence, r.outbox.lowest_unacked) for r in self.relays.running.values()]
        center = self._center and (self._center.pipeline.host.next_sequence, self._center.inbox.last_position)
        return sites, relays, center, self.watcher.version, self.watcher.refused

    def _stop_without_readers(self) -> None:
        """End a process that has nothing left to do: every reader has failed, and nobody sends to it."""
        if self.pipelines and self._center is None and all(p.has_failed for p in self.pipelines):
            failure = self.pipelines[0].failure
            assert failure is not None
            raise failure

    def _write_status(self, status: Mapping[str, Any], stopped: bool = False) -> None:
        for pipeline in self.pipelines:
            write_status(pipeline.folder, status["sites"][pipeline.site], stopped)
        self.relays.write_status(status["relays"], stopped)
        self.sinks.write_status(stopped)
        for site in set(self.forwarding.running) - {pipeline.site for pipeline in self.pipelines}:
            self.forwarding.write_status(site, stopped)
        self.light.write_status(stopped)
        if self._center is not None:
            write_status(self._center.pipeline.folder, status["center"], stopped)

    def _sender(self, site: str, outbox: Outbox, sink: str) -> Sender:
        link = exit_link(self.deployment.part_at(sink).project, site, outbox.destination)
        return self.connections.make_sender(link, site, self._address(outbox.destination), outbox, sink=sink)

    def _local_sender(self, site: str, outbox: Outbox, sink: str) -> Sender:
        """Return what gives the partials of a light site to the inbox beside its pipeline, in this process."""
        to = outbox.destination
        inbox = self.connections.sink_inboxes[to][sink] if sink else self._inbox_of(to)
        return Sender(
            outbox,
            lambda: self.wrap_uplink(LocalUplink(inbox, peer=site)),
            clock=self.clock,
            on_acked=None if self._traces is None else partial(self._traces.note_acked, site),
        )

    def _inbox_of(self, name: str) -> Inbox:
        if name == self.project.center:
            assert self._center is not None, "its light sites are evaluated where it runs"
            return self._center.inbox
        return self.relays.running[name].inbox

    def _light_sender(self, site: str, outbox: Outbox) -> Sender:
        link = outgoing_link(self.project, site)
        address = self._address(link.destination)
        return self.connections.make_sender(link, site, address, outbox, carries_records=True)

    def _relay_sender(self, site: str, outbox: Outbox) -> Sender:
        link = self.project.link(site, outbox.destination)
        return self.connections.make_sender(link, site, self._address(link.destination), outbox)

    def _address(self, to: str) -> str:
        """Return where the inbox of the center or of a relay is: here, or at its declared address."""
        if to == self.project.center and self._center is not None:
            return self._center.address
        return self.relays.address(to) or self.connections.addresses.get(to) or inbox_address(self.project, to)


def run_deployment(
    deployment: Deployment,
    *,
    once: bool = False,
    seconds: float | None = None,
    spark: SparkSession | None = None,
) -> Mapping[str, Any]:
    """Run all of a project in this process; return its last status. A session that is given is left open."""
    project = deployment.project
    session = spark or make_session(
        project.name, project.spark, warehouse=project.state_folder / "warehouse", folder=project.folder
    )
    runner = Runner(deployment, session, deployment.sites, True, once=once)
    try:
        runner.start()
        runner.run(seconds=seconds)
        return runner.status()
    finally:
        runner.close()
        if spark is None:
            session.stop()
