"""The past on Spark: a view over a column that was added to its stream, and final windows that are computed again."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.center.results.second_round import DONE, DUE
from catchment.center.round_notes import RoundNotes
from catchment.center.statuses import FINAL
from catchment.deploy.repairing.repair_windows import repair_windows
from catchment.deploy.submit import submit_text
from catchment.project.config import Project
from catchment.storage import compacted_batches
from catchment.storage.compacted_batches import BatchCompactor
from tests.worlds.projects import ANOTHER_VIEW, START, TWO_VIEWS, as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COPIED = "connector = 'files', path = 'data/{site}'"
REFERRED_TO = f"{COPIED}, history = 'reference'"
BY_COUNTRY = """CREATE MATERIALIZED VIEW countries WITH (start = 'all') AS
  SELECT window.start, country, count(*) AS n FROM hits GROUP BY window(ts, '10 minutes'), country;"""


@pytest.mark.spark
@pytest.mark.parametrize("connector", [COPIED, REFERRED_TO])
def test_a_column_that_is_added_is_null_in_the_past(spark: SparkSession, tmp_path: Path, connector: str) -> None:
    old = [{**r, "country": "de"} for r in make_records(60, 1, spread_s=300)]  # which nobody had declared
    new = [{**r, "country": "nl"} for r in make_records(100, 2) if r["ts"] > old[-1]["ts"]]
    folder = write_project(tmp_path / "p", ["a"], {"a": as_lines(old)}, queries=TWO_VIEWS, connector=connector)
    run_project(spark, folder)
    queries = (folder / "queries" / "q.sql").read_text()
    (folder / "queries" / "q.sql").write_text(queries.replace("bytes BIGINT)", "bytes BIGINT, country STRING)"))
    submit_text(Project.load(folder), BY_COUNTRY)
    (folder / "data" / "a" / "more.json").write_text("".join(json.dumps(r) + "\n" for r in new))
    run_project(spark, folder)
    rows = {r["country"]: r["n"] for r in read_results(folder / "state", "countries").to_pylist()}
    assert rows == {None: 60, "nl": len(new)}
    totals = read_results(folder / "state", "numbers").to_pylist()
    assert sum(r["n"] for r in totals) == 60 + len(new), "what ran before goes on"


@pytest.mark.spark
@pytest.mark.parametrize("connector", [COPIED, REFERRED_TO])
def test_a_final_window_is_computed_again_from_history_with_what_came_too_late(
    spark: SparkSession, tmp_path: Path, connector: str
) -> None:
    first, late = make_records(200, 1), make_records(15, 2, spread_s=50)
    lines = {site: as_lines(first) for site in ("a", "b")}
    toml = 'repair_horizon = "1 minute"'
    folder = write_project(tmp_path / "p", ["a", "b"], lines, queries=TWO_VIEWS, toml=toml, connector=connector)
    run_project(spark, folder)
    (folder / "data" / "a" / "late.json").write_text("".join(json.dumps(r) + "\n" for r in late))
    run_project(spark, folder)
    start_us = int(START.timestamp() * 1e6)
    expected = 2 * sum(r["ts"] < (START + timedelta(minutes=1)).isoformat() for r in first)
    assert _first_window(folder) == expected, "what came after the repair horizon is not in it"
    repair_windows(folder, "numbers", start_us)
    run_project(spark, folder)
    assert _first_window(folder) == expected + len(late)
    reasons = [w["reason"] for w in read_windows(folder / "state", "numbers").to_pylist()]
    assert sum("computed again on request" in reason for reason in reasons) == 1


@pytest.mark.spark
@pytest.mark.parametrize("connector", [COPIED, REFERRED_TO])
def test_estimates_become_exact_in_a_second_round_and_a_compacted_history_is_read_as_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connector: str
) -> None:
    records = {"a": make_records(300, 1), "b": make_records(200, 2)}
    everything = [r for of in records.values() for r in of]
    middles = """CREATE MATERIALIZED VIEW middles WITH (max_distinct = 10) AS
      SELECT window.start, page, median(bytes) AS middle, count(DISTINCT bytes) AS sizes, count(*) AS n
      FROM hits GROUP BY window(ts, '2 minutes'), page;"""
    lines = {site: as_lines(of_site) for site, of_site in records.items()}
    toml = 'repair_horizon = "1 minute"'
    queries = TWO_VIEWS + middles
    folder = write_project(tmp_path / "p", ["a", "b"], lines, queries=queries, toml=toml, connector=connector)
    for _ in range(5):  # a run that reads what is there ends, and what is left is done in the next one
        run_project(spark, folder)
        if not RoundNotes(folder / "state" / "center").is_busy:
            break
    words = [w["reason"] for w in read_windows(folder / "state", "middles").to_pylist() if w["status"] == FINAL]
    due = sum(DUE in reason for reason in words)
    assert due >= 4, "the last of five windows may not be final yet"
    assert sum(reason == DONE for reason in words) == due
    rows = read_results(folder / "state", "middles").to_pylist()
    assert sum(row["n"] for row in rows) == len(everything)
    for row in [row for row in rows if row["status"] == FINAL]:
        begin, end = (at.strftime("%Y-%m-%dT%H:%M") for at in (row["start"], row["start"] + timedelta(minutes=2)))
        mine = [r["bytes"] for r in everything if r["page"] == row["page"] and begin <= r["ts"] < end]
        assert (row["middle"], row["sizes"]) == (median(mine), len(set(mine)))
        assert row["bound"] == {"middle": 0.0, "sizes": 0.0, "n": 0.0}
    assert {path.name for path in (folder / "state" / "results").iterdir()} == {"middles", "numbers", "slowest"}

    monkeypatch.setattr(compacted_batches, "KEEP_NEWEST", 0)
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", 1)
    for history in (folder / "state" / "sites").glob("*/history/hits"):
        compactor = BatchCompactor(history, "ts")
        while compactor.compact_next():
            pass
        assert not list(history.glob("batch=*/*.parquet"))
        assert bool(list(history.glob("batches=*"))) == (connector == COPIED), "references are left as they are"
    submit_text(Project.load(folder), ANOTHER_VIEW.replace("users AS", "users WITH (start = 'all') AS"))
    run_project(spark, folder)
    users = read_results(folder / "state", "users").to_pylist()
    assert sum(row["n"] for row in users) == len(everything)


def _first_window(folder: Path) -> int:
    rows = read_results(folder / "state", "numbers").to_pylist()
    return sum(row["n"] for row in rows if row["start"].timestamp() == START.timestamp())
