"""A cloud that is killed at any point goes on where it was: no notice is lost, doubled or invented.

The oracle is the naive recomputation over all records since each view was active. The broker of these tests keeps what
was not acknowledged and delivers it again, as MQTT brokers do. It cannot catch what a real broker does otherwise: for
that, `tests/e2e/test_feeds_kill.py` kills processes around one.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.broker_queue import SendDown
from catchment.feeds.cloud.cloud import Cloud, FeedCloud
from catchment.feeds.cloud.core import CloudCore, CloudCoreState, MessagesTaken
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.messages import Hello
from catchment.feeds.runs import cloud_host
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.storage.codec import decode, encode
from catchment.storage.disk import Disk, use_disk
from catchment.timeline import Clock
from tests.worlds.feeds_world import (
    DECLARED,
    HOURLY,
    LAYERED,
    NEARBY,
    SECOND,
    Friend,
    Walkers,
    random_friends,
    random_hosts,
)
from tests.worlds.tiers import examples

DEVICES = 4
RECORD = 1  # the extension of a stored class in a document: its name, its version, its fields
BEGIN_US = 1_700_000_000 * SECOND  # boots of links are taken from the clock


class Killed(BaseException):
    """The process is gone at this point."""


class NoSync(Disk):
    """The system's disk without waiting for it: processes are killed here, not machines."""

    def fsync(self, file: int) -> None:
        pass


class RunClock(Clock):
    def __init__(self) -> None:
        self.run: LocalRun | None = None

    def now_us(self) -> int:
        return BEGIN_US + (self.run.now_us if self.run is not None else 0)


class KilledWorld:
    """A fleet, a broker, and a cloud that is killed at random points and started again from its folder."""

    def __init__(self, folder: Path, text: str, friends: list[Friend], rng: random.Random, kill: float) -> None:
        self.folder, self.rng, self.kill = folder, rng, kill
        self.program = read_program(text)
        self.data = ReferenceData({"friends": friends})
        self.bus = Bus(max_queued=1_000_000)
        self.fleet = Fleet([DeviceConfig(str(i), report_every_us=2 * SECOND) for i in range(DEVICES)], self.bus)
        for device in self.fleet.devices.values():
            device.notified.capacity = 1_000_000
        self.clock = RunClock()
        self.kills = 0
        self.resets = 0
        self.taken_before = 0
        self.begin()
        self.run = LocalRun(cast(FeedCloud, self.cloud.cloud), self.fleet, self.bus, self.carry)
        self.run.produced = []
        self.clock.run = self.run
        self.run.every(SECOND, self.each_second)

    def begin(self) -> None:
        """Start the cloud from what is in its folder."""
        self.cloud = self.open_cloud()
        gate = DeviceGate(self.program, AdmissionRule())
        self.registrar = Registrar(self.cloud, gate, MadeReference(self.data), self.folder)
        self.taken_before = self.cloud.core.outbox[0].number if self.cloud.core.outbox else self.cloud.core.next_number

    def open_cloud(self) -> DurableCloud:
        router = Router(compile_feeds(self.program))
        cloud = Cloud(ViewGraph(self.program, {}, {}), router, rule=ReoptimizeRule(patience=0.05))
        return DurableCloud(cloud, router, self.folder, self.clock)

    def each_second(self, run: LocalRun) -> None:
        self.may_be_killed(lambda: self.registrar.follow(self.clock.now_us()))
        if not self.kill:
            return
        self.may_be_killed(lambda: self.cloud.review(1.0))
        all_placed = len(self.cloud.graph.views) == len(self.cloud.controller.current_hosts())
        if all_placed and self.rng.random() < 0.1:
            self.may_be_killed(lambda: self.cloud.deploy(random_hosts(self.rng, self.cloud.graph)))

    def carry(self, run: LocalRun) -> None:
        """Let the cloud take some messages of some devices, and devices some of what it has published."""
        for _ in range(self.rng.randrange(1, 6)):
            self.may_be_killed(self.serve)
            for name in list(self.bus.busy_down):
                if self.rng.random() < 0.7:
                    self.fleet.receive(name, run.now_us)

    def serve(self) -> None:
        """Take a batch, publish what follows, acknowledge; the process may be killed between any two steps."""
        batch = [(name, n) for name in self.bus.busy_up for n in range(self.rng.randrange(4))]
        arrived = [(n, self.bus.sessions[n].up[i]) for n, i in batch if i < len(self.bus.sessions[n].up)]
        self.cloud.receive_all(arrived, self.registrar, self.taken_before)
        self.may_end()
        self.publish()
        self.may_end()
        for name in [name for name, _ in arrived]:
            session = self.bus.sessions[name]
            session.up.popleft()
            if not session.up:
                del self.bus.busy_up[name]
            self.may_end(0.1)

    def publish(self) -> None:
        outgoing, self.cloud.outgoing = self.cloud.outgoing, []
        for message in outgoing:
            self.send(message)
            self.taken_before = message.number + 1
            self.may_end(0.05)

    def send(self, message: SendDown) -> None:
        session = self.bus._session(message.device)
        session.down.append(message.data)
        if session.connected:
            self.bus.busy_down[message.device] = None
        self.resets += b'"z"' in message.data[:40]

    def may_end(self, less: float = 1.0) -> None:
        if self.rng.random() < self.kill * less:
            raise Killed

    def may_be_killed(self, act: object) -> None:
        """Do something; the process may be killed before it, in it (at a write of the journal) or after it."""
        append = self.cloud.host.journal.append

        def killed_around(entry: object) -> None:
            self.may_end()
            append(entry)  # type: ignore[arg-type]
            self.may_end()

        self.cloud.host.journal.append = killed_around  # type: ignore[method-assign]
        try:
            act()  # type: ignore[operator]
        except Killed:
            self.kills += 1
            self.begin_again()
            return
        self.cloud.host.journal.append = append  # type: ignore[method-assign]

    def begin_again(self) -> None:
        self.cloud.host.journal.close()
        self.begin()
        self.run.cloud = cast(FeedCloud, self.cloud.cloud)

    def finish(self) -> None:
        """Kill no more, deliver everything, and let moves come to their end."""
        self.kill = 0.0
        self.run.ahead = None
        for _ in range(20):
            self.run.run(iter(()), self.run.now_us + 10 * SECOND)
            while self.bus.busy_up or self.bus.busy_down:
                self.carry(self.run)
            if not self.cloud.controller.moving:
                return


