"""The checkpoint of a stream against the journal: one that was lost or is older is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.center.results.read import read_results
from catchment.errors import EngineError
from tests.worlds.projects import as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_offsets(checkpoint: Path, *batches: int) -> Path:
    (checkpoint / "offsets").mkdir(parents=True)
    for batch in batches:
        (checkpoint / "offsets" / str(batch)).write_text("v1")
        (checkpoint / "offsets" / f".{batch}.crc").write_text("")
    return checkpoint


@pytest.mark.parametrize(
    ("planned", "committed"), [((), None), ((0,), None), ((0, 1, 2), 2), ((0, 1, 2), 1), ((98, 99, 100), 99)]
)
def test_a_checkpoint_that_knows_what_was_committed_is_taken(
    tmp_path: Path, planned: tuple[int, ...], committed: int | None
) -> None:
    from catchment.spark.streaming import refuse_lost_checkpoint

    refuse_lost_checkpoint(write_offsets(tmp_path / "c", *planned), committed)


@pytest.mark.parametrize(("planned", "knows"), [((), "nothing"), ((0, 1), "batch 1")])
def test_a_checkpoint_that_was_lost_or_is_older_is_refused(
    tmp_path: Path, planned: tuple[int, ...], knows: str
) -> None:
    from catchment.spark.streaming import refuse_lost_checkpoint

    with pytest.raises(EngineError, match=f"the checkpoint knows of {knows}, but its batch 7 was committed"):
        refuse_lost_checkpoint(write_offsets(tmp_path / "c", *planned), 7)


def write_commits(checkpoint: Path, *batches: int) -> Path:
    (checkpoint / "commits").mkdir(parents=True)
    for batch in batches:
        (checkpoint / "commits" / str(batch)).write_text("v1")
    return checkpoint


@pytest.mark.parametrize(("ended", "committed"), [((), None), ((), 4), ((3, 4), 4), ((3, 4), 5)])
def test_a_journal_that_knows_every_batch_that_spark_has_ended_is_taken(
    tmp_path: Path, ended: tuple[int, ...], committed: int | None
) -> None:
    from catchment.spark.streaming import refuse_older_journal

    refuse_older_journal(write_commits(tmp_path / "c", *ended), committed)


@pytest.mark.parametrize(("committed", "knows"), [(None, "no batch"), (4, "batch 4")])
def test_a_journal_that_lacks_a_batch_that_spark_has_ended_is_refused(
    tmp_path: Path, committed: int | None, knows: str
) -> None:
    """Spark would not replay the batch, and the journal would not have it: its records would be lost silently."""
    from catchment.spark.streaming import refuse_older_journal

    with pytest.raises(EngineError, match=f"the journal knows of {knows}, but Spark has ended batch 5"):
        refuse_older_journal(write_commits(tmp_path / "c", 4, 5), committed)


@pytest.mark.spark
def test_a_site_that_lost_its_checkpoint_says_so_and_counts_nothing_again(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a"]
    lines = {name: as_lines(make_records(30, seed)) for seed, name in enumerate(names)}
    replay = "connector = 'replay', path = 'data/{site}.jsonl', speed = 300"
    folder = write_project(tmp_path / "p", names, lines, connector=replay)
    run_project(spark, folder)
    before = read_results(folder / "state", "numbers").to_pylist()
    checkpoint = folder / "state" / "sites" / "a" / "checkpoints" / "hits"
    kept = checkpoint.rename(tmp_path / "kept")
    with pytest.raises(EngineError, match="it was lost or is an older copy"):
        run_project(spark, folder)
    assert read_results(folder / "state", "numbers").to_pylist() == before
    shutil.rmtree(checkpoint, ignore_errors=True)
    kept.rename(checkpoint)
    run_project(spark, folder)
    assert read_results(folder / "state", "numbers").to_pylist() == before
