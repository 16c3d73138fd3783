"""Batches of records on disk: what is read again is what was written, and no more files than needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from catchment.spark.sources.history import BatchFolder
from catchment.storage import compacted_batches
from catchment.storage.batch_times import FileTimes
from catchment.storage.compacted_batches import BatchCompactor

pytestmark = pytest.mark.spark

SCHEMA = "ts TIMESTAMP, value BIGINT"
START = datetime(2026, 3, 1, tzinfo=UTC)
START_US = 1_772_323_200_000_000
MINUTE_US = 60_000_000


def _write(spark: SparkSession, folder: BatchFolder, batch: int, minutes: list[int]) -> None:
    rows = [(START + timedelta(minutes=m), m) for m in minutes]
    folder.write(spark.createDataFrame(rows, SCHEMA).coalesce(1), batch)


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> BatchFolder:
    kept = BatchFolder(tmp_path / "history")
    for batch, minutes in enumerate(([0, 1, 2], [3, 4, 0], [5, 6, 7])):
        _write(spark, kept, batch, minutes)
    return kept


def _values(spark: SparkSession, folder: BatchFolder, *batches: int) -> list[int]:
    return sorted(r["value"] for r in folder.batches(spark, batches, SCHEMA).collect())


def test_several_batches_are_read_together_and_what_they_lack_is_null(spark: SparkSession, folder: BatchFolder) -> None:
    assert _values(spark, folder, 0, 2) == [0, 1, 2, 5, 6, 7]
    wider = folder.batches(spark, [1], f"{SCHEMA}, added STRING").collect()
    assert {(r["value"], r["added"]) for r in wider} == {(0, None), (3, None), (4, None)}


def test_footers_say_which_event_times_a_batch_holds(folder: BatchFolder) -> None:
    assert folder.times(1, "ts") == FileTimes(3, (START_US, START_US + 4 * MINUTE_US + 1))
    assert folder.times(2, "ts") == FileTimes(3, (START_US + 5 * MINUTE_US, START_US + 7 * MINUTE_US + 1))
    assert folder.times(3, "ts") is None, "it was never written"


def test_compacted_batches_are_read_as_before_one_by_one_together_and_by_event_time(
    spark: SparkSession, folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(spark, folder, 3, [130, 131])
    _write(spark, folder, 4, [132])
    before = {batch: folder.times(batch, "ts") for batch in range(6)}
    monkeypatch.setattr(compacted_batches, "KEEP_NEWEST", 1)
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", 4)
    compactor = BatchCompactor(folder.folder, "ts")
    while compactor.compact_next():
        pass
    assert sorted(path.name for path in folder.folder.glob("batch*")) == ["batch=4", "batches=0-4"]
    assert {batch: folder.times(batch, "ts") for batch in range(6)} == before
    assert [folder.has(batch) for batch in range(6)] == [True] * 5 + [False]
    assert _values(spark, folder, 1) == [0, 3, 4]
    assert _values(spark, folder, 0, 2, 4) == [0, 1, 2, 5, 6, 7, 132]
    assert _values(spark, folder, 0, 1, 2, 3, 4) == [0, 0, 1, 2, 3, 4, 5, 6, 7, 130, 131, 132]
    early = folder.batches(spark, [0, 1, 2, 3], f"{SCHEMA}, added STRING", (START_US, START_US + MINUTE_US))
    assert sorted(r["value"] for r in early.collect()) == [0, 0, 1, 2, 3, 4, 5, 6, 7], "one hour is one file"
    assert folder.batches(spark, [3], SCHEMA, (0, 1)).collect() == []
    assert (
        folder.batch(spark, 3, SCHEMA).orderBy("value").collect()[0]["ts"].timestamp() * 1e6
        == START_US + 130 * MINUTE_US
    )


def test_a_batch_that_is_written_again_replaces_the_first_copy(spark: SparkSession, folder: BatchFolder) -> None:
    _write(spark, folder, 1, [3, 4, 0])
    assert _values(spark, folder, 0, 1, 2) == [0, 0, 1, 2, 3, 4, 5, 6, 7]


def test_files_of_an_attempt_count_only_once_they_are_committed(tmp_path: Path) -> None:
    kept = BatchFolder(tmp_path / "history")
    (kept.begin_attempt() / "lost.parquet").write_bytes(b"of an attempt that failed")
    assert not kept.has(3)
    attempts = [kept.begin_attempt(), kept.begin_attempt()]
    for attempt, names in zip(attempts, (["a.parquet"], ["b.parquet", "c.parquet"]), strict=True):
        for name in [*names, "of a failed task.parquet"]:
            (attempt / name).write_bytes(b"")
        kept.commit_attempt(attempt, names, 3)
        assert sorted(path.name for path in (tmp_path / "history" / "batch=3").iterdir()) == names
    kept.remove_attempts()
    assert [path.name for path in (tmp_path / "history").iterdir()] == ["batch=3"]
