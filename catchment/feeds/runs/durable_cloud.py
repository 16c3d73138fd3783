"""A cloud whose state survives a kill at any time: every message is in a journal before anything follows from it.

Messages of devices are journalled in batches, with one fsync each, then handled, then what follows is handed to the
broker, and only then are they acknowledged there. So a message that was acknowledged is never lost, and one that comes
again after a crash is dropped by its number. A restart goes on where the cloud was: devices are told nothing anew.

A cloud that works in batches journals what arrived, that a batch has begun, and what it found. A batch that a kill
ended is joined again: nothing had followed from it. Its events are in files, which the journal names.

The program is a part of the state: another one takes its place as an entry of the journal, and views that are the same
in both go on. Only where a stream was declared anew does the cloud begin anew.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from catchment.errors import StorageError, WireError
from catchment.feeds.cloud.batch_cloud import BatchCloud, FoundRow
from catchment.feeds.cloud.batch_plane import BatchPlane, LandEvents, MergeFiles, RemoveFiles
from catchment.feeds.cloud.broker_queue import SendDown
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.cloud_state import pack_view
from catchment.feeds.cloud.controller import FeedController
from catchment.feeds.cloud.core import (
    AnswerPlace,
    AnswersTaken,
    BatchBegun,
    BatchJoined,
    CloudAction,
    CloudCore,
    CloudEvent,
    DeviceRefused,
    DeviceRetired,
    HelloAsked,
    KeepNotice,
    MessageArrived,
    MessagesTaken,
    ProgramChanged,
    RecordsPublished,
    ViewsChanged,
    ViewsDeployed,
)
from catchment.feeds.cloud.event_files import EVENTS_FOLDER, EventFiles
from catchment.feeds.cloud.program_state import StoredProgram, load_program, store_program
from catchment.feeds.cloud.router import Deliver, Router
from catchment.feeds.cloud.routes import Hosts
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.continued import can_continue
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import RejectJoined, ViewGraph
from catchment.feeds.protocol.codec import decode, encode
from catchment.feeds.protocol.messages import Confirmed, Hello, Refused, RelayedMessage, Reset
from catchment.feeds.runs.cloud_host import CloudHost
from catchment.feeds.runs.notice_tables import NoTables, NoticeTables
from catchment.feeds.runs.published import PublishedRecords
from catchment.feeds.runs.registrar import Registrar
from catchment.storage.codec import decode as decode_document
from catchment.storage.codec import encode as encode_document
from catchment.storage.files import make_folder, remove_file, write_durably
from catchment.storage.journal import Journal
from catchment.storage.lock import lock_folder
from catchment.timeline import Clock

PROGRAM_FILE = "program"  # what the journal begins with
TEXT_FILE = "program.sql"  # in its place, as earlier releases wrote it
LIFE_FILE = "life"
_HELLO = re.compile(rb'\s*\[\s*[0-9]+\s*,\s*"h"')
_RELAYED = re.compile(rb'\s*\[\s*[0-9]+\s*,\s*"v"')

Arrived = tuple[str, bytes]  # a device and what it sent


class AnswerRecords(Protocol):
    """Records that follow from the answers of a view, and the place that is reached with them."""

    @property
    def place(self) -> AnswerPlace: ...

    @property
    def rows(self) -> list[tuple[Any, ...]]: ...


class AnswerSource(Protocol):
    """Where the answers of materialized views are read."""

    def since(self, stream: Declared, place: AnswerPlace | None) -> Iterable[AnswerRecords]:
        """Return the records of a stream after a place."""


class DurableCloud:
    """A cloud with its state in a folder: one that answers at once, or one that works in batches."""

    def __init__(
        self,
        cloud: Cloud | BatchCloud,
        plane: Router | BatchPlane,
        folder: Path,
        clock: Clock,
        tables: NoticeTables | None = None,
        answers: AnswerSource | None = None,
    ) -> None:
        self.cloud = cloud
        self.clock = clock
        self.tables = tables or NoTables()
        self.answers = answers
        make_folder(folder)
        lock_folder(folder, self)
        _refuse_other_kind(folder, isinstance(plane, BatchPlane))
        self.wanted = cloud.graph.program  # what it is to compute; what it does compute is in the journal
        first, self.is_new = _first_program(folder, self.wanted)
        self.published = PublishedRecords(folder)
        self.files = EventFiles(folder / EVENTS_FOLDER) if isinstance(plane, BatchPlane) else None
        self.core = CloudCore(cloud, plane)
        self.core.follow_program(first)
        self.outgoing: list[SendDown] = []  # to be handed to the broker
        self.life = _life_of(folder)
        self.host: CloudHost[CloudEvent, CloudAction] = CloudHost(
            self.core, Journal(folder / "journal"), self._enact, clock
        )
        self.host.recover()
        if self.files is not None and isinstance(plane, BatchPlane):
            self.files.settle([*plane.files, *([plane.fresh] if plane.fresh else [])])
        self.core.links.reset_traffic()
        self.outgoing = list(self.core.outbox)

    def close(self) -> None:
        """Write the state down, so that the next start replays nothing."""
        self.host.checkpoint()
        self.host.journal.close()

    def _enact(self, number: int, actions: Sequence[CloudAction]) -> int:
        self.outgoing += [action for action in actions if isinstance(action, SendDown)]
        if self.files is not None:
            self.files.enact(a for a in actions if isinstance(a, LandEvents | MergeFiles | RemoveFiles))
        kept = [action for action in actions if isinstance(action, KeepNotice)]
        if kept:
            self.tables.keep(f"{self.life}-{number}", kept)
        return len(actions)

    def _submit(self, cause: str, *events: CloudEvent) -> None:
        self.host.submit(cause, events)

    # ---- messages

    def receive_all(self, arrived: Iterable[Arrived], registrar: Registrar, taken_before: int) -> None:
        """Take messages of devices; when this returns they are durable and may be acknowledged."""
        now_us = self.clock.now_us()
        events: list[CloudEvent] = []
        for device, data in arrived:
            relayed = _read_relayed(data) if device in registrar.registered_edges else None
            sender, edge = (device, None) if relayed is None else (relayed[1].device, device)
            if events and registrar.has_moved(sender, edge):
                self._submit("messages", *events)  # what the device sent from where it was comes first
                events = []
            if relayed is None:
                events += self._admit(device, data, registrar, now_us)
            else:
                events += self._admit_relayed(device, relayed, registrar, now_us)
        if self.core.sending.first_number < taken_before:
            events.append(MessagesTaken(taken_before))
        if events:
            self._submit("messages", *events)

    def _admit(self, device: str, data: bytes, registrar: Registrar, now_us: int) -> list[CloudEvent]:
        """Return what a message is to the core; a secret in it does not get into the journal."""
        hello = _read_hello(data)
        if hello is None:
            told = registrar.refuse_stranger(device, now_us)
            return [MessageArrived(device, data)] if told is None else _events_of(told)
        number, message = hello
        told = registrar.refuse_hello(device, message, now_us)
        if told is not None:
            return _events_of(told)
        return [MessageArrived(device, encode(number, _without_secret(message)))]

    def _admit_relayed(
        self, edge: str, numbered: tuple[int, RelayedMessage], registrar: Registrar, now_us: int
    ) -> list[CloudEvent]:
        """Return what a message that an edge cloud relays is to the core."""
        number, relayed = numbered
        device, message = relayed.device, relayed.message
        if isinstance(message, Hello):
            told = registrar.refuse_hello(device, message, now_us, edge)
            message = _without_secret(message)
        else:
            told = registrar.refuse_stranger(device, now_us, edge)
        if told is not None:  # nothing is made of the message, but its number has come
            return [*_events_of(told, edge), MessageArrived(edge, encode(number, Confirmed((), 0)))]
        return [MessageArrived(edge, encode(number, RelayedMessage(device, message)))]

    def take_published(self) -> None:
        """Take records of streams that are born at the cloud, which wait in its folder."""
        for delivery in list(self.published.waiting(self.graph.program)):
            self._submit("records", RecordsPublished(delivery.path.name, delivery.stream, delivery.rows))
            remove_file(delivery.path)

    def take_answers(self) -> None:
        """Take what views have published since the last time, for the streams that have their answers as records."""
        if self.answers is None or not self.tables.has_room:
            return
        for stream in [s for s in self.graph.program.streams.values() if s.view is not None]:
            for batch in self.answers.since(stream, self.core.answers.get(stream.name)):
                read = [row for row in batch.rows if self.cloud.reads(stream.name, row)]
                self._submit("answers", AnswersTaken(stream.name, batch.place, read))

    def publish_recorded(self, record: DeviceRecord) -> None:
        """Publish a record of a recording that is played in this process: nobody delivers it again."""
        self._submit("records", RecordsPublished(f"recorded-{secrets.token_hex(8)}", record.stream, [record.row]))

    # ---- batches

    def begin_batch(self) -> None:
        """Take the events that wait into a batch."""
        self._submit("batch", BatchBegun())

    def end_batch(self, file: str, found: Iterable[FoundRow]) -> None:
        """Take what was found by the batch of a file."""
        self._submit("batch", BatchJoined.of(file, found))

    @property
    def has_room(self) -> bool:
        """Whether it can take messages; else they wait at the broker."""
        return self.tables.has_room and (not isinstance(self.cloud, BatchCloud) or self.cloud.plane.has_room)

    # ---- decisions

    def review(self, period_s: float) -> list[Deliver]:
        """Book the last period, and redeploy when the present placement has lost too much."""
        hosts = self.cloud.decide(period_s)
        if hosts is not None:
            self._submit("placement", ViewsDeployed(hosts))
        return []

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Bring views to these hosts."""
        self._submit("placement", ViewsDeployed(dict(hosts)))
        return []

    def update(self, newer: ViewGraph) -> list[Deliver]:
        """Follow a change of the reference data, or of the devices that are there."""
        self._submit("views", self._change_to(newer))
        return []

    def _change_to(self, newer: ViewGraph) -> ViewsChanged:
        old = self.cloud.graph
        delta = old.delta_to(newer)
        return ViewsChanged(
            feeds=[(f.name, f.kind, f.device) for f in newer.feeds.values() if f.name not in old.feeds],
            gone_feeds=[name for name in old.feeds if name not in newer.feeds],
            views=[pack_view(view) for view in (*delta.added, *delta.changed)],
            gone_views=list(delta.removed),
            hosts=self.cloud.hosts_for_added(newer),
        )

    def change_program(self, wanted: FeedProgram) -> list[Deliver]:
        """Bring the program to another one, as far as that is possible now; to be asked again until it is there."""
        change = self.cloud.next_program(wanted)
        if change is not None:
            newer, left = change
            self._submit("program", self._change_to(left), ProgramChanged(store_program(newer)))
        return []

    def retire(self, device: str) -> list[Deliver]:
        """Forget a device that has left for good, and end the views that hold its data."""
        others = {name for name in self.cloud.graph.devices if name != device}
        left = self.cloud.graph.restricted_to(others)
        self._submit("devices", self._change_to(left), DeviceRetired(device))
        return []

    def ask_for_hellos(self, told: Iterable[Deliver]) -> None:
        """Ask devices that may remember an earlier cloud to say hello."""
        events = _events_of(told)
        if events:
            self._submit("devices", *events)

    def views_of(self, data: ReferenceData, reject: RejectJoined | None = None) -> ViewGraph:
        """Generate the views that the program has over other reference data; with `reject`, without wrong rows."""
        return self.cloud.views_of(data, reject)

    # ---- what others look at

    @property
    def controller(self) -> FeedController:
        return self.cloud.controller

    @property
    def graph(self) -> ViewGraph:
        return self.cloud.graph

    @property
    def redeployed(self) -> int:
        return self.cloud.redeployed

    @property
    def forgotten(self) -> int:
        return self.cloud.forgotten

    @property
    def heard_us(self) -> Mapping[str, int]:
        """When each registered device was last heard."""
        return self.core.heard_us


