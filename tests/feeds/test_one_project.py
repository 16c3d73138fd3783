"""Feed views and materialized views in one project: one catalog, one reader, and notices that are a stream and a table.

What notices should be is recomputed by plain loops over the raw records, or by the naive oracle of feeds. The run on
Spark of such a project is in `tests/spark/test_one_project.py`.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.cli.commands.check import _look, _questions
from catchment.deploy.deployment import Deployment
from catchment.deploy.submit import submit_text
from catchment.errors import CatchmentError, ConfigError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.core import KeepNotice
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.language.functions import distance
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import plan_program
from catchment.feeds.language.statements import read_statements
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.project import open_project
from catchment.feeds.runs import cloud_host
from catchment.feeds.runs.cloud_role import RECORDING_BEGINS_US, FeedCloudRole
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.notice_tables import LandedNotices, notice_record
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.sql.parse import parse_sql
from catchment.receivers.landing import LandingFolder
from catchment.serve.explanation import explain_deployment
from catchment.serve.feed_workload import load_workload
from catchment.serve.open_feeds import explain_workload
from catchment.storage.disk import use_disk
from catchment.timeline import SystemClock
from tests.feeds.test_durable_cloud import KilledWorld, NoSync
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, Walkers, random_friends
from tests.worlds.tiers import examples

EXAMPLE = Path(__file__).parents[2] / "examples" / "town"
LIFETIME_US = 10 * SECOND
FEEDS = """CREATE STREAM place (User BIGINT, x DOUBLE) WITH (device = 'User');
CREATE TABLE friends (User BIGINT, friend BIGINT) WITH (path = 'friends.csv');
CREATE FEED VIEW near AS SELECT a.user, b.user AS friend, abs(a.x - b.x) AS apart, a.x > 3 AS far
FROM place a JOIN friends f ON a.user = f.user JOIN place b ON f.friend = b.user WHERE abs(a.x - b.x) < 2;
"""
TOML = '[project]\nname = "p"\ncenter = "hub"\n\n[sites.hub]\n'


def make_project(folder: Path, sql: str) -> Path:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(sql)
    (folder / "friends.csv").write_text("user,friend\n1,2\n2,1\n")
    return folder


def expected_notices(folder: Path) -> Counter[tuple[int, int, int, float]]:
    """What the example should find, by plain loops: (time, user, friend, metres)."""
    with (folder / "location.csv").open() as lines:
        seen = [
            (round(float(r["at_s"]) * 1e6), int(r["user"]), float(r["lat"]), float(r["lon"]))
            for r in csv.DictReader(lines)
        ]
    with (folder / "friends.csv").open() as lines:
        friends = [(int(r["user"]), int(r["friend"]), float(r["radius"])) for r in csv.DictReader(lines)]
    found: Counter[tuple[int, int, int, float]] = Counter()
    for user, friend, radius in friends:
        for a_us, a_user, a_lat, a_lon in seen:
            for b_us, b_user, b_lat, b_lon in seen:
                if (a_user, b_user) == (user, friend) and abs(a_us - b_us) <= LIFETIME_US:
                    metres = distance(a_lat, a_lon, b_lat, b_lon)
                    if metres < radius:
                        found[max(a_us, b_us), user, friend, round(metres, 6)] += 1
    return found


def landed(folder: Path, stream: str = "nearby__matches") -> list[dict[str, object]]:
    files = sorted((folder / "state" / "sites" / "hub" / "landing" / stream).glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# ---- one catalog


def test_statements_about_feeds_print_themselves_and_are_read_again() -> None:
    for statement in parse_sql(FEEDS):
        assert parse_sql(statement.to_sql()) == (statement,)
    text = "CREATE FEED VIEW v WITH (lifetime = 'a: 1 second', notify_every = '1 minute') AS SELECT a.user FROM place a"
    assert parse_sql(parse_sql(text)[0].to_sql()) == parse_sql(text)


def test_a_feed_view_is_a_stream_and_a_table_of_the_catalog(tmp_path: Path) -> None:
    catalog = load_catalog(Project.load(make_project(tmp_path, FEEDS)))
    matches = catalog.streams["near__matches"]
    assert matches.sites == ("hub",)
    assert [(c.name, str(c.type)) for c in matches.columns[3:]] == [
        ("user", "int64"),
        ("friend", "int64"),
        ("apart", "double"),
        ("far", "bool"),
    ]
    assert list(catalog.views) == ["near"]
    assert [p.name for p in Deployment.plan(catalog).plans] == ["near"]


@pytest.mark.parametrize(
    ("added", "expected", "hint"),
    [
        ("CREATE MATERIALIZED VIEW v AS SELECT x FROM place", "stream of devices 'place'", "let a feed view select"),
        (
            "CREATE FEED VIEW u AS SELECT n.apart FROM near n; CREATE MATERIALIZED VIEW v AS SELECT apart FROM near",
            "feed view 'near'",
            "let another feed view select from it",
        ),
        ("CREATE FEED VIEW near AS SELECT a.x FROM place a", "'near' is already taken by a feed view", "another name"),
        ("CREATE FEED VIEW v AS SELECT a.x FROM nowhere a", "reads 'nowhere', which is no stream of devices", "place"),
        ("CREATE FEED VIEW v AS SELECT a.x AS notified FROM place a", "a column 'notified'", "table = false"),
        ("CREATE STREAM s (a BIGINT) WITH (device = 'b')", "device 'b' of stream 's'", "possible: a"),
        ("CREATE TABLE near__matches (a BIGINT) WITH (path = 'a.csv')", "already taken by a table", "another name"),
    ],
)
def test_a_mistake_between_feeds_and_windows_is_named(tmp_path: Path, added: str, expected: str, hint: str) -> None:
    with pytest.raises(CatchmentError) as caught:
        load_catalog(Project.load(make_project(tmp_path, f"{FEEDS};\n{added}")))
    assert expected in caught.value.message
    assert hint in str(caught.value)
    assert "all.sql:" in str(caught.value)


def test_feed_views_without_a_table_stay_between_devices(tmp_path: Path) -> None:
    without = FEEDS.replace("near AS", "near WITH (table = false) AS")
    folder = make_project(tmp_path, without + "CREATE STREAM s (t TIMESTAMP) WITH (event_time = 't', path = 'd');")
    catalog = load_catalog(Project.load(folder))
    assert not catalog.views
    assert "near" in catalog.feed_views
    assert list(open_project(folder).program.templates) == ["near"]


def test_check_finds_mistakes_in_feed_views_and_in_their_tables(tmp_path: Path) -> None:
    folder = make_project(tmp_path, FEEDS)
    answers = dict(_checked(folder))
    assert answers["feeds"] == "2 templates over 1 streams, 2 reference rows"
    (folder / "friends.csv").write_text("user,friend\n1,two\n")
    assert "expected BIGINT" in str(dict(_checked(folder))["feeds"])
    (folder / "queries" / "all.sql").write_text(FEEDS.replace("abs(a.x - b.x) < 2", "near_enough(a.x, b.x)"))
    assert "'near_enough'" in str(dict(_checked(folder))["feeds"])


def _checked(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the answers of `catchment check` up to that about feeds; a mistake is its message."""
    for name, ask in _questions(folder, None):
        found = _look(name, ask)
        yield name, found["found"] or found["error"]
        if name == "feeds":
            return


