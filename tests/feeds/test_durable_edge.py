"""An edge cloud, and the cloud above it, killed at any point go on where they were: nothing lost, doubled or invented.

The oracle is the naive recomputation over all records since each view was active. Both brokers of these tests keep what
was not acknowledged and deliver it again. What real brokers do otherwise: `tests/feeds/test_edge_mqtt.py`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError, StorageError
from catchment.feeds.cloud import broker_queue, edge_core
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.broker_queue import SendDown
from catchment.feeds.cloud.cloud import Cloud, FeedCloud
from catchment.feeds.cloud.core import MessageArrived
from catchment.feeds.cloud.edge_cloud import EdgeCloud, EdgeConfig
from catchment.feeds.cloud.edge_core import CloudSpoke, EdgeBegun, EdgeCore
from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.codec import decode, encode
from catchment.feeds.protocol.messages import (
    Admitted,
    Confirmed,
    Downward,
    Hello,
    Message,
    RateReport,
    Refused,
    RelayedMessage,
    Reset,
    Upward,
)
from catchment.feeds.runs import cloud_host
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.durable_edge import DurableEdge
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.storage.disk import use_disk
from catchment.timeline import ManualClock
from tests.feeds.test_durable_cloud import Killed, KilledWorld, NoSync, RunClock
from tests.feeds.test_edge_clouds import EDGES, random_hosts
from tests.worlds.feeds_world import DECLARED, HOURLY, LAYERED, NEARBY, SECOND, Friend, Walkers, random_friends
from tests.worlds.tiers import examples

DEVICES = 5


class Split:
    """The device side of two buses: some devices are attached to edge clouds, the others to the cloud."""

    def __init__(self, below: Bus, above: Bus, edge_of: dict[str, str]) -> None:
        self.below, self.above, self.edge_of = below, above, edge_of

    def of(self, device: str) -> Bus:
        return self.below if device in self.edge_of else self.above

    def connect(self, device: str) -> None:
        self.of(device).connect(device)

    def disconnect(self, device: str) -> None:
        self.of(device).disconnect(device)

    def send_up(self, device: str, message: Upward) -> None:
        self.of(device).send_up(device, message)

    def next_down(self, device: str) -> Downward | None:
        return self.of(device).next_down(device)


class BrokerLinks:
    """One side of an edge cloud at a broker that keeps what was not acknowledged."""

    def __init__(
        self, queues: Callable[[], dict[str, deque[bytes]]], send: Callable[[SendDown], None], step: Callable[[], None]
    ) -> None:
        self.queues, self.send, self.step = queues, send, step
        self.taken: list[str] = []
        self.taken_before = 0

    def take(self) -> list[tuple[str, bytes]]:
        arrived = [(name, data) for name, queue in self.queues().items() for data in list(queue)[:3]]
        self.taken = [name for name, _ in arrived]
        return arrived

    def publish(self, messages: Iterable[SendDown]) -> None:
        for message in messages:
            self.send(message)
            self.taken_before = message.number + 1
            self.step()

    def acknowledge(self) -> None:
        for name in self.taken:
            self.queues()[name].popleft()
            self.step()
        self.taken = []


class KilledEdges(KilledWorld):
    """A fleet, two edge clouds and a cloud, each of which is killed at random points and started from its folder."""

    def __init__(self, folder: Path, text: str, friends: list[Friend], rng: random.Random, kill: float) -> None:
        self.folder, self.rng, self.kill = folder / CLOUD, rng, kill
        self.program = read_program(text)
        self.data = ReferenceData({"friends": friends})
        self.edge_of = {str(i): EDGES[i % 2] for i in range(DEVICES - 1)}
        self.bus = Bus(max_queued=1_000_000)  # to the cloud
        self.below = Bus(max_queued=1_000_000)
        links = Split(self.below, self.bus, self.edge_of)
        self.fleet = Fleet([DeviceConfig(str(i), report_every_us=2 * SECOND) for i in range(DEVICES)], links)
        for device in self.fleet.devices.values():
            device.notified.capacity = 1_000_000
        self.clock = RunClock()
        self.kills = self.edge_kills = self.resets = self.taken_before = 0
        self.edge_folders = {name: folder / name for name in EDGES}
        self.edges: dict[str, DurableEdge] = {}
        self.edge_links: dict[str, tuple[BrokerLinks, BrokerLinks]] = {}
        self.begin()
        self.run = LocalRun(cast(FeedCloud, self.cloud.cloud), self.fleet, self.bus, self.carry)
        self.run.produced = []
        self.clock.run = self.run
        self.run.every(SECOND, self.each_second)
        for name in EDGES:
            self.bus.connect(name)
            self.begin_edge(name)

    def open_cloud(self) -> DurableCloud:
        router = Router(compile_feeds(self.program))
        rule = ReoptimizeRule(patience=0.05, tree=EdgeTree(EDGES))
        return DurableCloud(Cloud(ViewGraph(self.program, {}, {}), router, rule=rule), router, self.folder, self.clock)

    def begin_edge(self, name: str) -> None:
        config = EdgeConfig(name, report_every_us=2 * SECOND)
        self.edges[name] = DurableEdge(EdgeCloud(config), self.edge_folders[name], self.clock)
        sessions = self.below.sessions
        below = BrokerLinks(
            lambda: {d: sessions[d].up for d, edge in self.edge_of.items() if edge == name and d in sessions},
            lambda message: self.deliver(self.below, message),
            lambda: self.may_end(0.05),
        )
        above = BrokerLinks(
            lambda: {CLOUD: self.bus.sessions[name].down},
            lambda message: self.send_up(name, message),
            lambda: self.may_end(0.05),
        )
        below.taken_before = self.edges[name].core.sending.first_number
        above.taken_before = self.edges[name].core.above.first_number
        self.edge_links[name] = (below, above)
        self.edges[name].begin()

    def deliver(self, bus: Bus, message: SendDown) -> None:
        session = bus._session(message.device)
        session.down.append(message.data)
        if session.connected:
            bus.busy_down[message.device] = None

    def send_up(self, name: str, message: SendDown) -> None:
        self.bus.sessions[name].up.append(message.data)
        self.bus.busy_up[name] = None

    def each_second(self, run: LocalRun) -> None:
        self.may_be_killed(lambda: self.registrar.follow(self.clock.now_us()))
        if not self.kill:
            return
        self.may_be_killed(lambda: self.cloud.review(1.0))
        graph = self.cloud.graph
        if graph.views and len(graph.views) == len(self.cloud.controller.current_hosts()) and self.rng.random() < 0.3:
            hosts = random_hosts(self.rng, graph, self.cloud.controller.tree)
            self.may_be_killed(lambda: self.cloud.deploy(hosts))

    def carry(self, run: LocalRun) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            self.may_be_killed(self.serve)
            for name in EDGES:
                self.edge_may_be_killed(name)
            for bus in (self.below, self.bus):
                for name in [name for name in bus.busy_down if name not in EDGES]:
                    if self.rng.random() < 0.7:
                        self.fleet.receive(name, run.now_us)

    def edge_may_be_killed(self, name: str) -> None:
        edge = self.edges[name]
        append = edge.host.journal.append

        def killed_around(entry: object) -> None:
            self.may_end()
            append(entry)  # type: ignore[arg-type]
            self.may_end()

        edge.host.journal.append = killed_around  # type: ignore[method-assign]
        try:
            edge.take(*self.edge_links[name])
            self.may_end()
            edge.hand_over(*self.edge_links[name])
        except Killed:
            self.edge_kills += 1
            edge.host.journal.close()
            self.begin_edge(name)
            return
        finally:
            for device in [d for d in self.below.busy_up if not self.below.sessions[d].up]:
                del self.below.busy_up[device]
            if not self.bus.sessions[name].down:
                self.bus.busy_down.pop(name, None)
        edge.host.journal.append = append  # type: ignore[method-assign]

    def finish(self) -> None:
        self.kill = 0.0
        self.run.ahead = None
        for _ in range(20):
            self.run.run(iter(()), self.run.now_us + 10 * SECOND)
            while any((self.bus.busy_up, self.bus.busy_down, self.below.busy_up, self.below.busy_down)):
                self.carry(self.run)
            if not self.cloud.controller.moving:
                return


@settings(max_examples=examples(6))
@given(st.integers(0, 10_000), st.sampled_from([NEARBY, HOURLY, LAYERED]))
def test_edge_clouds_that_are_killed_at_any_write_lose_double_and_invent_nothing(seed: int, view: str) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)  # so that snapshots are written too
        rng = random.Random(seed)
        friends: list[Friend] = [(a, b, 1.0, 0.5, 1e9) for a, b, *_ in random_friends(rng, DEVICES, 6)]
        world = KilledEdges(Path(name), DECLARED + view, friends, rng, kill=0.02)
        for device in world.fleet.devices:
            world.fleet.connect(device, 0)
        world.run.run(Walkers(rng, DEVICES).records(("location", "status")), 8 * SECOND)
        world.finish()
        assert world.kills > 3
        assert world.edge_kills > 3
        assert world.resets == 0, "a restart tells devices nothing anew"
        controller = world.cloud.controller
        assert controller.tree.edge_of == world.edge_of
        found = Counter(n.identity for n in world.fleet.notices)
        produced = world.run.produced or []
        due = naive_notices(world.cloud.graph, produced, controller.active_since_us)
        assert due
        assert set(found) >= due
        assert set(found) <= naive_notices(world.cloud.graph, produced)
        assert set(found.values()) <= {1}
        assert not controller.moving
        assert sum(d.ignored for d in world.fleet.devices.values()) == 0
        assert all(edge.edge.refused == 0 for edge in world.edges.values())
        for bus in (world.bus, world.below):
            assert all(s.device_receives.missing == 0 for s in bus.sessions.values())
        assert all(r.missing == 0 for e in world.edges.values() for r in e.core.links.receivers.values())


def test_a_folder_belongs_to_one_edge_cloud(tmp_path: Path) -> None:
    DurableEdge(EdgeCloud(EdgeConfig("north")), tmp_path, ManualClock(1)).close()
    with pytest.raises(StorageError, match="edge cloud 'north', not of edge cloud 'south'"):
        DurableEdge(EdgeCloud(EdgeConfig("south")), tmp_path, ManualClock(1))


class LoneCloud:
    """A durable cloud that is spoken to by hand."""

    def __init__(self, folder: Path, token_of: Callable[[str], str | None] = lambda name: None) -> None:
        program = read_program(DECLARED + NEARBY)
        router = Router(compile_feeds(program))
        rule = ReoptimizeRule(tree=EdgeTree(EDGES))
        self.clock = ManualClock(1_700_000_000 * SECOND)
        self.cloud = DurableCloud(Cloud(ViewGraph(program, {}, {}), router, rule=rule), router, folder, self.clock)
        friends: list[Friend] = [(0, 1, 1.0, 1.0, 1e9)]
        gate = DeviceGate(program, AdmissionRule(), token_of)
        self.registrar = Registrar(self.cloud, gate, MadeReference(ReferenceData({"friends": friends})), folder)
        self.numbers: Counter[str] = Counter()

    def hear(self, link: str, message: Message) -> list[tuple[str, Message]]:
        """Let a message arrive; what the cloud answers, and over which links."""
        self.numbers[link] += 1
        self.cloud.receive_all([(link, encode(self.numbers[link], message))], self.registrar, 0)
        self.registrar.follow(self.clock.now_us())
        told, self.cloud.outgoing = self.cloud.outgoing, []
        return [(sent.device, decode(sent.data)[1]) for sent in told]


def test_a_device_that_comes_to_another_edge_cloud_begins_anew_there(tmp_path: Path) -> None:
    lone = LoneCloud(tmp_path)
    for name in EDGES:
        assert (name, Admitted(5)) in lone.hear(name, Hello(5))
    assert ("north", RelayedMessage("0", Admitted(7))) in lone.hear("north", RelayedMessage("0", Hello(7)))
    lone.hear("north", RelayedMessage("1", Hello(7)))
    assert len(lone.cloud.graph.views) == 1
    assert lone.hear("south", RelayedMessage("0", RateReport((), SECOND))) == [], "it is not attached there"
    moved = lone.hear("south", RelayedMessage("0", Hello(7)))
    assert ("north", RelayedMessage("0", Reset())) in moved, "its old place forgets it"
    assert ("south", RelayedMessage("0", Reset())) in moved, "it forgets what it was told"
    assert not lone.cloud.graph.views
    assert ("south", RelayedMessage("0", Admitted(7))) in lone.hear("south", RelayedMessage("0", Hello(7)))
    assert lone.cloud.controller.tree.edge_of == {"0": "south", "1": "north"}
    assert len(lone.cloud.graph.views) == 1
    assert all(r.missing == 0 for r in lone.cloud.core.links.receivers.values())
    direct = lone.hear("0", Hello(7))
    assert ("0", Reset()) in direct
    assert ("0", Admitted(7)) in lone.hear("0", Hello(7))
    assert lone.cloud.controller.tree.edge_of == {"1": "north"}


def test_who_is_refused_behind_an_edge_cloud_is_told_by_it_and_no_secret_is_written_down(tmp_path: Path) -> None:
    tokens = {"north": "of the north", "0": "of 0"}
    lone = LoneCloud(tmp_path, tokens.get)
    ((link, refused),) = lone.hear("north", Hello(5, "guessed"))
    assert (link, refused) == ("north", Refused(5, "the token is wrong"))
    assert lone.hear("north", RelayedMessage("0", Hello(7, "of 0"))) == [("north", Reset())], (
        "it is not registered itself"
    )
    assert ("north", Admitted(5)) in lone.hear("north", Hello(5, "of the north"))
    assert lone.hear("north", RelayedMessage("0", Hello(7, "guessed"))) == [
        ("north", RelayedMessage("0", Refused(7, "the token is wrong")))
    ]
    assert lone.hear("north", RelayedMessage("south", Hello(7))) == [
        ("north", RelayedMessage("south", Refused(7, "'south' is the name of an edge cloud")))
    ]
    assert ("north", RelayedMessage("0", Admitted(7))) in lone.hear("north", RelayedMessage("0", Hello(7, "of 0")))
    lone.cloud.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"of 0" not in written
    assert b"of the north" not in written


def test_a_hello_that_is_refused_elsewhere_leaves_a_device_where_it_is(tmp_path: Path) -> None:
    lone = LoneCloud(tmp_path, {"0": "of 0"}.get)
    for name in EDGES:
        lone.hear(name, Hello(5))
    lone.hear("north", RelayedMessage("0", Hello(7, "of 0")))
    lone.hear("1", Hello(7))
    assert len(lone.cloud.graph.views) == 1
    refused = Refused(9, "the token is wrong")
    assert lone.hear("south", RelayedMessage("0", Hello(9, "guessed"))) == [("south", RelayedMessage("0", refused))]
    assert lone.hear("0", Hello(9, "guessed")) == [("0", refused)]
    assert lone.cloud.controller.tree.edge_of == {"0": "north"}
    assert len(lone.cloud.graph.views) == 1, "its views go on"
    assert ("north", RelayedMessage("0", refused)) in lone.hear("north", RelayedMessage("0", Hello(9, "guessed")))
    assert not lone.cloud.graph.views, "where it is attached, it has lost its right to be there"


def test_strangers_at_an_edge_cloud_and_reports_for_a_cloud_that_is_away_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_core, "MAX_STRANGERS", 20)
    monkeypatch.setattr(broker_queue, "MAX_WAITING", 50)
    core = EdgeCore(EdgeCloud(EdgeConfig("north")))
    core.handle_all([EdgeBegun()], SECOND)
    known = MessageArrived("known", encode(1, Hello(1)))
    core.handle_all([known, CloudSpoke(encode(1, RelayedMessage("known", Admitted(1))))], SECOND)
    for n in range(200):
        core.handle_all([MessageArrived(f"stranger {n}", encode(1, Hello(1)))], SECOND)
        core.handle_all([MessageArrived("known", encode(2 + n, RateReport((), SECOND)))], SECOND)
    assert "known" in core.links.channels
    assert len(core.links.channels) <= 21
    assert len(core.above.messages) <= 51
    assert core.above.dropped > 300
    confirmed = RelayedMessage("known", Confirmed((4,), 0))
    (sent,) = core.handle_all([MessageArrived("known", encode(500, confirmed.message))], SECOND)
    assert decode(sent.data)[1] == confirmed, "nobody would say it again"


def test_a_cloud_whose_edge_clouds_are_no_longer_named_says_which_devices_it_cannot_reach(tmp_path: Path) -> None:
    lone = LoneCloud(tmp_path)
    lone.hear("north", Hello(5))
    lone.hear("north", RelayedMessage("0", Hello(7)))
    lone.cloud.close()
    program = read_program(DECLARED + NEARBY)
    router = Router(compile_feeds(program))
    with pytest.raises(FeedError, match="devices are attached to the edge cloud 'north'"):
        DurableCloud(Cloud(ViewGraph(program, {}, {}), router), router, tmp_path, lone.clock)
