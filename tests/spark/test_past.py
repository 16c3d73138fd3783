"""A view over a column that was added to its stream, from the beginning on: history has null there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.center.results.read import read_results
from catchment.deploy.submit import submit_text
from catchment.project.config import Project
from tests.worlds.projects import TWO_VIEWS, as_lines, make_records, write_project
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
