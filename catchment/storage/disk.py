"""The disk: the few calls by which durable state reaches files, behind one object that a simulation can replace.

Everything that must survive a power cut goes through `current_disk()`. In production that is the operating system; a
test puts a disk in its place that fails, tears or loses writes (`catchment.testing.simulated.disk`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """The disk of the operating system; only the owner may read what is created."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, 0o600)

    def write(self, file: int, data: memoryview) -> int:
        """Write some of the data; return how many bytes."""
        return os.write(file, data)

    def truncate(self, file: int, size_bytes: int) -> None:
        os.ftruncate(file, size_bytes)

    def fsync(self, file: int) -> None:
        """Make a file's content durable, or the names in a folder."""
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def replace(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_folder(self, folder: Path) -> None:
        """Create one folder; its parent is there."""
        folder.mkdir(mode=0o700, exist_ok=True)

    def sync_everything(self) -> None:
        """Make everything durable that any library of this process has written."""
        os.sync()


_current = Disk()


def current_disk() -> Disk:
    """Return the disk that durable state goes to."""
    return _current


@contextmanager
def use_disk(disk: Disk) -> Iterator[None]:
    """Put another disk in the place of the system's for this process, until the end of the block."""
    global _current
    before = _current
    _current = disk
    try:
        yield
    finally:
        _current = before
