"""The cloud as a core that a host makes durable: what happened in, messages to publish out. Pure.

Decisions are made outside and are events here: which devices are taken, which views there are, where they are computed.
So replaying the journal gives the same state and the same messages, whatever a solver or a file would say today.

Law: the messages to a device carry numbers that depend on the journal alone. A message that was published before a
crash is published again under its number, if at all, and the device drops it. What the broker has not confirmed is in
the outbox, which is part of the state; what it has confirmed is noted by `MessagesTaken` and never sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from catchment.feeds.cloud.batch_cloud import BatchCloud, FoundRow
from catchment.feeds.cloud.batch_plane import BatchPlane, FileAction
from catchment.feeds.cloud.batch_state import BatchState, pack_rows, put_batches, take_batches, unpack_rows
from catchment.feeds.cloud.broker_queue import BrokerQueue, SendDown
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.cloud_state import (
    ControlState,
    RouterState,
    put_control,
    put_router,
    take_control,
    take_router,
    unpack_view,
)
from catchment.feeds.cloud.device_channels import DeviceChannels
from catchment.feeds.cloud.program_state import StoredProgram, load_program, store_program
from catchment.feeds.cloud.router import Deliver, Router
from catchment.feeds.device.device import boot_number
from catchment.feeds.device.publisher import RecentlySeen
from catchment.feeds.forms.physical_view import template_of
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import SourceFeed, ViewGraph
from catchment.feeds.protocol.channel import CONTROL, traffic_class
from catchment.feeds.protocol.codec import encode
from catchment.feeds.protocol.messages import Downward, Notice, Refused, RelayedMessage, Reset
from catchment.storage.codec import stored

MAX_KEPT = 100_000  # notices of tables that are recognised when they are found again
MAX_DELIVERIES = 20_000  # of published records that are recognised when they come again


@stored()
@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A registered device, or one that is admitted by it, sent these bytes."""

    device: str
    data: bytes


@stored(version=2, migrations={1: dict})  # version 2 has edge
@dataclass(frozen=True, slots=True)
class DeviceRefused:
    """A device that said hello, to the cloud or to an edge cloud, was refused."""

    device: str
    boot: int
    reason: str
    edge: str | None = None


@stored(version=2, migrations={1: dict})  # version 2 has edge
@dataclass(frozen=True, slots=True)
class HelloAsked:
    """A stranger that seems to remember another cloud was asked to say hello, by its edge cloud if it has one."""

    device: str
    edge: str | None = None


@stored()
@dataclass(frozen=True, slots=True)
class DeviceRetired:
    """A device has left for good; the views that hold its data have ended."""

    device: str


@stored()
@dataclass(frozen=True, slots=True)
class ViewsChanged:
    """Views came (or changed), and others went; those that came are computed at these hosts."""

    feeds: list[tuple[str, str, str]]  # name, kind and device of those that came
    gone_feeds: list[str]
    views: list[bytes]
    gone_views: list[str]
    hosts: dict[str, str]


@stored()
@dataclass(frozen=True, slots=True)
class ViewsDeployed:
    """Views are to be computed at these hosts."""

    hosts: dict[str, str]


@stored()
@dataclass(frozen=True, slots=True)
class ProgramChanged:
    """Another program takes the place of the present one; views that mean something else in it have ended."""

    program: StoredProgram


@stored()
@dataclass(frozen=True, slots=True)
class RecordsPublished:
    """Records of a stream that is born at the cloud came, in a delivery of this name."""

    delivery: str
    stream: str
    rows: list[tuple[Any, ...]]


@stored()
@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """How far the answers of a view have become records: an entry of the log of its windows, and rows behind it.

    `life` tells apart logs of views that had one name one after the other.
    """

    life: str
    entry: int
    step: int
    rows: int  # of the entry that follows


@stored()
@dataclass(frozen=True, slots=True)
class AnswersTaken:
    """Answers of a view became records of a stream, which has all of them up to this place."""

    stream: str
    place: AnswerPlace
    rows: list[tuple[Any, ...]]


@stored()
@dataclass(frozen=True, slots=True)
class BatchBegun:
    """A cloud that works in batches takes what waits into one."""


@stored()
@dataclass(frozen=True, slots=True)
class BatchJoined:
    """The batch under way, of the file of this name, was joined, and this was found."""

    file: str
    found: bytes

    @classmethod
    def of(cls, file: str, found: Iterable[FoundRow]) -> BatchJoined:
        """Return the event with rows as they are stored."""
        return cls(file, pack_rows(found))


