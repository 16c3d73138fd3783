"""Streams that are born at the cloud, joined with those of devices: where views go, and that nothing is lost.

Placements are compared with all that there are, runs with the naive recomputation, while the cloud is killed around
every write and around every delivery.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.errors import FeedError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.choose_hosts import all_at_cloud, least_traffic
from catchment.feeds.cloud.core import MAX_DELIVERIES
from catchment.feeds.cloud.routes import CLOUD, predict
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.protocol.messages import Hello
from catchment.feeds.runs import cloud_host
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.published import PUBLISH_FOLDER, PublishedRecords, publish_records
from catchment.query.sql.parse import parse_sql
from catchment.storage.disk import use_disk
from tests.feeds.test_durable_cloud import DEVICES, KilledWorld, NoSync
from tests.worlds.feeds_world import SECOND, Walkers
from tests.worlds.tiers import examples

DECLARED = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE STREAM status (user BIGINT, free BOOLEAN) WITH (device = 'user');
CREATE STREAM coupon (shop BIGINT, lat DOUBLE, lon DOUBLE, percent DOUBLE) WITH (born = 'cloud');
CREATE STREAM arrival (station BIGINT, delay DOUBLE) WITH (born = 'cloud', key = 'station', rate = 0.5);
CREATE TABLE stops (user BIGINT, station BIGINT);
"""
OFFERS = """CREATE FEED VIEW offers WITH (lifetime = '3 seconds') AS SELECT a.user, c.shop, c.percent
FROM location a JOIN coupon c ON distance(a.lat, a.lon, c.lat, c.lon) < 3000 WHERE c.percent > 10;
"""
DELAYS = """CREATE FEED VIEW delays WITH (lifetime = '3 seconds') AS SELECT a.user, t.station, t.delay
FROM location a JOIN stops s ON a.user = s.user JOIN arrival t ON t.station = s.station WHERE t.delay > a.speed;
"""
FREE_OFFERS = (
    OFFERS
    + """CREATE FEED VIEW free_offers WITH (lifetime = '2 seconds') AS SELECT o.user, o.shop
FROM offers o JOIN status s ON s.user = o.user WHERE s.free;
"""
)
STOPS = [(0, 7), (1, 7), (1, 8), (2, 8), (3, 9)]


def graph_of(text: str) -> ViewGraph:
    return generate_views(read_program(DECLARED + text), ReferenceData({"stops": STOPS}, tuple(range(DEVICES))))


# ---- the language


def test_a_feed_of_the_cloud_is_one_for_all_or_one_per_key() -> None:
    graph = graph_of(OFFERS + DELAYS)
    of_cloud = {feed.name for feed in graph.feeds.values() if feed.is_of_cloud}
    assert of_cloud == {"coupon[percent > 10]@cloud", "arrival@7", "arrival@8", "arrival@9"}
    assert graph.devices == ("0", "1", "2", "3")
    assert sum(view.template == "delays" for view in graph.views.values()) == len(STOPS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("CREATE STREAM x (a BIGINT) WITH (rate = 1);", "lacks the option 'device'"),
        ("CREATE STREAM x (a BIGINT) WITH (born = 'cloud', device = 'a');", "either a device or born = 'cloud'"),
        ("CREATE STREAM x (a BIGINT) WITH (device = 'a', key = 'a');", "either a device or born = 'cloud'"),
        ("CREATE FEED VIEW x AS SELECT c.shop FROM coupon c;", "nobody would be notified"),
        ("CREATE FEED VIEW x AS SELECT c.shop FROM coupon c JOIN location a ON a.lat > c.lat;", "nobody would be"),
        (
            "CREATE FEED VIEW x AS SELECT a.user FROM location a JOIN arrival t ON t.delay > a.speed;",
            "nothing says which devices",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(text: str, says: str) -> None:
    with pytest.raises(FeedError, match=says):
        read_program(DECLARED + text)


def test_a_view_that_filters_a_stream_of_the_cloud_can_be_read_and_is_checked_before_anything_is_sent() -> None:
    text = "CREATE FEED VIEW good AS SELECT c.shop, c.lat FROM coupon c WHERE c.percent > 30;"
    view = "CREATE FEED VIEW x AS SELECT a.user, g.shop FROM location a JOIN good g ON g.lat > a.lat;"
    graph = graph_of(text + view)
    assert [feed.name for feed in graph.feeds.values() if feed.is_of_cloud] == ["coupon[percent > 30]@cloud"]


def test_a_project_declares_such_streams_in_the_same_way() -> None:
    (statement,) = parse_sql(
        "CREATE STREAM arrival (station BIGINT, delay DOUBLE) WITH (born = 'cloud', key = 'station')"
    )
    (again,) = parse_sql(statement.to_sql())
    assert again == statement


def test_no_device_may_be_called_like_the_cloud() -> None:
    program = read_program(DECLARED.replace("user BIGINT", "user STRING") + OFFERS)
    reason = DeviceGate(program, AdmissionRule()).refusal("cloud", Hello(1), ())
    assert reason == "'cloud' is the name of the cloud"


# ---- where views go


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 100_000), st.sampled_from([OFFERS, DELAYS, OFFERS + DELAYS]))
def test_the_placement_costs_the_least_of_all_placements(seed: int, text: str) -> None:
    rng = random.Random(seed)
    devices = range(2)
    data = ReferenceData({"stops": [(d, s) for d in devices for s in (7, 8) if rng.random() < 0.7]}, tuple(devices))
    graph = generate_views(read_program(DECLARED + text), data)
    rates = {name: rng.choice((0.0, 0.5, 1.0, 3.0, 9.0)) for name in (*graph.feeds, *graph.views)}
    costs = LinkCosts(rng.choice((1.0, 3.0)), rng.choice((1.0, 2.0)))
    free = list(graph.views)
    choices = [sorted({CLOUD, *graph.origins(name)}) for name in free]
    every = (dict(zip(free, hosts, strict=True)) for hosts in itertools.product(*choices))
    best = min(predict(graph, hosts, rates).cost(costs.upload, costs.download) for hosts in every)
    chosen = predict(graph, least_traffic(graph, rates, costs), rates)
    assert chosen.cost(costs.upload, costs.download) == pytest.approx(best)