def test_devices_of_a_project_need_a_broker_or_a_recording(tmp_path: Path) -> None:
    project = Project.load(make_project(tmp_path, FEEDS))
    with pytest.raises(ConfigError) as caught:
        FeedCloudRole(project, load_catalog(project), SystemClock()).start()
    assert "name a broker in feeds.toml" in str(caught.value)


def test_commands_about_plans_know_the_views_of_such_a_project(tmp_path: Path) -> None:
    folder = tmp_path / "town"
    shutil.copytree(EXAMPLE, folder)
    told = explain_deployment(Deployment.load(folder), ["meetings"])
    assert "nearby__matches" in json.dumps(told, default=str)
    placed = explain_workload(load_workload(folder, needs_records=False))
    assert [t["name"] for t in placed["feed_views"]] == ["nearby__matches", "nearby"]
    more = """CREATE MATERIALIZED VIEW who AS SELECT window.start, notified, count(*) AS n
    FROM nearby GROUP BY window(matched_at, '1 minute'), notified"""
    assert [row["query"] for row in submit_text(Project.load(folder), more)["queries"]] == ["who"]


# ---- notices


def test_a_recording_that_is_played_once_lands_what_plain_loops_find(tmp_path: Path) -> None:
    folder = tmp_path / "town"
    shutil.copytree(EXAMPLE, folder)
    project = Project.load(folder)
    with use_disk(NoSync()):
        for _ in range(2):  # the second run finds that it was played
            role = FeedCloudRole(project, load_catalog(project), SystemClock(), once=True)
            role.start()
            role.stop()
    rows = landed(folder)
    found = Counter(
        (_micros(str(r["matched_at"])), r["user"], r["friend"], round(float(str(r["metres"])), 6)) for r in rows
    )
    assert found == expected_notices(folder) != Counter()
    assert all(r["notified"] == str(r["user"]) for r in rows)
    assert len({r["notice"] for r in rows}) == len(rows)


