"""The relays of a process on the routes to other sinks than the center, and who takes what lands there for each sink.

What lands for a sink is taken by the server of the site, which may be a relay to the center too, or forward for others;
where there is none, one is started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.connections import Connections, reached_at
from catchment.deploy.processes.relays import Relays
from catchment.errors import EngineError
from catchment.timeline import Clock
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender


@dataclass
class SinkRelays:
    """Starts, follows and ends the relays of this process towards other sinks than the center."""

    connections: Connections
    clock: Clock
    hosted: Callable[[], Collection[str]]  # the sites that this process runs
    address: Callable[[str], str]  # where the server of a site is found
    relays: dict[str, Relays] = field(default_factory=dict, init=False)  # by sink
    _closing: ExitStack = field(default_factory=ExitStack, init=False)

    def follow(self, deployment: Deployment) -> None:
        """Relay what is deployed now towards every sink; those that are here answer it."""
        hosted = self.hosted()
        for sink, part in deployment.sinks.items():
            if sink in hosted:
                self._answer_at(sink, part)
            if sink in self.relays:
                self.relays[sink].follow(part)
            else:
                self._relay_to(sink, part)

    def _answer_at(self, sink: str, part: Deployment) -> None:
        """Answer what is deployed at a sink that is here, which a process without Spark does not."""
        raise EngineError(
            f"views are to be answered at {sink!r} now, and this process runs without Spark",
            hint="start it again: it goes on from its state, and answers",
        )

    def _relay_to(self, sink: str, part: Deployment) -> None:
        def make_sender(name: str, outbox: Outbox) -> Sender:
            link = part.project.link(name, outbox.destination)
            return self.connections.make_sender(link, name, self.address(link.destination), outbox, sink=sink)

        relays = Relays(part, self._hosts, self.clock, make_sender, partial(self._take_for_relay, sink))
        self._closing.callback(relays.close)
        relays.start()
        self.relays[sink] = relays

    def _hosts(self, site: str) -> bool:
        return site in self.hosted()

    def _take_for_relay(self, sink: str, site: str, inbox: Inbox) -> None:
        self.take(site, sink, inbox)

    def take(self, site: str, sink: str, inbox: Inbox) -> None:
        """Let what lands at a site for a sink be taken by its server, which is started if there is none."""
        self.connections.take_for_sink(site, sink, inbox)
        if site not in self.connections.addresses:
            server = self.connections.make_sink_server(site)
            server.start()
            self._closing.callback(server.close)
            self.connections.addresses[site] = reached_at(self.connections.project, site, server)

    def outboxes(self) -> Iterator[Outbox]:
        """Yield what these relays send from."""
        for relays in self.relays.values():
            yield from (relay.outbox for relay in relays.running.values())

    def tick(self) -> None:
        """Let time pass."""
        for relays in self.relays.values():
            relays.tick()

    def is_finished(self, once: bool) -> bool:
        """Return whether nothing more will be sent on; with `once`, whether all that is here now was."""
        return all([relays.is_finished(once) for relays in self.relays.values()])  # noqa: C419 - each flushes

    def status(self) -> dict[str, Mapping[str, Any]]:
        """Return the state of what runs here for each sink, as plain JSON."""
        found = {sink: relays.status() for sink, relays in self.relays.items()}
        return {sink: {"center": None, "relays": told} for sink, told in found.items() if told}

    def write_status(self, stopped: bool = False) -> None:
        """Write the status of each relay into its folder."""
        for relays in self.relays.values():
            relays.write_status(relays.status(), stopped)

    def close(self) -> None:
        self._closing.close()
