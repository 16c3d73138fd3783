"""Queries that are submitted and dropped while sites and center run on real Spark, sockets and tables.

Catches: an effect on other queries' answers or revisions, a window of a new query that was seen only in part, a
fragment that outlives its last query. The oracle is plain arithmetic over the raw records.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.deploy.store import DeploymentStore
from catchment.errors import CatchmentError
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import share
from catchment.project.config import Project
from tests.worlds.projects import (
    ANOTHER_VIEW,
    START,
    TWO_VIEWS,
    as_lines,
    expected_numbers,
    group,
    make_records,
    write_project,
)
from tests.worlds.runs import Status, run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

SHARED = """CREATE MATERIALIZED VIEW mean_bytes AS
  SELECT window.start, sum(bytes) / count(*) AS mean FROM hits WHERE page = '/a' GROUP BY window(ts, '2 minutes');"""
COMPOSED = """CREATE MATERIALIZED VIEW busiest AS
  SELECT window.start, max(n) AS most FROM numbers GROUP BY window(start, '2 minutes');
CREATE MATERIALIZED VIEW growing AS
  SELECT window.start, window.end, count(*) AS n FROM hits GROUP BY cumulate(ts, '1 minute', '2 minutes');"""
PART_S, PARTS = 120, 5


def laid_out(folder: Path, sites: tuple[str, ...] = ("a", "b")) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """A project without records yet, and those that are to come."""
    made = write_project(folder, list(sites), {n: [] for n in sites}, queries=TWO_VIEWS)
    return made, {name: make_records(300, seed, PART_S * PARTS) for seed, name in enumerate(sites)}


class Script:
    """Feeds a run: two minutes of records, a step when their windows have closed, the next two minutes when every
    site has followed, and so on to the end."""

    def __init__(
        self, folder: Path, records: dict[str, list[dict[str, Any]]], steps: list[Callable[[], object]]
    ) -> None:
        self.folder, self.records, self.steps = folder, records, steps
        self.part = -1
        self.fed = False
        self.runner: Runner | None = None

    def follow(self, runner: Runner, status: Status) -> bool:
        """Take the next step if the run is ready for it; whether that was the last one."""
        self.runner = runner
        if not self.fed:
            if _settled(runner):
                self._feed()
            return False
        closed = status["center"]["queries"]["numbers"]["closed_us"]
        if closed is None or closed < int(START.timestamp() + self.part * PART_S + 60) * 1_000_000:
            return False
        if self.part + 1 == PARTS:
            return True
        if runner.watcher.deployment.deployed.is_handing_over:
            return False  # nothing else moves before every site has begun
        if self.part < len(self.steps):
            self.steps[self.part]()
        self.fed = False
        return False

    def _feed(self) -> None:
        self.part, self.fed = self.part + 1, True
        for site, records in self.records.items():
            mine = [r for r in records if self.part * PART_S <= _second(r) < (self.part + 1) * PART_S]
            whole = self.folder / f"{site}.part"
            whole.write_text("".join(line + "\n" for line in as_lines(mine)))
            whole.rename(self.folder / "data" / site / f"more{self.part}.json")


def _second(record: dict[str, Any]) -> float:
    return (datetime.fromisoformat(record["ts"]) - START).total_seconds()


def _settled(runner: Runner) -> bool:
    newest = runner.watcher.store.version == runner.watcher.followed
    return newest and all(s.plans is p.plans for p in runner.pipelines for s in p.states)


def run_with(spark: SparkSession, script: Script) -> Runner:
    run_project(spark, script.folder, once=False, until=script.follow)
    assert script.runner is not None
    return script.runner


@pytest.mark.spark
def test_a_move_with_windows_in_flight_loses_nothing_and_counts_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both queries go over to one wider fragment, and back to one each, while the newest window is open everywhere."""
    folder, by_site = laid_out(tmp_path / "p")
    state = folder / "state"

    def move(strength: Strength) -> Callable[[], object]:
        def moved(now: Deployed | None) -> Deployed:
            assert now is not None
            return now.move(share(now.sharing.queries.values(), strength, lambda demand: 1.0))

        return lambda: DeploymentStore(state).change(moved)

    runner = run_with(spark, Script(folder, by_site, [move(Strength.MAX), move(Strength.NONE)]))
    assert runner.center is not None
    deployed, queries = runner.deployment.deployed, runner.center.core.queries
    assert len(deployed.leaving) == 3, "two fragments of their own, then one for both, were left"
    sources = {name: [part.sources for part in query.sources.parts] for name, query in queries.items()}
    assert {name: len(found) for name, (found,) in sources.items()} == {"numbers": 3, "slowest": 3}
    records = [r for mine in by_site.values() for r in mine]
    rows = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in read_results(state, "numbers").to_pylist()}
    wanted = {place: (w["n"], w["bytes"]) for place, w in expected_numbers(records).items()}
    assert rows == {place: values for place, values in wanted.items() if place[0] <= max(start for start, _ in rows)}
    assert max(start for start, _ in rows) >= START + timedelta(minutes=8)
    highs = {r["start"]: r["high"] for r in read_results(state, "slowest").to_pylist()}
    by_start = {start: max(r["ms"] for r in rows) for (start, _), rows in group(records, 60, 60, None).items()}
    assert highs == {start: high for start, high in by_start.items() if start <= max(highs)}
    for view in ("numbers", "slowest"):
        assert {w["revision"] for w in read_windows(state, view).to_pylist()} == {1}


