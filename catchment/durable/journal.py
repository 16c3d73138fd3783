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

from catchment.durable.events import EventCodec
from catchment.errors import WireError
from catchment.wire.files import sync_folder, write_durably

_FRAME = struct.Struct("<II")  # length, crc32


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

    def __init__(self, folder: Path, codec: EventCodec) -> None:
        self.folder, self.codec = folder, codec
        self.codec.classes["Entry"] = Entry
        folder.mkdir(parents=True, exist_ok=True)
        self.base = max((int(p.stem.split("-")[1]) for p in folder.glob("snapshot-*.bin")), default=0)
        self._log = self._open()

    def append(self, entry: Entry) -> None:
        """Durable when this returns."""
        data = self.codec.encode(entry)
        self._log.write(_FRAME.pack(len(data), zlib.crc32(data)) + data)
        self._log.flush()
        os.fsync(self._log.fileno())

    def entries(self) -> Iterator[Entry]:
        """The entries since the snapshot, oldest first."""
        for data in _frames(self._path.read_bytes(), self._path):
            yield self.codec.decode(data)

    def snapshot(self) -> Any | None:
        """The state at the newest snapshot, or None if there is none."""
        path = self.folder / f"snapshot-{self.base}.bin"
        if not path.exists():
            return None
        (data,) = _frames(path.read_bytes(), path)
        return self.codec.decode(data)

    def compact(self, sequence: int, state: Any) -> None:
        """Start anew from a state that contains every entry below `sequence`."""
        data = self.codec.encode(state)
        write_durably(self.folder / f"snapshot-{sequence}.bin", _FRAME.pack(len(data), zlib.crc32(data)) + data)
        self._log.close()
        self.base = sequence
        self._log = self._open()

    @property
    def size_bytes(self) -> int:
        return self._log.tell()

    def close(self) -> None:
        self._log.close()

    @property
    def _path(self) -> Path:
        return self.folder / f"journal-{self.base}.log"

    def _open(self) -> Any:
        for old in self.folder.iterdir():
            if old.stem.split("-")[-1] != str(self.base):
                old.unlink()  # older than the snapshot, or half of a newer one
        whole = _whole_length(self._path) if self._path.exists() else 0
        log = open(self._path, "ab")  # noqa: SIM115 - kept open for the journal's life
        log.truncate(whole)
        os.fsync(log.fileno())
        sync_folder(self.folder)
        return log


def _frames(data: bytes, path: Path) -> Iterator[bytes]:
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        if zlib.crc32(body) != checksum:
            raise WireError(
                f"damaged at byte {at}: the checksum does not match",
                where=str(path),
                hint="the disk altered an acknowledged entry; restore this state folder from a copy",
            )
        yield body
        at += _FRAME.size + length


def _whole_length(path: Path) -> int:
    """The length up to which entries are complete; what follows is the torn end of a write that a crash cut short."""
    data, at = path.read_bytes(), 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        torn = end > len(data) or (end == len(data) and zlib.crc32(data[at + _FRAME.size : end]) != checksum)
        if torn:
            break
        at = end
    return at
