"""Queries that are submitted and dropped while sites and center run on real Spark, sockets and tables.

Catches: an effect on other queries' answers or revisions, a window of a new query that was seen only in part, a
fragment that outlives its last query. The oracle is plain arithmetic over the raw records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from projects import as_lines, expected_numbers, group, make_records, write_project

from catchment.center.results import read_results, read_windows
from catchment.config import Project
from catchment.durable.deployments import DeploymentStore
from catchment.errors import CatchmentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE TABLE pages (page STRING, section STRING) WITH (connector = 'files', path = 'pages.csv');
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW slowest AS
  SELECT window.start, max(ms) AS high FROM hits GROUP BY window(ts, '1 minute');
"""
SHARED = """CREATE MATERIALIZED VIEW mean_bytes AS
  SELECT window.start, sum(bytes) / count(*) AS mean FROM hits WHERE page = '/a' GROUP BY window(ts, '2 minutes');"""
NEW = """CREATE MATERIALIZED VIEW users AS
  SELECT window.start, user, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), user;"""
REPLAY = "connector = 'replay', path = 'data/{site}.jsonl', format = 'json', speed = 40"


def replayed(folder: Path, sites: tuple[str, ...] = ("a", "b")) -> tuple[Path, list[dict[str, Any]]]:
    lines = {name: make_records(300, seed) for seed, name in enumerate(sites)}
    made = write_project(folder, list(sites), {n: as_lines(r) for n, r in lines.items()}, connector=REPLAY,
                         queries=QUERIES)  # fmt: skip
    return made, [r for records in lines.values() for r in records]


def run_with(spark: SparkSession, folder: Path, steps: list[Callable[[], object]]) -> Any:
    """Run to the end; take the next step whenever two more windows of `numbers` have closed."""
    from catchment.spark.deploy import Deployment
    from catchment.spark.run import Runner

    deployment = Deployment.load(folder)
    runner = Runner(deployment, spark, deployment.sites, True)
    closed: list[int] = []

    def report(status: Mapping[str, Any]) -> None:
        now = status["center"]["queries"]["numbers"]["closed_us"]
        if now is not None and (not closed or now > closed[-1]):
            closed.append(now)
            if len(closed) >= 2 and steps:
                steps.pop(0)()

    try:
        runner.start()
        runner.run(report, seconds=150)
        assert runner.finished, runner.status()
        assert not steps
        return runner
    finally:
        runner.close()


@pytest.mark.spark
def test_queries_come_and_go_during_a_run_and_no_other_notices(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.submit import drop, submit

    folder, records = replayed(tmp_path / "p")
    project, state = Project.load(folder), folder / "state"
    for name, text in (("shared.sql", SHARED), ("new.sql", NEW)):
        (folder / name).write_text(text)
    told: list[Any] = []
    steps: list[Callable[[], object]] = [
        lambda: told.append(submit(project, folder / "shared.sql")),
        lambda: told.append(submit(project, folder / "new.sql")),
        lambda: told.append(drop(project, "slowest")),
    ]
    runner = run_with(spark, folder, steps)
    assert told[0]["queries"][0]["shared_with"] == ["numbers"]
    assert told[1]["queries"][0]["new_fragment"]
    assert len(told[2]["ended_fragments"]) == 1

    rows = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in read_results(state, "numbers").to_pylist()}
    assert rows == {place: (w["n"], w["bytes"]) for place, w in expected_numbers(records).items()}
    assert {w["revision"] for w in read_windows(state, "numbers").to_pylist()} == {1}

    means = {r["start"]: r["mean"] for r in read_results(state, "mean_bytes").to_pylist()}
    groups = group([r for r in records if r["page"] == "/a"], 120, 120, None)
    wanted = {start: sum(r["bytes"] for r in rows) / len(rows) for (start, _), rows in groups.items()}
    assert 0 < len(means) < len(wanted), "it began during the run"
    assert means == {start: wanted[start] for start in wanted if start >= min(means)}

    users = {(r["start"], r["user"]): r["n"] for r in read_results(state, "users").to_pylist()}
    counted = {place: len(rows) for place, rows in group(records, 60, 60, "user").items()}
    assert users
    assert users == {place: n for place, n in counted.items() if place[0] >= min(start for start, _ in users)}

    gone = {r["start"]: r["high"] for r in read_results(state, "slowest").to_pylist()}
    highs = {start: max(r["ms"] for r in rows) for (start, _), rows in group(records, 60, 60, None).items()}
    assert 0 < len(gone) < len(highs), "it ended during the run"
    assert gone.items() <= highs.items()

    ended = told[2]["ended_fragments"][0]
    for pipeline in runner.pipelines:
        assert ended not in pipeline.core.fragments
        assert set(pipeline.core.fragments) == {told[0]["queries"][0]["fragment"], told[1]["queries"][0]["fragment"]}


