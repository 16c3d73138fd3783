"""An edge cloud and its cloud over two real brokers, in one process: both are cut off and go on from their folders.

The oracle is the naive recomputation over all records since each view was active. Processes that are killed from
outside: `tests/e2e/test_feeds_edges.py`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.edge_cloud import EdgeCloud, EdgeConfig
from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.device import DeviceConfig, boot_number
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.messages import Downward, Upward
from catchment.feeds.protocol.mqtt import MqttDevices
from catchment.feeds.protocol.mqtt_config import MqttConfig
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.durable_edge import DurableEdge
from catchment.feeds.runs.durable_links import DurableClient, DurableLinks, uplink_of
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.processes import exchange
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.timeline import SystemClock
from tests.feeds.test_edge_clouds import random_hosts
from tests.worlds.feeds_broker import PersistentBroker, needs_broker, until
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, Friend, Walkers

DEVICES = 5
NORTH = {"0", "1", "2"}
FRIENDS: list[Friend] = [(0, 1, 1.0, 0.5, 1e9), (1, 2, 1.0, 1.0, 1e9), (2, 3, 0.5, 1.0, 1e9), (3, 4, 1.0, 1.0, 1e9)]


class Brokers:
    """The device side of two brokers."""

    def __init__(self, north: MqttConfig, cloud: MqttConfig, boot: int) -> None:
        self.north, self.cloud = MqttDevices(north), MqttDevices(cloud)
        for i in range(DEVICES):
            self.of(str(i)).add(str(i), boot)

    def of(self, device: str) -> MqttDevices:
        return self.north if device in NORTH else self.cloud

    def connect(self, device: str) -> None:
        self.of(device).connect(device)

    def disconnect(self, device: str) -> None:
        self.of(device).disconnect(device)

    def send_up(self, device: str, message: Upward) -> None:
        self.of(device).send_up(device, message)

    def next_down(self, device: str) -> Downward | None:
        return self.of(device).next_down(device)


class World:
    """A cloud, an edge cloud and their devices, which one loop serves."""

    def __init__(self, folder: Path, north: MqttConfig, above: MqttConfig) -> None:
        self.folder, self.north, self.above = folder, north, above
        self.program = read_program(DECLARED + NEARBY)
        self.boot = boot_number(time.time_ns() // 1000)
        self.links = Brokers(north, above, self.boot)
        configs = [DeviceConfig(str(i), self.boot, report_every_us=SECOND) for i in range(DEVICES)]
        self.fleet = Fleet(configs, self.links)
        self.produced: list[DeviceRecord] = []
        self.records = Walkers(random.Random(3), DEVICES, dict.fromkeys(range(DEVICES), 5.0)).records()
        self.upcoming = next(self.records)
        self.began_us = time.time_ns() // 1000
        self.records_until_us = 0
        self.ticked_s = 0.0
        self.begin_cloud()
        self.begin_edge()
        until(lambda: self.cloud_links.client.subscribed and self.edge_links.client.subscribed, self.step)
        for i in range(DEVICES):
            self.links.connect(str(i))

    def begin_cloud(self) -> None:
        router = Router(compile_feeds(self.program))
        rule = ReoptimizeRule(tree=EdgeTree(["north"]))
        cloud = Cloud(ViewGraph(self.program, {}, {}), router, rule=rule)
        self.cloud = DurableCloud(cloud, router, self.folder / "cloud", SystemClock())
        gate = DeviceGate(self.program, AdmissionRule())
        source = MadeReference(ReferenceData({"friends": FRIENDS}))
        self.registrar = Registrar(self.cloud, gate, source, self.folder)
        self.cloud_links = DurableLinks(self.above, self.cloud.core)

    def begin_edge(self) -> None:
        edge = EdgeCloud(EdgeConfig("north", report_every_us=SECOND))
        self.edge = DurableEdge(edge, self.folder / "north", SystemClock())
        self.edge_links = DurableLinks(self.north, self.edge.core)
        self.uplink = uplink_of(self.above, "north", self.edge.core.above)
        self.edge.begin()

    def cut(self, *links: DurableClient) -> None:
        """End clients as a kill does: their sockets close, and nothing is said."""
        for link in links:
            socket = link.client.socket
            if socket is not None:
                socket.close()
            link.poller.selector.close()

    def kill_edge(self) -> None:
        self.cut(self.edge_links, self.uplink)
        self.edge.host.journal.close()
        self.begin_edge()

    def kill_cloud(self) -> None:
        self.cut(self.cloud_links)
        self.cloud.host.journal.close()
        self.begin_cloud()

    def step(self) -> None:
        now_us = time.time_ns() // 1000
        while self.upcoming.at_us + self.began_us <= now_us:
            record = replace(self.upcoming, at_us=self.upcoming.at_us + self.began_us, boot=self.boot)
            self.upcoming = next(self.records)
            if record.at_us < self.records_until_us and self.fleet.devices[record.device].publisher is not None:
                self.fleet.produce(record)
                self.produced.append(replace(record, at_us=self.fleet.devices[record.device].newest_us))
        for links in (self.links.north, self.links.cloud):
            links.poll(0.002)
            for name, up in list(links.changes()):
                self.fleet.link_changed(name, up, now_us)
            for name in list(links.busy_down):
                self.fleet.receive(name, now_us)
        for client in (self.edge_links, self.uplink, self.cloud_links):
            client.poll(0.002)
        self.edge.take(self.edge_links, self.uplink)
        self.edge.hand_over(self.edge_links, self.uplink)
        exchange(self.cloud, self.cloud_links, self.registrar)
        if time.monotonic() - self.ticked_s > 0.3:
            self.ticked_s = time.monotonic()
            self.fleet.tick(now_us)
            self.registrar.follow(now_us)

    def run_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        until(lambda: time.monotonic() > end_s, self.step)


@needs_broker
def test_an_edge_cloud_over_mqtt_notifies_like_the_naive_recomputation(tmp_path: Path) -> None:
    rng = random.Random(1)
    with ExitStack() as stack:
        brokers = {}
        for name in ("cloud", "north"):
            (tmp_path / name / "broker-of").mkdir(parents=True)
            brokers[name] = PersistentBroker(tmp_path / name / "broker-of")
            brokers[name].start()
            stack.callback(brokers[name].stop)
        world = World(tmp_path / "state", *(MqttConfig(port=brokers[n].port, app="test") for n in ("north", "cloud")))
        settled: Callable[[], bool] = lambda: (  # noqa: E731
            len(world.cloud.graph.views) == len(FRIENDS) and not world.cloud.controller.moving
        )
        until(settled, world.step)
        world.records_until_us = time.time_ns() // 1000 + 8 * SECOND
        for number in range(4):
            world.run_for(1.0)
            world.cloud.deploy(random_hosts(rng, world.cloud.graph, world.cloud.controller.tree))
            world.run_for(0.5)
            (world.kill_edge, world.kill_cloud)[number % 2]()
            if number == 1:
                brokers["north"].stop()
                brokers["north"].start()
        until(lambda: time.time_ns() // 1000 > world.records_until_us, world.step)
        due = naive_notices(world.cloud.graph, world.produced, world.cloud.controller.active_since_us)
        assert len(due) > 100
        until(lambda: {n.identity for n in world.fleet.notices} >= due and settled(), world.step)
        world.run_for(0.5)
    found = Counter(n.identity for n in world.fleet.notices)
    assert set(found) <= naive_notices(world.cloud.graph, world.produced)
    assert set(found.values()) == {1}
    assert world.edge.edge.refused == 0
    assert world.cloud.controller.tree.edge_of == dict.fromkeys(NORTH, "north")
