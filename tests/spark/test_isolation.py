"""No view stops another, on Spark: an expression that fails suspends its own fragment and nothing else.

Catches: a batch that fails for all views, or is applied in part; a failure whose record or expression is named wrongly;
outages that are taken for bad records. Cannot catch: what windows and sites say of it, in any order and with crashes;
`tests/center/test_suspension.py` does.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.deploy.repairing.suspended import resume
from catchment.project.config import Project
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
CREATE MATERIALIZED VIEW lenient WITH (on_error = 'quarantine', max_errors = 1) AS
  SELECT window.start, sum(CAST(tag AS INT)) AS tags FROM hits GROUP BY window(ts, '1 minute');
CREATE MATERIALIZED VIEW strict WITH (on_error = 'quarantine', max_errors = 0) AS
  SELECT window.start, sum(CAST(tag AS INT)) AS tags FROM hits GROUP BY window(ts, '1 minute');
CREATE MATERIALIZED VIEW ratio AS
  SELECT window.start, page, count(*) AS n, sum(bytes) / (count(*) - 1) AS ratio FROM hits
  GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW lenient_ratio WITH (on_error = 'quarantine') AS
  SELECT window.start, page, count(*) AS n, sum(bytes) / (count(*) - 1) AS ratio FROM hits
  GROUP BY window(ts, '1 minute'), page;
"""
HEALTHY = ("numbers", "users")


def tagged_lines(step: int, site: str) -> list[str]:
    """Records of ten minutes for each step, so that no window is of two; the second step has one bad one at site a."""
    made = make_records(60, seed=10 * step + ord(site))
    records = [{**r, "tag": str(i), "ts": r["ts"].replace("T00:", f"T0{step}:")} for i, r in enumerate(made)]
    if step == 1 and site == "a":
        records[40] |= {"tag": "x", "ms": 7.5}
    return [json.dumps(r) for r in records]


def write_step(folder: Path, step: int) -> None:
    for site in ("a", "b"):
        where = folder / "data" / site
        where.mkdir(parents=True, exist_ok=True)
        (where / f"step{step}.json").write_text("".join(f"{line}\n" for line in tagged_lines(step, site)))


def published(folder: Path, view: str) -> list[dict[str, Any]]:
    """Every revision of a view and every word on its windows, but for when they were published."""
    rows = read_results(folder / "state", view, revisions="all").drop_columns(["published_at"]).to_pylist()
    windows = read_windows(folder / "state", view).drop_columns(["published_at", "entry", "step"]).to_pylist()
    return sorted([*rows, *windows], key=repr)


@pytest.mark.parametrize("history", ["'copy'", "'reference'"])
def test_a_poison_expression_changes_no_revision_of_the_views_beside_it(
    spark: SparkSession, tmp_path: Path, history: str
) -> None:
    """Good records are read, then a bad one among good ones, then, after the views were resumed, good ones again."""
    connector = f"connector = 'files', path = 'data/{{site}}', history = {history}"
    queries = STREAM + POISON
    toml = 'sharing = "strict"'
    folder = write_project(tmp_path / "with", ("a", "b"), {}, queries=queries, toml=toml, connector=connector)
    for step in range(2):
        write_step(folder, step)
        status = run_project(spark, folder)
    check_suspension(status)
    check_quarantine(folder, status)
    check_finishing(folder)
    assert [r["site"] for r in resume(Project.load(folder), "tagged")["resumed"]] == ["a"]
    assert resume(Project.load(folder), "ratio")["resumed"][0]["reason"].startswith("[DIVIDE_BY_ZERO]")
    write_step(folder, 2)
    run_project(spark, folder)
    newest = {w["window_start"]: w for w in read_windows(folder / "state", "tagged").to_pylist()}
    said = {
        at.hour: {(w["status"], *w["missing_sites"]) for t, w in newest.items() if t.hour == at.hour} for at in newest
    }
    assert said == {0: {("final",)}, 1: {("suspended", "a")}, 2: {("exact",)}}
    finished = {
        (r["start"], r["page"]): (r["n"], r["ratio"]) for r in read_results(folder / "state", "ratio").to_pylist()
    }
    published_before = {place: ratio for place, ratio in expected_ratios(folder).items() if place[0].hour < 2}
    assert finished.items() >= {p: r for p, r in published_before.items() if r[0] != 1}.items()

    healthy = write_project(tmp_path / "without", ("a", "b"), {}, queries=STREAM, toml='sharing = "strict"')
    for step in range(3):
        write_step(healthy, step)
    run_project(spark, healthy)
    for view in HEALTHY:
        assert published(folder, view) == published(healthy, view), view