@settings(max_examples=examples(4))
@given(st.integers(0, 10_000), st.sampled_from([NEARBY, HOURLY, LAYERED]))
def test_a_cloud_that_is_killed_at_any_write_loses_doubles_and_invents_nothing(seed: int, view: str) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)  # so that snapshots are written too
        rng = random.Random(seed)
        friends: list[Friend] = [(a, b, 1.0, 0.5, 1e9) for a, b, *_ in random_friends(rng, DEVICES, 5)]
        world = KilledWorld(Path(name), DECLARED + view, friends, rng, kill=0.02)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        records = Walkers(rng, DEVICES).records(("location", "status"))
        world.run.run(records, 6 * SECOND)
        world.finish()
        assert world.kills > 3
        assert world.resets == 0, "a restart tells devices nothing anew"
        controller = world.cloud.controller
        found = Counter(n.identity for n in world.fleet.notices)
        produced = world.run.produced or []
        due = naive_notices(world.cloud.graph, produced, controller.active_since_us)
        every = naive_notices(world.cloud.graph, produced)
        assert due
        assert set(found) >= due
        assert set(found) <= every
        assert set(found.values()) <= {1}
        assert not controller.moving
        assert sum(d.ignored for d in world.fleet.devices.values()) == 0
        assert all(s.device_receives.missing == 0 for s in world.bus.sessions.values())


def test_a_restart_replays_to_the_same_state_and_sends_only_what_the_broker_lacks(tmp_path: Path) -> None:
    rng = random.Random(5)
    with use_disk(NoSync()):
        world = KilledWorld(tmp_path, DECLARED + LAYERED, [(0, 1, 1.0, 1.0, 1e9), (1, 2, 1.0, 1.0, 1e9)], rng, 0.0)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        records = Walkers(rng, DEVICES).records(("location", "status"))
        world.run.run(records, 6 * SECOND)
        before = encode(world.cloud.core.snapshot())
        assert len(world.cloud.core.outbox) < world.cloud.core.next_number, "most were taken by the broker"
        world.begin_again()
        assert encode(world.cloud.core.snapshot()) == before, "the journal gives the state again"
        world.cloud.host.checkpoint()
        world.begin_again()
        assert encode(world.cloud.core.snapshot()) == before, "the snapshot gives the state again"
        assert world.cloud.outgoing == list(world.cloud.core.outbox)
        assert not world.cloud.is_new


def test_the_state_of_a_cloud_is_a_document() -> None:
    program = read_program(DECLARED + NEARBY)
    router = Router(compile_feeds(program))
    core = CloudCore(Cloud(ViewGraph(program, {}, {}), router), router)
    assert encode(decode(encode(core.snapshot()))) == encode(core.snapshot())
    assert core.handle_all([MessagesTaken(7)], 0) == []


