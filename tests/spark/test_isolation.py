"""No view stops another, on Spark: an expression that fails suspends its own fragment and nothing else.

Catches: a batch that fails for all views, or is applied in part; a failure whose record or expression is named wrongly;
outages that are taken for bad records. Cannot catch: what windows and sites say of it, in any order and with crashes;
`tests/center/test_suspension.py` does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results, read_windows
from tests.worlds.projects import make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STREAM = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT, tag STRING)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW users AS
  SELECT window.start, user, max(ms) AS high FROM hits GROUP BY window(ts, '2 minutes'), user;
"""
POISON = """
CREATE MATERIALIZED VIEW tagged AS
  SELECT window.start, user + 1 AS next, sum(CAST(tag AS INT)) AS tags FROM hits WHERE ms > 1
  GROUP BY window(ts, '1 minute'), user + 1;
"""
HEALTHY = ("numbers", "users")


def tagged_lines(step: int, site: str) -> list[str]:
    """Records of ten minutes for each step, so that no window is of two; the second step has one bad one at site a."""
    made = make_records(60, seed=10 * step + ord(site))
    records = [{**r, "tag": str(i), "ts": r["ts"].replace("T00:", f"T0{step}:")} for i, r in enumerate(made)]
    if step == 1 and site == "a":
        records[40] |= {"tag": "x", "ms": 7.5}
    return [json.dumps(r) for r in records]


def run_in_three_steps(spark: SparkSession, folder: Path, queries: str) -> list[Any]:
    """A project that reads good records, then a bad one among good ones, then good ones; the status after each."""
    write_project(folder, ("a", "b"), {}, queries=queries, toml='sharing = "strict"')
    statuses = []
    for step in range(3):
        for site in ("a", "b"):
            where = folder / "data" / site
            where.mkdir(parents=True, exist_ok=True)
            (where / f"step{step}.json").write_text("".join(f"{line}\n" for line in tagged_lines(step, site)))
        statuses.append(run_project(spark, folder))
    return statuses


def published(folder: Path, view: str) -> list[dict[str, Any]]:
    """Every revision of a view and every word on its windows, but for when they were published."""
    rows = read_results(folder / "state", view, revisions="all").drop_columns(["published_at"]).to_pylist()
    windows = read_windows(folder / "state", view).drop_columns(["published_at", "entry", "step"]).to_pylist()
    return sorted([*rows, *windows], key=repr)


def test_a_poison_expression_changes_no_revision_of_the_views_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    statuses = run_in_three_steps(spark, tmp_path / "with", STREAM + POISON)
    run_in_three_steps(spark, tmp_path / "without", STREAM)
    for view in HEALTHY:
        assert published(tmp_path / "with", view) == published(tmp_path / "without", view), view
    (fragment,) = (f for f in statuses[2]["sites"]["a"]["fragments"].values() if f["suspended"])
    suspended = fragment["suspended"]
    assert suspended["batch"] == 1
    assert "[CAST_INVALID_INPUT] The value 'x'" in suspended["reason"]
    assert "CAST" in suspended["expression"]
    assert "tag" in suspended["expression"]
    assert "step1.json" in suspended["record"]
    assert '"tag": "x"' in suspended["record"]
    lines = [json.loads(line) for step in (1, 2) for line in tagged_lines(step, "a")]
    assert fragment["skipped_records"] == sum(line["ms"] > 1 for line in lines), "all of two batches, by its condition"
    queries = statuses[2]["center"]["queries"]
    assert queries["tagged"]["suspended"]["a"]["reason"] == suspended["reason"]
    assert not queries["numbers"]["suspended"]
    newest = {w["window_start"]: w for w in read_windows(tmp_path / "with" / "state", "tagged").to_pylist()}
    said = {
        start.hour: {(w["status"], *w["missing_sites"]) for at, w in newest.items() if at.hour == start.hour}
        for start in newest
    }
    assert said == {0: {("final",)}, 1: {("suspended", "a")}, 2: {("suspended", "a")}}
