"""A process that computes nothing from records: the relays of some sites, and what those sites forward for others.

It needs neither Java nor PySpark. A process that reads streams or has the center in it is run by
`catchment.spark.pipelines.runner`, which runs the relays beside them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.connections import Connections, inbox_address
from catchment.deploy.processes.forwarding import ForwardServers
from catchment.deploy.processes.relays import Relays
from catchment.deploy.processes.sink_relays import SinkRelays
from catchment.deploy.reports.role_files import open_state_folder
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import EngineError
from catchment.project.config import Project
from catchment.project.site_orders import SiteOrders
from catchment.site.outbox_writer import needs_new_life
from catchment.timeline import Clock, SystemClock
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.uplink import Uplink

if TYPE_CHECKING:
    from catchment.deploy.reports.window_traces import WindowTraces

TICK_S = 0.25  # how often pipelines are ticked
IDLE_STATUS_S = 1.0  # how often a status is told where nothing happens

Report = Callable[[Mapping[str, Any]], None]


class StatusCadence:
    """When a process tells its status: at every tick at which something has happened, and now and then if nothing has.

    A status takes longer to put together than everything else that an idle process does.
    """

    def __init__(self, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._stopwatch = stopwatch
        self._told_s = -IDLE_STATUS_S
        self._activity: object = None

    def is_due(self, activity: object) -> bool:
        """Return whether the status is told now; `activity` is another one after anything has happened."""
        now_s = self._stopwatch()
        if activity == self._activity and now_s - self._told_s < IDLE_STATUS_S:
            return False
        self._activity = activity
        self._told_s = now_s
        return True


@dataclass
class RelayRunner:
    """Runs the relays and forwarders of a project that this process has; none of its sites reads a stream."""

    deployment: Deployment
    sites: Sequence[str]
    clock: Clock = field(default_factory=SystemClock)
    wrap_uplink: Callable[[Uplink], Uplink] = lambda uplink: uplink  # where a test puts faults onto the wire

    def __post_init__(self) -> None:
        self.project = self.deployment.project
        self._closing = ExitStack()
        self._stop = threading.Event()
        self.watcher = DeploymentWatcher(self.deployment)
        self._traces = open_window_traces(self.deployment, self.clock, self._closing)
        functions = self.deployment.catalog.functions.summary
        self.connections = Connections(self.project, self.clock, self.wrap_uplink, self._traces, functions)
        self.forwarding = ForwardServers(self.connections)
        self.sinks = SinkRelays(self.connections, self.clock, lambda: self.sites, self._address)
        self.relays = Relays(
            self.deployment,
            lambda site: site in self.sites,
            self.clock,
            self._make_sender,
            self.connections.serve_relay,
            self._traces,
            self.forwarding.status,
        )

    def start(self) -> None:
        """Listen for the sites that send through this process."""
        open_state_folder(self.project.state_folder)
        self.watcher.begin()
        self._closing.callback(self.relays.close)
        self.relays.start()
        self.connections.addresses.update(self.relays.addresses())
        self._closing.callback(self.forwarding.close)
        self.forwarding.start(site for site in self.sites if site not in self.connections.addresses)
        self._closing.callback(self.sinks.close)
        self.sinks.follow(self.deployment)

    def run(self, report: Report | None = None, seconds: float | None = None) -> None:
        """Tick until every site has ended and all is sent on, or `stop` is called, or the time is over."""
        deadline = None if seconds is None else self.clock.now_us() + seconds * 1e6
        cadence = StatusCadence()
        while not self._stop.wait(TICK_S):
            self._tick()
            if cadence.is_due([(r.host.next_sequence, r.outbox.lowest_unacked) for r in self.relays.running.values()]):
                self.write_status()
                if report is not None:
                    report(self.status())
            if self.finished or (deadline is not None and self.clock.now_us() > deadline):
                return

    def stop(self) -> None:
        """Ask `run` to return."""
        self._stop.set()

    def close(self) -> None:
        """Stop everything."""
        try:
            self.write_status(stopped=True)
        finally:
            self._closing.close()

    @property
    def finished(self) -> bool:
        """Return whether all that will ever come was sent on.

        A site that forwards does so until it is stopped, and one that nobody sends through stands by.
        """
        is_sent = self.relays.is_finished(once=False) and self.sinks.is_finished(once=False)
        carries = any(r.carries_anything for r in (self.relays, *self.sinks.relays.values()))
        return not self.forwarding.running and carries and is_sent

    def status(self) -> Mapping[str, Any]:
        """Return the state of every role in this process."""
        told = {"relays": self.relays.status(), "sinks": self.sinks.status()}
        return {"sites": {}, "center": None, "sources": {}, **told}

    def write_status(self, stopped: bool = False) -> None:
        """Write the status of every role into its folder."""
        self.relays.write_status(self.relays.status(), stopped)
        self.sinks.write_status(stopped)
        for site in self.forwarding.running:
            self.forwarding.write_status(site, stopped)

    def _tick(self) -> None:
        found = self.watcher.poll()
        if found is not None:
            self.deployment = found
            self.relays.follow(found)
            self.connections.addresses.update(self.relays.addresses())
            self.sinks.follow(found)
            if self._traces is not None:
                self._traces.follow(found)
        outboxes = (*(relay.outbox for relay in self.relays.running.values()), *self.sinks.outboxes())
        end_former_lives(outboxes, self.deployment.deployed.orders)
        self.relays.tick()
        self.sinks.tick()

    def _make_sender(self, site: str, outbox: Outbox) -> Sender:
        link = self.project.link(site, outbox.destination)
        return self.connections.make_sender(link, site, self._address(link.destination), outbox)

    def _address(self, to: str) -> str:
        """Return where the server of a site is: here, or at its declared address."""
        here = self.relays.address(to) or self.connections.addresses.get(to)
        return here or inbox_address(self.project, to)


def open_window_traces(deployment: Deployment, clock: Clock, closing: ExitStack) -> WindowTraces | None:
    """Return what sends the lives of windows to a collector; None, and nothing imported, where that is off."""
    project: Project = deployment.project
    if project.traces.endpoint is None:
        return None
    from catchment.deploy.reports.window_traces import open_traces

    traces = open_traces(deployment, clock, project.traces)
    closing.callback(traces.close)
    return traces


def end_former_lives(outboxes: Iterable[Outbox], orders: SiteOrders) -> None:
    """End a process in which somebody runs who was ordered to be healed: a new life begins with a start."""
    for outbox in outboxes:
        if needs_new_life(outbox, orders):
            raise EngineError(
                f"{outbox.origin} was ordered to be healed, and this process runs its former life",
                hint="start it again: it goes on in its new life, and what was merged of it is computed again",
            )
