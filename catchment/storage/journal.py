"""The journal holds the events that a core was given, on disk before anything follows from them.

One file `journal-N.log` holds the entries from number N on; `snapshot-N.bin` is the state that contains every entry
below N (`catchment.storage.journal_file` has their format). Each entry is made durable by one fsync. If an fsync fails
the process must end and replay: the kernel may have marked the lost pages clean, so trying again would lie.

Two generations are kept: the newest snapshot with the entries since, and the snapshot before it with the entries
between the two. If the newest snapshot is damaged, the state is made again from the one before, and `warnings` says so.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catchment.errors import StorageError
from catchment.storage.codec import decode, encode, stored
from catchment.storage.disk import current_disk
from catchment.storage.files import TEMPORARY, make_folder, remove_file, sync_folder, write_all, write_durably
from catchment.storage.journal_file import (
    ENTRY_HEAD_BYTES,
    FILE_HEAD_BYTES,
    DamagedFileError,
    file_head,
    read_bodies,
    read_snapshot_body,
    with_checksums,
)

_NAME = re.compile(r"(snapshot|journal)-([0-9]+)\.(?:bin|log)((?:\.[0-9]+-[0-9]+)?\.tmp)?")
_log = logging.getLogger(__name__)


@stored()
@dataclass(frozen=True, slots=True)
class Entry:
    """Events that are handled at once, and the time at which they are.

    A batch is named by its cause (the stream that it is a batch of) and number, so that it is never handled twice;
    other entries have no number.
    """

    sequence: int
    cause: str
    batch: int | None
    now_us: int
    events: tuple[Any, ...]


@dataclass(frozen=True)
class JournalFiles:
    """The files of a journal that are to be read: a snapshot, if there is one, and the entries since, oldest first.

    `base` is the number of the first entry after the snapshot. `damaged` are newer snapshots that cannot be read.
    """

    folder: Path
    base: int
    logs: tuple[int, ...]
    damaged: tuple[Path, ...] = ()
    has_snapshot: bool = False

    @classmethod
    def find(cls, folder: Path) -> JournalFiles:
        """Return the files to read, without changing any; the newest snapshot that is whole is taken."""
        snapshots = sorted(_numbers(folder, "snapshot"), reverse=True)
        logs = sorted(_numbers(folder, "journal"))
        damaged = []
        failure: DamagedFileError | None = None
        for number in snapshots:
            path = snapshot_path(folder, number)
            try:
                read_snapshot_body(path)
            except DamagedFileError as error:
                damaged.append(path)
                failure = failure or error
                continue
            return cls(folder, number, _since(folder, number, logs), tuple(damaged), True)
        if failure is not None and 0 not in logs:
            raise failure  # nothing older is left to make the state from
        return cls(folder, 0, _since(folder, 0, logs), tuple(damaged))

    def snapshot(self) -> Any | None:
        """Return the state of the snapshot; None if there is none."""
        if not self.has_snapshot:
            return None
        path = snapshot_path(self.folder, self.base)
        return read_document(read_snapshot_body(path), path)

    def bodies(self) -> Iterator[tuple[bytes, Path]]:
        """Yield the entries since the snapshot, each checked; a file that others follow must not lack its end."""
        for number, following in zip(self.logs, (*self.logs[1:], None), strict=False):
            path = log_path(self.folder, number)
            end = number
            for body in read_bodies(path.read_bytes(), path) if path.exists() else ():
                end += 1
                yield body, path
            if following is not None and end != following:
                raise _gap(path, end, following)

    @property
    def names(self) -> set[str]:
        """The names of the files."""
        return {snapshot_path(self.folder, self.base).name, *(log_path(self.folder, n).name for n in self.logs)}


class Journal:
    """Entries since the newest snapshot, and that snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        found = JournalFiles.find(folder)
        self._files = replace(found, logs=found.logs or (found.base,))
        self.warnings = [self._warn_of(path) for path in self._files.damaged]
        self._failure: OSError | None = None
        self._log: int | None = None
        self._size_bytes = 0
        self.snapshot_bytes = 0  # of the newest snapshot
        if found.has_snapshot:
            self.snapshot_bytes = snapshot_path(folder, found.base).stat().st_size
        self._open()

    @property
    def base(self) -> int:
        """The number of the first entry after the newest snapshot."""
        return self._files.base

    def append(self, entry: Entry) -> None:
        """Add an entry; it is durable when this returns."""
        if self._failure is not None:
            raise self._failure  # what follows a half-written entry would be taken for damage
        assert self._log is not None, "the journal is closed"
        data = with_checksums(encode(entry))
        try:
            write_all(self._log, data)
            current_disk().fsync(self._log)
        except OSError as failure:
            self._failure = failure
            raise
        self._size_bytes += len(data)

    def entries(self) -> Iterator[Entry]:
        """Read the entries since the snapshot, oldest first."""
        for body, path in self._files.bodies():
            yield read_document(body, path)

    def snapshot(self) -> Any | None:
        """Return the state at the newest snapshot, or None if there is none."""
        return self._files.snapshot()

    def compact(self, sequence: int, state: Any) -> None:
        """Start a new file from a state that contains every entry below `sequence`; keep the generation before it."""
        data = file_head() + with_checksums(encode(state))
        write_durably(snapshot_path(self.folder, sequence), data)
        self.snapshot_bytes = len(data)
        self.close()
        before = self._files
        self._files = JournalFiles(self.folder, sequence, (sequence,), has_snapshot=True)
        self._open()
        for old in _files(self.folder):
            if old.name not in before.names | self._files.names:
                remove_file(old)

    @property
    def size_bytes(self) -> int:
        """Bytes of the newest file of entries."""
        return self._size_bytes

    def close(self) -> None:
        """Close the file; nothing can be appended any more."""
        if self._log is not None:
            current_disk().close(self._log)
            self._log = None

    def _open(self) -> None:
        """Open the newest file of entries to append to it; cut off what is torn."""
        for remnant in _files(self.folder):
            if remnant.suffix == TEMPORARY:
                remove_file(remnant)
        path = log_path(self.folder, self._files.logs[-1])
        whole = [ENTRY_HEAD_BYTES + len(body) for body, found in self._files.bodies() if found == path]
        self._size_bytes = FILE_HEAD_BYTES + sum(whole)
        disk = current_disk()
        self._log = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        disk.truncate(self._log, self._size_bytes if whole else 0)
        if not whole:
            write_all(self._log, file_head())
        disk.fsync(self._log)
        sync_folder(self.folder)

    def _warn_of(self, damaged: Path) -> str:
        told = (
            f"{damaged} is damaged: the state was made again from the snapshot before it, and nothing is lost; "
            f"look at the disk"
        )
        _log.warning("%s", told)
        return told