def test_a_feed_of_the_cloud_is_sent_down_only_where_that_pays() -> None:
    graph = graph_of(OFFERS)
    busy = {name: 5.0 if name.startswith("location") else 1.0 for name in graph.feeds}
    assert set(least_traffic(graph, busy, LinkCosts()).values()) == {"0", "1", "2", "3"}
    quiet = {name: 0.2 if name.startswith("location") else 1.0 for name in graph.feeds}
    assert set(least_traffic(graph, quiet, LinkCosts()).values()) == {CLOUD}
    up = predict(graph, all_at_cloud(graph, quiet, LinkCosts()), quiet)
    assert sum(up.up.values()) == pytest.approx(0.8)
    assert sum(up.down.values()) == 0


# ---- runs


class PublishingWorld(KilledWorld):
    """A cloud that is killed around every write while records are published at it."""

    def __init__(self, folder: Path, text: str, rng: random.Random, kill: float) -> None:
        super().__init__(folder, text, [], rng, kill)
        self.born = 0
        self.publishes = True

    def begin(self) -> None:
        self.data = ReferenceData({"stops": STOPS})
        super().begin()

    def serve(self) -> None:
        self.cloud.take_published()
        self.may_end()
        super().serve()

    def carry(self, run: LocalRun) -> None:
        super().carry(run)
        while self.rng.random() < 0.5 and (self.bus.busy_up or self.bus.busy_down):
            super().carry(run)

    def each_second(self, run: LocalRun) -> None:
        super().each_second(run)
        if self.publishes and len(self.cloud.graph.views) >= DEVICES:
            self.publish_some(run)

    def finish(self) -> None:
        self.publishes = False
        super().finish()

    def publish_some(self, run: LocalRun) -> None:
        """Publish records, and note them as they are born: at the instant of the journal's entry, which is now."""
        rows: list[tuple[str, tuple[Any, ...]]] = [
            (
                "coupon",
                (self.born, 48 + self.rng.random() / 50, 2 + self.rng.random() / 50, self.rng.choice((5.0, 20.0))),
            ),
            ("arrival", (self.rng.choice((7, 8, 9)), self.rng.choice((0.0, 9.0)))),
        ]
        for stream, row in rows:
            self.born += 1
            publish_records(self.folder, self.program, stream, [row])
        delivered = sorted((self.folder / PUBLISH_FOLDER).glob("*.json"))
        while list((self.folder / PUBLISH_FOLDER).glob("*.json")):
            self.may_be_killed(self.cloud.take_published)
        assert len(delivered) == len(rows)
        for stream, row in rows:
            assert run.produced is not None
            run.produced.append(DeviceRecord(self.clock.now_us(), CLOUD, stream, row))


