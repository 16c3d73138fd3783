"""A small world of devices for the tests of feeds: a program, a workload of walkers, and a run to drive."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.language.program_form import compile_program
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.runs.local_run import Carrier, LocalRun, carry_until_quiet

SECOND = 1_000_000
DECLARED = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE STREAM status (user BIGINT, free BOOLEAN) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT, share DOUBLE, friend_share DOUBLE, radius DOUBLE);
"""
NEARBY = """
CREATE FEED VIEW nearby WITH (lifetime = '3 seconds') AS
SELECT a.user, b.user AS friend, distance(a.lat, a.lon, b.lat, b.lon) AS metres
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < f.radius AND sample(a, f.share) AND sample(b, f.friend_share);
"""
HOURLY = NEARBY.replace("lifetime = '3 seconds'", "lifetime = '3 seconds', notify_every = '5 seconds'")
FILTERED = NEARBY.replace("WHERE", "WHERE a.speed > 2 AND")
LAYERED = (
    NEARBY
    + """
CREATE FEED VIEW meet WITH (lifetime = '2 seconds') AS SELECT n.user, n.friend, n.metres
FROM nearby n JOIN status s ON s.user = n.friend WHERE s.free;
"""
)
TRIO = """
CREATE FEED VIEW trio WITH (lifetime = 'a: 2 seconds, b: 1 second, s: 3 seconds') AS SELECT a.user, b.user AS friend
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user JOIN status s ON s.user = b.user
WHERE s.free AND distance(a.lat, a.lon, b.lat, b.lon) < f.radius;
"""
TOGETHER = """
CREATE FEED VIEW together WITH (lifetime = '2 seconds') AS
SELECT a.user, b.user AS friend, a.speed + b.speed AS together
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE coalesce(a.speed, 0) + coalesce(b.speed, 0) < 6;
"""  # reads a column that no other view reads; it would hold for events without that column
SHARES = (0.1, 0.25, 0.5, 1.0)
Friend = tuple[int, int, float, float, float]


def random_friends(rng: random.Random, devices: int, count: int) -> list[Friend]:
    pairs = {tuple(rng.sample(range(devices), 2)) for _ in range(count)}
    return [(i, j, rng.choice(SHARES), rng.choice(SHARES), rng.choice((400.0, 1500.0))) for i, j in sorted(pairs)]


def graph_of(text: str, friends: list[Friend]) -> ViewGraph:
    return generate_views(read_program(text), ReferenceData({"friends": friends}))


@dataclass
class Walkers:
    """Devices that walk about a small town, each reporting at its own rate, which may be changed."""

    rng: random.Random
    devices: int
    rate: dict[int, float] = field(default_factory=dict)

    def records(self, streams: tuple[str, ...] = ("location",)) -> Iterator[DeviceRecord]:
        place = {i: [48 + self.rng.random() / 50, 2 + self.rng.random() / 50] for i in range(self.devices)}
        heap = [(self.rng.randrange(1, SECOND), i) for i in range(self.devices)]
        heapq.heapify(heap)
        while True:
            at_us, i = heapq.heappop(heap)
            place[i] = [c + self.rng.gauss(0, 0.0008) for c in place[i]]
            for stream in streams:
                yield DeviceRecord(at_us, str(i), stream, self._row(i, stream, place[i]))
            heapq.heappush(heap, (at_us + round(SECOND / self.rate.setdefault(i, self.rng.choice((0.5, 1, 4)))), i))

    def _row(self, i: int, stream: str, place: list[float]) -> tuple[object, ...]:
        if stream == "status":
            return (i, self.rng.random() < 0.5)
        return (i, round(place[0], 5), round(place[1], 5), round(self.rng.random() * 5, 1))


def carry_at_random(rng: random.Random) -> Carrier:
    """Links deliver in any order, some of them later: each keeps its own order."""

    def carry(run: LocalRun) -> None:
        for _ in range(rng.randrange(12)):
            links = [("up", n) for n in run.bus.busy_up] + [("down", n) for n in run.bus.busy_down]
            if not links:
                return
            direction, name = rng.choice(links)
            if direction == "up":
                run.carry_up(name)
            else:
                run.fleet.receive(name, run.now_us)

    return carry


def start(
    graph: ViewGraph,
    hosts: dict[str, str],
    devices: int,
    carry: Carrier = carry_until_quiet,
    max_outbox: int = 10_000,
    rule: ReoptimizeRule | None = None,
) -> LocalRun:
    """A run whose views are deployed and confirmed before the first record."""
    bus = Bus(max_queued=1_000_000)  # links of these tests may be very slow; bounds have their own tests
    configs = [DeviceConfig(str(i), report_every_us=2 * SECOND, max_outbox=max_outbox) for i in range(devices)]
    fleet = Fleet(configs, bus)
    for device in fleet.devices.values():
        device.notified.capacity = 1_000_000
    cloud = Cloud(graph, Router(compile_program(graph.program.text, BUILT_IN)), rule=rule)
    run = LocalRun(cloud, fleet, bus)
    run.produced = []
    run.connect_all()
    run.send(cloud.deploy(hosts))
    run.carry(run)
    assert not cloud.controller.moving
    run.carry = carry
    return run


def finish(run: LocalRun) -> None:
    """Reconnect everybody, deliver everything, and let moves come to their end."""
    assert isinstance(run.bus, Bus)
    for name, session in run.bus.sessions.items():
        if not session.connected:
            run.fleet.connect(name, run.now_us)
    run.carry = carry_until_quiet
    run.ahead = None
    run.run(iter(()), run.now_us + 30 * SECOND)
    assert not run.cloud.controller.moving
    assert not run.cloud.controller.moves.wanted


def random_hosts(rng: random.Random, graph: ViewGraph) -> dict[str, str]:
    """Any placement that is allowed: a view over views stands with one of its inputs, or at the cloud."""
    hosts: dict[str, str] = {}
    for name, view in graph.views.items():
        near = [graph.feeds[i].device if i in graph.feeds else hosts[i] for i in view.inputs]
        stays = graph.program.templates[view.template].stays_at_cloud
        hosts[name] = CLOUD if stays else rng.choice([CLOUD, *near])
    return hosts


def identities(run: LocalRun) -> set[tuple[str, str, tuple[int, ...]]]:
    return {n.identity for n in run.fleet.notices}
