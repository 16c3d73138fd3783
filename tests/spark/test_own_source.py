"""A source that a project brings is read through Spark, once, through a restart and a failure of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.center.results.read import read_results
from tests.worlds.runs import Status, run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

pytestmark = pytest.mark.spark

TOML = """
[project]
name = "own"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
"""
SQL = """
CREATE STREAM numbers (ts TIMESTAMP, n BIGINT) WITH (
  event_time = 'ts', connector = 'python', reader = 'counting:Counting', argument = '{folder}/{{site}}'
);
CREATE MATERIALIZED VIEW sums AS
SELECT window.start, count(*) AS n, sum(n) AS total FROM numbers GROUP BY window(ts, '10 seconds');
"""
MODULE = '''
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa


class Counting:
    """Has as many numbers as a file says, one per second."""

    def __init__(self, argument):
        self.path = Path(argument)

    def begin(self):
        return {"next": 0}

    def end(self, start):
        return {"next": int(self.path.read_text())}

    def read(self, start, end):
        for n in range(start["next"], end["next"]):
            yield pa.table({"ts": [datetime.fromtimestamp(1_767_225_600 + n, UTC)], "n": [n]})
'''


def test_a_source_of_the_project_is_read_once_through_restarts(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "catchment.toml").write_text(TOML)
    (tmp_path / "queries" / "q.sql").write_text(SQL.format(folder=tmp_path))
    (tmp_path / "counting.py").write_text(MODULE)
    source = tmp_path / "edge"
    source.write_text("5")
    states: set[str] = set()

    def enough(runner: Runner, status: Status) -> bool:
        """Whether all was read. What it is read from goes away for a while, until the reader has missed it."""
        states.add(status["sites"]["edge"]["streams"]["numbers"]["state"])
        rows = status["sites"]["edge"]["rows"]
        if rows == 5 and "retrying" not in states:
            source.unlink(missing_ok=True)
        elif not source.exists():
            source.write_text("25")
        return bool(rows == 25)

    run_project(spark, tmp_path, once=False, until=enough)
    assert "retrying" in states
    for numbers in (25, 60):
        source.write_text(str(numbers))
        run_project(spark, tmp_path, once=True)
    answers = read_results(tmp_path / "state", "sums").to_pylist()
    assert sum(row["n"] for row in answers) == 60
    assert sum(row["total"] for row in answers) == sum(range(60))