@settings(max_examples=examples(4), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([OFFERS, DELAYS, FREE_OFFERS]))
def test_a_cloud_that_is_killed_while_records_are_published_loses_doubles_and_invents_nothing(
    seed: int, text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)
        patch.setattr("tests.feeds.test_durable_cloud.BEGIN_US", 0)
        rng = random.Random(seed)
        world = PublishingWorld(Path(name), DECLARED + text, rng, kill=0.02)
        for device in world.fleet.devices:
            world.fleet.connect(device, 0)
        walkers = Walkers(rng, DEVICES, rate=dict.fromkeys(range(DEVICES), 1.0))
        world.run.run(walkers.records(("location", "status")), 14 * SECOND)
        world.finish()
        controller = world.cloud.controller
        found = Counter(n.identity for n in world.fleet.notices)
        produced = world.run.produced or []
        due = naive_notices(world.cloud.graph, produced, controller.active_since_us)
        every = naive_notices(world.cloud.graph, produced)
        assert world.kills > 3
        assert due
        assert set(found) >= due, "lost"
        assert set(found) <= every, "invented"
        assert set(found.values()) <= {1}, "doubled"
        assert not controller.moving


def test_rates_of_streams_of_the_cloud_are_measured_and_views_follow_them(tmp_path: Path) -> None:
    with use_disk(NoSync()), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.feeds.test_durable_cloud.BEGIN_US", 0)
        world = PublishingWorld(tmp_path, DECLARED + OFFERS, random.Random(4), kill=0.0)
        for device in world.fleet.devices:
            world.fleet.connect(device, 0)
        walkers = Walkers(random.Random(4), DEVICES, rate=dict.fromkeys(range(DEVICES), 5.0))
        world.run.run(walkers.records(), 6 * SECOND)
        world.cloud.review(2.0)
        assert 0 < world.cloud.controller.rates["coupon[percent > 10]@cloud"] < 3


# ---- how records are published


def test_a_delivery_that_is_taken_again_after_a_crash_counts_once(tmp_path: Path) -> None:
    world = PublishingWorld(tmp_path, DECLARED + OFFERS, random.Random(4), kill=0.0)
    publish_records(tmp_path, world.program, "coupon", [{"shop": 1, "lat": 48.0, "lon": 2.0, "percent": 20.0}])
    (path,) = (tmp_path / PUBLISH_FOLDER).iterdir()
    content = path.read_bytes()
    world.cloud.take_published()
    assert not path.exists()
    before = world.cloud.core.snapshot()
    path.write_bytes(content)  # as if the removal had been lost
    world.cloud.take_published()
    assert world.cloud.core.snapshot() == before
    assert list(world.cloud.core.deliveries) == [path.name]
    assert MAX_DELIVERIES > 1


def test_wrong_records_are_refused_with_their_place_and_wrong_files_are_set_aside(tmp_path: Path) -> None:
    program = read_program(DECLARED + OFFERS)
    wrong: list[tuple[list[dict[str, Any]], str]] = [
        ([{"shop": 1}, {"shop": "two"}], "record 2: a record of 'coupon' has 'two' in 'shop', expected BIGINT"),
        ([{"shpo": 1}], "record 1: found 'shpo'"),
    ]
    for rows, says in wrong:
        with pytest.raises(FeedError, match=says):
            publish_records(tmp_path, program, "coupon", rows)
    with pytest.raises(FeedError, match="has no 'station', which is its key"):
        publish_records(tmp_path, program, "arrival", [{"delay": 1.0}])
    with pytest.raises(FeedError, match="no stream that is born at the cloud"):
        publish_records(tmp_path, program, "location", [{"user": 1}])
    assert not (tmp_path / PUBLISH_FOLDER).exists()
    publish_records(tmp_path, program, "coupon", [{"shop": 1}])
    (tmp_path / PUBLISH_FOLDER / "0-bad.json").write_text('["coupon", [["x"]]]')
    assert [d.rows for d in PublishedRecords(tmp_path).waiting(program)] == [[(1, None, None, None)]]
    assert (tmp_path / PUBLISH_FOLDER / "0-bad.bad").exists()


def test_the_command_publishes_lines_of_its_input(tmp_path: Path) -> None:
    (tmp_path / "feeds.sql").write_text(DECLARED + OFFERS)
    lines = '{"shop": 1, "lat": 48.0, "lon": 2.0, "percent": 20.0}\n{"shop": 2}\n'
    done = CliRunner().invoke(app, ["feeds", "publish", "coupon", "-p", str(tmp_path), "--json"], input=lines)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"published": 2, "stream": "coupon"}
    (delivery,) = PublishedRecords(tmp_path / "state" / "cloud").waiting(read_program(DECLARED + OFFERS))
    assert [row[0] for row in delivery.rows] == [1, 2]
    done = CliRunner().invoke(app, ["feeds", "publish", "coupon", "-p", str(tmp_path)], input="{}\nno json\n")
    assert done.exit_code != 0
