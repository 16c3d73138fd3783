"""Batches of raw records that are compacted by event time: every record once, whatever happens in between.

Records are told apart by a number. What a reader finds is taken as `BatchFolder` takes it, without Spark: the folder of
a batch counts before a run that holds it.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import StorageError
from catchment.storage import compacted_batches
from catchment.storage.batch_retention import BatchRetention
from catchment.storage.batch_times import RemovedBatches, note_removed, read_times
from catchment.storage.compacted_batches import BATCH, BatchCompactor, find_run
from catchment.storage.disk import use_disk
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from catchment.timeline import ManualClock
from tests.worlds.tiers import examples

HOUR_US = 3600 * 1_000_000
KEEP_NEWEST = 3
BEGIN_US = 1_772_366_400_000_000  # 2026-03-01 12:00


def write_batch(folder: Path, number: int, times_us: list[int], columns: tuple[str, ...] = ()) -> None:
    path = folder / f"batch={number}"
    path.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "ts": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "id": pa.array([f"{number}-{place}" for place in range(len(times_us))], pa.string()),
            "_row": pa.array(range(len(times_us)), pa.int64()),
            **{name: pa.array([number] * len(times_us), pa.int64()) for name in columns},
        }
    )
    pq.write_table(table, path / "part.parquet")


def read_batch(folder: Path, number: int) -> list[tuple[str, int, int]] | None:
    """What a reader finds of a batch: (id, event time, row); None if it is not there."""
    path = folder / f"batch={number}"
    run = None if path.is_dir() else find_run(folder, number)
    if run is None and not path.is_dir():
        return None
    if run is None:
        found = pq.read_table(path / "part.parquet")
    else:
        files = [pq.read_table(file, partitioning=None) for file in run.files_of()]
        found = pa.concat_tables(files) if files else pa.table({"id": [], "ts": [], "_row": [], BATCH: []})
        found = found.filter(pc.equal(found[BATCH], number))
    times = found["ts"].cast(pa.int64()).to_pylist() if found.num_rows else []
    return sorted(zip(found["id"].to_pylist(), times, found["_row"].to_pylist(), strict=True))


def expected(batches: dict[int, list[int]]) -> dict[int, list[tuple[str, int, int]]]:
    return {
        number: sorted((f"{number}-{place}", at_us, place) for place, at_us in enumerate(times))
        for number, times in batches.items()
    }


def draw_batches(seed: int, batches: int) -> dict[int, list[int]]:
    chance = random.Random(seed)
    found = {}
    for number in range(batches):
        at_us = BEGIN_US + number * 60_000_000
        late = [chance.choice([0, 0, 0, 3 * HOUR_US]) for _ in range(chance.randint(0, 4))]
        found[number] = [at_us + chance.randint(0, 60_000_000) - by_us for by_us in late]
    return found


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", 4)
    monkeypatch.setattr(compacted_batches, "KEEP_NEWEST", KEEP_NEWEST)


def test_settled_batches_become_files_by_hour_and_each_is_still_found(tmp_path: Path) -> None:
    batches = draw_batches(1, 30)
    for number, times in batches.items():
        write_batch(tmp_path, number, times, ("added",) if number > 15 else ())
    compactor = BatchCompactor(tmp_path, "ts", lambda: {9})
    while compactor.compact_next():
        pass
    plain = {int(path.name.removeprefix("batch=")) for path in tmp_path.glob("batch=*")}
    assert plain >= {9, *range(30 - KEEP_NEWEST, 30)}, "what is owed, and the newest, stay as they are"
    assert len(plain) < KEEP_NEWEST + 4 + 4
    assert compactor.status()["compacted_batches"] == 30 - len(plain)
    assert {number: read_batch(tmp_path, number) for number in batches} == expected(batches)
    run = find_run(tmp_path, 14)
    assert run is not None
    for file in run.files:
        begin = datetime.strptime(file.name, "date=%Y-%m-%d/hour=%H.parquet").replace(tzinfo=UTC)
        assert int(begin.timestamp() * 1e6) <= file.span[0] < file.span[1] <= int(begin.timestamp() * 1e6) + HOUR_US
        assert read_times([run.path / file.name], "ts").span == file.span
    first = min(file.span[0] for file in run.files)
    assert len(run.files_of((first, first + 1))) == 1, "the others need not be opened"
    for number, held in run.batches.items():
        assert held.rows == len(batches[number])
        assert held.span == ((min(batches[number]), max(batches[number]) + 1) if batches[number] else None)


def test_event_times_and_rows_take_hardly_more_room_than_their_differences(tmp_path: Path) -> None:
    rows = 4_000
    for number in range(8):
        write_batch(tmp_path, number, [BEGIN_US + (number * rows + row) * 1_000 for row in range(rows)])
    assert BatchCompactor(tmp_path, "ts", set).compact_next()
    (file,) = tmp_path.glob("batches=*/date=*/hour=*.parquet")
    held = pq.ParquetFile(file)
    group = held.metadata.row_group(0)
    sizes = {group.column(n).path_in_schema: group.column(n).total_compressed_size for n in range(group.num_columns)}
    assert sizes["ts"] + sizes["_row"] < held.metadata.num_rows / 10, sizes


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 19), max_size=4))
def test_every_record_is_there_once_whatever_is_owed(seed: int, owed: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batches = draw_batches(seed, 20)
        for number, times in batches.items():
            write_batch(folder, number, times)
        compactor = BatchCompactor(folder, "ts", lambda: owed)
        for _ in range(12):
            compactor.compact_next()
        assert {number: read_batch(folder, number) for number in batches} == expected(batches)
        assert all((folder / f"batch={number}").is_dir() for number in owed)


def stopped_folders(folder: Path, kind: DiskFault, power_cut: bool) -> Iterator[Path]:
    """Compact once per call of the disk, stopped there; end when nothing was left to stop."""
    batches = draw_batches(3, 8)
    for call in count():
        machine = folder / f"{kind.name}-{call}"
        for number, times in batches.items():
            write_batch(machine, number, times)
        disk = SimulatedDisk(random.Random(call))
        disk.machine(machine)
        disk.plan_fault(machine, call, kind)
        stopped = False
        with use_disk(disk):
            compactor = BatchCompactor(machine, "ts")
            try:
                for _ in range(3):
                    compactor.compact_next()
            except (Killed, OSError):
                stopped = True
            if power_cut:
                disk.cut_power(machine)
        if not stopped:
            return
        yield machine
        shutil.rmtree(machine)


@pytest.mark.parametrize("kind", [DiskFault.KILL, DiskFault.TORN_WRITE, DiskFault.ERROR])
@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_any_call_of_the_disk_loses_nothing_and_doubles_nothing(
    tmp_path: Path, kind: DiskFault, power_cut: bool
) -> None:
    stops = 0
    for folder in stopped_folders(tmp_path, kind, power_cut):
        stops += 1
        batches = draw_batches(3, 8)
        assert {number: read_batch(folder, number) for number in batches} == expected(batches)
        compactor = BatchCompactor(folder, "ts")
        for _ in range(12):
            compactor.compact_next()
        assert {number: read_batch(folder, number) for number in batches} == expected(batches)
        assert find_run(folder, 0) is not None
        assert not (folder / "batch=0").exists()
    assert stops > 10


def test_a_batch_that_is_written_again_counts_before_the_run_that_holds_it(tmp_path: Path) -> None:
    for number in range(12):
        write_batch(tmp_path, number, [BEGIN_US + number])
    compactor = BatchCompactor(tmp_path, "ts")
    while compactor.compact_next():
        pass
    assert not (tmp_path / "batch=3").exists()
    write_batch(tmp_path, 3, [BEGIN_US + 99, BEGIN_US + 98])
    for _ in range(5):
        compactor.compact_next()
    assert read_batch(tmp_path, 3) == expected({3: [BEGIN_US + 99, BEGIN_US + 98]})[3]


def test_a_batch_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    for number in range(16):
        write_batch(tmp_path, number, [BEGIN_US + number])
    (tmp_path / "batch=2" / "part.parquet").write_bytes(b"not Parquet")
    compactor = BatchCompactor(tmp_path, "ts")
    for _ in range(12):
        compactor.compact_next()
    assert (tmp_path / "batch=2").is_dir()
    assert "batch 2 is left as it is" in str(compactor.failure)
    assert find_run(tmp_path, 4) is not None


def test_a_run_whose_manifest_is_damaged_is_refused_and_goes_with_its_age(tmp_path: Path) -> None:
    for number in range(20):
        write_batch(tmp_path, number, [BEGIN_US + number])
    compactor = BatchCompactor(tmp_path, "ts")
    while compactor.compact_next():
        pass
    run = find_run(tmp_path, 0)
    assert run is not None
    (run.path / "_batches.json").write_bytes(b"00000000 1 {}")
    compacted_batches._read_run.cache_clear()
    with pytest.raises(StorageError, match="checksum"):
        find_run(tmp_path, 0)
    assert not compactor.compact_next()
    clock = ManualClock(run.path.stat().st_mtime_ns // 1_000)
    retention = BatchRetention(tmp_path, clock, keep_us=HOUR_US)
    retention.tidy()
    assert len(retention) == 20
    clock.advance(2 * HOUR_US)
    retention.tidy()
    assert not run.path.exists()


def test_retention_removes_whole_runs_and_notes_their_event_times(tmp_path: Path) -> None:
    clock = ManualClock(BEGIN_US)
    for number in range(40):
        write_batch(tmp_path, number, [BEGIN_US + number])
        os.utime(tmp_path / f"batch={number}" / "part.parquet", ns=(0, (BEGIN_US + number) * 1_000))
    compactor = BatchCompactor(tmp_path, "ts")
    while compactor.compact_next():
        pass
    retention = BatchRetention(tmp_path, clock, keep_us=HOUR_US)
    retention.note = lambda removed: note_removed(tmp_path, removed, "ts")
    assert retention.tidy() == 0
    assert len(retention) == 40
    clock.advance(2 * HOUR_US)
    assert retention.tidy(needed={9}) > 0
    assert find_run(tmp_path, 0) is None
    assert find_run(tmp_path, 9) is not None, "what is needed keeps its run"
    removed = RemovedBatches.read(tmp_path)
    assert removed is not None
    assert removed.count == retention.removed_batches
    assert removed.span is not None
    assert removed.span[0] == BEGIN_US
    assert np.isfinite(retention.size_bytes)