BAD = {
    "an unknown stream": ("SELECT window.start, count(*) AS n FROM nowhere GROUP BY window(ts, '1 minute')", "nowhere"),
    "a column that exists nowhere": ("SELECT window.start, sum(weight) AS n FROM hits GROUP BY window(ts, '1 minute')",
                                     "weight"),
    "a cyclic view": ("SELECT window.start, count(*) AS n FROM v GROUP BY window(ts, '1 minute')", "reads itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_nothing_is_deployed_of_a_file_with_a_mistake(tmp_path: Path, case: str) -> None:
    from catchment.spark.submit import submit

    folder, _ = replayed(tmp_path / "p")
    select, message = BAD[case]
    (folder / "bad.sql").write_text(f"{NEW}\nCREATE MATERIALIZED VIEW v AS {select};")
    with pytest.raises(CatchmentError, match=message):
        submit(Project.load(folder), folder / "bad.sql")
    assert DeploymentStore(folder / "state").read() is None


def test_a_taken_name_a_dropped_name_and_a_stream_are_refused(tmp_path: Path) -> None:
    from catchment.spark.submit import drop, submit

    folder, _ = replayed(tmp_path / "p")
    project = Project.load(folder)
    (folder / "new.sql").write_text(NEW)
    submit(project, folder / "new.sql")
    with pytest.raises(CatchmentError, match="'users' is already taken by a view"):
        submit(project, folder / "new.sql")
    drop(project, "users")
    with pytest.raises(CatchmentError, match="'users' was dropped, and its answers are kept"):
        submit(project, folder / "new.sql")
    with pytest.raises(CatchmentError, match="there is no query 'users'"):
        drop(project, "users")
    (folder / "stream.sql").write_text(
        "CREATE STREAM others (ts TIMESTAMP) WITH (event_time = 'ts', connector = 'generator', rows_per_s = 1);"
    )
    with pytest.raises(CatchmentError, match="only CREATE MATERIALIZED VIEW can be submitted"):
        submit(project, folder / "stream.sql")


def test_a_contract_that_a_link_cannot_carry_is_refused(tmp_path: Path) -> None:
    from catchment.spark.submit import submit

    folder, _ = replayed(tmp_path / "p")
    (folder / "statistics.toml").write_text(
        "[streams.hits]\nrows_per_s = 50_000_000\nrow_bytes = 60\n[streams.hits.distinct]\nuser = 10_000_000\n"
    )
    contract = NEW.replace("users AS", "users WITH (max_error = 0.05) AS").replace("1 minute", "1 second")
    (folder / "new.sql").write_text(contract)
    with pytest.raises(CatchmentError, match="'users' cannot meet its contract: the link a -> center"):
        submit(Project.load(folder), folder / "new.sql")


def test_what_was_submitted_and_dropped_is_known_after_a_restart(tmp_path: Path) -> None:
    from catchment.spark.deploy import Deployment
    from catchment.spark.submit import drop, submit

    folder, _ = replayed(tmp_path / "p")
    project = Project.load(folder)
    (folder / "new.sql").write_text(NEW)
    submit(project, folder / "new.sql")
    drop(project, "slowest")
    again = Deployment.load(folder)
    assert [p.name for p in again.plans] == ["numbers", "users"]
    assert again.deployed == DeploymentStore(folder / "state").read()
    assert {q.name for q in again.center_queries} == {"numbers", "users"}
