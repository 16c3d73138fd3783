"""Answers of materialized views as streams of feed views: what may be declared, which answers are records, and when.

Which records are due is recomputed by a plain loop over what was published; runs are compared with the naive oracle of
feeds, while the cloud is killed around every write. The run on Spark is in `tests/spark/test_view_answers.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME
from catchment.errors import CatchmentError, FeedError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.core import AnswerPlace
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import plan_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.statements import Declared, read_statements
from catchment.feeds.language.view_answers import shown_keys_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.project import open_project
from catchment.feeds.runs import answer_rows, cloud_host
from catchment.feeds.runs.answer_rows import ViewAnswers
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.open_cloud import open_durable_cloud
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.published import publish_records
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.sql.parse import parse_sql
from catchment.serve.feed_workload import load_workload
from catchment.storage.disk import use_disk
from catchment.testing.check_target import KEYS, MINUTE_US, VIEW, PublishedView
from catchment.timeline import SystemClock
from tests.feeds.test_durable_cloud import DEVICES, KilledWorld, NoSync
from tests.feeds.test_one_project import FEEDS, make_project
from tests.worlds.feeds_world import SECOND, Walkers
from tests.worlds.tiers import examples

COUNTRIES = ("nl", "de", "fr", None)
COLUMNS = (("window_start", "BIGINT"), ("country", "STRING"), ("n", "BIGINT"), ("bytes", "DOUBLE"))
REVISION = (("revision", "BIGINT"), ("status", "STRING"), ("retracted", "BOOLEAN"))
EXACT_ROWS = Declared("busy", COLUMNS, device="country", born_at_cloud=True, view=VIEW)
REVISIONS = Declared("busy", COLUMNS + REVISION, born_at_cloud=True, view=VIEW, rows="revisions")
SHOWN = Declared("busy", COLUMNS, born_at_cloud=True, view=VIEW, rows="revisions")
Request = tuple[str | None, int]


# ---- the language

CROWDS = """CREATE MATERIALIZED VIEW Meetings AS
SELECT window.start, friend AS with_whom, count(*) AS times, min(apart) AS nearest FROM near
GROUP BY window(matched_at, '1 minute'), friend;
CREATE STREAM crowds (start BIGINT, with_whom BIGINT, times BIGINT, status STRING)
WITH (born = 'cloud', view = 'meetings', key = 'with_whom', rows = 'revisions');
CREATE FEED VIEW popular WITH (lifetime = 'a: 1 hour, c: 1 hour') AS SELECT a.user, c.with_whom, c.times
FROM place a JOIN friends f ON a.user = f.user JOIN crowds c ON c.with_whom = f.friend WHERE c.times > 3;
"""


def test_a_stream_of_answers_is_one_of_the_cloud_with_the_view_that_it_is_of(tmp_path: Path) -> None:
    folder = make_project(tmp_path, FEEDS + CROWDS)
    program = open_project(folder).program
    crowds = program.streams["crowds"]
    assert (crowds.view, crowds.rows, crowds.born_at_cloud, crowds.device) == (
        "Meetings",
        "revisions",
        True,
        "with_whom",
    )
    assert program.streams["place"].view is None
    assert "with_whom" in shown_keys_of(load_catalog(Project.load(folder)))["Meetings"].values()
    with pytest.raises(FeedError, match="the records of 'crowds' are the answers of view 'Meetings'"):
        publish_records(tmp_path / "state", program, "crowds", [{"times": 1}])


def test_a_stream_of_answers_prints_itself_and_is_read_again() -> None:
    for text in (CROWDS, CROWDS.replace(", rows = 'revisions'", "")):
        statement = parse_sql(text)[1]
        assert parse_sql(statement.to_sql()) == (statement,)
        assert "view = 'meetings'" in statement.to_sql()


@pytest.mark.parametrize(
    ("old", "new", "expected", "hint"),
    [
        ("view = 'meetings'", "view = 'meeting'", "answers of 'meeting', which is no materialized view", "Meetings"),
        ("view = 'meetings'", "view = 'friends'", "answers of 'friends', which is no materialized view", "Meetings"),
        ("(start BIGINT", "(begin BIGINT", "a column 'begin', and the answers of 'Meetings' have none", "window_start"),
        ("times BIGINT", "times STRING", "column 'times' of stream 'crowds' is STRING, and BIGINT", "BIGINT or DOUBLE"),
        ("status STRING)\n", "retracted BOOLEAN)\n", "exact rows are not retracted", "rows = 'revisions'"),
        ("born = 'cloud', view", "device = 'with_whom', view", "options of the answers of a view", "born = 'cloud'"),
        ("view = 'meetings', ", "", "options of the answers of a view", "born = 'cloud'"),
        ("JOIN crowds c", "JOIN meetings c", "reads the materialized view 'Meetings'", "view = 'Meetings'"),
        ("FROM near\n", "FROM popular\n", "circle of feeds and windows: ", "its own notices"),
    ],
)
def test_answers_that_cannot_be_a_stream_are_refused(
    tmp_path: Path, old: str, new: str, expected: str, hint: str
) -> None:
    text = CROWDS.replace(old, new)
    if "retracted" in new:
        text = text.replace(", rows = 'revisions'", "")
    if "popular" in new:
        text = (
            text.replace("friend AS with_whom", "with_whom")
            .replace("apart", "times")
            .replace(", friend;", ", with_whom;")
        )
    if "device" in new:
        text = text.replace(", key = 'with_whom'", "")
    with pytest.raises(CatchmentError) as caught:
        open_project(make_project(tmp_path, FEEDS + text))
    assert expected in str(caught.value)
    assert hint in str(caught.value)
    assert "all.sql:" in str(caught.value)


def test_a_cloud_without_views_says_who_serves_devices_that_read_answers(tmp_path: Path) -> None:
    workload = load_workload(make_project(tmp_path, FEEDS + CROWDS), needs_records=False)
    with pytest.raises(FeedError, match="answers of view 'Meetings', which nobody computes"):
        open_durable_cloud(workload, tmp_path / "state", "ours", SystemClock())


# ---- which answers are records


class PlainRecords:
    """What was published, and which records follow from it, by plain loops."""

    def __init__(self) -> None:
        self.shown: dict[int, dict[str | None, int]] = {}  # bytes of each country, by minute
        self.exact: set[int] = set()
        self.revision: Counter[int] = Counter()

    def publish(self, stream: Declared, minute: int, requests: list[Request], status: str) -> list[tuple[Any, ...]]:
        """Note a publication; return the records that are due because of it."""
        rows = self.shown.setdefault(minute, {})
        rows.update(requests)
        if requests:
            self.revision[minute] += 1
        start = minute * MINUTE_US
        if stream.rows == "revisions":
            told: list[tuple[Any, ...]] = []
            for country, size in requests:
                row = (start, country, 1, float(size))
                if "retracted" in stream.column_names:
                    told.append((*row, self.revision[minute], status, size <= 0))
                elif size > 0:
                    told.append(row)
            return sorted(told, key=repr)
        if minute in self.exact or status not in (EXACT, FINAL):
            return []
        self.exact.add(minute)
        return sorted(((start, country, 1, float(size)) for country, size in rows.items() if size > 0), key=repr)


def random_requests(rng: random.Random) -> list[Request]:
    countries = rng.sample(COUNTRIES, rng.randrange(len(COUNTRIES) + 1))
    return [(country, rng.choice((-1, 2, 5))) for country in countries]


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([EXACT_ROWS, REVISIONS, SHOWN]))
def test_each_answer_is_a_record_once_whatever_is_read_at_once_and_wherever_it_is_resumed(
    seed: int, stream: Declared
) -> None:
    rng = random.Random(seed)
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        most = rng.randrange(1, 4)
        patch.setattr(answer_rows, "MAX_RECORDS", most)
        patch.setattr(answer_rows, "MAX_ENTRIES", rng.randrange(1, 4))
        view, plain = PublishedView(Path(name)), PlainRecords()
        answers = ViewAnswers(Path(name), {VIEW: KEYS})
        (first,) = answers.since(stream, None)
        place, found, due = first.place, list(first.rows), []
        for _ in range(rng.randrange(2, 9)):
            minute, status = rng.randrange(3), rng.choice((EARLY, ON_TIME, EXACT, FINAL))
            requests = random_requests(rng)
            view.publish(minute, requests, status)
            due += plain.publish(stream, minute, requests, status)
            while rng.random() < 0.6:
                for batch in answers.since(stream, place):
                    place, found = batch.place, found + batch.rows
                    assert len(batch.rows) <= most
                    if rng.random() < 0.3:
                        answers = ViewAnswers(Path(name), {VIEW: KEYS})  # as after a crash
                        break
        for batch in answers.since(stream, place):
            place, found = batch.place, found + batch.rows
        assert found == due
        assert not list(answers.since(stream, place))


def test_a_stream_begins_with_what_is_published_after_it_was_first_read(tmp_path: Path) -> None:
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)], EXACT)
    answers = ViewAnswers(tmp_path, {VIEW: KEYS})
    (first,) = answers.since(EXACT_ROWS, None)
    assert first.rows == []
    view.publish(0, [("de", 5)], EXACT)  # the window was exact before
    view.publish(1, [("nl", 3)], EXACT)
    assert [row for b in answers.since(EXACT_ROWS, first.place) for row in b.rows] == [(MINUTE_US, "nl", 1, 3.0)]


def test_a_view_that_is_there_anew_begins_with_its_first_answers(tmp_path: Path) -> None:
    PublishedView(tmp_path).publish(0, [("nl", 5)], EXACT)
    earlier = AnswerPlace("another life", 900, 3, 2)
    found = [row for b in ViewAnswers(tmp_path, {}).since(EXACT_ROWS, earlier) for row in b.rows]
    assert found == [(0, "nl", 1, 5.0)]


def test_tables_that_cannot_be_read_for_now_are_read_the_next_time(tmp_path: Path) -> None:
    PublishedView(tmp_path).publish(0, [("nl", 5)], EXACT)
    answers = ViewAnswers(tmp_path, {VIEW: KEYS})
    begin = AnswerPlace("", -1, -1, 0)
    (data,) = (tmp_path / "results" / VIEW).rglob("*.parquet")
    data.rename(data.with_suffix(".away"))
    assert list(answers.since(EXACT_ROWS, begin)) == []
    data.with_suffix(".away").rename(data)
    assert [row for b in answers.since(EXACT_ROWS, begin) for row in b.rows] == [(0, "nl", 1, 5.0)]


# ---- runs

PROGRAM = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE STREAM busy (window_start BIGINT, country STRING, n BIGINT, bytes DOUBLE) WITH (born = 'cloud', key = 'country');
CREATE TABLE homes (user BIGINT, country STRING);
CREATE FEED VIEW crowded WITH (lifetime = '3 seconds') AS SELECT a.user, b.country, b.bytes
FROM location a JOIN homes h ON a.user = h.user JOIN busy b ON b.country = h.country WHERE b.bytes > a.speed;
"""
HOMES = [(0, "nl"), (1, "nl"), (1, "de"), (2, "de"), (3, "fr")]


