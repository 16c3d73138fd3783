"""Files that survive a kill and a power cut.

A file appears whole or not at all: it is written under another name, synced, renamed, and the folder is synced. Only
when `write_durably` has returned may anyone be told that the data is safe. Only their owner may read the files.

After a failed fsync the kernel may have marked the lost pages clean, so that a second fsync would succeed without the
data being on disk (Rebello et al., ATC'20). So nothing here retries: the OSError goes up, the process must end, and
what was not confirmed is replayed by whoever still has it.

A record is a small JSON document in a file of its own, which people may read but must not edit: one line of checksum,
version and content. The name of the file is under the checksum: a disk may write a record over another one.
"""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from catchment.errors import StorageError
from catchment.storage.disk import current_disk

TEMPORARY = ".tmp"  # suffix of a file that is being written; found at start, it is a remnant and is removed
_WRITER = re.compile(r"\.([0-9]+)-[0-9]+\.tmp")  # the process and the thread that write a file
_swept: set[Path] = set()  # folders in which this process has removed what dead writers have left


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` at `path`, replacing what is there, durably and in one step; of several writers the last one wins."""
    disk = current_disk()
    if path.parent not in _swept:
        _sweep(path.parent)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}{TEMPORARY}")
    file = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file, data)
        disk.fsync(file)
    except OSError:
        with suppress(OSError):  # on a full disk it would take the room that others need to say so
            remove_file(temporary)
        raise
    finally:
        disk.close(file)
    disk.replace(temporary, path)
    sync_folder(path.parent)


def _sweep(folder: Path) -> None:
    """Remove what writers have left in a folder that were killed: nobody writes under their names any more."""
    for remnant in folder.glob(f"*{TEMPORARY}"):
        writer = _WRITER.search(remnant.name)
        if writer is not None and not _is_alive(int(writer[1])):
            remove_file(remnant)
    _swept.add(folder)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of somebody else, or a number that no process can have
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: those of created, renamed and removed files."""
    _sync(folder)


def sync_files(paths: Iterable[Path]) -> None:
    """Make files that another writer wrote, and their names, durable; missing paths are ignored."""
    folders: set[Path] = set()
    for path in paths:
        with suppress(FileNotFoundError):  # it is missing, or its writer removes it now
            _sync(path)
            folders.add(path.parent)
    for folder in folders:
        _sync(folder)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably, if they are missing; only their owner may enter them."""
    for missing in reversed([f for f in (folder, *folder.parents) if not f.exists()]):
        current_disk().make_folder(missing)
        sync_folder(missing.parent)


def remove_file(path: Path) -> None:
    """Remove a file if it is there; after a power cut it may be back, which its owner must tolerate."""
    if path.exists():
        with suppress(FileNotFoundError):  # another thread was faster
            current_disk().unlink(path)


def rename_file(old: Path, new: Path) -> None:
    """Rename a file; after a power cut it may have its old name, which its owner must tolerate."""
    current_disk().replace(old, new)


def remove_remnants(folder: Path) -> None:
    """Remove what a killed writer left half written."""
    for remnant in folder.glob(f"*{TEMPORARY}"):
        remove_file(remnant)


def write_record(path: Path, record: Mapping[str, Any], version: int = 1) -> None:
    """Put a record at `path`, durably; `version` grows whenever its fields change their meaning."""
    content = f"{version} {json.dumps(record, separators=(',', ':'), sort_keys=True)}".encode()
    write_durably(path, b"%08x %s\n" % (_checksum(path, content), content))


def read_record(path: Path, version: int = 1) -> dict[str, Any] | None:
    """Return the record at `path`, or None if there is no such file; one of another version is refused."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:  # asked first whether it is there, it could be removed by another thread in between
        return None
    checksum, _, content = stored.rstrip(b"\n").partition(b" ")
    if checksum not in (b"%08x" % _checksum(path, content), b"%08x" % zlib.crc32(content)):  # names were not under it
        raise StorageError(
            "the checksum of the file does not match its content",
            where=str(path),
            hint="restore the folder from a copy; the file is small and must not be edited",
        )
    written, _, text = content.partition(b" ")
    check_version(written.decode("ascii", "replace"), version, path)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the content of the file is not a record: {error}", where=str(path)) from error
    if not isinstance(record, dict):
        raise StorageError("the content of the file is not a record", where=str(path))
    return record


def _checksum(path: Path, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(path.name.encode()))


def check_version(written: str | int, known: int, path: Path) -> None:
    """Refuse a file of a version that this catchment does not read."""
    if str(written) == str(known):
        return
    raise StorageError(
        f"{path.name} is of version {written!s:.20}, this catchment reads version {known}",
        where=str(path.parent),
        hint="start the catchment that wrote it, or restore a copy of the folder from before the upgrade",
    )


def write_all(file: int, data: bytes) -> None:
    """Write all of the data to an open file."""
    rest = memoryview(data)
    while rest:
        rest = rest[current_disk().write(file, rest) :]


def _sync(path: Path) -> None:
    disk = current_disk()
    file = disk.open(path, os.O_RDONLY)
    try:
        disk.fsync(file)
    finally:
        disk.close(file)
