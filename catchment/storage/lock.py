"""A folder belongs to one process at a time.

Two processes that number segments in one folder would write different things under one number, and one of
them would be taken for a duplicate. The kernel drops the claim when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import StorageError

CLAIM_FILE = "in-use"


@dataclass(slots=True)
class _Claim:
    """A record lock belongs to the process and goes with the first close of any descriptor of its file, so
    each file is opened once, and its holders are counted."""

    file: int
    holders: int = 0


_claims: dict[Path, _Claim] = {}
_guard = threading.RLock()  # re-entrant: the garbage collector may release one claim while another is made


def claim_folder(folder: Path, owner: object) -> None:
    """Hold a folder for this process while `owner` lives; refused while another process holds it."""
    path = folder.resolve() / CLAIM_FILE
    with _guard:
        claim = _claims.get(path)
        if claim is not None:
            claim.holders += 1
        if claim is None or _claims.get(path) is not claim:  # released between the two lines above
            claim = _claims[path] = _Claim(_lock(path), 1)
    weakref.finalize(owner, _release, path, claim)


def _lock(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise StorageError(
            "the folder is in use by another process",
            where=str(path.parent),
            hint="end the other process first",
        ) from error
    return file


def _release(path: Path, claim: _Claim) -> None:
    with _guard:
        claim.holders -= 1
        if claim.holders == 0:
            del _claims[path]
            os.close(claim.file)
