"""A batch of history is on disk when it was written: files, their names, and the folder that they are in; no JVM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from catchment.spark.sources.history import BatchFolder
from catchment.storage.disk import Disk, use_disk


class RecordingDisk(Disk):
    """Remembers, in order, what was synced and removed, by inode: names change."""

    def __init__(self) -> None:
        self.synced: list[int] = []

    def fsync(self, file: int) -> None:
        self.synced.append(os.fstat(file).st_ino)
        super().fsync(file)

    def unlink(self, path: Path) -> None:
        folder = path.parent.stat().st_ino
        self.synced = [inode for inode in self.synced if inode != folder]  # its names have changed since
        super().unlink(path)

    def replace(self, old: Path, new: Path) -> None:
        folder = new.parent.stat().st_ino
        self.synced = [inode for inode in self.synced if inode != folder]
        super().replace(old, new)

    def has_synced(self, path: Path) -> bool:
        return path.stat().st_ino in self.synced


class Rows:
    """Writes what a DataFrame would: two files into a new folder."""

    @property
    def write(self) -> Rows:
        return self

    def mode(self, _mode: str) -> Rows:
        return self

    def option(self, _name: str, _value: str) -> Rows:
        return self

    def parquet(self, target: str) -> None:
        Path(target).mkdir(parents=True)
        for name in ("part-0.parquet", "part-1.parquet"):
            (Path(target) / name).write_text(name)


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


def test_a_batch_that_spark_has_written_is_durable_with_all_folders_that_are_new(
    tmp_path: Path, disk: RecordingDisk
) -> None:
    folder = tmp_path / "history" / "hits"
    rows: Any = Rows()
    with use_disk(disk):
        BatchFolder(folder).write(rows, 7)
    batch = folder / "batch=7"
    wanted = [batch / "part-0.parquet", batch / "part-1.parquet", batch, folder, folder.parent, tmp_path]
    assert [path.name for path in wanted if not disk.has_synced(path)] == []


def test_what_lost_attempts_have_left_beside_a_batch_is_gone_for_good_when_it_is_committed(
    tmp_path: Path, disk: RecordingDisk
) -> None:
    history = BatchFolder(tmp_path / "hits")
    attempt = history.begin_attempt()
    for name in ("part-0-lost.parquet", "part-0.parquet"):
        (attempt / name).write_text(name)
    with use_disk(disk):
        history.commit_attempt(attempt, ["part-0.parquet"], 3)
    batch = history.folder / "batch=3"
    assert [path.name for path in batch.iterdir()] == ["part-0.parquet"]
    assert disk.has_synced(batch), "or after a power cut the lost records would be there twice"
    assert disk.has_synced(history.folder)
