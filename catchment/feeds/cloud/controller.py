"""The control plane of the cloud: it deploys views, follows the reference data and answers devices. Pure.

How a view gets to its host, and why no notification is lost on the way, is in `moves.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.instructions import InstructionQueue
from catchment.feeds.cloud.moves import Move, ViewMoves
from catchment.feeds.cloud.router import ControlledPlane, Deliver
from catchment.feeds.cloud.routes import CLOUD, Hosts, check_hosts
from catchment.feeds.cloud.view_locations import ViewLocations
from catchment.feeds.forms.program import VERSION
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.language.program_form import form_of
from catchment.feeds.language.template import FeedProgram, stream_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.messages import (
    Admitted,
    Confirmed,
    FeedEvent,
    Hello,
    Install,
    Message,
    Notice,
    Program,
    RateReport,
    Refused,
    Reset,
    SetRoute,
    SetUpload,
    Upward,
)

RELAYED_UP = (Hello, Confirmed, Notice, RateReport)  # what an edge cloud relays of a device


@dataclass(frozen=True)
class ControlCounters:
    """What the control plane has done so far."""

    moves_begun: int
    moves_done: int
    instructions: int
    refused: int


class FeedController:
    """Knows where each view is, and brings it where it should be."""

    def __init__(self, graph: ViewGraph, plane: ControlledPlane, tree: EdgeTree | None = None) -> None:
        self.instructions = InstructionQueue(Program(form_of(graph.program)))
        self.tree = tree or EdgeTree()
        self.locations = ViewLocations(graph, self.tree)
        self.moves = ViewMoves(self.locations, plane, self.instructions)
        self.feeds_of = _feeds_by_device(graph)
        self.rates: dict[str, float] = {}  # events per second of each feed, as devices report them
        self.functions_of: dict[str, frozenset[str]] = {}  # functions of the project that each device has
        self.refused = 0
        self.forwarded: list[Deliver] = []  # answers to hellos, and notices, of this call

    @property
    def graph(self) -> ViewGraph:
        return self.locations.graph

    @property
    def counters(self) -> ControlCounters:
        return ControlCounters(self.moves.begun, self.moves.done, self.instructions.sent, self.refused)

    # ---- where views are

    def current_hosts(self) -> dict[str, str]:
        """Return where each view is, or is going."""
        return self.locations.current_hosts()

    def hosts_of(self, view: str) -> list[str]:
        """Return the current host of a view and, while it moves, the next."""
        return list(self.locations.hosts.get(view, ()))

    @property
    def moving(self) -> Mapping[str, Move]:
        """The views that are on their way to a host."""
        return self.moves.under_way

    @property
    def active_since_us(self) -> Mapping[str, int]:
        """For each view the event time after which its matches are complete."""
        return self.moves.active_since_us

    def uploads_of(self, device: str) -> dict[str, float]:
        """Return the share of each feed that a device was told to upload."""
        return dict(self.moves.table.uploads_of(device))

    @property
    def registered(self) -> Mapping[str, int]:
        """The devices that have said hello, each with its boot."""
        edges = self.tree.clouds
        return {name: boot for name, boot in self.instructions.boots.items() if name not in edges}

    @property
    def registered_edges(self) -> list[str]:
        """The edge clouds that have said hello."""
        return sorted(self.tree.clouds & self.instructions.boots.keys())

    # ---- what the driver calls

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Put views where they should be: new ones are opened, others moved if they are elsewhere."""
        hosts = self._at_able_hosts(self.graph, hosts)
        check_hosts(self.graph, {**self.current_hosts(), **hosts}, self.tree)
        for view in self.graph.views.values():
            if view.name in hosts:
                self.moves.want(view, hosts[view.name])
        return self._take()

    def update(self, newer: ViewGraph, hosts: Hosts) -> list[Deliver]:
        """Follow a change of the reference data; `hosts` places the added views."""
        delta = self.graph.delta_to(newer)
        hosts = self._at_able_hosts(newer, hosts)
        check_hosts(newer, {**self.current_hosts(), **hosts}, self.tree)
        self.show_graph(newer)
        for name in reversed(delta.removed):
            self.moves.remove(name)
        for view in delta.changed:
            self.moves.replace(view)
        for view in delta.added:
            self.moves.open(view, None, hosts[view.name])
        return self._take()

    def follow_program(self, program: FeedProgram) -> None:
        """Take another program, in which every view that there is means what it did."""
        self.show_graph(ViewGraph(program, self.graph.feeds, self.graph.views))
        self.instructions.follow_program(Program(form_of(program)))

    def show_graph(self, newer: ViewGraph) -> None:
        """Take another graph as the present one; which views move because of it is for `update` to say."""
        self.locations.graph = newer
        self.feeds_of = _feeds_by_device(newer)

    def forget(self, device: str) -> None:
        """Forget a device that has left for good; no view that holds its data is left."""
        self.instructions.forget(device)
        self.moves.forget_device(device)
        self.functions_of.pop(device, None)
        self.tree.edge_of.pop(device, None)
        for kind in self.graph.program.pushed_columns:
            self.rates.pop(f"{kind}@{device}", None)

    def restart(self) -> list[Deliver]:
        """Begin a new life with devices that may remember an earlier one: each is told to forget it."""
        return [Deliver(device, Reset()) for device in self.graph.devices]

    def attach(self, device: str, edge: str, message: Message) -> bool:
        """Return whether a message that an edge cloud relays is of a device of its own; a hello makes it so."""
        is_new = isinstance(message, Hello) and device not in self.instructions.boots
        if edge not in self.tree.clouds or device in self.tree.clouds or not isinstance(message, RELAYED_UP):
            allowed = False
        elif is_new:
            self.tree.edge_of[device] = edge
            allowed = True
        else:
            allowed = self.tree.edge_of.get(device) == edge
        self.refused += not allowed
        return allowed

    def handle(self, device: str, message: Upward) -> list[Deliver]:
        """Answer a control message or a notice from a device."""
        if isinstance(message, Hello):
            self._greet(device, message)
        elif isinstance(message, Confirmed):
            self._confirm(device, message)
        elif isinstance(message, Notice):
            self._forward(device, message)
        elif isinstance(message, RateReport):
            self._update_rates(device, message)
        return self._take()

    def admits(self, device: str, event: FeedEvent) -> bool:
        """Return whether a device may send an event.

        It may if the event is of its own feed, with values of the declared types, or of a view that it computes.
        """
        source = self.graph.feeds.get(event.feed)
        if source is None:
            allowed = self._computes_behind(device, event.feed)
        else:
            sender = self.tree.edge_of.get(source.device, source.device)
            allowed = sender == device and self.graph.program.accepts(source.kind, event.values)
        self.refused += not allowed
        return allowed

    def _computes_behind(self, link: str, view: str) -> bool:
        """Return whether a view is computed by what is at the lower end of a link, or by a device behind it."""
        return self.locations.computes(link, view) or any(
            self.tree.edge_of.get(host) == link for host in self.locations.hosts_and_retired(view)
        )

    # ---- messages of devices

    def _greet(self, device: str, hello: Hello) -> None:
        """Answer a hello; tell a new or restarted device its program and everything that holds for it."""
        if hello.version != VERSION:
            reason = f"the device speaks version {hello.version} of the protocol, this cloud version {VERSION}"
            self.forwarded.append(Deliver(device, Refused(hello.boot, reason)))
            return
        self.functions_of[device] = frozenset(hello.functions)
        self.forwarded.append(Deliver(device, Admitted(hello.boot)))
        if not self.instructions.greet(device, hello.boot):
            return
        self._greet_behind(device)
        for feed, share in self.moves.table.uploads_of(device):
            self.instructions.tell(device, SetUpload(feed, share))
        for name in sorted(self.locations.installed.get(device, ())):
            self.instructions.tell(device, Install(self.locations.views[name]))
        for attached in self.tree.devices_of(device):
            for feed, share in self.moves.table.handed_to(attached):
                self.instructions.tell(device, SetRoute(feed, attached, share))
        self.instructions.tell_pending(device)

    def _greet_behind(self, edge: str) -> None:
        """Let devices say hello again whose edge cloud has forgotten what they were told."""
        for device in self.tree.devices_of(edge):
            self.instructions.boots.pop(device, None)
            self.forwarded.append(Deliver(device, Reset()))

    def _at_able_hosts(self, graph: ViewGraph, hosts: Hosts) -> Hosts:
        """Return a placement with the cloud in place of devices that lack a function of the view.

        A device that has not yet said which functions it has is taken to have none of the project's.
        """
        if all(name in BUILT_IN for name in graph.program.functions):
            return hosts
        needed = {view.name: view.functions - set(BUILT_IN) for view in self.instructions.program.form.views}

        def lacks(host: str, view: str) -> bool:
            return host != CLOUD and bool(needed[graph.views[view].template] - self.functions_of.get(host, frozenset()))

        return {view: CLOUD if lacks(host, view) else host for view, host in hosts.items()}

    def _confirm(self, device: str, message: Confirmed) -> None:
        for token in message.tokens:
            pending = self.instructions.confirm(device, token)
            if pending is not None:
                self.moves.confirm(device, pending, message.since_us)

    def _forward(self, device: str, notice: Notice) -> None:
        if self.locations.computes(device, notice.view):
            self.forwarded.append(Deliver(notice.notified, notice))
        else:
            self.refused += 1

    def _update_rates(self, device: str, message: RateReport) -> None:
        counts = dict(message.counts)
        consumed = self.graph.program.consumed
        installed = self.locations.installed.get(device, ())
        computed = [name for name in installed if self.locations.views[name].template in consumed]
        own = [f"{kind}@{device}" for kind in self.graph.program.pushed_columns if not self._is_of_cloud(kind)]
        born = [feed for feed in own if feed in counts or feed in self.graph.feeds]  # no view may read a feed yet
        for feed in (*born, *computed):
            self.rates[feed] = counts.get(feed, 0) * 1e6 / message.period_us

    def _is_of_cloud(self, kind: str) -> bool:
        return self.graph.program.streams[stream_of(kind)].born_at_cloud

    def _take(self) -> list[Deliver]:
        """Take out what this call has to say."""
        self.moves.lower_freed()
        taken = [*self.forwarded, *self.instructions.take()]
        self.forwarded.clear()
        return taken


def _feeds_by_device(graph: ViewGraph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for feed in [feed for feed in graph.feeds.values() if not feed.is_of_cloud]:
        found.setdefault(feed.device, []).append(feed.name)
    return found