@pytest.mark.spark
def test_queries_come_and_go_during_a_run_and_no_other_notices(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.deploy.submit import drop, submit

    folder, by_site = laid_out(tmp_path / "p")
    project, state = Project.load(folder), folder / "state"
    for name, text in (("shared.sql", f"{SHARED}\n{COMPOSED}"), ("new.sql", ANOTHER_VIEW)):
        (folder / name).write_text(text)
    told: list[Any] = []
    steps: list[Callable[[], object]] = [
        lambda: told.append(submit(project, folder / "shared.sql")),
        lambda: told.append(submit(project, folder / "new.sql")),
        lambda: told.append(drop(project, "slowest")),
    ]
    runner = run_with(spark, Script(folder, by_site, steps))
    assert told[0]["queries"][0]["shared_with"] == ["numbers", "growing.slices"]
    assert told[1]["queries"][0]["query"] == "users"  # with a fragment of its own, or one that was widened for it
    records = [r for mine in by_site.values() for r in mine]

    rows = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in read_results(state, "numbers").to_pylist()}
    wanted_numbers = expected_numbers(records)
    wanted = {place: (w["n"], w["bytes"]) for place, w in wanted_numbers.items()}
    assert rows == {place: values for place, values in wanted.items() if place[0] <= max(start for start, _ in rows)}
    assert max(start for start, _ in rows) >= START + timedelta(minutes=8)
    assert {w["revision"] for w in read_windows(state, "numbers").to_pylist()} == {1}

    means = {r["start"]: r["mean"] for r in read_results(state, "mean_bytes").to_pylist()}
    groups = group([r for r in records if r["page"] == "/a"], 120, 120, None)
    by_start = {start: sum(r["bytes"] for r in rows) / len(rows) for (start, _), rows in groups.items()}
    assert min(means) == START + timedelta(minutes=2), "it came after the first window, in which it shares nothing"
    assert means == {start: by_start[start] for start in sorted(by_start)[1 : 1 + len(means)]}

    users = {(r["start"], r["user"]): r["n"] for r in read_results(state, "users").to_pylist()}
    counted = {place: len(rows) for place, rows in group(records, 60, 60, "user").items()}
    first, last = START + timedelta(minutes=4), max(start for start, _ in users)
    assert last > first
    assert users == {place: n for place, n in counted.items() if first <= place[0] <= last}

    peaks = {r["start"]: r["most"] for r in read_results(state, "busiest").to_pylist()}
    for start, most in peaks.items():
        inside = [w["n"] for (at, _), w in wanted_numbers.items() if start <= at < start + timedelta(minutes=2)]
        assert most == max(inside)
    assert START + timedelta(minutes=4) in peaks
    grown = read_results(state, "growing").to_pylist()
    instants = [datetime.fromisoformat(r["ts"]) for r in records]
    assert all(r["n"] == sum(r["start"] <= at < r["end"] for at in instants) for r in grown)

    gone = {r["start"]: r["high"] for r in read_results(state, "slowest").to_pylist()}
    highs = {start: max(r["ms"] for r in rows) for (start, _), rows in group(records, 60, 60, None).items()}
    assert set(gone) == {s for s in highs if s < START + timedelta(minutes=5)}, "it ended during the run"
    assert gone.items() <= highs.items()

    for pipeline in runner.pipelines:
        wanted_here = {plan.fragment.name for plan in runner.deployment.fragments_at(pipeline.site)}
        assert set(pipeline.core.fragments) == wanted_here
        assert not wanted_here & set(told[2]["ended_fragments"])


