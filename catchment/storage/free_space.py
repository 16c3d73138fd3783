"""Free space on a disk: whether enough is left to go on, and a little that is set aside for the last words.

A site that meets a full disk in the middle of a write must end and recover from its files. So it stops reading before:
below a floor it waits until there is room again, and senders wait for an inbox whose disk is nearly full.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.errors import StorageError
from catchment.units import SECOND_US, format_size

if TYPE_CHECKING:  # the command line needs this module and not what reads clocks
    from catchment.timeline import Clock

CHECK_EVERY_US = SECOND_US
RECOVERED_PERCENT = 110  # of the floor: so much must be free before reading goes on
SPARE_BYTES = 256 * 1024  # set aside in the folder of each role
SPARE_FILE = "spare"
FULL = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger(__name__)


class DiskFullError(StorageError):
    """Nothing more fits on a disk."""


def free_bytes_of(folder: Path) -> int:
    """Return the bytes that this process may still write to the disk of a folder."""
    there = next(f for f in (folder, *folder.parents) if f.exists())
    return shutil.disk_usage(there).free


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, is that a disk is full."""
    while error is not None:
        if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


class FreeSpace:
    """Watches the disk of one folder; may be asked from any thread."""

    def __init__(
        self, folder: Path, floor_bytes: int, clock: Clock, measure: Callable[[Path], int] = free_bytes_of
    ) -> None:
        self._folder = folder
        self._floor_bytes = floor_bytes
        self._clock = clock
        self._measure = measure
        self._lock = threading.Lock()
        self._checked_us: int | None = None
        self._free_bytes = 0
        self._low_since_us: int | None = None

    def is_low(self) -> bool:
        """Return whether less than the floor is free, or was and not enough more is by now."""
        with self._lock:
            now_us = self._clock.now_us()
            if self._checked_us is None or abs(now_us - self._checked_us) >= CHECK_EVERY_US:
                self._checked_us = now_us
                self._free_bytes = self._measure(self._folder)
                self._judge(now_us)
            return self._low_since_us is not None

    def describe(self) -> str:
        """Return what is wrong, in one sentence."""
        return (
            f"{self._free_bytes // 10**6} MB are free on the disk of {self._folder}, "
            f"less than free_disk ({format_size(self._floor_bytes)})"
        )

    def status(self) -> dict[str, Any]:
        """Return how much is free, and since when that is too little."""
        self.is_low()
        return {
            "free_bytes": self._free_bytes,
            "floor_bytes": self._floor_bytes,
            "low_since_us": self._low_since_us,
        }

    def _judge(self, now_us: int) -> None:
        if self._low_since_us is None and self._free_bytes < self._floor_bytes:
            self._low_since_us = now_us
            _log.warning("reading stops until there is room again: %s", self.describe())
        elif self._low_since_us is not None and 100 * self._free_bytes >= RECOVERED_PERCENT * self._floor_bytes:
            self._low_since_us = None
            _log.warning("reading goes on: %d MB are free on the disk again", self._free_bytes // 10**6)


def write_last_words(path: Path, text: str) -> bool:
    """Replace a small file that need not survive a power cut, also on a full disk; return whether that worked.

    The room is set aside beforehand, in a file of the same folder that is given up for it.
    """
    spare = path.with_name(SPARE_FILE)
    try:
        _replace(path, text)
        _set_aside(spare)
        return True
    except OSError as error:
        if not is_disk_full(error):
            raise
    spare.unlink(missing_ok=True)
    try:
        _replace(path, text)
        return True
    except OSError as error:
        _log.warning("%s could not be written: %s", path, error.strerror)
        return False


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _set_aside(spare: Path) -> None:
    if spare.exists():
        return
    file = os.open(spare, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(file, 0, SPARE_BYTES)
    except OSError:
        spare.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
