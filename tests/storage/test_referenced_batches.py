"""Batches that are references: kept as they were written, left alone by compaction, and noted when they are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from catchment.errors import StorageError
from catchment.storage import compacted_batches
from catchment.storage.batch_retention import BatchRetention
from catchment.storage.batch_times import FileTimes, RemovedBatches, note_removed
from catchment.storage.compacted_batches import BatchCompactor, find_run, times_of_run
from catchment.storage.referenced_batches import (
    REFERENCE,
    BatchReference,
    ReferencedFile,
    read_reference,
    write_reference,
)
from catchment.timeline import ManualClock
from tests.storage.test_compacted_batches import BEGIN_US, HOUR_US, write_batch


def refer(folder: Path, number: int, times_us: list[int]) -> BatchReference:
    span = (min(times_us), max(times_us) + 1) if times_us else None
    files = (ReferencedFile(f"day=1/{number}.json", 12, "ab" * 20),)
    reference = BatchReference(files, FileTimes(len(times_us), span), ("ts", "id"), ("id", "ts"), (1, 2, 3, 4))
    write_reference(folder / f"batch={number}", reference)
    return reference


def test_a_reference_is_read_as_it_was_written_and_replaces_a_copy(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, [BEGIN_US])
    assert read_reference(tmp_path / "batch=0") is None
    written = refer(tmp_path, 0, [BEGIN_US, BEGIN_US + 5])
    assert read_reference(tmp_path / "batch=0") == written
    assert [path.name for path in (tmp_path / "batch=0").iterdir()] == [REFERENCE]
    assert read_reference(tmp_path / "batch=1") is None
    without = refer(tmp_path, 1, [])
    assert read_reference(tmp_path / "batch=1") == without


def test_a_damaged_reference_is_refused(tmp_path: Path) -> None:
    refer(tmp_path, 0, [BEGIN_US])
    path = tmp_path / "batch=0" / REFERENCE
    path.write_bytes(path.read_bytes().replace(b".json", b".jsom"))
    with pytest.raises(StorageError, match="checksum"):
        read_reference(tmp_path / "batch=0")


def test_compaction_leaves_references_alone_and_compacts_the_copies_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted_batches, "KEEP_NEWEST", 2)
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", 2)
    referred = {number: refer(tmp_path, number, [BEGIN_US + number]) for number in (2, 5, 6)}
    for number in (0, 1, 3, 4, 7, 8):
        write_batch(tmp_path, number, [BEGIN_US + number])
    compactor = BatchCompactor(tmp_path, "ts")
    while compactor.compact_next():
        pass
    assert {number: read_reference(tmp_path / f"batch={number}") for number in referred} == referred
    assert all(find_run(tmp_path, number) is None for number in referred)
    assert all(find_run(tmp_path, number) is not None for number in (0, 1, 3, 4))
    assert compactor.failure is None


def test_retention_removes_references_and_notes_their_event_times(tmp_path: Path) -> None:
    clock = ManualClock(BEGIN_US)
    for number in range(20):
        refer(tmp_path, number, [BEGIN_US + number])
        os.utime(tmp_path / f"batch={number}", ns=(0, (BEGIN_US + number) * 1_000))
    retention = BatchRetention(tmp_path, clock, keep_us=HOUR_US)
    retention.note = lambda removed: note_removed(tmp_path, removed, "ts", times_of_run)
    clock.advance(2 * HOUR_US)
    assert retention.tidy() == 10
    removed = RemovedBatches.read(tmp_path)
    assert removed is not None
    assert removed.find_times(3) == (True, (BEGIN_US, BEGIN_US + 10))
    assert 0 < retention.size_bytes < 20_000
