"""The journal holds the events that a core was given, on disk before anything follows from them.

One file `journal-N.log` holds the entries since the snapshot `snapshot-N.bin`. Both begin with the version of their
format; then come entries, each with a length and a checksum, each made durable by one fsync. A torn last entry was
never acknowledged to anyone and is cut off; a damaged entry, the last one included, is refused. If an fsync fails the
process must end and replay: the kernel may have marked the lost pages clean, so trying again would lie.

    file:   magic "CTJL" | version u16 | crc32 of both | entry | entry | ...
    entry:  length u32 | crc32 of the body | crc32 of those two | body
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any

from catchment.errors import StorageError
from catchment.storage.codec import decode, encode, stored
from catchment.storage.files import check_version, sync_folder, write_durably

MAGIC = b"CTJL"
VERSION = 1
SECTOR_BYTES = 512  # what a disk writes whole or not at all

_FORMAT = struct.Struct("<4sH")  # magic, version
_LENGTHS = struct.Struct("<II")  # length and crc32 of the body
_CHECK = struct.Struct("<I")  # crc32 of what stands before it
_FILE_HEAD_BYTES = _FORMAT.size + _CHECK.size
_ENTRY_HEAD_BYTES = _LENGTHS.size + _CHECK.size


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


class Journal:
    """Entries since the newest snapshot, and that snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.base = max((int(p.stem.split("-")[1]) for p in folder.glob("snapshot-*.bin")), default=0)
        self._failure: OSError | None = None
        self._log = self._open()

    def append(self, entry: Entry) -> None:
        """Add an entry; it is durable when this returns."""
        if self._failure is not None:
            raise self._failure  # what follows a half-written entry would be taken for damage
        try:
            self._log.write(_with_checksums(encode(entry)))
            self._log.flush()
            os.fsync(self._log.fileno())
        except OSError as failure:
            self._failure = failure
            raise

    def entries(self) -> Iterator[Entry]:
        """Read the entries since the snapshot, oldest first."""
        for body in self._bodies():
            yield _decode(body, self._path)

    def snapshot(self) -> Any | None:
        """Return the state at the newest snapshot, or None if there is none."""
        path = self.folder / f"snapshot-{self.base}.bin"
        if not path.exists():
            return None
        (body,) = _read_bodies(path.read_bytes(), path)
        return _decode(body, path)

    def compact(self, sequence: int, state: Any) -> None:
        """Start a new file from a state that contains every entry below `sequence`."""
        write_durably(self.folder / f"snapshot-{sequence}.bin", _file_head() + _with_checksums(encode(state)))
        self._log.close()
        self.base = sequence
        self._log = self._open()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file of entries."""
        return int(self._log.tell())

    def close(self) -> None:
        self._log.close()

    @property
    def _path(self) -> Path:
        return self.folder / f"journal-{self.base}.log"

    def _bodies(self) -> Iterator[bytes]:
        return _read_bodies(self._path.read_bytes(), self._path) if self._path.exists() else iter(())

    def _open(self) -> BufferedWriter:
        for old in self.folder.iterdir():
            if old.stem.split("-")[-1] != str(self.base):
                old.unlink()  # older than the snapshot, or half of a newer one
        whole = [_ENTRY_HEAD_BYTES + len(body) for body in self._bodies()]
        log = open(self._path, "ab")  # noqa: SIM115 - kept open for the journal's life
        log.truncate(_FILE_HEAD_BYTES + sum(whole) if whole else 0)
        if not whole:
            log.write(_file_head())
            log.flush()
        os.fsync(log.fileno())
        sync_folder(self.folder)
        return log


def _file_head() -> bytes:
    head = _FORMAT.pack(MAGIC, VERSION)
    return head + _CHECK.pack(zlib.crc32(head))


def _with_checksums(body: bytes) -> bytes:
    head = _LENGTHS.pack(len(body), zlib.crc32(body))
    return head + _CHECK.pack(zlib.crc32(head)) + body


def _read_bodies(data: bytes, path: Path) -> Iterator[bytes]:
    """Read the entries of a file, each checked; stop at a torn end, raise at anything else that is not as written.

    Torn is only what an interrupted append can leave: an entry cut short, or sectors of zeros that were never filled.
    The length has a checksum of its own, so that an altered length is not taken for an entry cut short.
    """
    if len(data) < _FILE_HEAD_BYTES or not any(data):
        return
    _check_file_head(data, path)
    at = _FILE_HEAD_BYTES
    while at < len(data):
        head = data[at : at + _ENTRY_HEAD_BYTES]
        if len(head) < _ENTRY_HEAD_BYTES or not any(data[at:]):
            return
        length, checksum = _LENGTHS.unpack_from(head)
        if _CHECK.unpack_from(head, _LENGTHS.size)[0] != zlib.crc32(head[: _LENGTHS.size]):
            raise _damage(path, at)
        begin = at
        body = data[at + _ENTRY_HEAD_BYTES : at + _ENTRY_HEAD_BYTES + length]
        at += _ENTRY_HEAD_BYTES + length
        if at > len(data):
            return
        if zlib.crc32(body) != checksum:
            if at == len(data) and _has_unfilled_sector(data, begin):
                return
            raise _damage(path, begin)
        yield body


def _decode(body: bytes, path: Path) -> Any:
    try:
        return decode(body)
    except StorageError as error:
        raise error.found_in(str(path)) from error.__cause__


def _has_unfilled_sector(data: bytes, begin: int) -> bool:
    """Return whether a sector of the file's end, or the part of one that belongs to it, is all zeros."""
    first = begin - begin % SECTOR_BYTES
    sectors = (data[max(start, begin) : start + SECTOR_BYTES] for start in range(first, len(data), SECTOR_BYTES))
    return any(not any(sector) for sector in sectors)


def _check_file_head(data: bytes, path: Path) -> None:
    magic, version = _FORMAT.unpack_from(data)
    if magic != MAGIC or _CHECK.unpack_from(data, _FORMAT.size)[0] != zlib.crc32(data[: _FORMAT.size]):
        raise _damage(path, 0)
    check_version(version, VERSION, path)


def _damage(path: Path, at: int) -> StorageError:
    return StorageError(
        f"damaged near byte {at}: a checksum does not match",
        where=str(path),
        hint="the disk altered an acknowledged entry; restore this state folder from a copy",
    )
