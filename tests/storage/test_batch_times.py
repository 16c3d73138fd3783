"""Event times of batches by their footers, and the note that is left of those that were removed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.storage.batch_times import FileTimes, RemovedBatches, note_removed, read_times


def write_batch(folder: Path, number: int, times_us: list[int], *, statistics: bool = True) -> Path:
    batch = folder / f"batch={number}"
    batch.mkdir(parents=True)
    column = pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    for part, share in enumerate((column[::2], column[1::2])):
        pq.write_table(pa.table({"ts": share}), batch / f"{part}.parquet", write_statistics=statistics)
    return batch


@pytest.mark.parametrize("statistics", [True, False])
def test_footers_say_what_files_hold_and_where_they_do_not_the_records_do(tmp_path: Path, statistics: bool) -> None:
    batch = write_batch(tmp_path, 0, [7, 3, 11], statistics=statistics)
    assert read_times(sorted(batch.glob("*.parquet")), "ts") == FileTimes(3, (3, 12))
    assert read_times([], "ts") == FileTimes()


def test_what_was_removed_is_known_by_its_event_times(tmp_path: Path) -> None:
    assert RemovedBatches.read(tmp_path) is None
    batches = {n: write_batch(tmp_path, n, [10 * n, 10 * n + 5]) for n in range(4)}
    note_removed(tmp_path, {0: batches[0], 1: batches[1]}, "ts")
    note_removed(tmp_path, {2: batches[2]}, "ts")
    removed = RemovedBatches.read(tmp_path)
    assert removed is not None
    assert removed.find_times(1) == (True, (0, 26))
    assert removed.find_times(3) == (False, None), "it was not removed: nobody knows why it is not there"


def test_event_times_are_not_known_where_batches_between_were_never_there_or_cannot_be_read(tmp_path: Path) -> None:
    batches = {n: write_batch(tmp_path / "gap", n, [n]) for n in (0, 2)}
    note_removed(tmp_path / "gap", batches, "ts")
    removed = RemovedBatches.read(tmp_path / "gap")
    assert removed is not None
    assert removed.find_times(1) == (False, None)

    broken = write_batch(tmp_path / "broken", 0, [1])
    (broken / "0.parquet").write_bytes(b"no parquet")
    note_removed(tmp_path / "broken", {0: broken}, "ts")
    note_removed(tmp_path / "broken", {1: write_batch(tmp_path / "broken", 1, [2])}, "ts")
    removed = RemovedBatches.read(tmp_path / "broken")
    assert removed is not None
    assert removed.find_times(1) == (False, None)