def _first_program(folder: Path, wanted: FeedProgram) -> tuple[FeedProgram, bool]:
    """Return the program that the journal begins with, and whether the cloud begins anew, with the wanted one.

    It does where there is no journal, and where a stream was declared anew: nothing in the journal holds then.
    """
    path = folder / PROGRAM_FILE
    known = _read_program(folder, wanted)
    if known is not None and can_continue(known, wanted):
        if not path.exists():
            write_durably(path, encode_document(store_program(known)))
        return known, False
    shutil.rmtree(folder / "journal", ignore_errors=True)
    shutil.rmtree(folder / EVENTS_FOLDER, ignore_errors=True)
    (folder / LIFE_FILE).unlink(missing_ok=True)
    write_durably(path, encode_document(store_program(wanted)))
    (folder / TEXT_FILE).unlink(missing_ok=True)
    return wanted, True


def _refuse_other_kind(folder: Path, in_batches: bool) -> None:
    """Refuse a state that a cloud of the other kind wrote: its journal means something else here."""
    if not (folder / "journal").exists():
        shutil.rmtree(folder / EVENTS_FOLDER, ignore_errors=True)
        return
    had_batches = (folder / EVENTS_FOLDER).exists()
    if had_batches == in_batches:
        return
    kinds = ("on Spark", "in one process")
    was, wanted = kinds if had_batches else reversed(kinds)
    raise StorageError(
        f"the state is that of a cloud {was}, and this is a cloud {wanted}",
        where=str(folder),
        hint=f"go on with --cloud {'spark' if had_batches else 'local'}, or begin anew with another --state",
    )


