"""The control plane of the cloud: deploys views, and moves them without downtime or a lost notification.
Pure.

A view moves in two phases. *Opening*: the feeds that the new host needs are raised and routed to it, and
the view is installed there; the old host goes on. When every device concerned has confirmed, the new host
sees every event later than some time S. *Draining*: the old host is kept until every source has passed S +
lifetime. A pair of events whose later one is at most S + lifetime meets at the old host; otherwise its
earlier one is later than S, and it meets at the new host. So every match is found at one of the two, and
found twice at most during the overlap; notices carry keys, and the notified device drops the second.

A device that is away confirms nothing, and its views stay where they are until it is back; other views go
on. A view whose inputs or readers are moving waits for its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from catchment.feeds.cloud.route_table import RouteTable
from catchment.feeds.cloud.router import DataPlane, Deliver
from catchment.feeds.cloud.routes import CLOUD, FeedRoutes, Hosts, Instance, check_hosts, routes_of
from catchment.feeds.language.view_graph import PhysicalView, ViewGraph
from catchment.feeds.protocol.messages import (
    Confirmed,
    FeedEvent,
    Hello,
    Install,
    Instruction,
    Instructions,
    Mark,
    Notice,
    Program,
    RateReport,
    Reset,
    SetUpload,
    Uninstall,
    Upward,
)
from catchment.timeline import START_OF_TIME_US

MAX_BATCH = 500  # instructions in one message, which keeps it well below the codec's bound
MARK_GRID_US = 1_000_000  # drain times are rounded up to this, so that one mark serves many views
SKEW_US = 1_000_000  # how far the clocks of devices may differ; matters for views over views only


Asked = SetUpload | Install | Uninstall | Mark  # what a device confirms


@dataclass
class Move:
    """A view on its way to a host; `old` is None for a view that is new."""

    view: PhysicalView
    old: str | None
    new: str
    waiting: set[int] = field(default_factory=set)
    since_us: int = START_OF_TIME_US
    waves: list[set[str]] | None = None  # devices still to be marked, wave by wave; None while opening
    wave: int = 0
    frees: bool = False  # whether its end leaves less to send than before


@dataclass
class PendingInstruction:
    """An instruction that a device has not yet confirmed, and the views that wait for it."""

    device: str
    message: Asked
    views: set[str] = field(default_factory=set)


@dataclass
class ControlCounters:
    """What the control plane did."""

    moves_begun: int = 0
    moves_done: int = 0
    instructions: int = 0
    refused: int = 0


class FeedController:
    """Knows where each view is, and brings it where it should be."""

    def __init__(self, graph: ViewGraph, plane: DataPlane) -> None:
        self.graph = graph
        self.plane = plane
        self.hosts: dict[str, list[str]] = {}  # the current host, and while moving also the next
        self.retired: dict[str, dict[str, int]] = {}  # view -> hosts that have not yet confirmed its end
        self.specs: dict[str, PhysicalView] = {}
        self.readers: dict[str, set[str]] = {}
        self.moves: dict[str, Move] = {}
        self.wanted: dict[str, str] = {}  # moves that wait for another one to end
        self.active_since_us: dict[str, int] = {}  # matches of later events are complete
        self.installed: dict[str, set[str]] = {}  # host -> its views
        self.table = RouteTable()
        self.feeds_of = _by_device(graph)
        self.pending: dict[int, PendingInstruction] = {}
        self.marks: dict[tuple[str, int], int] = {}  # (device, drain time) -> token
        self.boots: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self.counters = ControlCounters()
        self.next_token = 1
        self.freed: set[str] = set()  # feeds of which less may be wanted after this call
        self.told: dict[str, list[Instruction]] = {}  # instructions of this call, a message a device
        self.out: list[Deliver] = []

    # ---- what the driver calls

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Put views where they should be: new ones are opened, others moved if they are elsewhere."""
        check_hosts(self.graph, {**self.settled(), **hosts})
        for view in self.graph.views.values():
            if view.name in hosts:
                self._want(view, hosts[view.name])
        return self._take_out()

    def update(self, newer: ViewGraph, hosts: Hosts) -> list[Deliver]:
        """Follow a change of the reference data; `hosts` places the added views."""
        delta = self.graph.delta_to(newer)
        check_hosts(newer, {**self.settled(), **hosts})
        self.graph, self.feeds_of = newer, _by_device(newer)
        for name in reversed(delta.removed):
            self._remove(name)
        for view in delta.changed:
            self._replace(view)
        for view in delta.added:
            self._open(view, None, hosts[view.name])
        return self._take_out()

    def restart(self) -> list[Deliver]:
        """Begin a new life with devices that may remember an earlier one: each is told to forget it."""
        return [Deliver(device, Reset()) for device in self.graph.devices]

    def handle(self, device: str, message: Upward) -> list[Deliver]:
        """Answer a control message or a notice from a device."""
        if isinstance(message, Hello):
            self._greet(device, message.boot)
        elif isinstance(message, Confirmed):
            self._confirm(device, message)
        elif isinstance(message, Notice):
            self._forward(device, message)
        elif isinstance(message, RateReport):
            self._measure(device, message)
        return self._take_out()

    def admits(self, device: str, event: FeedEvent) -> bool:
        """Whether a device may send an event: of its own feed, with values of the declared types, or of a view
        that it computes."""
        source = self.graph.feeds.get(event.feed)
        if source is None:
            allowed = self._computes(device, event.feed)
        else:
            allowed = source.device == device and self.graph.program.accepts(source.kind, event.values)
        self.counters.refused += not allowed
        return allowed

    def settled(self) -> dict[str, str]:
        """Where each view is, or is going."""
        return {name: hosts[-1] for name, hosts in self.hosts.items()}

    # ---- opening

    def _want(self, view: PhysicalView, host: str) -> None:
        current = self.hosts.get(view.name)
        if current is None:
            self._open(view, None, host)
        elif view.name in self.moves or self._entangled(view):
            self.wanted[view.name] = host
        elif current != [host]:
            self._open(view, current[0], host)

    def _entangled(self, view: PhysicalView) -> bool:
        return any(name in self.moves for name in (*view.inputs, *self.readers.get(view.name, ())))

    def _open(self, view: PhysicalView, old: str | None, new: str) -> None:
        self.counters.moves_begun += 1
        self.specs[view.name] = view
        hosts = self.hosts.setdefault(view.name, [])
        if new not in hosts:
            hosts.append(new)
        for feed in view.inputs:
            self.readers.setdefault(feed, set()).add(view.name)
        move = self.moves[view.name] = Move(view, old, new, frees=old is not None)
        for feed in view.inputs:
            self._raise_routes(feed, routes_of(feed, self._sources(feed), [(view, new)]), move)
        self._raise_routes(view.name, routes_of(view.name, [new], self._instances(view.name)), move)
        self._install(view, new, move)
        self._advance(move)

    def _raise_routes(self, feed: str, needed: FeedRoutes, move: Move) -> None:
        """Ask for what one more instance needs; what is already sent for others serves it too."""
        for device, share in needed.uploads.items():
            upload = self.table.upload(feed, device)
            if share > upload.asked:
                token = self._new_token()
                self._instruct(device, SetUpload(feed, share, token))
                upload.ask(share, token)
            awaited = upload.token_for(share)
            if awaited is None:
                move.since_us = max(move.since_us, upload.since_us)
            else:
                self._await(awaited, move)
        for device, share in needed.downloads.items():
            if share > self.table.download(feed, device):
                self._route(feed, device, share)
        move.since_us = max(move.since_us, self.plane.newest_us(feed) or START_OF_TIME_US)

    def _needed(self, feed: str) -> FeedRoutes:
        """What must be sent of a feed. A host that was told to stop may still have matches under way to readers."""
        return routes_of(feed, [*self._sources(feed), *self.retired.get(feed, ())], self._instances(feed))

    def _sources(self, feed: str) -> list[str]:
        source = self.graph.feeds.get(feed)
        return [source.device] if source else self.hosts.get(feed, [])

    def _instances(self, feed: str) -> Iterator[Instance]:
        for name in self.readers.get(feed, ()):
            for host in self.hosts[name]:
                yield self.specs[name], host

    def _install(self, view: PhysicalView, host: str, move: Move) -> None:
        self.installed.setdefault(host, set()).add(view.name)
        if host == CLOUD:
            self.plane.install(view)
        else:
            token = self._new_token()
            self._instruct(host, Install(view, token))
            self._await(token, move)

    def _route(self, feed: str, device: str, share: float) -> None:
        self.plane.set_route(feed, device, share)
        self.table.set_download(feed, device, share)

    # ---- instructions and their answers

    def _new_token(self) -> int:
        self.next_token += 1
        return self.next_token - 1

    def _instruct(self, device: str, message: Asked) -> None:
        self.pending[message.token] = PendingInstruction(device, message)
        self._deliver(device, message)

    def _deliver(self, device: str, message: Instruction) -> None:
        """Devices that have not yet said hello are told everything when they do."""
        if device in self.boots:
            self.counters.instructions += 1
            self.told.setdefault(device, []).append(message)

    def _await(self, token: int, move: Move) -> None:
        self.pending[token].views.add(move.view.name)
        move.waiting.add(token)

    def _confirm(self, device: str, message: Confirmed) -> None:
        for token in message.tokens:
            pending = self.pending.get(token)
            if pending is not None and pending.device == device:  # else it was already answered
                del self.pending[token]
                self._take_hold(device, pending, token, message.since_us)

    def _take_hold(self, device: str, pending: PendingInstruction, token: int, since_us: int) -> None:
        if isinstance(pending.message, SetUpload):
            self.table.upload(pending.message.feed, device).confirm(token, since_us)
        elif isinstance(pending.message, Uninstall):
            self._forget_retired(pending.message.view, device)
            self.freed.add(pending.message.view)
        elif isinstance(pending.message, Mark):
            self.marks.pop((device, pending.message.after_us), None)
        for name in sorted(pending.views):
            move = self.moves.get(name)
            if move is not None and token in move.waiting:
                move.waiting.discard(token)
                if move.waves is None:
                    move.since_us = max(move.since_us, since_us)
                self._advance(move)

    def _advance(self, move: Move) -> None:
        """Go on to the next phase when nothing is waited for."""
        while not move.waiting:
            if move.waves is None:
                self.active_since_us.setdefault(move.view.name, move.since_us)
                move.waves = [] if move.old in (None, move.new) else self._waves(move)
            elif move.waves:
                self._mark(move, move.waves.pop(0))
            else:
                self._close(move)
                return

    # ---- draining

    def _waves(self, move: Move) -> list[set[str]]:
        """Sources first; then, level by level, the devices that compute views that this one reads."""
        inner: list[set[str]] = []
        level = [i for i in move.view.inputs if i in self.specs]
        while level:
            inner.insert(0, {h for name in level for h in self.hosts[name] if h != CLOUD})
            level = [i for name in level for i in self.specs[name].inputs if i in self.specs]
        if inner:
            move.since_us += SKEW_US
        return [set(self.graph.origins(move.view.name)), *(wave for wave in inner if wave)]

    def _mark(self, move: Move, devices: Iterable[str]) -> None:
        lifetime_us = self.graph.program.templates[move.view.template].lifetime_us
        after_us = -(-(move.since_us + lifetime_us) // MARK_GRID_US) * MARK_GRID_US
        for device in sorted(devices):
            # A later wave must be marked after the one before it has answered: it shares no earlier mark.
            token = self.marks.get((device, after_us)) if move.wave == 0 else None
            if token is None:
                token = self._new_token()
                self._instruct(device, Mark(after_us, token))
                self.marks[device, after_us] = token
            self._await(token, move)
        move.wave += 1

    def _close(self, move: Move) -> None:
        name = move.view.name
        del self.moves[name]
        self.active_since_us.setdefault(name, move.since_us)
        self.counters.moves_done += 1
        if move.old is not None and move.old != move.new:
            self.hosts[name].remove(move.old)
            self._uninstall(name, move.old)
        if move.frees:
            self.freed.update((*move.view.inputs, name))
        self._retry()

    def _uninstall(self, name: str, host: str) -> None:
        self.installed[host].discard(name)
        if host == CLOUD:
            self.plane.uninstall(name)
        else:
            token = self._new_token()
            self._instruct(host, Uninstall(name, token))
            self.retired.setdefault(name, {})[host] = token

    def _forget_retired(self, view: str, device: str) -> None:
        self.retired.get(view, {}).pop(device, None)
        if not self.retired.get(view):
            self.retired.pop(view, None)

    def _lower_routes(self, feed: str) -> None:
        needed = self._needed(feed)
        for device, upload in self.table.uploads.get(feed, {}).items():
            share = needed.uploads.get(device, 0.0)
            if share < upload.asked:
                upload.lower(share)
                self._deliver(device, SetUpload(feed, share))
        for device, routed in list(self.table.downloads.get(feed, {}).items()):
            share = needed.downloads.get(device, 0.0)
            if share < routed:
                self._route(feed, device, share)
        self.table.forget(feed)

    def _retry(self) -> None:
        for name, host in list(self.wanted.items()):
            view = self.graph.views.get(name)
            if view is None or self.settled().get(name) == host:
                self.wanted.pop(name, None)
            elif name not in self.moves and not self._entangled(view):
                del self.wanted[name]
                self._want(view, host)

    # ---- reference data that changes

    def _remove(self, name: str) -> None:
        view, hosts = self.specs.pop(name), self.hosts.pop(name)
        self.moves.pop(name, None)
        self.wanted.pop(name, None)
        self.active_since_us.pop(name, None)
        for feed in view.inputs:
            self.readers[feed].discard(name)
            if not self.readers[feed]:
                del self.readers[feed]
        for host in hosts:
            self._uninstall(name, host)
        self.freed.update((*view.inputs, name))
        self._retry()

    def _replace(self, view: PhysicalView) -> None:
        """The same view with other rows: told again to every host that has it."""
        self.specs[view.name] = view
        self.active_since_us.pop(view.name, None)
        move = self.moves.get(view.name)
        if move is not None:
            move.view = view
            for host in self.hosts[view.name]:
                self._install(view, host, move)
            for feed in view.inputs:
                self._raise_routes(feed, self._needed(feed), move)
            move.frees = True
        else:
            self.freed.update(view.inputs)
            self._open(view, None, self.hosts[view.name][-1])

    # ---- devices

    def _greet(self, device: str, boot: int) -> None:
        """A new or restarted device is told its program and everything that holds for it."""
        if self.boots.get(device) == boot:
            return
        self.boots[device] = boot
        self._deliver(device, Program(self.graph.program.text))
        for feed, share in self.table.told(device):
            self._deliver(device, SetUpload(feed, share))
        for name in sorted(self.installed.get(device, ())):
            self._deliver(device, Install(self.specs[name]))
        for pending in [p for p in self.pending.values() if p.device == device]:
            self._deliver(device, pending.message)

    def _forward(self, device: str, notice: Notice) -> None:
        if not self._computes(device, notice.view):
            self.counters.refused += 1
        else:
            self.out.append(Deliver(notice.notified, notice))

    def _computes(self, device: str, view: str) -> bool:
        """Whether a device computes a view, or was told to stop and may still have its last matches."""
        return device in self.hosts.get(view, ()) or device in self.retired.get(view, ())

    def _measure(self, device: str, message: RateReport) -> None:
        counts = dict(message.counts)
        computed = [n for n in self.installed.get(device, ()) if self.specs[n].template in self._consumed]
        for feed in (*self.feeds_of.get(device, ()), *computed):
            self.rates[feed] = counts.get(feed, 0) * 1e6 / message.period_us

    @property
    def _consumed(self) -> frozenset[str]:
        return self.graph.program.consumed

    def _take_out(self) -> list[Deliver]:
        """One message a device, or a few where there is very much to tell."""
        for feed in sorted(self.freed):
            self._lower_routes(feed)
        self.freed.clear()
        for device, items in self.told.items():
            for at in range(0, len(items), MAX_BATCH):
                self.out.append(Deliver(device, Instructions(tuple(items[at : at + MAX_BATCH]))))
        taken, self.out, self.told = self.out, [], {}
        return taken


def _by_device(graph: ViewGraph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for feed in graph.feeds.values():
        found.setdefault(feed.device, []).append(feed.name)
    return found
