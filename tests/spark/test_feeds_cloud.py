"""The cloud on Spark: the same notifications as the naive recomputation, views of two levels, moves
included."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.errors import FeedError
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, TRIO, Walkers, graph_of, random_friends, random_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEVICES = 6
EVERY = NEARBY.replace(
    "VIEW nearby WITH (lifetime = '3 seconds'",
    "VIEW around WITH (notify_every = '4 seconds', lifetime = 'a: 5 seconds, b: 1 second'",
)


@pytest.mark.spark
def test_a_cloud_on_spark_notifies_like_the_naive_recomputation_while_views_move(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.feeds.cloud import SparkCloud

    rng = random.Random(21)
    graph = graph_of(DECLARED + EVERY + TRIO, random_friends(rng, DEVICES, 9))
    cloud = SparkCloud(spark, graph, tmp_path / "cloud")
    cloud.start(trigger_ms=50)
    bus = Bus()
    fleet = Fleet([DeviceConfig(str(i), report_every_us=60 * SECOND) for i in range(DEVICES)], bus)
    run = LocalRun(cloud, fleet, bus)
    run.produced = []
    run.connect_all()
    run.send(cloud.deploy({v: h if rng.random() < 0.4 else CLOUD for v, h in random_hosts(rng, graph).items()}))

    def settle() -> None:
        run.carry(run)
        while cloud.landing.rows or cloud.landing.controls:
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
    cloud.stop()
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


@pytest.mark.spark
def test_files_that_nothing_can_meet_any_more_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.feeds.protocol.messages import FeedEvent
    from catchment.spark.feeds.cloud import SparkCloud

    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
    cloud = SparkCloud(spark, graph, tmp_path / "cloud", away_us=2 * SECOND)
    cloud.start(trigger_ms=50)
    cloud.deploy(dict.fromkeys(graph.views, CLOUD))
    for n in range(4):
        cloud.receive("0", FeedEvent("location@0", (n,), n * 4 * SECOND, (48.0, 2.0)))
        list(cloud.drain())
    assert len(cloud.landing.files) == 2
    assert len(list(cloud.landing.events_folder.glob("*.parquet"))) == 2
    cloud.stop()
    assert not (tmp_path / "cloud").exists()


@pytest.mark.spark
def test_a_lifetime_that_a_cloud_on_spark_does_not_keep_is_refused_with_the_cloud_that_does() -> None:
    from catchment.spark.feeds.cloud import check_lifetimes

    check_lifetimes(graph_of(DECLARED + NEARBY.replace("3 seconds", "a: 1 hour, b: 1 second"), []).program)
    with pytest.raises(FeedError, match="view 'nearby'") as caught:
        check_lifetimes(graph_of(DECLARED + NEARBY.replace("3 seconds", "7 days"), []).program)
    assert "--cloud local" in str(caught.value)
