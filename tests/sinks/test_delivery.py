"""How deliveries go on after failures and starts, with targets that people write themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catchment.center.statuses import FINAL, ON_TIME
from catchment.deploy.deployment import Deployment
from catchment.errors import QueryError
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import DeclaredSink
from catchment.sinks.declared import make_target
from catchment.sinks.delivery import FAILING, UP_TO_DATE, WAITING
from catchment.sinks.messages import make_messages
from catchment.sinks.target import ChangeBatch, SinkError
from catchment.testing.check_target import PublishedView, TargetError, check_target, deliver_all
from tests.worlds.projects import write_project
from tests.worlds.waiting import wait_until


class Shelf:
    """A target that keeps what it is given, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.batches: list[ChangeBatch] = []

    def write(self, batch: ChangeBatch) -> None:
        if self.failures:
            self.failures -= 1
            raise SinkError("the shelf is full", hint="make room")
        self.batches.append(batch)

    @property
    def countries(self) -> list[str]:
        return [row["country"] for batch in self.batches for row in batch.rows.to_pylist()]


def test_a_delivery_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    view, shelf = PublishedView(tmp_path), Shelf()
    assert view.deliver("s", lambda life: shelf).status()["state"] == WAITING
    view.publish(0, [("nl", 5)])
    first = view.deliver("s", lambda life: shelf)
    deliver_all(first)
    assert first.status()["state"] == UP_TO_DATE
    view.publish(1, [("de", 7)])
    deliver_all(view.deliver("s", lambda life: shelf))
    assert shelf.countries == ["nl", "de"]


def test_a_target_that_fails_is_told_and_gets_everything_later(tmp_path: Path) -> None:
    view, shelf = PublishedView(tmp_path), Shelf(failures=2)
    view.publish(0, [("nl", 5)])
    delivery = view.deliver("s", lambda life: shelf)
    delivery.start()
    try:
        wait_until(lambda: delivery.status()["state"] == UP_TO_DATE, "the delivery has recovered")
    finally:
        delivery.stop()
    assert delivery.status()["failures"] == 2
    assert delivery.status()["error"] is None
    assert shelf.countries == ["nl"]


def test_what_a_target_raises_is_in_the_status_and_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    view, shelf = PublishedView(tmp_path), Shelf(failures=10**9)
    view.publish(0, [("nl", 5)])
    delivery = view.deliver("s", lambda life: shelf)
    delivery.start()
    try:
        wait_until(lambda: delivery.status()["state"] == FAILING, "the failure is told")
        assert "the shelf is full" in delivery.status()["error"]
        assert delivery.is_done(0), "nobody waits for a target that is away"
        wait_until(lambda: delivery.status()["failures"] > 1, "another attempt")
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert told == [f"sink s cannot deliver for now, and tries again: {delivery.status()['error']}"]
    finally:
        delivery.stop()


def test_messages_are_keyed_by_window_and_group_and_a_retracted_row_is_a_tombstone(tmp_path: Path) -> None:
    view, shelf = PublishedView(tmp_path), Shelf()
    view.publish(0, [("nl", 5), (None, 1)], ON_TIME)
    delivery = view.deliver("s", lambda life: shelf)
    deliver_all(delivery)
    view.publish(0, [("nl", -5)], FINAL)
    deliver_all(delivery)
    first, second = (dict(make_messages(batch)) for batch in shelf.batches)
    nl = b'{"window_start":"1970-01-01T00:00:00+00:00","country":"nl"}'
    nobody = b'{"window_start":"1970-01-01T00:00:00+00:00","country":null}'
    assert set(first) == {nl, nobody}
    row = json.loads(first[nl] or b"")
    assert (row["n"], row["bytes"], row["status"], row["revision"]) == (1, 5, ON_TIME, 1)
    assert second[nl] is None
    assert json.loads(second[nobody] or b"")["status"] == FINAL


OWN = """\
class Lines:
    def __init__(self, path):
        self.path = path

    def write(self, batch):
        with open(self.path, "a") as file:
            for row in batch.rows.to_pylist():
                print(row["operation"], row["country"], file=file)
"""


def declare(text: str) -> DeclaredSink:
    (statement,) = parse_sql(text)
    assert isinstance(statement, DeclaredSink)
    assert parse_sql(statement.to_sql()) == (statement,)
    return statement


def test_a_class_of_the_project_is_a_target(tmp_path: Path) -> None:
    project = tmp_path / "p"
    project.mkdir()
    (project / "own_lines.py").write_text(OWN)
    written = tmp_path / "lines"
    sink = declare(
        f"CREATE SINK s FROM traffic WITH (connector = 'python', target = 'own_lines:Lines', argument = '{written}')"
    )
    view = PublishedView(tmp_path / "state")
    view.publish(0, [("nl", 5)])
    delivery = view.deliver("s", lambda life: make_target(sink, project, life))
    deliver_all(delivery)
    assert written.read_text() == "upsert nl\n"
    missing = declare("CREATE SINK s FROM traffic WITH (connector = 'python', target = 'own_lines:Nobody')")
    with pytest.raises(SinkError, match="there is no class 'Nobody' in module 'own_lines'"):
        make_target(missing, project, "")


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("CREATE SINK s FROM nobody WITH (connector = 'python', target = 'a:B')", "there is no view 'nobody'"),
        ("CREATE SINK s FROM hidden WITH (connector = 'python', target = 'a:B')", "does not show it"),
        ("CREATE SINK s FROM totals WITH (connector = 'kafka', brokers = 'b:9092')", "lacks the option 'topic'"),
        (
            "CREATE SINK s FROM totals WITH (connector = 'postgres', url = 'postgresql://u:secret@h/d', table = 't')",
            "cannot be used",
        ),
        ("CREATE SINK totals FROM totals WITH (connector = 'python', target = 'a:B')", "already taken by a view"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_before_anything_runs(tmp_path: Path, sink: str, told: str) -> None:
    queries = (
        "CREATE STREAM readings (ts TIMESTAMP, device STRING) WITH (event_time = 'ts', sites = '{sites}', {connector});"
        "CREATE MATERIALIZED VIEW totals AS SELECT window.start, device, count(*) AS n FROM readings "
        "GROUP BY window(ts, '1 second'), device;"
        "CREATE MATERIALIZED VIEW hidden AS SELECT window.start, count(*) AS n FROM readings "
        "GROUP BY window(ts, '1 second'), device;" + sink + ";"
    )
    folder = write_project(tmp_path / "p", ["a"], {"a": []}, queries=queries)
    with pytest.raises(QueryError, match=told) as refused:
        Deployment.load(folder)
    assert "secret" not in str(refused.value)


class Forgetful:
    """A target that never deletes."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, ...], dict[str, object]] = {}

    def write(self, batch: ChangeBatch) -> None:
        self.rows |= {tuple(batch.key_of(row).values()): row for row in batch.rows.to_pylist()}


def test_the_check_of_targets_finds_one_that_never_deletes() -> None:
    target = Forgetful()
    with pytest.raises(TargetError, match="the view shows"):
        check_target(lambda: target, lambda: target.rows.values())
