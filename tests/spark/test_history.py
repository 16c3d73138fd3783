"""Batches of records on disk: what is read again is what was written, and no more files than needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from catchment.spark.sources.history import BatchFolder

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


def _values(spark: SparkSession, folder: BatchFolder, start: int, end: int) -> list[int]:
    rows = folder.between(spark, SCHEMA, "ts", START_US + start * MINUTE_US, START_US + end * MINUTE_US)
    return [] if rows is None else sorted(r["value"] for r in rows.collect())


def test_reading_between_two_times_gives_all_rows_there_and_no_others(spark: SparkSession, folder: BatchFolder) -> None:
    assert _values(spark, folder, 0, 1) == [0, 0]
    assert _values(spark, folder, 2, 6) == [2, 3, 4, 5]
    assert _values(spark, folder, 8, 99) == []


def test_only_files_that_hold_the_time_are_opened(folder: BatchFolder) -> None:
    assert [f.parent.name for f in folder.files_between("ts", START_US + 5 * MINUTE_US, START_US + 6 * MINUTE_US)] == [
        "batch=2"
    ]
    assert [f.parent.name for f in folder.files_between("ts", START_US, START_US + 1)] == ["batch=0", "batch=1"]


def test_a_batch_that_is_written_again_replaces_the_first_copy(spark: SparkSession, folder: BatchFolder) -> None:
    _write(spark, folder, 1, [3, 4, 0])
    assert _values(spark, folder, 0, 9) == [0, 0, 1, 2, 3, 4, 5, 6, 7]


def test_files_of_an_attempt_count_only_once_they_are_committed(tmp_path: Path) -> None:
    kept = BatchFolder(tmp_path / "history")
    (kept.begin_attempt() / "lost.parquet").write_bytes(b"of an attempt that failed")
    assert not kept.has(3)
    for names in (["a.parquet"], ["b.parquet", "c.parquet"]):
        attempt = kept.begin_attempt()
        for name in [*names, "of a failed task.parquet"]:
            (attempt / name).write_bytes(b"")
        kept.commit_attempt(names, 3)
        assert sorted(path.name for path in (tmp_path / "history" / "batch=3").iterdir()) == names
    assert [path.name for path in (tmp_path / "history").iterdir()] == ["batch=3"]