def test_a_snapshot_of_a_cloud_that_knew_one_program_alone_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    friends: list[Friend] = [(0, 1, 1.0, 1.0, 1e9), (1, 2, 1.0, 1.0, 1e9)]
    taken_up: list[CloudCoreState] = []
    restore = CloudCore.restore

    def restore_older(core: CloudCore, state: CloudCoreState) -> None:
        taken_up.append(decode(encode_as_version_1(encode(state))))
        restore(core, taken_up[-1])

    with use_disk(NoSync()):
        world = KilledWorld(tmp_path, DECLARED + LAYERED, friends, rng, 0.0)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        records = Walkers(rng, DEVICES).records(("location", "status"))
        world.run.run(records, 3 * SECOND)
        world.cloud.host.checkpoint()
        monkeypatch.setattr(CloudCore, "restore", restore_older)
        world.begin_again()
        world.run.run(records, 6 * SECOND)
        world.finish()
    (older,) = taken_up
    assert older.control.uploads, "devices had been asked for feeds"
    assert (older.control.told, older.program) == (None, None)
    found = Counter(n.identity for n in world.fleet.notices)
    produced = world.run.produced or []
    assert set(found) >= naive_notices(world.cloud.graph, produced, world.cloud.controller.active_since_us)
    assert set(found) <= naive_notices(world.cloud.graph, produced)
    assert found
    assert set(found.values()) == {1}
    assert world.resets == 0, "devices are told nothing anew"


def encode_as_version_1(document: bytes) -> bytes:
    """Return the document as it was written before programs could change."""
    new_fields = {
        "CloudCoreState": ("deliveries", "program"),
        "ControlState": ("revision", "told"),
        "Upload": ("columns", "first_token"),
    }

    def write_again(code: int, data: memoryview) -> msgspec.msgpack.Ext:
        content = msgspec.msgpack.decode(data, ext_hook=write_again)
        if code == RECORD and content[0] in new_fields:
            name, _, fields = content
            content = [name, 1, {key: value for key, value in fields.items() if key not in new_fields[name]}]
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))

    return msgspec.msgpack.encode(msgspec.msgpack.decode(document, ext_hook=write_again))


def test_a_stream_that_is_declared_anew_begins_anew_and_devices_that_remember_it_are_asked_for_a_hello(
    tmp_path: Path,
) -> None:
    rng = random.Random(6)
    with use_disk(NoSync()):
        world = KilledWorld(tmp_path, DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)], rng, 0.0)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        records = Walkers(rng, DEVICES).records()
        world.run.run(records, 4 * SECOND)
        assert len(world.cloud.graph.views) == 1
        world.program = read_program(DECLARED.replace("free BOOLEAN", "busy BOOLEAN") + HOURLY)
        world.begin_again()
        assert world.cloud.is_new
        assert not world.cloud.controller.registered
        world.run.run(records, 12 * SECOND)
        assert world.resets == DEVICES, "each was asked once"
        assert len(world.cloud.controller.registered) == DEVICES
        assert len(world.cloud.graph.views) == 1


def test_a_token_is_not_written_to_the_journal(tmp_path: Path) -> None:
    world = KilledWorld(tmp_path, DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)], random.Random(7), 0.0)
    world.bus.connect("1")
    world.bus.send_up("1", Hello(1, "a-secret"))
    arrived = [("1", world.bus.sessions["1"].up[0])]
    world.cloud.receive_all(arrived, world.registrar, 0)
    assert "1" in world.cloud.controller.registered
    assert not any(b"a-secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_folder_belongs_to_one_cloud(tmp_path: Path) -> None:
    world = KilledWorld(tmp_path, DECLARED + NEARBY, [], random.Random(8), 0.0)
    assert world.cloud.is_new
    code = (
        "from pathlib import Path; from catchment.storage.lock import lock_folder; "
        f"lock_folder(Path({str(tmp_path)!r}), Path)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "in use by another process" in other.stderr


def test_a_stranger_gets_no_link_and_a_refused_device_is_told_why(tmp_path: Path) -> None:
    world = KilledWorld(tmp_path, DECLARED + NEARBY, [], random.Random(9), 0.0)
    world.registrar.gate.rule = AdmissionRule("deny")
    world.bus.connect("1")
    world.bus.send_up("1", Hello(4))
    world.cloud.receive_all([("1", world.bus.sessions["1"].up[0])], world.registrar, 0)
    world.cloud.receive_all([("2", b'[7,"r",[],5]'), ("2", b'[8,"r",[],5]')], world.registrar, 0)
    told = [(p.device, p.data) for p in world.cloud.outgoing]
    assert [device for device, _ in told] == ["1", "2"]
    assert b"only devices that it has a token for" in told[0][1]
    assert b'"z"' in told[1][1]
    assert not world.cloud.core.links.channels
