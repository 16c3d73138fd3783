"""The files of a journal: a head with the version of the format, then entries, each with a length and a checksum.

    file:   magic "CTJL" | version u16 | crc32 of both | entry | entry | ...
    entry:  length u32 | crc32 of the body | crc32 of those two | body

A torn last entry was never acknowledged to anyone and is passed over; a damaged entry, the last one included, is
refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from catchment.errors import StorageError
from catchment.storage.files import check_version

MAGIC = b"CTJL"
VERSION = 1
SECTOR_BYTES = 512  # what a disk writes whole or not at all

_FORMAT = struct.Struct("<4sH")  # magic, version
_LENGTHS = struct.Struct("<II")  # length and crc32 of the body
_CHECK = struct.Struct("<I")  # crc32 of what stands before it
FILE_HEAD_BYTES = _FORMAT.size + _CHECK.size
ENTRY_HEAD_BYTES = _LENGTHS.size + _CHECK.size


class DamagedFileError(StorageError):
    """A file of a journal is not as it was written."""


def file_head() -> bytes:
    head = _FORMAT.pack(MAGIC, VERSION)
    return head + _CHECK.pack(zlib.crc32(head))


def with_checksums(body: bytes) -> bytes:
    head = _LENGTHS.pack(len(body), zlib.crc32(body))
    return head + _CHECK.pack(zlib.crc32(head)) + body


def read_bodies(data: bytes, path: Path) -> Iterator[bytes]:
    """Read the entries of a file, each checked; stop at a torn end, raise at anything else that is not as written.

    Torn is only what an interrupted append can leave: an entry cut short, or sectors of zeros that were never filled.
    The length has a checksum of its own, so that an altered length is not taken for an entry cut short.
    """
    if len(data) < FILE_HEAD_BYTES or not any(data):
        return
    _check_file_head(data, path)
    at = FILE_HEAD_BYTES
    while at < len(data):
        head = data[at : at + ENTRY_HEAD_BYTES]
        if len(head) < ENTRY_HEAD_BYTES or not any(data[at:]):
            return
        length, checksum = _LENGTHS.unpack_from(head)
        if _CHECK.unpack_from(head, _LENGTHS.size)[0] != zlib.crc32(head[: _LENGTHS.size]):
            if _is_cut_head(data, at):
                return
            raise _damage(path, at)
        begin = at
        body = data[at + ENTRY_HEAD_BYTES : at + ENTRY_HEAD_BYTES + length]
        at += ENTRY_HEAD_BYTES + length
        if at > len(data):
            return
        if zlib.crc32(body) != checksum:
            if at == len(data) and _has_unfilled_sector(data, begin):
                return
            raise _damage(path, begin)
        yield body


def read_snapshot_body(path: Path) -> bytes:
    """Return the one entry that a file of a snapshot holds."""
    bodies = list(read_bodies(path.read_bytes(), path))
    if len(bodies) != 1:  # a snapshot is written whole before it has its name, so that it is never torn
        raise _damage(path, 0)
    return bodies[0]


def _is_cut_head(data: bytes, begin: int) -> bool:
    """Return whether the head of an entry lies in two sectors, of which the second and all after it are zeros."""
    second = begin - begin % SECTOR_BYTES + SECTOR_BYTES
    return second < begin + ENTRY_HEAD_BYTES and not any(data[second:])


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


def _damage(path: Path, at: int) -> DamagedFileError:
    return DamagedFileError(
        f"damaged near byte {at}: a checksum does not match",
        where=str(path),
        hint="the disk altered an acknowledged entry; restore this state folder from a copy",
    )
