"""The journal: what a core was told, on disk before anything follows from it.

One file `journal-N.log` holds the entries since the snapshot `snapshot-N.bin`; entry by entry with a length and
a checksum, each made durable by one fsync. A torn last entry was never acknowledged to anyone and is cut off; a
damaged entry before it is refused. If an fsync fails the process must end and replay: the kernel may have marked
the lost pages clean, so trying again would lie.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchment.errors import StorageError
from catchment.storage.codec import decode, encode, stored
from catchment.storage.files import sync_folder, write_durably

_LENGTHS = struct.Struct("<II")  # of the body: length, crc32
_CHECK = struct.Struct("<I")  # crc32 of those two
_HEAD_BYTES = _LENGTHS.size + _CHECK.size


@stored()
@dataclass(frozen=True, slots=True)
class Entry:
    """What was told at once: events with the time at which they were handled. A batch is named by its cause
    (the stream that it is a batch of) and number, so that it is never handled twice; other entries have no number."""

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
        """Durable when this returns."""
        if self._failure is not None:
            raise self._failure  # what follows a half-written entry would be taken for damage
        try:
            self._log.write(_frame(encode(entry)))
            self._log.flush()
            os.fsync(self._log.fileno())
        except OSError as failure:
            self._failure = failure
            raise

    def entries(self) -> Iterator[Entry]:
        """The entries since the snapshot, oldest first."""
        for data in self._bodies():
            yield decode(data)

    def snapshot(self) -> Any | None:
        """The state at the newest snapshot, or None if there is none."""
        path = self.folder / f"snapshot-{self.base}.bin"
        if not path.exists():
            return None
        (data,) = _frames(path.read_bytes(), path)
        return decode(data)

    def compact(self, sequence: int, state: Any) -> None:
        """Start anew from a state that contains every entry below `sequence`."""
        data = encode(state)
        write_durably(self.folder / f"snapshot-{sequence}.bin", _frame(data))
        self._log.close()
        self.base = sequence
        self._log = self._open()

    @property
    def size_bytes(self) -> int:
        return int(self._log.tell())

    def close(self) -> None:
        self._log.close()

    @property
    def _path(self) -> Path:
        return self.folder / f"journal-{self.base}.log"

    def _bodies(self) -> Iterator[bytes]:
        return _frames(self._path.read_bytes(), self._path) if self._path.exists() else iter(())

    def _open(self) -> Any:
        for old in self.folder.iterdir():
            if old.stem.split("-")[-1] != str(self.base):
                old.unlink()  # older than the snapshot, or half of a newer one
        whole = sum(_HEAD_BYTES + len(body) for body in self._bodies())
        log = open(self._path, "ab")  # noqa: SIM115 - kept open for the journal's life
        log.truncate(whole)
        os.fsync(log.fileno())
        sync_folder(self.folder)
        return log


def _frame(data: bytes) -> bytes:
    head = _LENGTHS.pack(len(data), zlib.crc32(data))
    return head + _CHECK.pack(zlib.crc32(head)) + data


def _frames(data: bytes, path: Path) -> Iterator[bytes]:
    """The entries in a file, each checked. Stops at a torn end; raises at anything else that is not as it was written.

    Torn is only what an interrupted append can leave: a frame cut short, or zeros that were never filled. The length
    has a checksum of its own, so that an altered length is not taken for a frame cut short.
    """
    at = 0
    while at < len(data):
        head = data[at : at + _HEAD_BYTES]
        if len(head) < _HEAD_BYTES or not any(data[at:]):
            return
        length, checksum = _LENGTHS.unpack_from(head)
        if _CHECK.unpack_from(head, _LENGTHS.size)[0] != zlib.crc32(head[: _LENGTHS.size]):
            raise _damaged(path, at)
        body = data[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
        at += _HEAD_BYTES + length
        if at > len(data) or (at == len(data) and zlib.crc32(body) != checksum):
            return
        if zlib.crc32(body) != checksum:
            raise _damaged(path, at)
        yield body


def _damaged(path: Path, at: int) -> StorageError:
    return StorageError(
        f"damaged near byte {at}: a checksum does not match",
        where=str(path),
        hint="the disk altered an acknowledged entry; restore this state folder from a copy",
    )
