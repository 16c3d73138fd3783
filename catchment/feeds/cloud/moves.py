"""Moves of views from host to host, without downtime or a lost notification. Pure.

A view moves in two phases. *Opening*: the feeds that the new host needs are raised and routed to it, and the view is
installed there; the old host continues. When every device concerned has confirmed, the new host sees every event later
than some time S. *Draining*: the old host is kept until every source has passed S + lifetime.

Proof that no match is lost: a pair of events whose later one is at most S + lifetime meets at the old host; otherwise
its earlier one is later than S, and the pair meets at the new host. So every match is found at one of the two hosts,
and at most twice during the overlap; notices carry keys, and the notified device drops the second.

A device that is away confirms nothing, and its views stay where they are until it is back; other views are not
affected. A view whose inputs or readers are moving waits for its turn.

Edge clouds hand on what they are asked to, in the order in which it came, and confirm like devices. A mark goes to the
devices themselves, by their edge clouds: what a device sent before its answer has passed every place on its way, and
what the cloud says after the answer comes after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from catchment.feeds.cloud.instructions import InstructionQueue, PendingInstruction
from catchment.feeds.cloud.route_table import RouteTable, Upload
from catchment.feeds.cloud.router import ControlledPlane
from catchment.feeds.cloud.routes import CLOUD, FeedRoutes
from catchment.feeds.cloud.view_locations import ViewLocations
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.protocol.messages import Install, Mark, SetRoute, SetUpload, Uninstall
from catchment.timeline import START_OF_TIME_US

MARK_GRID_US = 1_000_000  # drain times are rounded up to this, so that one mark serves many views
SKEW_US = 1_000_000  # how far clocks may differ; matters for views over views, and over streams of the cloud


@dataclass
class Move:
    """A view on its way to a host; `old` is None for a view that is new."""

    view: PhysicalView
    old: str | None
    new: str
    waiting: set[int] = field(default_factory=set)  # tokens that devices have yet to confirm
    since_us: int = START_OF_TIME_US
    waves: list[set[str]] | None = None  # devices still to be marked, wave by wave; None while opening
    wave: int = 0
    frees: bool = False  # whether its end leaves less to send than before


class ViewMoves:
    """Opens views at their hosts, moves them, and keeps the routes of feeds to what they need."""

    def __init__(self, locations: ViewLocations, plane: ControlledPlane, instructions: InstructionQueue) -> None:
        self.locations = locations
        self.plane = plane
        self.instructions = instructions
        self.table = RouteTable()
        self.under_way: dict[str, Move] = {}
        self.wanted: dict[str, str] = {}  # moves that wait for another one to end
        self.active_since_us: dict[str, int] = {}  # matches of later events are complete
        self.marks: dict[tuple[str, int], int] = {}  # (device, drain time) -> token
        self.freed: set[str] = set()  # feeds of which less may be needed than is sent
        self.begun = 0
        self.done = 0

    # ---- opening

    def want(self, view: PhysicalView, host: str) -> None:
        """Bring a view to a host: at once, or when moves that it depends on have ended."""
        current = self.locations.hosts.get(view.name)
        if current is None:
            self.open(view, None, host)
        elif view.name in self.under_way or self._is_entangled(view):
            self.wanted[view.name] = host
        elif current != [host]:
            self.open(view, current[0], host)

    def _is_entangled(self, view: PhysicalView) -> bool:
        readers = self.locations.readers.get(view.name, ())
        return any(name in self.under_way for name in (*view.inputs, *readers))

    def open(self, view: PhysicalView, old: str | None, new: str) -> None:
        """Begin to move a view from a host to another."""
        self.begun += 1
        self.locations.add(view, new)
        move = Move(view, old, new, frees=old is not None)
        self.under_way[view.name] = move
        for feed in view.inputs:
            needed = self.locations.routes_to(feed, self.locations.sources(feed), [(view, new)])
            self._raise_routes(feed, needed, move)
        given = self.locations.routes_to(view.name, [new], self.locations.instances(view.name))
        self._raise_routes(view.name, given, move)
        self._install(view, new, move)
        self._advance(move)

    def _raise_routes(self, feed: str, needed: FeedRoutes, move: Move) -> None:
        """Ask for what one more instance needs; what is already sent for others serves it too."""
        for device, share in needed.uploads.items():
            self._raise_upload(feed, device, share, move)
        for place, share in needed.downloads.items():
            edge = self.locations.tree.parent(place)
            if edge != CLOUD:
                self._raise_handed_on(feed, edge, place, share, move)
            elif share > self.table.download(feed, place):
                self._set_route(feed, place, share)
        move.since_us = max(move.since_us, self.plane.newest_us(feed) or START_OF_TIME_US)

    def _raise_upload(self, feed: str, device: str, share: float, move: Move) -> None:
        upload = self.table.upload(feed, device)
        columns = self.locations.columns_of(feed)
        if share > upload.asked or columns > upload.columns:
            token = self.instructions.new_token()
            raised = max(share, upload.asked)
            self.instructions.ask(device, SetUpload(feed, raised, token))
            upload.ask(raised, columns, token)
        self._wait_until_asked(upload, share, move)

    def _raise_handed_on(self, feed: str, edge: str, device: str, share: float, move: Move) -> None:
        handed = self.table.hand_on(feed, device)
        if share > handed.asked:
            token = self.instructions.new_token()
            self.instructions.ask(edge, SetRoute(feed, device, share, token))
            handed.ask(share, 0, token)
        self._wait_until_asked(handed, share, move)

    def _wait_until_asked(self, upload: Upload, share: float, move: Move) -> None:
        """Let a move wait until a share is sent, if it is not yet."""
        awaited = upload.token_for(share)
        if awaited is None:
            move.since_us = max(move.since_us, upload.since_us)
        else:
            self._wait_for(awaited, move)

    def _install(self, view: PhysicalView, host: str, move: Move) -> None:
        if host == CLOUD:
            self.plane.install(view)
        else:
            token = self.instructions.new_token()
            self.instructions.ask(host, Install(view, token))
            self._wait_for(token, move)

    def _set_route(self, feed: str, device: str, share: float) -> None:
        self.plane.set_route(feed, device, share)
        self.table.set_download(feed, device, share)

    def _wait_for(self, token: int, move: Move) -> None:
        self.instructions.pending[token].views.add(move.view.name)
        move.waiting.add(token)

    def confirm(self, device: str, pending: PendingInstruction, since_us: int) -> None:
        """Go on with the moves that waited for an instruction, which now holds for events later than `since_us`."""
        message = pending.message
        if isinstance(message, SetUpload):
            self.table.upload(message.feed, device).confirm(message.token, since_us)
        elif isinstance(message, SetRoute):
            self.table.hand_on(message.feed, message.device).confirm(message.token, since_us)
        elif isinstance(message, Uninstall):
            self.locations.forget_retired(message.view, device)
            self.freed.add(message.view)
        elif isinstance(message, Mark):
            self.marks.pop((device, message.after_us), None)
        for name in sorted(pending.views):
            move = self.under_way.get(name)
            if move is not None and message.token in move.waiting:
                move.waiting.discard(message.token)
                if move.waves is None:
                    move.since_us = max(move.since_us, since_us)
                self._advance(move)

    def _advance(self, move: Move) -> None:
        """Go on to the next phase when nothing is waited for."""
        while not move.waiting:
            if move.waves is None:
                self.active_since_us.setdefault(move.view.name, move.since_us)
                if move.new == CLOUD:
                    self.plane.note_whole_since(move.view.name, move.since_us)
                move.waves = [] if move.old in (None, move.new) else self._waves(move)
            elif move.waves:
                self._mark(move, move.waves.pop(0))
            else:
                self._close(move)
                return

    # ---- draining

    def _waves(self, move: Move) -> list[set[str]]:
        """Return the sources first; then, level by level, the devices that compute views that this one reads."""
        views = self.locations.views
        inner: list[set[str]] = []
        level = [i for i in move.view.inputs if i in views]
        while level:
            inner.insert(0, {h for name in level for h in self.locations.hosts[name] if h != CLOUD})
            level = [i for name in level for i in views[name].inputs if i in views]
        origins = self.locations.graph.origins(move.view.name)
        if inner or CLOUD in origins:
            move.since_us += SKEW_US
        return [set(origins) - {CLOUD}, *(wave for wave in inner if wave)]

    def _mark(self, move: Move, devices: Iterable[str]) -> None:
        lifetime_us = self.locations.graph.program.templates[move.view.template].lifetime_us
        after_us = -(-(move.since_us + lifetime_us) // MARK_GRID_US) * MARK_GRID_US
        for device in sorted(devices):
            # A later wave must be marked after the one before it has answered: it shares no earlier mark.
            token = self.marks.get((device, after_us)) if move.wave == 0 else None
            if token is None:
                token = self.instructions.new_token()
                self.instructions.ask(device, Mark(after_us, token))
                self.marks[device, after_us] = token
            self._wait_for(token, move)
        move.wave += 1

    def _close(self, move: Move) -> None:
        name = move.view.name
        del self.under_way[name]
        self.active_since_us.setdefault(name, move.since_us)
        self.done += 1
        if move.old is not None and move.old != move.new:
            self.locations.remove_host(name, move.old)
            self._uninstall(name, move.old)
        if move.frees:
            self.freed.update((*move.view.inputs, name))
        self._retry()

    def _uninstall(self, name: str, host: str) -> None:
        if host == CLOUD:
            self.plane.uninstall(name)
        else:
            self.instructions.ask(host, Uninstall(name, self.instructions.new_token()))

    def _retry(self) -> None:
        """Begin the moves that waited for one that has ended."""
        for name, host in list(self.wanted.items()):
            view = self.locations.graph.views.get(name)
            if view is None or self.locations.current_hosts().get(name) == host:
                self.wanted.pop(name, None)
            elif name not in self.under_way and not self._is_entangled(view):
                del self.wanted[name]
                self.want(view, host)

    def lower_freed(self) -> None:
        """Lower what is sent of feeds to what is still needed of them."""
        for feed in sorted(self.freed):
            self._lower_routes(feed)
        self.freed.clear()

    def _lower_routes(self, feed: str) -> None:
        needed = self.locations.needed_routes(feed)
        for device, upload in self.table.uploads.get(feed, {}).items():
            share = needed.uploads.get(device, 0.0)
            if share < upload.asked:
                upload.lower(share)
                self.instructions.tell(device, SetUpload(feed, share))
        for device, routed in list(self.table.downloads.get(feed, {}).items()):
            share = needed.downloads.get(device, 0.0)
            if share < routed:
                self._set_route(feed, device, share)
        for device, handed in self.table.handed_on.get(feed, {}).items():
            share = needed.downloads.get(device, 0.0)
            if share < handed.asked:
                handed.lower(share)
                self.instructions.tell(self.locations.tree.parent(device), SetRoute(feed, device, share))
        self.table.forget(feed)

    # ---- views that the reference data ends or changes

    def remove(self, name: str) -> None:
        """End a view wherever it is computed."""
        view = self.locations.views[name]
        self.under_way.pop(name, None)
        self.wanted.pop(name, None)
        self.active_since_us.pop(name, None)
        for host in self.locations.remove(name):
            self._uninstall(name, host)
        self.freed.update((*view.inputs, name))
        self._retry()

    def forget_device(self, device: str) -> None:
        """Forget a device that has left for good; no view that holds its data is left."""
        self.marks = {asked: token for asked, token in self.marks.items() if asked[0] != device}
        for name in [name for name, devices in self.locations.retired.items() if device in devices]:
            self.locations.forget_retired(name, device)
            self.freed.add(name)
        for table in (self.table.uploads, self.table.handed_on):
            for feed in list(table):
                table[feed].pop(device, None)
                self.table.forget(feed)

    def replace(self, view: PhysicalView) -> None:
        """Give a view other rows, at every host that has it."""
        self.locations.views[view.name] = view
        self.active_since_us.pop(view.name, None)
        move = self.under_way.get(view.name)
        if move is None:
            self.freed.update(view.inputs)
            self.open(view, None, self.locations.hosts[view.name][-1])
            return
        move.view = view
        move.frees = True
        for host in self.locations.hosts[view.name]:
            self._install(view, host, move)
        for feed in view.inputs:
            self._raise_routes(feed, self.locations.needed_routes(feed), move)
