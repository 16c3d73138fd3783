"""One process a state folder: a lock that the operating system releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from catchment.errors import ConfigError


class FolderLock:
    """Held from `acquire` until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self._file: int | None = None

    def acquire(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode().strip() or "unknown"
            os.close(self._file)
            self._file = None
            raise ConfigError(
                f"another process (id {holder}) is running on this state folder",
                where=str(self.path.parent),
                hint="stop it first; two processes would count everything twice",
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, str(os.getpid()).encode())

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
