"""The whole spine on real Spark, real sockets and real tables, against answers computed by hand from the raw records.

Catches: anything that the pipelines, the wire or the tables lose, double or miscompute. Cannot catch: what only the
death of a process brings about; `test_kill.py` does that.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.errors import ConfigError
from tests.worlds.answers import check_answers, check_final, check_numbers
from tests.worlds.projects import as_lines, expected_numbers, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("sites", [1, 3, 8])
def test_answers_equal_a_recomputation_from_the_raw_records(spark: SparkSession, tmp_path: Path, sites: int) -> None:
    names = [f"s{i}" for i in range(sites)]
    lines = {name: make_records(400, seed) for seed, name in enumerate(names)}
    folder = write_project(tmp_path / "p", names, {n: as_lines(r) for n, r in lines.items()})
    status = run_project(spark, folder, faults=sites > 1)
    everything = [r for records in lines.values() for r in records]
    check_answers(folder / "state", everything)
    assert sum(s["rows"] for s in status["sites"].values()) == len(everything)
    log = read_windows(folder / "state", "numbers").to_pylist()
    assert {w["status"] for w in log} <= {"exact", "final"}
    assert all(w["coverage"] == 1.0 and not w["missing_sites"] for w in log)


def test_files_that_come_late_revise_the_windows_they_touch(spark: SparkSession, tmp_path: Path) -> None:
    first, late = make_records(300, 1), make_records(20, 2, spread_s=100)
    folder = write_project(tmp_path / "p", ["a", "b"], {"a": as_lines(first), "b": as_lines(make_records(50, 3))})
    run_project(spark, folder)
    before = {(r["start"], r["page"]): r["revision"] for r in read_results(folder / "state", "numbers").to_pylist()}
    (folder / "data" / "a" / "late.json").write_text("\n".join(as_lines(late)))
    run_project(spark, folder)
    check_answers(folder / "state", [*first, *make_records(50, 3), *late])
    touched = set(expected_numbers(late))
    after = {(r["start"], r["page"]): r["revision"] for r in read_results(folder / "state", "numbers").to_pylist()}
    assert {p for p in before if after[p] != before[p]} == touched & set(before)
    reasons = [
        w["reason"]
        for w in read_windows(folder / "state", "numbers").to_pylist()
        if w["revision"] > 1 and w["rows_changed"]
    ]
    assert reasons
    assert all(r.startswith("late: ") for r in reasons)


def test_bad_records_are_set_aside_with_a_reason_and_the_counts_add_up(spark: SparkSession, tmp_path: Path) -> None:
    good = make_records(200, 5)
    bad = {
        "not readable as json": ["{oh no", "just text"],
        "a field has the wrong type": ['{"ts":"2024-03-01T00:00:01Z","page":"/","user":"many","ms":1.0,"bytes":1}'],
        "no event time (ts)": ['{"page":"/","user":1,"ms":1.0,"bytes":1}', '{"ts":null,"page":"/","user":1}'],
        "the event time is far from the stream": [
            '{"ts":"2099-01-01T00:00:00Z","page":"/","user":1,"ms":1.0,"bytes":1}',
            '{"ts":"1970-01-01T00:00:00Z","page":"/","user":1,"ms":1.0,"bytes":1}',
        ],
    }
    lines = [*as_lines(good), *(line for some in bad.values() for line in some)]
    random.Random(0).shuffle(lines)
    folder = write_project(tmp_path / "p", ["a"], {"a": lines})
    status = run_project(spark, folder)
    check_numbers(folder / "state", good)
    assert status["sites"]["a"]["rows"] == len(lines)
    assert status["sites"]["a"]["read_bytes"] == sum(f.stat().st_size for f in (tmp_path / "p").glob("data/a/*"))
    assert status["sites"]["a"]["quarantined"] == sum(len(b) for b in bad.values())
    assert status["sites"]["a"]["implausible_times"] == 2
    kept = spark.read.parquet(str(folder / "state" / "sites" / "a" / "quarantine" / "hits")).collect()
    found: dict[str, list[str]] = {}
    for row in kept:
        found.setdefault(row["_problem"], []).append(row["_raw"])
    assert {reason: sorted(raws) for reason, raws in found.items()} == {r: sorted(b) for r, b in bad.items()}
    history = spark.read.parquet(str(folder / "state" / "sites" / "a" / "history" / "hits"))
    assert history.count() == len(good)


def test_large_merges_on_executors_equal_small_ones_in_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.spark.evaluation import merge

    monkeypatch.setattr(merge, "MERGE_ON_EXECUTORS_ABOVE_ROWS", 0)
    lines = {name: make_records(150, seed) for seed, name in enumerate(("a", "b"))}
    folder = write_project(tmp_path / "p", ["a", "b"], {n: as_lines(r) for n, r in lines.items()})
    run_project(spark, folder)
    check_answers(folder / "state", [r for records in lines.values() for r in records])


def test_a_log_is_replayed_in_order_of_arrival_and_its_end_is_final(spark: SparkSession, tmp_path: Path) -> None:
    lines = {name: make_records(150, seed) for seed, name in enumerate(("a", "b"))}
    replay = "connector = 'replay', path = 'data/{site}.jsonl', format = 'json', speed = 300"
    folder = write_project(tmp_path / "p", ["a", "b"], {n: as_lines(r) for n, r in lines.items()}, connector=replay)
    run_project(spark, folder, once=False)
    check_answers(folder / "state", [r for records in lines.values() for r in records])
    check_final(folder / "state")


def test_a_view_that_was_redefined_over_old_state_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", ["a"], {"a": as_lines(make_records(20, 1))})
    run_project(spark, folder)
    path = folder / "queries" / "q.sql"
    path.write_text(path.read_text().replace("min(ms) AS low", "min(ms + 1) AS low"))
    with pytest.raises(ConfigError, match="the definition of numbers has changed"):
        run_project(spark, folder)


def test_a_stream_whose_worker_was_too_slow_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives a worker ten seconds: on a busy machine a batch fails for that alone, before or after its entry."""
    from catchment.spark.pipelines.site import SitePipeline

    handle = SitePipeline._on_batch
    failures = iter(["before", "after", "before"])

    def slow(self: SitePipeline, state: Any, batch: Any, number: int, settle: Any) -> None:
        when = next(failures, None)
        if when == "before":
            raise RuntimeError("Python worker failed to connect back.")
        handle(self, state, batch, number, settle)
        if when == "after":
            raise RuntimeError("Python worker failed to connect back.")

    monkeypatch.setattr(SitePipeline, "_on_batch", slow)
    records = {name: make_records(200, seed) for seed, name in enumerate(["a", "b"])}
    folder = write_project(tmp_path / "p", list(records), {n: as_lines(r) for n, r in records.items()})
    run_project(spark, folder)
    assert next(failures, None) is None
    expected = expected_numbers([r for mine in records.values() for r in mine])
    rows = read_results(folder / "state", "numbers").to_pylist()
    assert {(r["start"], r["page"]): r["n"] for r in rows} == {place: row["n"] for place, row in expected.items()}
