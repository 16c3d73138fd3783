"""Files that hold secrets: only their owner may read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from catchment.errors import ConfigError

OWNER_ONLY = stat.S_IRWXG | stat.S_IRWXO  # bits that must not be set
ROOT_AND_GROUP = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO  # the same where the owner is root


def read_secret(path: Path, what: str, hint: str | None = None) -> bytes:
    """Return the content of a file that holds a secret; refused if others than its owner can read it.

    A file that belongs to root may be readable by its group, as secrets that a system mounts are.
    """
    try:
        found = path.stat()
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {what}: {error.strerror}", where=str(path), hint=hint) from error
    forbidden = ROOT_AND_GROUP if found.st_uid == 0 and os.geteuid() != 0 else OWNER_ONLY
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(
            f"{what} can be read by other users: its mode is {mode:04o}",
            where=str(path),
            hint=f"chmod 600 {path}",
        )
    return data


def create_secret(path: Path, data: bytes) -> bytes:
    """Write a secret unless the file exists; return what is in the file then.

    Of several processes that start at once one writes, and all read the same.
    """
    what = f"the secret {path.name}"
    if path.exists():
        return read_secret(path, what)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    return read_secret(path, what)
