"""Records that are posted to a site are answered once, and are removed from the site's files when they were read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from catchment.center.results.read import read_results
from catchment.project.config import Project
from catchment.receivers.http import read_http_token
from tests.worlds.runs import Status, run_project
from tests.worlds.waiting import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

pytestmark = pytest.mark.spark

TOML = """
[project]
name = "posted"
center = "center"
[sites.edge]
http = "127.0.0.1:{port}"
[sites.center]
[[links]]
from = "edge"
to = "center"
[defaults]
trigger = "1 s"
"""
SQL = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE) WITH (event_time = 'ts', connector = 'http');
CREATE MATERIALIZED VIEW per_page AS
SELECT window.start, page, count(*) AS n, sum(ms) AS ms FROM hits GROUP BY window(ts, '10 seconds'), page;
"""
MINUTES = 4


def _body(minute: int) -> bytes:
    """Return one record per second of a minute, and one that cannot be read."""
    lines = [
        json.dumps({"ts": f"2026-01-01T00:{minute:02d}:{s:02d}Z", "page": "ab"[s % 2], "ms": s}) for s in range(60)
    ]
    return "\n".join([*lines, "not a record"]).encode()


def test_posted_records_are_answered_once_through_repetitions_and_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    port = free_port()
    (tmp_path / "queries").mkdir()
    (tmp_path / "catchment.toml").write_text(TOML.format(port=port))
    (tmp_path / "queries" / "q.sql").write_text(SQL)
    project = Project.load(tmp_path)
    token = read_http_token(project.site_folder("edge"))

    def post(minute: int) -> None:
        headers = {"authorization": f"Bearer {token}", "idempotency-key": f"minute {minute}"}
        transport = httpx.HTTPTransport(retries=20)
        with httpx.Client(transport=transport, timeout=600) as client:
            answer = client.post(f"http://127.0.0.1:{port}/streams/hits", content=_body(minute), headers=headers)
        assert answer.status_code == 200, answer.text

    def run(minutes: range, rows: int) -> Status:
        """Run the project while minutes are posted, each twice, until the site has read so many records."""

        def send() -> None:
            for minute in minutes:
                post(minute)
                post(minute)

        sender = threading.Thread(target=send)

        def enough(runner: Runner, status: Status) -> bool:
            if not sender.is_alive() and not sent:
                sent.append(True)
                sender.start()
            return not sender.is_alive() and status["sites"]["edge"]["rows"] >= rows

        sent: list[bool] = []
        return run_project(spark, tmp_path, once=False, until=enough)

    per_minute = len(_body(0).splitlines())
    run(range(2), 2 * per_minute)
    status = run(range(1, MINUTES), 2 * per_minute)  # minute 1 was posted before the restart
    assert status["sites"]["edge"]["receivers"]["hits"]["repeated"] >= MINUTES - 1
    run_project(spark, tmp_path, once=True)  # closes every window
    answers: list[dict[str, Any]] = read_results(project.state_folder, "per_page").to_pylist()
    assert sum(row["n"] for row in answers) == 60 * MINUTES
    assert sum(row["ms"] for row in answers) == sum(range(60)) * MINUTES
    landing = project.landing_folder("edge", "hits")
    assert [path for path in landing.glob("*.json") if not path.name.startswith(".")] == []
