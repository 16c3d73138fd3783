"""Locks, records and versions on disk: one process per folder, and nothing of an unknown version is taken for data."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from catchment.errors import StorageError
from catchment.storage import files
from catchment.storage import journal_file as journal_module
from catchment.storage.files import read_record, write_durably, write_record
from catchment.storage.journal import Entry, Journal
from catchment.storage.lock import lock_folder

LOCK = "import sys; from pathlib import Path; from catchment.storage.lock import lock_folder; \
owner = lambda: None; lock_folder(Path(sys.argv[1]), owner); print('locked', flush=True); sys.stdin.read()"


class Owner:
    """Something that uses a folder."""


def start_other(folder: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", LOCK, str(folder)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def can_other_lock(folder: Path) -> bool:
    other = start_other(folder)
    other.communicate("")
    return other.returncode == 0


def test_the_holder_of_a_folder_is_named_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    other = start_other(tmp_path)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StorageError, match=f"in use by another process \\(number {other.pid}\\)") as caught:
            lock_folder(tmp_path, Owner())
        assert caught.value.where == str(tmp_path)
        assert "end the other process" in str(caught.value.hint)
    finally:
        other.kill()
        other.communicate()
    owner = Owner()
    lock_folder(tmp_path, owner)


def test_what_a_full_disk_did_not_take_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(file: int, data: bytes) -> None:
        os.write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    write_durably(tmp_path / "state", b"before")
    monkeypatch.setattr(files, "write_all", write_half)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "state", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").read_bytes() == b"before"


def test_a_folder_is_held_until_its_last_owner_is_gone(tmp_path: Path) -> None:
    first, second = Owner(), Owner()
    lock_folder(tmp_path, first)
    thread = threading.Thread(target=lock_folder, args=(tmp_path, second))
    thread.start()
    thread.join()
    del first
    gc.collect()
    assert not can_other_lock(tmp_path)
    del second, thread
    gc.collect()
    assert can_other_lock(tmp_path)


def test_a_record_comes_back_and_one_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "outbox.json"
    assert read_record(path) is None
    write_record(path, {"a": [1, None]})
    assert read_record(path) == {"a": [1, None]}
    write_record(path, {"b": 1}, version=2)
    with pytest.raises(StorageError, match=r"outbox\.json is of version 2, this catchment reads version 1") as caught:
        read_record(path)
    assert "upgrade" in str(caught.value.hint)
    assert read_record(path, version=2) == {"b": 1}


def test_every_altered_byte_of_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"a": 1})
    data = path.read_bytes()
    for place in range(len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(StorageError, match="checksum"):
            read_record(path)


def test_a_record_that_a_disk_wrote_over_another_one_is_refused(tmp_path: Path) -> None:
    written, other = tmp_path / "outbox.json", tmp_path / "inbox.json"
    write_record(written, {"a": 1})
    other.write_bytes(written.read_bytes())
    with pytest.raises(StorageError, match="checksum"):
        read_record(other)


def test_a_record_of_a_release_whose_checksums_did_not_cover_names_is_read(tmp_path: Path) -> None:
    path = tmp_path / "outbox.json"
    content = b'1 {"a":1}'
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(content), content))
    assert read_record(path) == {"a": 1}


def test_a_journal_of_another_version_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "VERSION", 2)
        newer = Journal(tmp_path)
        newer.append(Entry(0, "s", 0, 0, ()))
        newer.close()
    content = (tmp_path / "journal-0.log").read_bytes()
    with pytest.raises(StorageError, match=r"journal-0\.log is of version 2, this catchment reads version 1"):
        Journal(tmp_path)
    assert (tmp_path / "journal-0.log").read_bytes() == content


def test_a_journal_whose_head_was_torn_begins_anew(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    path = tmp_path / "journal-0.log"
    head = path.read_bytes()
    for cut in range(len(head)):
        for torn in (head[:cut], bytes(cut)):
            path.write_bytes(torn)
            opened = Journal(tmp_path)
            opened.append(Entry(0, "s", 0, 0, ()))
            opened.close()
            assert [e.sequence for e in Journal(tmp_path).entries()] == [0]


def test_several_writers_of_one_file_do_not_collide(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = {bytes([letter]) * 10_000 for letter in b"abcd"}
    failures: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(25):
                write_durably(path, content)
                assert path.read_bytes() in contents
        except BaseException as failure:  # noqa: BLE001 - the test raises it
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_writer_left_is_removed_by_the_next_one_and_not_what_another_writes_now(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, written, other = (tmp_path / name for name in (f"a.{ended.pid}-7.tmp", f"b.{os.getppid()}-7.tmp", "c.tmp"))
    for path in (left, written, other):
        path.write_bytes(b"half")
    write_durably(tmp_path / "d", b"whole")
    assert {p.name for p in tmp_path.iterdir()} == {written.name, "c.tmp", "d"}
