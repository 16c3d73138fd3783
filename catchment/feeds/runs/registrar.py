"""Devices come and go: who is registered, and which views there are because of it.

A device registers itself by a hello that the gate lets pass. A view begins when all devices that its data is from are
registered; until then it costs nothing. A device that has left for good, by request or by its silence, is retired: its
views end and what it held is freed. The reference data is followed while the cloud runs, and a wrong row of it changes
nothing but itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from catchment.errors import FeedError
from catchment.feeds.cloud.admission import DeviceGate
from catchment.feeds.cloud.cloud import PlacingCloud
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.language.reference import ReferenceData, Row
from catchment.feeds.language.template import DEVICES, FeedProgram
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.project import typed_device
from catchment.feeds.protocol.messages import Hello, Refused, Reset, Upward
from catchment.feeds.runs.reference_tables import ReferenceSource
from catchment.feeds.runs.submissions import Submissions, WantedProgram

MAX_STRANGERS = 10_000  # strangers that are remembered as answered; past it the oldest may be answered once more
ASK_AGAIN_US = 60_000_000  # after which a stranger that goes on sending is asked for a hello again
QUARANTINE_FILE = "quarantine.jsonl"
RETIRE_FOLDER = "retire"


class Registrar:
    """Takes devices in, retires them, and brings the views of a cloud to those that are there."""

    def __init__(
        self,
        cloud: PlacingCloud,
        gate: DeviceGate,
        source: ReferenceSource,
        folder: Path,
        say: Callable[[str], None] = lambda text: None,
        now_us: int = 0,
        heard_us: Mapping[str, int] | None = None,
        submissions: Submissions | None = None,
    ) -> None:
        self.cloud = cloud
        self.gate = gate
        self.source = source
        self.folder = folder
        self.say = say
        self.registered: set[str] = set(cloud.controller.registered)
        self.tree = cloud.controller.tree
        self.registered_edges: set[str] = set(cloud.controller.registered_edges)
        self.attached: dict[str, str] = dict(self.tree.edge_of)  # device -> the edge cloud that it said hello to
        heard = {device: at_us for device, at_us in (heard_us or {}).items() if device not in self.tree.clouds}
        self.heard_us: dict[str, int] = dict.fromkeys(self.registered, now_us) | heard
        self.refused: dict[str, int] = {}  # when strangers were refused: nothing else is sent to them
        self.asked: dict[str, int] = {}  # when strangers were asked for a hello
        self.submissions = submissions
        self.wanted = WantedProgram(cloud.wanted, {})
        self.has_program = False  # whether the cloud has the program that is wanted
        self.data: ReferenceData | None = None
        self.declared: ViewGraph | None = None  # the views of all devices that the reference data names
        self._active: frozenset[str] | None = None  # the devices that the cloud has the views of

    def restart(self) -> list[Deliver]:
        """Begin a new life: devices that may remember an earlier one are told to forget it."""
        devices = () if self.declared is None else self.declared.devices
        edges = sorted(self.tree.clouds - self.registered_edges)
        return [Deliver(device, Reset()) for device in (*edges, *devices) if device not in self.registered]

    # ---- messages

    def refuse(self, device: str, message: Upward, now_us: int) -> list[Deliver] | None:
        """Return what a device is told whose message is not taken; None if the cloud takes the message."""
        if isinstance(message, Hello):
            return self.refuse_hello(device, message, now_us)
        return self.refuse_stranger(device, now_us)

    def refuse_stranger(self, device: str, now_us: int, edge: str | None = None) -> list[Deliver] | None:
        """Return what a device is told that sends something and is not registered; None if it is.

        It is heard by the edge cloud that it is attached to, if it is attached to one.
        """
        if device in self.registered_edges and edge is None:
            return None
        if device in self.registered:
            if self.attached.get(device) != edge:
                return []  # sent before it was attached to where it is now
            self.heard_us[device] = now_us
            return None
        if device in self.refused or now_us - self.asked.get(device, now_us - ASK_AGAIN_US) < ASK_AGAIN_US:
            return []
        _remember(self.asked, device, now_us)
        return [Deliver(device, Reset())]  # it remembers a cloud that is no more, or was retired

    def has_moved(self, device: str, edge: str | None) -> bool:
        """Return whether a registered device is heard at another place than the one that it is attached to."""
        return device in self.registered and self.attached.get(device) != edge

    def refuse_hello(self, device: str, hello: Hello, now_us: int, edge: str | None = None) -> list[Deliver] | None:
        """Return what a device that says hello is told if it is refused; None if it is registered.

        One that comes to another place is registered there as a new device, after it has forgotten what it was told.
        One that is refused at another place stays where it is: anybody may use its name there.
        """
        if device in self.tree.clouds:
            return self._refuse_edge(device, hello, edge)
        reason = self.gate.refusal(device, hello, self.registered)
        if reason is None and self.has_moved(device, edge):
            self.say(f"device {device} is attached to {edge or 'the cloud'} now")
            return [*self.retire(device), Deliver(device, Reset())]
        if reason is None:
            self.refused.pop(device, None)
            self.asked.pop(device, None)
            self.registered.add(device)
            self.heard_us[device] = now_us
            if edge is not None:
                self.attached[device] = edge
            return None
        _remember(self.refused, device, now_us)
        has_lost_its_right = device in self.registered and not self.has_moved(device, edge)
        retired = self.retire(device) if has_lost_its_right else []
        return [*retired, Deliver(device, Refused(hello.boot, reason))]

    def _refuse_edge(self, edge: str, hello: Hello, by: str | None) -> list[Deliver] | None:
        reason = self.gate.edge_refusal(edge, hello) if by is None else f"{edge!r} is the name of an edge cloud"
        if reason is not None:
            return [Deliver(edge, Refused(hello.boot, reason))]
        if edge not in self.registered_edges:
            self.say(f"edge cloud {edge} is there")
        self.registered_edges.add(edge)
        return None

    # ---- devices that leave

    def retire(self, device: str) -> list[Deliver]:
        """Forget a device that has left for good; it may say hello again as a new one."""
        self.registered.discard(device)
        self.attached.pop(device, None)
        self.heard_us.pop(device, None)
        self._active = None
        return self.cloud.retire(device)

    def _retire_those_who_left(self, now_us: int) -> Iterator[Deliver]:
        for request in retire_requests(self.folder):
            device = request.name
            self.say(f"device {device} is retired" if device in self.registered else f"there is no device {device}")
            if device in self.registered:
                yield from self.retire(device)
            request.unlink(missing_ok=True)
        bound_us = self.gate.rule.retire_after_us
        for device in [d for d, heard_us in self.heard_us.items() if bound_us and now_us - heard_us > bound_us]:
            self.say(f"device {device} was silent for too long and is retired")
            yield from self.retire(device)

    # ---- views

    def follow(self, now_us: int) -> list[Deliver]:
        """Bring the views to what the reference data says now and to the devices that are there now."""
        told = [*self._retire_those_who_left(now_us), *self._follow_program()]
        active = frozenset(self.registered)
        if not self._read_changed() and active == self._active:
            return told
        if self.data is None:
            return told
        newer = self._views_of(self.data, active).restricted_to(active)
        self._active = active
        delta = self.cloud.graph.delta_to(newer)
        if delta:
            self.say(f"views: {len(delta.added)} come, {len(delta.removed)} go, {len(delta.changed)} change")
            told += self.cloud.update(newer)
        return told

    def _follow_program(self) -> list[Deliver]:
        """Bring the program to what is wanted now; a part of it may have to wait for devices."""
        if self.submissions is not None and self.submissions.has_changed:
            try:
                self._want(self.submissions.read())
            except FeedError as error:
                self.say(f"what was submitted is not followed: {error}")
        if self.has_program:
            return []
        try:
            told = self.cloud.change_program(self.wanted.program)
        except FeedError as error:
            self.say(f"the program is not changed: {error}")
            self.has_program = True
            return []
        program = self.cloud.graph.program
        self.has_program = program.templates.keys() == self.wanted.program.templates.keys()
        self.source.follow_program(program)
        self.gate.program = program
        self._look_again()
        return told

    def _want(self, wanted: WantedProgram) -> None:
        if wanted.program != self.wanted.program:
            self.has_program = False
        self.wanted = wanted
        self._look_again()

    def _look_again(self) -> None:
        """Generate the views again, whether or not reference data or devices have changed."""
        self.declared = None
        self._active = None

    def _read_changed(self) -> bool:
        """Read reference data that has changed; return whether it was read."""
        if not self.source.has_changed:
            return False
        try:
            self.data = self.source.read()
        except FeedError as error:
            self.say(f"the reference data is not followed: {error}")
            return False
        self.declared = None
        self.gate.follow(self.data)
        return True

    def _views_of(self, data: ReferenceData, active: frozenset[str]) -> ViewGraph:
        """Return all views that are declared; only a program that names every device asks who is there."""
        program = self.cloud.graph.program
        if self.declared is None or _runs_on_every_device(program):
            devices = tuple(typed_device(program, device) for device in sorted(active))
            none: dict[str, Sequence[Row]] = {name: () for name, table in program.tables.items() if not table.has_file}
            tables = {**data.tables, **none, **self.wanted.users}
            self.declared = self.cloud.views_of(ReferenceData(tables, devices), self.source.reject_joined)
            self.source.rejected.write(self.folder / QUARANTINE_FILE)
            if rejected := len(self.source.rejected):
                self.say(f"{rejected} reference rows are rejected: see {self.folder / QUARANTINE_FILE}")
        return self.declared


def _remember(strangers: dict[str, int], device: str, now_us: int) -> None:
    strangers.pop(device, None)
    strangers[device] = now_us
    if len(strangers) > MAX_STRANGERS:
        del strangers[next(iter(strangers))]


def _runs_on_every_device(program: FeedProgram) -> bool:
    return any(use.table == DEVICES for template in program.templates.values() for use in template.tables)


def ask_to_retire(folder: Path, device: str) -> None:
    """Ask the cloud whose state is in a folder to retire a device, now or when it starts."""
    requests = folder / RETIRE_FOLDER
    if not device or "/" in device or device.startswith("."):
        raise FeedError(f"no device is called {device!r}")
    requests.mkdir(parents=True, exist_ok=True)
    (requests / device).touch()


def retire_requests(folder: Path) -> list[Path]:
    """Return the requests to retire devices: files that have their names."""
    requests = folder / RETIRE_FOLDER
    return sorted(requests.iterdir()) if requests.is_dir() else []
