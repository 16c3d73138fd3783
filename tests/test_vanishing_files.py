"""Files that another thread or process removes or replaces while they are read: each is there whole, or not there.

A look whether a file exists says nothing of the moment after. Catches: readers that look first and then open, and
writers whose readers can see half of what is written. Cannot catch: files that nobody thought of here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from catchment.deploy.reports.role_files import STATUS_FILE, read_status
from catchment.deploy.store import FILE, DeploymentStore
from catchment.feeds.language.read_program import read_program
from catchment.feeds.project import table_files
from catchment.replay.spool import read_beginning, write_beginning
from catchment.storage.files import read_record, remove_file, sync_files, write_record
from catchment.wire.receiving.set_aside import FOLDER, SetAside

READINGS = 5_000  # enough that a reader which looks first is caught nearly every time
FRIENDS = read_program("CREATE TABLE friends (user BIGINT, friend BIGINT);")


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Repeat something in another thread."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    other = threading.Thread(target=repeat)
    other.start()
    try:
        yield
    finally:
        stop.set()
        other.join()


Reader = Callable[[Path], Any]
READERS: dict[str, tuple[str, str, Reader]] = {
    "the status of a role": (STATUS_FILE, json.dumps({"a": 1}), read_status),
    "the stamp of what is deployed": (FILE, "x", lambda folder: DeploymentStore(folder).stamp),
    "the beginning of a replay": ("hits.began", "5 7", lambda folder: read_beginning(folder / "hits.arrow")),
    "the time of a reference table": ("friends.csv", "user,friend", lambda folder: table_files(folder, FRIENDS)),
    "a file that is made durable": ("x", "x", lambda folder: sync_files([folder / "x"])),
    "a file that is removed": ("x", "x", lambda folder: remove_file(folder / "x")),
    "a segment that was set aside": (f"{FOLDER}/eu/{0:020d}.segment", "x", lambda folder: SetAside(folder)._size_bytes),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_comes_and_goes_is_there_or_not(tmp_path: Path, name: str) -> None:
    where, text, read = READERS[name]
    path, kept = tmp_path / where, tmp_path / "kept"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(text)
    absent = read(tmp_path)

    def come_and_go() -> None:
        path.hardlink_to(kept)
        path.unlink(missing_ok=True)

    with repeating(come_and_go):
        found = [read(tmp_path) for _ in range(READINGS)]
    path.hardlink_to(kept)
    present = read(tmp_path)
    assert all(each in (absent, present) for each in found)


def test_a_record_that_another_thread_removes_while_it_is_read_is_there_or_not(tmp_path: Path) -> None:
    """A request to a running role is removed by it at any moment, also between a look and the reading."""
    kept, path = tmp_path / "kept" / "record", tmp_path / "record"
    kept.parent.mkdir()
    write_record(kept, {"a": 1})

    def come_and_go() -> None:
        path.hardlink_to(kept)
        path.unlink()

    with repeating(come_and_go):
        assert all(read_record(path) in (None, {"a": 1}) for _ in range(READINGS))


def test_the_beginning_of_a_replay_is_never_seen_half_written(tmp_path: Path) -> None:
    spool = tmp_path / "hits.arrow"
    write_beginning(spool, 10**15, 10**15)
    with repeating(lambda: write_beginning(spool, 10**15, 10**15)):
        assert all(read_beginning(spool) == (10**15, 10**15) for _ in range(READINGS))