BAD = {
    "an unknown stream": ("SELECT window.start, count(*) AS n FROM nowhere GROUP BY window(ts, '1 minute')", "nowhere"),
    "a column that exists nowhere": (
        "SELECT window.start, sum(weight) AS n FROM hits GROUP BY window(ts, '1 minute')",
        "weight",
    ),
    "a cyclic view": ("SELECT window.start, count(*) AS n FROM v GROUP BY window(ts, '1 minute')", "reads itself"),
}


@pytest.mark.parametrize("case", BAD)
def test_nothing_is_deployed_of_a_file_with_a_mistake(tmp_path: Path, case: str) -> None:
    from catchment.deploy.submit import submit

    folder, _ = laid_out(tmp_path / "p")
    select, message = BAD[case]
    (folder / "bad.sql").write_text(f"{ANOTHER_VIEW}\nCREATE MATERIALIZED VIEW v AS {select};")
    with pytest.raises(CatchmentError, match=message):
        submit(Project.load(folder), folder / "bad.sql")
    assert DeploymentStore(folder / "state").read() is None


def test_a_taken_name_and_a_stream_are_refused_and_a_dropped_name_can_be_used_again(tmp_path: Path) -> None:
    from catchment.deploy.submit import drop, submit

    folder, _ = laid_out(tmp_path / "p")
    project = Project.load(folder)
    (folder / "new.sql").write_text(ANOTHER_VIEW)
    submit(project, folder / "new.sql")
    with pytest.raises(CatchmentError, match="'users' is already taken by a view"):
        submit(project, folder / "new.sql")
    drop(project, "users")
    with pytest.raises(CatchmentError, match="there is no query 'users'"):
        drop(project, "users")
    again = submit(project, folder / "new.sql")
    assert [q["query"] for q in again["queries"]] == ["users@2"]
    (folder / "stream.sql").write_text(
        "CREATE STREAM others (ts TIMESTAMP) WITH (event_time = 'ts', connector = 'generator', rows_per_s = 1);"
    )
    with pytest.raises(CatchmentError, match="only CREATE MATERIALIZED VIEW can be submitted"):
        submit(project, folder / "stream.sql")


def test_a_contract_that_a_link_cannot_carry_is_refused(tmp_path: Path) -> None:
    from catchment.deploy.submit import submit

    folder, _ = laid_out(tmp_path / "p")
    (folder / "statistics.toml").write_text(
        "[streams.hits]\nrows_per_s = 50_000_000\nrow_bytes = 60\n[streams.hits.distinct]\nuser = 10_000_000\n"
    )
    contract = ANOTHER_VIEW.replace("users AS", "users WITH (max_error = 0.05) AS").replace("1 minute", "1 second")
    (folder / "new.sql").write_text(contract)
    with pytest.raises(CatchmentError, match="'users' cannot meet its contract: the link a -> center"):
        submit(Project.load(folder), folder / "new.sql")


def test_what_was_submitted_and_dropped_is_known_after_a_restart(tmp_path: Path) -> None:
    from catchment.deploy.deployment import Deployment
    from catchment.deploy.submit import drop, submit

    folder, _ = laid_out(tmp_path / "p")
    project = Project.load(folder)
    (folder / "new.sql").write_text(ANOTHER_VIEW)
    submit(project, folder / "new.sql")
    drop(project, "slowest")
    again = Deployment.load(folder)
    assert [p.name for p in again.plans] == ["numbers", "users"]
    assert again.deployed == DeploymentStore(folder / "state").read()
    assert {q.name for q in again.center_queries} == {"numbers", "users"}
