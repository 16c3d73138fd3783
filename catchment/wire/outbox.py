"""The outbox: what a site has committed to send over one link, on disk until it is acked.

Invariant: every number below `next_sequence` is either acked or a file in the folder; numbers have no gaps.
An ack is recorded durably before the file goes, so a kill between the two leaves a file that the next start
removes.

At its bound (`full`) nothing is dropped and nothing is refused: the site core is expected to hold its updates
in the cache, where updates of the same slice and key merge, until segments are acked. So the bound may be
exceeded by what one commit sends.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from catchment.errors import WireError
from catchment.storage.files import (
    make_folder,
    read_record,
    remove_file,
    remove_remnants,
    write_durably,
    write_record,
)
from catchment.storage.lock import lock_folder
from catchment.storage.numbers import NumberSet
from catchment.wire.codec import encode_segment, read_envelope
from catchment.wire.limits import DEFAULT_LIMITS, Limits
from catchment.wire.messages import Message, Segment

STATE_FILE = "outbox.json"
SEGMENT = ".segment"
CORRUPT = ".corrupt"


class Pending(NamedTuple):
    """A segment that is not yet acked."""

    sequence: int
    path: Path
    size_bytes: int


class Outbox:
    """Segments from `origin` to `destination`; safe to use from several threads of one process."""

    def __init__(
        self, folder: Path, origin: str, destination: str, max_bytes: int, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.folder, self.origin, self.destination, self.max_bytes = folder, origin, destination, max_bytes
        self._limits = limits
        self._lock = threading.RLock()
        make_folder(folder)
        lock_folder(folder, self)
        remove_remnants(folder)
        state = self._open_state()
        self.epoch: str = state["epoch"]
        self._acked = NumberSet.from_record(state["acked"])
        self._next = self._acked.end
        self._pending: dict[int, Pending] = {}
        self._size_bytes = 0
        self._recover()

    @property
    def next_sequence(self) -> int:
        """The number of the next segment that is new."""
        return self._next

    @property
    def low_mark(self) -> int:
        """The lowest number that is not acked; all below it are."""
        with self._lock:
            return self._acked.lowest_missing

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments that are not yet acked."""
        return self._size_bytes

    @property
    def full(self) -> bool:
        """Whether updates should wait in the cache."""
        return self._size_bytes >= self.max_bytes

    def pending(self) -> list[Pending]:
        """What is not yet acked, lowest number first."""
        with self._lock:
            return sorted(self._pending.values())

    def missing(self) -> list[int]:
        """Numbers neither acked nor on disk: their files were damaged, and must be appended again."""
        with self._lock:
            return [n for n in range(self._acked.lowest_missing, self._next) if not self._knows(n)]

    def append(self, sequence: int, messages: Iterable[Message]) -> None:
        """Store a segment durably. Storing a number again, or one that was acked, changes nothing."""
        if not self._is_new(sequence):
            return
        data = encode_segment(Segment(self.origin, self.epoch, sequence, tuple(messages)))
        self._check_fits(sequence, data)
        with self._lock:
            if self._is_new(sequence):
                write_durably(self._path(sequence), data)
                self._add(sequence, len(data))

    def read(self, sequence: int) -> bytes | None:
        """The bytes of a segment, or None if it has been acked meanwhile."""
        with self._lock:
            segment = self._pending.get(sequence)
            return segment.path.read_bytes() if segment else None

    def ack(self, sequence: int) -> None:
        """The far side has the segment safe: forget it. Acking again changes nothing."""
        self._forget([sequence])

    def ack_below(self, sequence: int) -> None:
        """The far side has every segment below this number safe."""
        with self._lock:
            self._forget([n for n in self._pending if n < sequence])

    def _forget(self, sequences: list[int]) -> None:
        with self._lock:
            unknown = [n for n in sequences if not self._knows(n)]
            if unknown:
                raise self._error(f"an ack for {unknown}, which were not stored; the next is {self._next}")
            gone = [self._pending[n] for n in sequences if n in self._pending]
            if not gone:
                return
            for segment in gone:
                self._acked.add(segment.sequence)
            self._write_state(self.epoch)
            for segment in gone:
                del self._pending[segment.sequence]
                self._size_bytes -= segment.size_bytes
                remove_file(segment.path)

    def _is_new(self, sequence: int) -> bool:
        with self._lock:
            if sequence > self._next:
                raise self._error(f"segment {sequence} would leave a gap: the next number is {self._next}")
            return not self._knows(sequence)

    def _knows(self, sequence: int) -> bool:
        return sequence in self._pending or sequence in self._acked

    def _add(self, sequence: int, size_bytes: int) -> None:
        self._pending[sequence] = Pending(sequence, self._path(sequence), size_bytes)
        self._size_bytes += size_bytes
        self._next = max(self._next, sequence + 1)

    def _check_fits(self, sequence: int, data: bytes) -> None:
        """What no receiver would take is refused here, where the mistake is."""
        try:
            read_envelope(data, self._limits)
        except WireError as error:
            raise self._error(
                f"segment {sequence} would be refused at the far side: {error.message}",
                hint="share the messages out over several segments (split_updates and pack)",
            ) from error

    def _open_state(self) -> dict[str, Any]:
        state = read_record(self.folder / STATE_FILE)
        if state is None:
            if any(self.folder.glob(f"*{SEGMENT}")):
                raise self._error(
                    f"there are segments but no {STATE_FILE}", hint="restore the whole folder from a copy"
                )
            self._acked = NumberSet()
            return self._write_state(uuid.uuid4().hex)
        if (state["origin"], state["destination"]) != (self.origin, self.destination):
            raise self._error(f"the folder belongs to the link {state['origin']} -> {state['destination']}")
        return state

    def _write_state(self, epoch: str) -> dict[str, Any]:
        link = {"epoch": epoch, "origin": self.origin, "destination": self.destination}
        state = {**link, "acked": self._acked.to_record()}
        write_record(self.folder / STATE_FILE, state)
        return state

    def _recover(self) -> None:
        for aside in self.folder.glob(f"*{SEGMENT}{CORRUPT}"):
            self._next = max(self._next, int(aside.name.split(".")[0]) + 1)
        for path in sorted(self.folder.glob(f"*{SEGMENT}")):
            sequence = int(path.name.removesuffix(SEGMENT))
            if sequence in self._acked:
                remove_file(path)
                continue
            self._check_file(path, sequence)
            self._add(sequence, path.stat().st_size)

    def _check_file(self, path: Path, sequence: int) -> None:
        try:
            found = read_envelope(path.read_bytes(), self._limits)
            if (found.origin, found.epoch, found.sequence) != (self.origin, self.epoch, sequence):
                raise WireError(f"it holds segment {found.sequence} of {found.origin!r}, life {found.epoch}")
        except WireError as error:
            aside = path.with_name(path.name + CORRUPT)
            os.replace(path, aside)
            raise WireError(
                f"a stored segment is damaged and was set aside as {aside.name}: {error.message}",
                where=str(path),
                hint="start again: the segment is stored anew if the site's journal still holds its commit; "
                "if not, restore the file from a copy, or let repair recompute its slices from history",
            ) from error

    def _path(self, sequence: int) -> Path:
        return self.folder / f"{sequence:020d}{SEGMENT}"

    def _error(self, message: str, hint: str | None = None) -> WireError:
        return WireError(message, where=f"{self.folder} ({self.origin} -> {self.destination})", hint=hint)