def _micros(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1e6) - RECORDING_BEGINS_US


class WorldWithTable(KilledWorld):
    """A cloud that keeps the notices of its view, and is killed around each landing too."""

    def begin(self) -> None:
        statements = list(read_statements(self.program.text, "program"))
        self.program = plan_program(statements, self.program.text, collected=frozenset({"nearby"}))
        router = Router(compile_feeds(self.program))
        cloud = Cloud(ViewGraph(self.program, {}, {}), router, rule=ReoptimizeRule(patience=0.05))
        folder = LandingFolder(self.folder / "landing", "json", 10**9, 1000)
        self.tables = _MortalTables(self, folder)
        self.cloud = DurableCloud(cloud, router, self.folder, self.clock, self.tables)
        self.tables.is_recovered = True
        self.registrar = Registrar(
            self.cloud, DeviceGate(self.program, AdmissionRule()), MadeReference(self.data), self.folder
        )
        self.taken_before = self.cloud.core.outbox[0].number if self.cloud.core.outbox else self.cloud.core.next_number


class _MortalTables(LandedNotices):
    def __init__(self, world: WorldWithTable, folder: LandingFolder) -> None:
        super().__init__(world.program, {"nearby": folder})
        self.world = world
        self.is_recovered = False

    def keep(self, name: str, notices: Sequence[KeepNotice]) -> None:
        if self.is_recovered:
            self.world.may_end()
        super().keep(name, notices)
        if self.is_recovered:
            self.world.may_end()


@settings(max_examples=examples(3))
@given(st.integers(0, 10_000))
def test_a_cloud_that_is_killed_at_any_write_lands_each_notice_once(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)
        rng = random.Random(seed)
        world = WorldWithTable(Path(name), DECLARED + NEARBY, random_friends(rng, 4, 5), rng, kill=0.05)
        world.run.connect_all()
        world.run.run(Walkers(rng, 4).records(), 6 * SECOND)
        world.finish()
        told = {n.identity: n for n in world.fleet.notices}
        lines = [
            json.loads(line) for f in (Path(name) / "landing").glob("*.json") for line in f.read_text().splitlines()
        ]
        names = world.program.templates["nearby"].output_names
        key = {json.dumps(notice_record(n, names), sort_keys=True) for n in told.values()}
        assert Counter(json.dumps(line, sort_keys=True) for line in lines) == Counter(key)
        since_us = world.cloud.controller.active_since_us
        due = naive_notices(world.cloud.graph, world.run.produced or [], since_us)
        assert {i for i in due if i[0] in since_us} <= set(told)
        assert world.kills > 0
