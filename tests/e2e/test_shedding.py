"""Shedding on real Spark: sampled windows are within their bounds, and repaired ones equal the recomputation.

Catches: a sampler that differs between the batch and its repair, answers scaled wrongly, history that lacks what was
shed. Cannot catch: wrong decisions about when to shed; `test_overload.py` does that without Spark.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.errors import CenterError
from tests.worlds.runs import Status, run_project
from tests.worlds.shed_project import (
    ForcedMonitor,
    expected,
    expected_parts,
    kept_records,
    make_hits,
    write_shed_project,
)
from tests.worlds.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner


FILES = 10
Answers = dict[tuple[Any, str | None], dict[str, float]]


def run(spark: SparkSession, folder: Path, rows: int | None = None) -> Status:
    """Run to the end; or until so many rows were read and nothing is left to repair."""

    def is_repaired(runner: Runner, status: Status) -> bool:
        read = sum(s["rows"] for s in status["sites"].values())
        busy = any(p.repairs.next_repair() or p.outbox.pending() for p in runner.pipelines)
        return rows is not None and read >= rows and not busy and runner.center is not None and runner.center.consumed

    return run_project(spark, folder, once=False, until=is_repaired, make_monitor=ForcedMonitor)


def check_exact(state: Path, query: str, truth: Answers, columns: Sequence[str]) -> None:
    rows = read_results(state, query).to_pylist()
    assert {(r["start"], r.get("page")) for r in rows} == set(truth)
    for row in rows:
        for column in columns:
            wanted = truth[row["start"], row.get("page")][column]
            assert row[column] == (pytest.approx(wanted, rel=1e-12) if column == "mean" else wanted)
            assert row["bound"][column] == 0.0
    last = {w["window_start"]: w for w in read_windows(state, query).to_pylist()}
    assert {w["status"] for w in last.values()} == {"final"}
    assert all(w["coverage"] == 1.0 for w in last.values())


def check_bounds(rows: list[dict[str, Any]], truth: Answers, columns: Sequence[str]) -> int:
    """Few sampled answers miss their bounds; how many there were."""
    stated = missed = 0
    for row in rows:
        for column in columns:
            bound = row["bound"][column]
            if row["status"] == "on_time" and bound:
                wanted = truth[row["start"], row.get("page")][column]
                stated += 1
                missed += abs(row[column] - wanted) > bound * abs(wanted)
    assert missed <= 0.05 * stated + 1
    return stated


def check_shed_run(folder: Path, everything: list[dict[str, Any]]) -> None:
    state = folder / "state"
    truth = {"pages": expected(everything, 10, 10, True), "totals": expected(everything, 20, 10, False)}
    truth["parts"] = expected_parts(everything)
    columns = {"pages": ("n", "bytes", "mean"), "totals": ("n", "bytes"), "parts": ("n", "bytes", "mean")}
    for query in truth:
        first = [r for r in read_results(state, query, revisions="all").to_pylist() if r["revision"] == 1]
        assert check_bounds(first, truth[query], columns[query]) > 5
        assert any(r["coverage"] < 0.9 for r in first)
        check_exact(state, query, truth[query], columns[query])
    assert {w["status"] for w in read_windows(state, "users").to_pylist()} <= {"exact", "final"}
    for query, size in (("asked", 10), ("lost", 15)):
        answers = read_results(state, query).to_pylist()
        assert any(r["status"] == "on_time" for r in answers)
        assert check_bounds(answers, expected(everything, size, size, False, only=True), ("n",)) > 1


def check_idle_files(folder: Path, everything: list[dict[str, Any]]) -> None:
    """A folder has no end, so that its last windows stay open; those before are repaired while nothing comes."""
    truth, columns = expected(everything, 20, 10, False), ("n", "bytes")
    exact = [r for r in read_results(folder / "state", "totals").to_pylist() if r["status"] == "exact"]
    assert len(exact) > 1
    assert all([r[c] for c in columns] == [truth[r["start"], None][c] for c in columns] for r in exact)
    ever = read_results(folder / "state", "totals", revisions="all").to_pylist()
    assert any(r["status"] == "on_time" and r["bound"]["n"] for r in ever)


@pytest.mark.spark
@pytest.mark.parametrize("connector", ["replay", "files", "typed"])
def test_what_was_shed_is_bounded_at_once_and_exact_in_the_end(
    spark: SparkSession, tmp_path: Path, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.deploy.repairing.repairs import ask_for_repair
    from catchment.spark.pipelines import reading
    from catchment.spark.sources import streams as sources

    monkeypatch.setattr(reading, "MAX_FILES_PER_BATCH", 1)
    monkeypatch.setattr(sources, "MAX_REPLAYED_ROWS_PER_BATCH", 500)
    hits = {"a": make_hits(3000, 1), "b": make_hits(2000, 2)}
    folder = write_shed_project(tmp_path / "p", connector, hits)
    everything = [*hits["a"], *hits["b"]]
    status = run(spark, folder, len(everything) if connector == "files" else None)
    assert sum(s["rows"] for s in status["sites"].values()) == len(everything)
    if connector == "files":
        check_idle_files(folder, everything)
        return
    check_shed_run(folder, everything)
    assert kept_records(folder) == len(everything)
    assert {s["shedding"]["hits"]["owed_batches"] > 0 for s in status["sites"].values()} == {True}
    ask_for_repair(folder, "asked")
    run(spark, folder, 0)
    check_exact(folder / "state", "asked", expected(everything, 10, 10, False, only=True), ("n",))
    assert "on_time" in {w["status"] for w in read_windows(folder / "state", "lost").to_pylist()}


@pytest.mark.spark
def test_what_was_shed_of_a_file_that_is_removed_before_its_repair_is_given_up_and_never_called_exact(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is renamed, which is found out, and one is removed."""
    from catchment.spark.pipelines import reading

    monkeypatch.setattr(reading, "MAX_FILES_PER_BATCH", 1)
    hits = {"a": make_hits(3000, 1), "b": make_hits(2000, 2)}
    everything = [*hits["a"], *hits["b"]]
    folder = write_shed_project(tmp_path / "p", "files", hits)
    data = folder / "data" / "a"
    lost = [json.loads(line) for line in (data / "3.json").read_text().splitlines()]
    seen: list[int] = []

    def is_over(runner: Runner, status: Status) -> bool:
        (a,) = (p for p in runner.pipelines if p.site == "a")
        if any(p.core.files.of("hits").read < 6 for p in runner.pipelines):
            return False
        if not seen:
            owed = a.core.debts.of("hits")
            seen.append(len(owed))
            assert not any(debt.is_in_history for debt in owed), "history waits for the repair"
            (data / "3.json").unlink()
            (data / "2.json").rename(data / "renamed.json")
        center = runner.center
        busy = any(p.repairs.next_repair() or p.outbox.pending() for p in runner.pipelines)
        return not busy and center is not None and center.consumed

    run_project(spark, folder, once=False, until=is_over, make_monitor=ForcedMonitor)
    assert seen[0] > 3
    truth = expected(everything, 20, 10, False)
    hurt = set(expected(lost, 20, 10, False))
    rows = {(r["start"], None): r for r in read_results(folder / "state", "totals").to_pylist()}
    for place, row in rows.items():
        assert row["status"] != "exact" or place not in hurt, place
        assert row["status"] != "exact" or (row["n"], row["bytes"]) == (truth[place]["n"], truth[place]["bytes"])
    assert any(row["status"] == "exact" for row in rows.values())
    assert hurt & rows.keys()
    assert kept_records(folder) == len(everything) - len(lost)


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.parametrize("connector", ["replay", "files"])
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_a_process_that_is_killed_while_it_sheds_ends_with_the_answers_of_the_oracle(
    tmp_path: Path, kills: int, connector: str
) -> None:
    """kill -9 at random moments: within batches that are sampled, and within repairs."""
    hits = {"a": make_hits(3000, 3), "b": make_hits(2000, 4)}
    folder, chance = write_shed_project(tmp_path / "p", connector, hits, files=FILES), random.Random(5)
    command = [sys.executable, "-m", "tests.worlds.shed_process", str(folder)]
    command += [str(FILES)] if connector == "files" else []
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_windows(folder, process)
        time.sleep(chance.uniform(0.2, 2.0))
        process.kill()
        process.wait()
    last = subprocess.run(command, check=True, timeout=PATIENCE_S, capture_output=True, text=True)
    assert "leaked" not in last.stderr, "no sketch outlives the interpreter"
    everything = [*hits["a"], *hits["b"]]
    assert kept_records(folder) == len(everything)
    if connector == "files":
        check_idle_files(folder, everything)
        return
    check_exact(folder / "state", "pages", expected(everything, 10, 10, True), ("n", "bytes", "mean"))
    check_exact(folder / "state", "totals", expected(everything, 20, 10, False), ("n", "bytes"))
    published = read_results(folder / "state", "pages", revisions="all").to_pylist()
    assert any(r["status"] == "on_time" for r in published)


def wait_for_windows(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the process has published something more, or is over."""
    before = published_windows(folder)
    wait_until(
        lambda: published_windows(folder) != before or process.poll() is not None,
        "the process to publish more windows",
        state=lambda: published_windows(folder),
    )


def published_windows(folder: Path) -> int:
    try:
        return int(read_windows(folder / "state", "pages").num_rows)
    except CenterError:
        return 0
