"""Files that survive a kill and a power cut.

A file appears whole or not at all: it is written under another name, synced, renamed, and the folder is
synced. Only when `write_durably` has returned may anyone be told that the data is safe.

After a failed fsync the kernel may have marked the lost pages clean, so that a second fsync would succeed
without the data being on disk (Rebello et al., ATC'20). So nothing here retries: the OSError goes up, the
process must end, and what was not confirmed is replayed by whoever still has it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from catchment.errors import StorageError

TEMPORARY = ".tmp"  # suffix of a file that is being written; found at start, it is a remnant and is removed


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` at `path`, replacing what is there, durably and in one step."""
    temporary = path.with_name(path.name + TEMPORARY)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write_all(file, data)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: created, renamed and removed files."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_files(paths: Iterable[Path]) -> None:
    """Make files that another writer left here, and their names, durable; those not here are another's care."""
    here = [p for p in paths if p.is_file()]
    for path in here:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    for folder in {p.parent for p in here}:
        sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably, if they are missing."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def remove_file(path: Path) -> None:
    """Remove a file; after a power cut it may be back, which its owner must tolerate."""
    if path.exists():
        os.unlink(path)


def remove_remnants(folder: Path) -> None:
    """Remove what a killed writer left half written."""
    for remnant in folder.glob(f"*{TEMPORARY}"):
        os.unlink(remnant)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Put a small JSON record with its checksum at `path`, durably."""
    text = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    write_durably(path, b"%08x %s\n" % (zlib.crc32(text), text))


def read_record(path: Path) -> dict[str, Any] | None:
    """The record at `path`, or None if there is no such file."""
    if not path.exists():
        return None
    checksum, _, text = path.read_bytes().rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise StorageError(
            "the checksum of the file does not match its content",
            where=str(path),
            hint="restore the folder from a copy; the file is small and must not be edited",
        )
    record: dict[str, Any] = json.loads(text)
    return record


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
