"""A center with shards on a real session: its tasks merge, finish, order and publish what the plain center does.

Catches: columns, HAVING, LIMIT or bounds that differ where the engine finishes files, rows that a task loses.
Cannot catch: what needs several machines; `tests/e2e/test_cluster.py` has a cluster, and kills its center.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.center.shards import consumer
from catchment.center.shards.tables import ShardedTables
from tests.worlds.answers import check_answers, check_published_once
from tests.worlds.projects import QUERIES, as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SITES = ("a", "b")
MORE = """
CREATE MATERIALIZED VIEW heaviest AS
  SELECT window.start, user, page, sum(bytes) AS bytes, count(*) * 2 AS twice FROM hits
  GROUP BY window(ts, '1 minute'), user, page ORDER BY bytes DESC, page LIMIT 5;
CREATE STREAM taps (ts TIMESTAMP, user INT, ms DOUBLE) WITH (event_time = 'ts', sites = 'b', {connector});
CREATE MATERIALIZED VIEW pairs AS
  SELECT window.start, h.page, count(*) AS n, sum(h.bytes) AS bytes, max(t.ms) AS high
  FROM hits h JOIN taps t ON h.user = t.user GROUP BY window(h.ts, '1 minute'), h.page;
"""


def run(folder: Path, spark: SparkSession, lines: dict[str, list[str]], shards: int) -> Path:
    write_project(folder, SITES, lines, queries=QUERIES + MORE, files_per_site=4)
    settings = folder / "catchment.toml"
    settings.write_text(settings.read_text() + f"center_shards = {shards}\n")
    run_project(spark, folder)
    return folder / "state"


def rows(state: Path, view: str) -> list[tuple[Any, ...]]:
    """What is published of a view last, with status and bounds."""
    table = read_results(state, view)
    names = [n for n in table.column_names if n not in ("published_at", "revision", "state")]
    return sorted((tuple(str(row[n]) for n in names) for row in table.to_pylist()), key=str)


def statuses(state: Path, view: str) -> dict[Any, str]:
    """The last word on each window."""
    return {row["window_start"]: row["status"] for row in read_windows(state, view).to_pylist()}


def test_tasks_answer_as_one_process_does(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = {site: make_records(300, seed) for seed, site in enumerate(SITES)}
    lines = {site: as_lines(mine) for site, mine in records.items()}
    plain = run(tmp_path / "plain", spark, lines, 0)
    monkeypatch.setattr(consumer, "TASK_BYTES", 1)
    monkeypatch.setattr(ShardedTables, "_is_small", lambda self, revisions: False)
    sharded = run(tmp_path / "sharded", spark, lines, 3)
    assert list((tmp_path / "sharded" / "state" / "results" / "numbers").glob("shard-*.parquet")), "tasks wrote it"
    check_answers(sharded, [record for mine in records.values() for record in mine])
    check_published_once(sharded)
    for view in ("numbers", "sections", "heaviest", "pairs"):
        assert rows(sharded, view) == rows(plain, view), view
        told = [
            {row["window_start"]: row["status"] for row in read_windows(s, view).to_pylist()} for s in (sharded, plain)
        ]
        assert told[0] == told[1]
    for window in {row["window_start"] for row in read_results(sharded, "heaviest").to_pylist()}:
        held = [r for r in read_results(sharded, "heaviest").to_pylist() if r["window_start"] == window]
        assert len(held) <= 5