@stored()
@dataclass(frozen=True, slots=True)
class MessagesTaken:
    """The broker has taken every message below this number."""

    before: int


CloudEvent = (
    MessageArrived
    | DeviceRefused
    | HelloAsked
    | DeviceRetired
    | ViewsChanged
    | ViewsDeployed
    | ProgramChanged
    | RecordsPublished
    | AnswersTaken
    | BatchBegun
    | BatchJoined
    | MessagesTaken
)


@dataclass(frozen=True, slots=True)
class KeepNotice:
    """Keep a notice of a view that has a table, under the name of the view."""

    view: str
    notice: Notice


CloudAction = SendDown | KeepNotice | FileAction


@stored(version=3, migrations={1: dict, 2: dict})  # version 2 has deliveries and program, 3 has answers
@dataclass(frozen=True)
class CloudCoreState:
    """The state of a cloud between two entries."""

    control: ControlState
    router: RouterState | BatchState  # of a cloud that answers at once, or of one that works in batches
    links: dict[str, tuple[int, int | None]]  # next number down, last number up
    heard_us: dict[str, int]
    outbox: list[SendDown]
    next_number: int
    dropped: int
    kept: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)  # the newest notices of tables
    deliveries: list[str] = field(default_factory=list)  # the newest of published records
    program: StoredProgram | None = None  # states of earlier releases have none: theirs never changed
    answers: dict[str, AnswerPlace] = field(default_factory=dict)  # by stream