def check_suspension(status: Any) -> None:
    """The site and the center name the record, the expression and the reason, and count what was skipped."""
    suspended_fragments = [f for f in status["sites"]["a"]["fragments"].values() if f["suspended"]]
    (fragment,) = (f for f in suspended_fragments if "max_errors" not in f["suspended"]["reason"])
    suspended = fragment["suspended"]
    assert suspended["batch"] == 1
    assert "[CAST_INVALID_INPUT] The value 'x'" in suspended["reason"]
    assert "CAST" in suspended["expression"]
    assert "tag" in suspended["expression"]
    assert "step1.json" in suspended["record"]
    assert '"tag": "x"' in suspended["record"]
    lines = [json.loads(line) for line in tagged_lines(1, "a")]
    assert fragment["skipped_records"] == sum(line["ms"] > 1 for line in lines), "the whole batch, by its condition"
    queries = status["center"]["queries"]
    assert queries["tagged"]["suspended"]["a"]["reason"] == suspended["reason"]
    assert not queries["numbers"]["suspended"]


def check_quarantine(folder: Path, status: Any) -> None:
    """The bad record is set aside as it came, and the view goes on without it; up to its budget."""
    assert not status["center"]["queries"]["lenient"]["suspended"]
    reason = status["center"]["queries"]["strict"]["suspended"]["a"]["reason"]
    assert reason == "an expression fails on more than max_errors = 0 records of a window"
    sums: dict[datetime, int] = {}
    for path in sorted(folder.glob("data/*/step*.json")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            minute = datetime.fromisoformat(record["ts"]).replace(second=0, microsecond=0)
            sums[minute] = sums.get(minute, 0) + (0 if record["tag"] == "x" else int(record["tag"]))
    rows = read_results(folder / "state", "lenient").to_pylist()
    assert {r["start"]: r["tags"] for r in rows} == sums
    (kept,) = (folder / "state" / "sites" / "a" / "quarantine" / "hits").glob("fragment=*/batch=1/*.parquet")
    (record,) = pq.read_table(kept, columns=["_raw", "_problem"]).to_pylist()
    assert record["_raw"] == next(line for line in tagged_lines(1, "a") if '"tag": "x"' in line)
    assert "fails on it" in record["_problem"]


def check_finishing(folder: Path) -> None:
    """A view whose last step divides by zero shows nothing of its windows; one that may publish nulls shows those."""
    assert set(read_windows(folder / "state", "ratio")["status"].to_pylist()) == {"suspended"}
    assert not read_results(folder / "state", "ratio").num_rows
    rows = read_results(folder / "state", "lenient_ratio").to_pylist()
    assert {(r["start"], r["page"]): (r["n"], r["ratio"]) for r in rows} == expected_ratios(folder)


def expected_ratios(folder: Path) -> dict[tuple[datetime, str], tuple[int, Any]]:
    """The answer by hand: null where a group has one record, because its columns then divide by zero."""
    groups: dict[tuple[datetime, str], list[int]] = {}
    for path in sorted(folder.glob("data/*/step*.json")):
        for record in map(json.loads, path.read_text().splitlines()):
            minute = datetime.fromisoformat(record["ts"]).replace(second=0, microsecond=0)
            groups.setdefault((minute, record["page"]), []).append(record["bytes"])
    return {
        place: (len(sizes), pytest.approx(sum(sizes) / (len(sizes) - 1)) if len(sizes) > 1 else None)
        for place, sizes in groups.items()
    }