def read_document(body: bytes, path: Path) -> Any:
    try:
        return decode(body)
    except StorageError as error:
        raise error.found_in(str(path)) from error.__cause__


def snapshot_path(folder: Path, number: int) -> Path:
    """Return the file of the snapshot that contains every entry below a number."""
    return folder / f"snapshot-{number}.bin"


def log_path(folder: Path, number: int) -> Path:
    """Return the file of the entries from a number on."""
    return folder / f"journal-{number}.log"


def _since(folder: Path, base: int, logs: Sequence[int]) -> tuple[int, ...]:
    """Return the files of entries that follow a snapshot; the first must begin where the snapshot ends."""
    found = tuple(number for number in logs if number >= base)
    if found and found[0] != base:
        raise _gap(log_path(folder, found[0]), base, found[0])
    return found


def _gap(path: Path, end: int, following: int) -> DamagedFileError:
    return DamagedFileError(
        f"the entries from number {end} to {following} are missing",
        where=str(path),
        hint="entries that were acknowledged are gone; restore this state folder from a copy",
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a journal, half-written ones included; whatever else is in its folder is left alone."""
    yield from (path for path in list(folder.iterdir()) if _NAME.fullmatch(path.name) and path.is_file())


def _numbers(folder: Path, kind: str) -> Iterator[int]:
    for path in _files(folder) if folder.is_dir() else ():
        named = _NAME.fullmatch(path.name)
        if named is not None and named[1] == kind and named[3] is None:
            yield int(named[2])
