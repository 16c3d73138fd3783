"""A folder belongs to one process at a time.

Two processes that number segments in one folder would write different things under one number, and one of them would
be taken for a duplicate. The kernel drops the lock when the process ends, however it ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

from catchment.errors import StorageError

LOCK_FILE = "in-use"

_guard = threading.RLock()  # re-entrant: the garbage collector may release one lock while another is acquired


def lock_folder(folder: Path, owner: object) -> None:
    """Hold a folder for this process while `owner` lives; refused while another process holds it.

    Several owners in one process may hold the same folder: the lock is one per path, and counts them.
    """
    path = folder.resolve() / LOCK_FILE
    lock = FileLock(path, blocking=False, thread_local=False, is_singleton=True)
    with _guard:
        try:
            lock.acquire()
        except Timeout as error:
            raise StorageError(
                f"the folder is in use by another process ({_holder(path)})",
                where=str(folder),
                hint="end the other process first",
            ) from error
        path.write_text(f"{os.getpid()}\n")
    weakref.finalize(owner, _release, lock)


def _release(lock: FileLock) -> None:
    with _guard:
        lock.release()


def _holder(path: Path) -> str:
    process = path.read_text().strip()
    return f"number {process}" if process else "which is just starting"