def _read_program(folder: Path, wanted: FeedProgram) -> FeedProgram | None:
    path = folder / PROGRAM_FILE
    if path.exists():
        kept = decode_document(path.read_bytes())
        if not isinstance(kept, StoredProgram):
            raise StorageError("this is no program of a cloud", where=str(path))
        return load_program(kept, wanted.functions)
    text = folder / TEXT_FILE
    return wanted if text.exists() and text.read_text(encoding="utf-8") == wanted.text else None


def _life_of(folder: Path) -> str:
    """Return the name of this journal: numbers of another one that began anew are not taken for its own."""
    path = folder / LIFE_FILE
    if not path.exists():
        write_durably(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="ascii")


def _read_hello(data: bytes) -> tuple[int, Hello] | None:
    """Return a hello and its number; None for every other message, and for what is none."""
    if not _HELLO.match(data):
        return None
    try:
        number, message = decode(data)
    except WireError:
        return None
    return (number, message) if isinstance(message, Hello) else None


def _read_relayed(data: bytes) -> tuple[int, RelayedMessage] | None:
    """Return what an edge cloud relays, and its number; None for every other message, and for what is none."""
    if not _RELAYED.match(data):
        return None
    try:
        number, message = decode(data)
    except WireError:
        return None
    return (number, message) if isinstance(message, RelayedMessage) else None


def _without_secret(hello: Hello) -> Hello:
    return Hello(hello.boot, functions=hello.functions, version=hello.version)


def _events_of(told: Iterable[Deliver], edge: str | None = None) -> list[CloudEvent]:
    events: list[CloudEvent] = []
    for delivery in told:
        if isinstance(delivery.message, Refused):
            events.append(DeviceRefused(delivery.device, delivery.message.boot, delivery.message.reason, edge))
        elif isinstance(delivery.message, Reset):
            events.append(HelloAsked(delivery.device, edge))
    return events
