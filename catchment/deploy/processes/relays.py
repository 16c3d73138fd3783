"""The relays of a process: each listens for the sites that send through it, and sends on towards the center."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.connections import reached_at
from catchment.deploy.reconcile import carried_by
from catchment.deploy.reports.role_files import write_status
from catchment.progress.admission import Admission
from catchment.progress.window_observer import WindowObserver
from catchment.relay.pipeline import RelayPipeline
from catchment.timeline import Clock
from catchment.wire.messages import Segment
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender


@dataclass
class Relays:
    """Starts, follows and ends the relays of some sites."""

    deployment: Deployment
    is_here: Callable[[str], bool]  # whether this process runs a site
    clock: Clock
    make_sender: Callable[[str, Outbox], Sender]
    make_server: Callable[[str, Inbox], InboxServer | None]  # None: one that runs already takes what lands
    observer: WindowObserver | None = None
    forwarded: Callable[[str], Mapping[str, Any]] = lambda name: {}  # what a site has forwarded for others
    running: dict[str, RelayPipeline] = field(default_factory=dict, init=False)
    _servers: dict[str, InboxServer] = field(default_factory=dict, init=False)
    _closing: ExitStack = field(default_factory=ExitStack, init=False)

    def __post_init__(self) -> None:
        self._known = self.deployment.deployed.known

    def start(self) -> None:
        """Start all relays, those near the center first, so that each finds the next inbox listening."""
        for name in self.names:
            if name not in self.running:
                self._start(name)

    @property
    def names(self) -> list[str]:
        """The relays of this process, as far as something goes through them, or went."""
        return [name for name in self.deployment.routings.hubs if self.is_here(name)]

    def _start(self, name: str) -> None:
        relay = RelayPipeline(
            self.deployment.project,
            name,
            self._admit,
            partial(self.make_sender, name),
            self.clock,
            observer=self.observer,
            orders=self.deployment.deployed.orders,
        )
        self.running[name] = relay
        self._closing.callback(relay.stop)
        self._carry(name)
        relay.start()
        server = self.make_server(name, relay.inbox)
        if server is not None:
            self._servers[name] = server
            server.start()
            self._closing.callback(server.close)

    def _carry(self, name: str) -> None:
        deployment = self.deployment
        self.running[name].carry(
            tuple(carried_by(deployment, name)),
            deployment.deferrable,
            deployment.deployed.orders,
            deployment.routings.neighbours(name),
        )

    def address(self, name: str) -> str | None:
        """Return where a relay of this process listens; None if it does not run here."""
        if name not in self._servers:
            return None
        return reached_at(self.deployment.project, name, self._servers[name])

    def addresses(self) -> dict[str, str]:
        """Return where the relays of this process listen."""
        return {name: reached_at(self.deployment.project, name, server) for name, server in self._servers.items()}

    def follow(self, deployment: Deployment) -> None:
        """Carry what is deployed now; a relay may know a fragment before any site sends it.

        Where sites were moved to routes through a site of this process that was no relay before, it becomes one.
        """
        self.deployment = deployment
        self._known = deployment.deployed.known
        for name in self.running:
            self._carry(name)
        self.start()

    def tick(self) -> None:
        for relay in self.running.values():
            relay.tick()

    def is_finished(self, once: bool) -> bool:
        """Return whether nothing more will be sent on; with `once`, whether everything that is here now was."""
        if once:
            for relay in reversed(self.running.values()):  # those far from the center first
                relay.flush()
        return all(relay.drained if once else relay.finished for relay in self.running.values())

    @property
    def carries_anything(self) -> bool:
        """Whether something comes through one of them."""
        return any(relay.core.origins for relay in self.running.values())

    def status(self) -> dict[str, Mapping[str, Any]]:
        return {n: {**relay.status(), "forwarded": self.forwarded(n)} for n, relay in self.running.items()}

    def write_status(self, status: Mapping[str, Mapping[str, Any]], stopped: bool = False) -> None:
        """Write the status of each relay, by name, into its folder."""
        for name, told in status.items():
            write_status(self.running[name].folder, told, stopped)

    def close(self) -> None:
        self._closing.close()

    def _admit(self, segment: Segment) -> None:
        Admission(self._known, self.deployment.routings, self.deployment.births).check(segment)
