"""A disk that becomes full: noticed before, waited for, and survived by the last words. The small disk is real."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.storage.free_space import (
    CHECK_EVERY_US,
    SPARE_FILE,
    DiskFullError,
    FreeSpace,
    free_bytes_of,
    is_disk_full,
    write_last_words,
)
from catchment.timeline import ManualClock
from tests.worlds.small_disk import fill, small_disk

MB = 10**6


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, 2 * MB) as folder:
        yield folder


def test_low_begins_below_the_floor_and_ends_above_a_little_more(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(1)
    free = [150 * MB]
    space = FreeSpace(Path("/somewhere"), 100 * MB, clock, lambda folder: free[0])
    said = []
    for now in (150, 99, 105, 110, 100, 99):
        free[0] = now * MB
        clock.advance(CHECK_EVERY_US)
        said.append(space.is_low())
    assert said == [False, True, True, False, False, True]
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "reading stops until there is room again",
        "reading goes on",
        "reading stops until there is room again",
    ]
    assert space.status() == {"free_bytes": 99 * MB, "floor_bytes": 100 * MB, "low_since_us": clock.now_us()}


def test_the_disk_is_asked_once_a_second() -> None:
    clock = ManualClock(1)
    asked: list[Path] = []
    space = FreeSpace(Path("/x"), 1, clock, lambda folder: asked.append(folder) or 5)  # type: ignore[func-returns-value]
    for _ in range(10):
        space.is_low()
    clock.advance(CHECK_EVERY_US)
    space.is_low()
    assert len(asked) == 2


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes_of(tmp_path / "a" / "b") > 0


def test_a_full_disk_is_recognised_through_its_causes() -> None:
    outer = ValueError("while writing")
    outer.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(outer)
    assert is_disk_full(DiskFullError("full"))
    assert not is_disk_full(OSError(errno.EIO, "I/O error"))
    assert not is_disk_full(None)


def test_last_words_are_written_on_a_full_disk(disk: Path) -> None:
    status = disk / "status.json"
    assert write_last_words(status, "first")
    fill(disk)
    with pytest.raises(OSError, match="No space left"):
        (disk / "other").write_bytes(b"x" * 100_000)
    assert write_last_words(status, "last " * 1000)
    assert status.read_text() == "last " * 1000
    assert not (disk / SPARE_FILE).exists()


def test_what_does_not_fit_at_all_is_no_error_and_leaves_the_words_before(disk: Path) -> None:
    status = disk / "status.json"
    assert write_last_words(status, "first")
    (disk / SPARE_FILE).unlink()
    fill(disk)
    assert not write_last_words(status, "x" * MB)
    assert status.read_text() == "first"
    assert sorted(p.name for p in disk.iterdir()) == ["filler", "status.json"]


def test_room_is_set_aside_again_when_there_is_some(disk: Path) -> None:
    write_last_words(disk / "status.json", "first")
    fill(disk)
    write_last_words(disk / "status.json", "full")
    (disk / "filler").unlink()
    write_last_words(disk / "status.json", "room again")
    assert (disk / SPARE_FILE).exists()
    assert os.stat(disk / SPARE_FILE).st_blocks * 512 >= 256 * 1024
