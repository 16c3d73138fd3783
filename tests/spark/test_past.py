"""The past on Spark: a view over a column that was added to its stream, and final windows that are computed again."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.deploy.repair_windows import repair_windows
from catchment.deploy.submit import submit_text
from catchment.project.config import Project
from tests.worlds.projects import START, TWO_VIEWS, as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_COUNTRY = """CREATE MATERIALIZED VIEW countries WITH (start = 'all') AS
  SELECT window.start, country, count(*) AS n FROM hits GROUP BY window(ts, '10 minutes'), country;"""


@pytest.mark.spark
def test_a_column_that_is_added_is_null_in_the_past(spark: SparkSession, tmp_path: Path) -> None:
    old = make_records(60, 1, spread_s=300)
    new = [{**r, "country": "nl"} for r in make_records(100, 2) if r["ts"] > old[-1]["ts"]]
    folder = write_project(tmp_path / "p", ["a"], {"a": as_lines(old)}, queries=TWO_VIEWS)
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
def test_a_final_window_is_computed_again_from_history_with_what_came_too_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, late = make_records(200, 1), make_records(15, 2, spread_s=50)
    lines = {site: as_lines(first) for site in ("a", "b")}
    toml = 'repair_horizon = "1 minute"'
    folder = write_project(tmp_path / "p", ["a", "b"], lines, queries=TWO_VIEWS, toml=toml)
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


def _first_window(folder: Path) -> int:
    rows = read_results(folder / "state", "numbers").to_pylist()
    return sum(row["n"] for row in rows if row["start"].timestamp() == START.timestamp())
