"""The log of one device on disk: what must survive a kill, in one append-only file.

The file has the checksums of a journal (`storage/journal_file.py`); its entries are JSON, because a device should need
no more than the standard library to read its own past. It begins with a snapshot, and is written anew, in one step,
when it has grown large. A torn last entry was never relied on, and is cut off; other damage is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from catchment.errors import StorageError
from catchment.storage.disk import current_disk
from catchment.storage.files import make_folder, write_all, write_durably
from catchment.storage.journal_file import ENTRY_HEAD_BYTES, FILE_HEAD_BYTES, file_head, read_bodies, with_checksums
from catchment.storage.lock import lock_folder

LOG_FILE = "device.log"
REWRITE_FROM_BYTES = 4_000_000  # a log that has doubled since it was written anew, and is larger than this, is due

Entry = dict[str, Any]


class DeviceLog:
    """The entries of a device since its snapshot; one process at a time may hold it."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        lock_folder(folder, self)
        self.path = folder / LOG_FILE
        self._first_bytes = 0
        self._file: int | None = None
        self._failure: OSError | None = None
        self.size_bytes = 0
        self.found = self._open()  # entries that were there, the snapshot first

    def append(self, entry: Entry, durable: bool = True) -> None:
        """Add an entry, which survives a kill when this returns and, if it is durable, a power cut too."""
        if self._failure is not None:
            raise self._failure  # what follows a half-written entry would be taken for damage
        assert self._file is not None, "the log is closed"
        data = _framed(entry)
        try:
            write_all(self._file, data)
            if durable:
                current_disk().fsync(self._file)
        except OSError as failure:
            self._failure = failure
            raise
        self.size_bytes += len(data)

    @property
    def is_due(self) -> bool:
        """Whether the log should be written anew."""
        return self.size_bytes > max(REWRITE_FROM_BYTES, 2 * self._first_bytes)

    def rewrite(self, snapshot: Entry) -> None:
        """Begin the log anew with a snapshot of everything that it said."""
        self.close()
        data = file_head() + _framed(snapshot)
        write_durably(self.path, data)
        self._first_bytes = self.size_bytes = len(data)
        self._file = current_disk().open(self.path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        if self._file is not None:
            current_disk().close(self._file)
            self._file = None

    def _open(self) -> list[Entry]:
        """Read what is there, and cut off what is torn."""
        if not self.path.exists():
            return []
        bodies = list(read_bodies(self.path.read_bytes(), self.path))
        self.size_bytes = FILE_HEAD_BYTES + sum(ENTRY_HEAD_BYTES + len(body) for body in bodies)
        self._first_bytes = FILE_HEAD_BYTES + ENTRY_HEAD_BYTES + len(bodies[0]) if bodies else 0
        if bodies:  # otherwise it was cut before its snapshot, and is written anew
            disk = current_disk()
            self._file = disk.open(self.path, os.O_WRONLY | os.O_APPEND)
            disk.truncate(self._file, self.size_bytes)
            disk.fsync(self._file)
        return [self._read(body) for body in bodies]

    def _read(self, body: bytes) -> Entry:
        try:
            entry = json.loads(body)
        except ValueError as error:
            raise StorageError(f"an entry cannot be read: {error}", where=str(self.path)) from error
        if not isinstance(entry, dict):
            raise StorageError("an entry is no JSON object", where=str(self.path))
        return entry


def _framed(entry: Entry) -> bytes:
    return with_checksums(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode())