class CloudCore:
    """A cloud, the links to its devices, and the messages that are on their way to the broker."""

    def __init__(self, cloud: Cloud | BatchCloud, plane: Router | BatchPlane) -> None:
        self.cloud = cloud
        self.plane = plane
        self.links = DeviceChannels()
        self.heard_us: dict[str, int] = {}
        self.sending = BrokerQueue()
        self.kept = RecentlySeen(MAX_KEPT)  # notices of tables; two hosts may find one match while its view moves
        self.deliveries: dict[str, None] = {}  # of published records; one that comes again after a crash is known
        self.answers: dict[str, AnswerPlace] = {}  # how far each stream has the answers of its view
        self.collected = _collected(cloud.graph.program)

    # ---- the core

    def handle_all(self, events: Sequence[CloudEvent], now_us: int) -> list[CloudAction]:
        """Return the messages, and the notices to keep, that follow from the events of one entry."""
        published: list[CloudAction] = []
        for event in events:
            published += self._handle(event, now_us)
        return published

    def _handle(self, event: CloudEvent, now_us: int) -> Iterable[CloudAction]:
        controller = self.cloud.controller
        match event:
            case MessageArrived(device, data):
                return self._receive(device, data, now_us)
            case MessagesTaken(before):
                self.sending.forget_taken(before)
                return ()
            case ViewsChanged():
                return self._send(controller.update(self._newer_graph(event), event.hosts), now_us)
            case RecordsPublished(delivery, stream, rows):
                return self._publish_records(delivery, stream, rows, now_us)
            case AnswersTaken(stream, place, rows):
                self.answers[stream] = place
                return self._publish_rows(stream, rows, now_us)
            case ProgramChanged(program):
                self.follow_program(load_program(program, self.cloud.graph.program.functions))
                return ()
            case BatchBegun() | BatchJoined():
                return self._work_off(event, now_us)
            case ViewsDeployed(hosts):
                return self._send(controller.deploy(hosts), now_us)
            case DeviceRetired(device):
                edge = controller.tree.edge_of.get(device)
                controller.forget(device)
                self.links.forget(device)
                self.heard_us.pop(device, None)
                return () if edge is None else self._send([Deliver(edge, RelayedMessage(device, Reset()))], now_us)
            case DeviceRefused(device, boot, reason, edge):
                return self._send_to_stranger(device, Refused(boot, reason), edge, now_us)
            case HelloAsked(device, edge):
                return self._send_to_stranger(device, Reset(), edge, now_us)

    def _receive(self, device: str, data: bytes, now_us: int) -> list[CloudAction]:
        message = self.links.of(device, now_us).receives.accept(data)
        if message is None:
            return []
        self.heard_us[message.device if isinstance(message, RelayedMessage) else device] = now_us
        return self._send(self.cloud.receive(device, message), now_us)

    def _work_off(self, event: BatchBegun | BatchJoined, now_us: int) -> list[CloudAction]:
        assert isinstance(self.cloud, BatchCloud)
        if isinstance(event, BatchBegun):
            return [*self.cloud.begin_batch()]
        fresh = self.cloud.plane.fresh
        assert fresh is not None
        assert fresh.name == event.file, "what was found is of the batch under way"
        actions, told = self.cloud.end_batch(unpack_rows(event.found))
        return [*actions, *self._send(told, now_us)]

    def follow_program(self, program: FeedProgram) -> None:
        """Take another program; devices are told when they need it."""
        self.cloud.follow_program(program)
        self.collected = _collected(program)
        self.answers = {stream: place for stream, place in self.answers.items() if stream in program.streams}

    def _publish_records(
        self, delivery: str, stream: str, rows: Sequence[tuple[Any, ...]], now_us: int
    ) -> list[CloudAction]:
        if delivery in self.deliveries:
            return []
        self.deliveries[delivery] = None
        if len(self.deliveries) > MAX_DELIVERIES:
            del self.deliveries[next(iter(self.deliveries))]
        return self._publish_rows(stream, rows, now_us)

    def _publish_rows(self, stream: str, rows: Sequence[tuple[Any, ...]], now_us: int) -> list[CloudAction]:
        return [action for row in rows for action in self._send(self.cloud.publish(stream, row, now_us), now_us)]

    def _newer_graph(self, change: ViewsChanged) -> ViewGraph:
        graph = self.cloud.graph
        feeds = {name: feed for name, feed in graph.feeds.items() if name not in change.gone_feeds}
        feeds.update((name, SourceFeed(name, kind, device)) for name, kind, device in change.feeds)
        gone = set(change.gone_views)
        views = {name: view for name, view in graph.views.items() if name not in gone}
        views.update((view.name, view) for view in map(unpack_view, change.views))
        return ViewGraph(graph.program, feeds, views)

    # ---- links

    def _send(self, deliveries: Iterable[Deliver], now_us: int) -> list[CloudAction]:
        published: list[CloudAction] = []
        for delivery in deliveries:
            published += self._keep(delivery.message)
            sent = self.cloud.controller.tree.addressed(delivery)
            data = self.links.of(sent.device, now_us).sends.wrap(sent.message)
            if self.sending.is_full and traffic_class(sent.message) != CONTROL:
                self.sending.dropped += 1
            else:
                published.append(self.sending.add(sent.device, data))
        return published

    def _keep(self, message: Downward) -> Iterator[KeepNotice]:
        """Yield a notice of a table, the first time that it is found."""
        if not isinstance(message, Notice):
            return
        view = template_of(message.view)
        if view in self.collected and self.kept.first_time(message.identity):
            yield KeepNotice(view, message)

    def _send_to_stranger(self, device: str, message: Downward, edge: str | None, now_us: int) -> list[CloudAction]:
        """Send to a device that has no link: its numbers grow with the seconds. Its edge cloud, if it has one, has."""
        if edge is not None:
            return self._send([Deliver(edge, RelayedMessage(device, message))], now_us)
        return [self.sending.add(device, encode(boot_number(now_us), message))]

    @property
    def outbox(self) -> deque[SendDown]:
        """The messages that the broker has not confirmed."""
        return self.sending.messages

    @property
    def next_number(self) -> int:
        """The number of the next message."""
        return self.sending.next_number

    # ---- state

    def snapshot(self) -> CloudCoreState:
        return CloudCoreState(
            take_control(self.cloud.controller),
            take_batches(self.plane) if isinstance(self.plane, BatchPlane) else take_router(self.plane),
            self.links.snapshot(),
            dict(self.heard_us),
            list(self.sending.messages),
            self.sending.next_number,
            self.sending.dropped,
            list(self.kept.identities()),
            list(self.deliveries),
            store_program(self.cloud.graph.program),
            dict(self.answers),
        )

    def restore(self, state: CloudCoreState) -> None:
        """Take a state; the core is new and has handled nothing."""
        if state.program is not None:
            self.follow_program(load_program(state.program, self.cloud.graph.program.functions))
        put_control(self.cloud.controller, state.control)
        if isinstance(self.plane, BatchPlane):
            assert isinstance(state.router, BatchState)
            put_batches(self.plane, state.router)
        else:
            assert isinstance(state.router, RouterState)
            put_router(self.plane, state.router)
        self.links.restore(state.links)
        self.heard_us.update(state.heard_us)
        self.sending.restore(state.outbox, state.next_number, state.dropped)
        self.deliveries.update(dict.fromkeys(state.deliveries))
        self.answers.update(state.answers)
        for identity in state.kept:
            self.kept.first_time(identity)


def _collected(program: FeedProgram) -> set[str]:
    """Return the views whose notices are kept in tables."""
    return {template.name for template in program.templates.values() if template.collected}