class AnsweredWorld(KilledWorld):
    """A cloud that is killed around every write while a view publishes answers that its feed views read."""

    def __init__(self, folder: Path, rng: random.Random, kill: float) -> None:
        self.view, self.plain, self.minute, self.publishes = PublishedView(folder / "center"), PlainRecords(), 0, True
        super().__init__(folder, PROGRAM, [], rng, kill)

    def begin(self) -> None:
        statements = [s for s in read_statements(PROGRAM, "program") if s.name != "busy"]
        self.program = plan_program([EXACT_ROWS, *statements], PROGRAM)
        self.data = ReferenceData({"homes": HOMES})
        router = Router(compile_feeds(self.program))
        cloud = Cloud(ViewGraph(self.program, {}, {}), router, rule=ReoptimizeRule(patience=0.05))
        answers = ViewAnswers(self.folder / "center", {VIEW: KEYS})
        self.cloud = DurableCloud(cloud, router, self.folder, self.clock, answers=answers)
        gate = DeviceGate(self.program, AdmissionRule())
        self.registrar = Registrar(self.cloud, gate, MadeReference(self.data), self.folder)
        self.taken_before = self.cloud.core.outbox[0].number if self.cloud.core.outbox else self.cloud.core.next_number

    def each_second(self, run: LocalRun) -> None:
        super().each_second(run)
        if self.publishes and len(self.cloud.graph.views) >= len(HOMES):
            self.publish_answers(run)

    def finish(self) -> None:
        self.publishes = False
        super().finish()

    def publish_answers(self, run: LocalRun) -> None:
        """Publish some windows, and note their records as they are born: when the cloud takes them."""
        before = set(self.cloud.core.answers.values())
        while not before:
            self.may_be_killed(self.cloud.take_answers)
            before = set(self.cloud.core.answers.values())
        due = []
        for _ in range(self.rng.randrange(1, 4)):
            self.minute += self.rng.randrange(2)
            status, requests = self.rng.choice((ON_TIME, EXACT)), random_requests(self.rng)
            self.view.publish(self.minute, requests, status)
            due += self.plain.publish(EXACT_ROWS, self.minute, requests, status)
        while (place := self.cloud.core.answers["busy"]) != self.end():
            self.may_be_killed(self.cloud.take_answers)
        assert place not in before
        assert run.produced is not None
        run.produced += [DeviceRecord(self.clock.now_us(), CLOUD, "busy", row) for row in due if row[1] is not None]

    def end(self) -> AnswerPlace:
        (batch,) = ViewAnswers(self.folder / "center", {}).since(EXACT_ROWS, None)
        return batch.place


@settings(max_examples=examples(4), deadline=None)
@given(st.integers(0, 10_000))
def test_a_cloud_that_is_killed_while_answers_come_loses_doubles_and_invents_nothing(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)
        patch.setattr(answer_rows, "MAX_RECORDS", 1)
        patch.setattr("tests.feeds.test_durable_cloud.BEGIN_US", 0)
        rng = random.Random(seed)
        world = AnsweredWorld(Path(name), rng, kill=0.02)
        for device in world.fleet.devices:
            world.fleet.connect(device, 0)
        walkers = Walkers(rng, DEVICES, rate=dict.fromkeys(range(DEVICES), 1.0))
        world.run.run(walkers.records(), 14 * SECOND)
        world.finish()
        found = Counter(n.identity for n in world.fleet.notices)
        produced = world.run.produced or []
        due = naive_notices(world.cloud.graph, produced, world.cloud.controller.active_since_us)
        assert due
        assert set(found) >= due, "lost"
        assert set(found) <= naive_notices(world.cloud.graph, produced), "invented"
        assert set(found.values()) <= {1}, "doubled"
        assert world.kills > 0
        assert world.cloud.core.answers == {"busy": world.end()}
