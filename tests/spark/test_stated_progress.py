"""Sources that state their progress over real HTTP, from a class of the project and in headers of a real Kafka topic.

Windows close long before their slack is over, nothing is lost, and who does not keep its word is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from catchment.center.results.read import read_results
from catchment.project.config import Project
from catchment.receivers.http import read_http_token
from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker
from tests.worlds.runs import Status, run_project
from tests.worlds.waiting import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

pytestmark = pytest.mark.spark
START = datetime(2026, 1, 1, tzinfo=UTC)
TOML = """
[project]
name = "stated"
center = "center"
[sites.edge]
http = "127.0.0.1:{port}"
[sites.center]
[[links]]
from = "edge"
to = "center"
[defaults]
trigger = "1 s"
slack = "1 h"
evaluator = "{evaluator}"
"""
POSTED = """
CREATE STREAM posted (ts TIMESTAMP, device STRING, n BIGINT, done TIMESTAMP) WITH (
  event_time = 'ts', connector = 'http', source = 'device', progress_column = 'done'
);
CREATE MATERIALIZED VIEW per_window AS
SELECT window.start, count(*) AS n, sum(n) AS total FROM posted GROUP BY window(ts, '10 seconds');
CREATE MATERIALIZED VIEW promised WITH (max_error = 0.1, confidence = 0.9, slack = 'fixed:3600') AS
SELECT window.start, count(*) AS n FROM posted GROUP BY window(ts, '10 seconds');
"""
OWN = """
CREATE STREAM counted (ts TIMESTAMP, n BIGINT, done TIMESTAMP) WITH (
  event_time = 'ts', connector = 'python', reader = 'counting:Counting', progress_column = 'done'
);
CREATE MATERIALIZED VIEW of_own AS
SELECT window.start, count(*) AS n FROM counted GROUP BY window(ts, '10 seconds');
"""
MODULE = '''
from datetime import UTC, datetime

import pyarrow as pa

BEGIN = 1_767_225_600


class Counting:
    """Has 35 numbers, one per second, and says that it is past each of them."""

    def __init__(self, argument):
        pass

    def begin(self):
        return 0

    def end(self, start):
        return 35

    def read(self, start, end):
        times = [datetime.fromtimestamp(BEGIN + n, UTC) for n in range(start, end)]
        yield pa.table({"ts": times, "n": list(range(start, end))})

    def progress(self, end):
        return datetime.fromtimestamp(BEGIN + end, UTC)
'''
TOPIC = """
CREATE STREAM hits (ts TIMESTAMP, n BIGINT, part INT, done TIMESTAMP) WITH (
  event_time = 'ts', connector = 'kafka', brokers = '{brokers}', topic = 'stated', partition_column = 'part',
  source = 'part', progress_header = 'progress', progress_column = 'done'
);
CREATE MATERIALIZED VIEW of_topic AS
SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '10 seconds');
"""


def at(second: int) -> str:
    return (START + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def make_project(folder: Path, queries: str, evaluator: str = "vectorised") -> Project:
    (folder / "queries").mkdir()
    (folder / "catchment.toml").write_text(TOML.format(port=free_port(), evaluator=evaluator))
    (folder / "queries" / "q.sql").write_text(queries)
    return Project.load(folder)


def counts(project: Project, view: str) -> dict[int, int]:
    """The newest counts of a view, by the second in which a window starts."""
    try:
        rows = read_results(project.state_folder, view).to_pylist()
    except Exception:  # noqa: BLE001 - nothing was published yet
        return {}
    return {int((row["start"] - START).total_seconds()): row["n"] for row in rows}


def _stated(status: Status, stream: str) -> dict[str, Any]:
    """What the sources of a stream have stated, as the status of the site tells it."""
    found: dict[str, Any] = status["sites"]["edge"]["stated"].get(stream, {})
    return found


class Steps:
    """Does one thing after another while a project runs, each when the one before has had its effect."""

    def __init__(self, *steps: tuple[Callable[[], None], Callable[[Status], bool]]) -> None:
        self._steps = list(steps)
        self._is_begun = False

    def __call__(self, runner: Runner, status: Status) -> bool:
        while self._steps:
            do, is_done = self._steps[0]
            if not self._is_begun:
                do()
                self._is_begun = True
            if not is_done(status):
                return False
            self._steps.pop(0)
            self._is_begun = False
        return True


@pytest.mark.parametrize("evaluator", ["vectorised", "native"])
def test_stated_windows_close_at_once_and_records_after_them_are_counted_and_repaired(
    spark: SparkSession, tmp_path: Path, evaluator: str
) -> None:
    project = make_project(tmp_path, POSTED + OWN, evaluator)
    (tmp_path / "counting.py").write_text(MODULE)
    address = project.sites["edge"].http
    assert address is not None
    headers = {"authorization": f"Bearer {read_http_token(project.site_folder('edge'))}"}

    def post(path: str, body: bytes, status: int = 200) -> None:
        answer = httpx.post(f"http://127.0.0.1:{address[1]}/streams/{path}", content=body, headers=headers, timeout=60)
        assert answer.status_code == status, answer.text

    def post_records(device: str, seconds: range) -> None:
        lines = [json.dumps({"ts": at(s), "device": device, "n": s}) for s in seconds]
        post("posted", "\n".join(lines).encode())

    def begin() -> None:
        post_records("a", range(35))
        post_records("b", range(35))
        post("posted/progress", json.dumps({"before": at(30), "source": "a"}).encode())
        post("posted/progress", b'{"source": "a"}', 400)

    def state_by_record() -> None:
        post("posted", json.dumps({"ts": at(34), "device": "b", "n": 0, "done": at(20)}).encode())

    steps = Steps(
        (begin, lambda status: _stated(status, "posted").get("state_nothing") == ["b"]),
        (state_by_record, lambda status: counts(project, "per_window").keys() == {0, 10}),
        (lambda: None, lambda status: counts(project, "promised").keys() == {0, 10}),
        (lambda: None, lambda status: counts(project, "of_own").keys() == {0, 10, 20}),
        (
            lambda: post_records("b", range(5)),
            lambda status: _stated(status, "posted")["late_after_stated"] == {"b": 5},
        ),
        (lambda: None, lambda status: counts(project, "per_window")[0] == 25),
    )
    status = run_project(spark, tmp_path, once=False, until=steps)
    assert status["sites"]["edge"]["quarantined"] == 0
    run_project(spark, tmp_path, once=True)
    assert counts(project, "per_window") == {0: 25, 10: 20, 20: 20, 30: 11}
    assert counts(project, "promised") == {0: 25, 10: 20, 20: 20, 30: 11}
    assert counts(project, "of_own") == {0: 10, 10: 10, 20: 10, 30: 5}


@pytest.mark.integration
@pytest.mark.skipif(not has_broker(), reason=MISSING)
def test_a_header_states_the_progress_of_its_partition(spark: SparkSession, tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka").start()
    try:
        broker.make_topic("stated", partitions=2)
        folder = tmp_path / "project"
        folder.mkdir()
        project = make_project(folder, TOPIC.format(brokers=broker.address))

        def send(partition: int, seconds: range) -> None:
            values = [json.dumps({"ts": at(s), "n": s}).encode() for s in seconds]
            broker.produce("stated", ({"value": v, "partition": partition} for v in values))

        def state(partition: int, header: str) -> None:
            marker = {"value": None, "partition": partition, "headers": {"progress": header.encode()}}
            broker.produce("stated", [marker])

        def begin() -> None:
            send(0, range(25))
            send(1, range(25))
            state(0, at(20))

        in_ms = str(round((START + timedelta(seconds=20)).timestamp() * 1000))
        steps = Steps(
            (begin, lambda status: _stated(status, "hits").get("state_nothing") == ["1"]),
            (lambda: state(1, in_ms), lambda status: counts(project, "of_topic").keys() == {0, 10}),
            (lambda: send(1, range(3)), lambda status: _stated(status, "hits")["late_after_stated"] == {"1": 3}),
        )
        status = run_project(spark, folder, once=False, until=steps)
        assert status["sites"]["edge"]["quarantined"] == 0
        run_project(spark, folder, once=True)
        assert counts(project, "of_topic") == {0: 23, 10: 20, 20: 10}
    finally:
        broker.kill()
