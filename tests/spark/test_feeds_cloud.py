"""The cloud on Spark: the same notifications as the naive recomputation, views of two levels, moves
included."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.feeds.cloud import batch_plane
from catchment.feeds.cloud.batch_cloud import MATCH, FoundRow
from catchment.feeds.cloud.batch_plane import BatchJob
from catchment.feeds.cloud.event_files import EVENTS_FOLDER
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.forms.physical_view import template_of
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.storage.disk import use_disk
from tests.feeds import test_durable_cloud
from tests.feeds.test_batch_cloud import BatchWorld
from tests.feeds.test_durable_cloud import NoSync
from tests.worlds.feeds_batches import join_by_hand
from tests.worlds.feeds_world import (
    DECLARED,
    LAYERED,
    NEARBY,
    SECOND,
    TOGETHER,
    TRIO,
    Walkers,
    graph_of,
    random_friends,
    random_hosts,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEVICES = 6
EVERY = NEARBY.replace(
    "VIEW nearby WITH (lifetime = '3 seconds'",
    "VIEW around WITH (notify_every = '4 seconds', lifetime = 'a: 5 seconds, b: 1 second'",
)
COUPONS = """
CREATE STREAM coupon (shop BIGINT, lat DOUBLE, lon DOUBLE, percent DOUBLE) WITH (born = 'cloud');
CREATE FEED VIEW offers WITH (lifetime = '5 seconds') AS SELECT a.user, c.shop, c.percent
FROM location a JOIN coupon c ON distance(a.lat, a.lon, c.lat, c.lon) < 1000000 WHERE c.percent > 10;
"""


@pytest.mark.spark
def test_a_cloud_on_spark_notifies_like_the_naive_recomputation_while_views_move(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.feeds.cloud import UnjournalledSparkCloud

    rng = random.Random(21)
    graph = graph_of(DECLARED + EVERY + TRIO, random_friends(rng, DEVICES, 9))
    cloud = UnjournalledSparkCloud(spark, graph, tmp_path / "cloud")
    bus = Bus()
    fleet = Fleet([DeviceConfig(str(i), report_every_us=60 * SECOND) for i in range(DEVICES)], bus)
    run = LocalRun(cloud, fleet, bus)
    run.produced = []
    run.connect_all()
    run.send(cloud.deploy({v: h if rng.random() < 0.4 else CLOUD for v, h in random_hosts(rng, graph).items()}))

    def settle() -> None:
        run.carry(run)
        while cloud.plane.rows or cloud.plane.controls:
            run.send(cloud.drain())
            run.carry(run)

    settle()
    assert not cloud.controller.moving
    run.every(4 * SECOND, lambda r: r.send(cloud.drain()))
    run.at(5 * SECOND, lambda r: r.send(cloud.deploy(random_hosts(rng, graph))))
    run.at(8 * SECOND, lambda r: r.fleet.disconnect("2", r.now_us))
    run.at(12 * SECOND, lambda r: r.fleet.connect("2", r.now_us))
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 15 * SECOND)
    run.ahead = None
    run.scheduled.clear()
    while cloud.controller.moving:
        run.run(iter(()), run.now_us + 5 * SECOND)
        settle()
    settle()
    found = {n.identity for n in fleet.notices}
    expected = naive_notices(graph, run.produced)
    assert {n[0].split("(")[0] for n in expected} == {"around", "trio"}
    assert found == expected
    assert not cloud.controller.moving
    assert sum(cloud.plane.matched.values()) > 0


@pytest.mark.spark
def test_a_cloud_on_spark_follows_a_change_of_the_reference_data(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.feeds.language.reference import ReferenceData
    from catchment.spark.feeds.cloud import SparkCloud

    before, after = [(0, 1, 1.0, 1.0, 1e9), (1, 2, 1.0, 1.0, 1e9)], [(1, 2, 1.0, 1.0, 1e9), (0, 2, 0.5, 1.0, 1e9)]
    cloud = SparkCloud(spark, graph_of(DECLARED + NEARBY, before), tmp_path / "cloud")
    cloud.deploy(dict.fromkeys(cloud.graph.views, CLOUD))
    newer = cloud.views_of(ReferenceData({"friends": after}, (0, 1, 2)))
    assert newer.views == graph_of(DECLARED + NEARBY, after).views
    cloud.update(newer)
    assert set(cloud.plane.installed) == {"nearby(location@1,location@2)", "nearby(location@0,location@2)"}


class SparkWorld(BatchWorld):
    """A durable cloud whose batches are joined by Spark, each compared with the join by hand."""

    spark: SparkSession
    batch_share = 0.12
    kinds: Counter[tuple[str, str]]  # what was found, and of which template

    def open_cloud(self) -> DurableCloud:
        from catchment.spark.feeds.cloud import SparkCloud

        rule = ReoptimizeRule(patience=0.05)
        cloud = SparkCloud(self.spark, ViewGraph(self.program, {}, {}), self.folder / EVENTS_FOLDER, rule=rule)
        return DurableCloud(cloud, cloud.plane, self.folder, self.clock)

    def join(self, job: BatchJob) -> list[FoundRow]:
        from catchment.spark.feeds.cloud import SparkCloud

        assert isinstance(self.cloud.cloud, SparkCloud)
        assert self.cloud.files is not None
        found = self.cloud.cloud.join(job)
        assert sorted(map(_plain, found)) == sorted(map(_plain, join_by_hand(self.cloud.files, job)))
        self.kinds.update((row[0], template_of(row[3])) for row in found)
        return found

    def publish_coupon(self, run: LocalRun) -> None:
        self.cloud.publish_recorded(DeviceRecord(run.now_us, CLOUD, "coupon", (1, 48.0, 2.0, 30.0)))


def _plain(row: FoundRow) -> tuple[object, ...]:
    kind, arrival, device, feed, key, at_us, values = row
    said = [round(v, 6) if isinstance(v, float) else v for v in json.loads(values)]
    device = None if kind == MATCH else device  # nobody is told of a match that views read
    return (kind, arrival, str(device), feed, str(json.loads(key)), at_us, str(said))


@pytest.mark.spark
def test_spark_finds_in_each_batch_what_is_found_by_hand_while_the_program_changes_and_the_cloud_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()):
        patch.setattr(SparkWorld, "spark", spark, raising=False)
        patch.setattr(SparkWorld, "kinds", Counter(), raising=False)
        patch.setattr(batch_plane, "MERGE_FILES", 3)
        patch.setattr(test_durable_cloud, "BEGIN_US", SECOND)  # the clocks of cloud and devices agree, about
        rng = random.Random(17)
        friends = [(a, b, 1.0, 0.5, 1e9) for a, b, *_ in random_friends(rng, 4, 5)]
        first = DECLARED + COUPONS + LAYERED
        world = SparkWorld(tmp_path, first, friends, rng, kill=0.01)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        world.run.every(SECOND, world.publish_coupon)
        records = Walkers(rng, 4, dict.fromkeys(range(4), 1.0)).records(("location", "status"))
        world.run.run(records, 3 * SECOND)
        world.program = read_program(first.replace("< f.radius", "< f.radius + 1") + TOGETHER)
        world.begin_again()
        world.run.run(records, 7 * SECOND)
        world.finish()
        found = {*world.kinds, *((kind, "") for kind, _ in world.kinds)}
    assert {("match", "nearby"), ("notice", "meet"), ("notice", "together"), ("notice", "offers")} <= found
    assert ("delivery", "") in found
    assert world.kills > 0
    assert set(Counter(n.identity for n in world.fleet.notices).values()) == {1}
