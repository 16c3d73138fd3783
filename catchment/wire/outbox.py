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
from catchment.wire.codec import encode_segment, read_envelope
from catchment.wire.files import (
    make_folder,
    read_record,
    remove_file,
    remove_remnants,
    write_durably,
    write_record,
)
from catchment.wire.limits import DEFAULT_LIMITS, Limits
from catchment.wire.messages import Message, Segment
from catchment.wire.numbers import NumberSet

STATE_FILE = "outbox.json"
SEGMENT = ".segment"
CORRUPT = ".corrupt"


class Pending(NamedTuple):
    """A segment that is not yet acked."""

    sequence: int
    path: Path
    size_bytes: int


class Outbox:
    """Segments from `origin` to `destination`; safe to use from several threads."""

    def __init__(
        self, folder: Path, origin: str, destination: str, max_bytes: int, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.folder, self.origin, self.destination, self.max_bytes = folder, origin, destination, max_bytes
        self._limits = limits
        self._lock = threading.RLock()
        make_folder(folder)
        remove_remnants(folder)
        state = self._open_state()
        self.epoch: str = state["epoch"]
        self._acked = NumberSet.from_record(state["acked"])
        self._pending: dict[int, Pending] = {}
        self._next = self._acked.end
        self._recover()

    @property
    def next_sequence(self) -> int:
        """The number of the next segment that is new."""
        with self._lock:
            return self._next

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(p.size_bytes for p in self._pending.values())

    @property
    def full(self) -> bool:
        return self.size_bytes >= self.max_bytes

    def pending(self) -> list[Pending]:
        """What is not yet acked, lowest number first."""
        with self._lock:
            return sorted(self._pending.values())

    def missing(self) -> list[int]:
        """Numbers that are neither acked nor on disk: their files were damaged and must be appended again."""
        with self._lock:
            return [
                n
                for n in range(self._acked.low, self._next)
                if n not in self._acked and n not in self._pending
            ]

    def append(self, sequence: int, messages: Iterable[Message]) -> None:
        """Store a segment durably. Storing a number again, or one that was acked, changes nothing."""
        with self._lock:
            if sequence in self._pending or sequence in self._acked:
                return
            if sequence > self._next:
                raise self._error(f"segment {sequence} would leave a gap: the next number is {self._next}")
            data = encode_segment(Segment(self.origin, self.epoch, sequence, tuple(messages)))
            if len(data) > self._limits.frame_bytes:
                raise self._error(
                    f"segment {sequence} has {len(data)} bytes, at most {self._limits.frame_bytes} are taken",
                    hint="split the messages into several segments",
                )
            path = self._path(sequence)
            write_durably(path, data)
            self._pending[sequence] = Pending(sequence, path, len(data))
            self._next = max(self._next, sequence + 1)

    def read(self, sequence: int) -> bytes:
        """The bytes of a pending segment."""
        return self._path(sequence).read_bytes()

    def ack(self, sequence: int) -> None:
        """The far side has the segment safe: forget it. Acking again changes nothing."""
        self._forget([sequence])

    def ack_below(self, sequence: int) -> None:
        """The far side has every segment below this number safe."""
        self._forget([p.sequence for p in self.pending() if p.sequence < sequence])

    def _forget(self, sequences: list[int]) -> None:
        with self._lock:
            known = [n for n in sequences if n in self._pending]
            if any(n not in self._acked and n not in self._pending for n in sequences):
                raise self._error(f"an ack for {sequences}, but segments end at {self._next}")
            if not known:
                return
            for number in known:
                self._acked.add(number)
            self._write_state(self.epoch)
            for number in known:
                remove_file(self._pending.pop(number).path)

    def _open_state(self) -> dict[str, Any]:
        path = self.folder / STATE_FILE
        state = read_record(path)
        if state is None:
            if any(self.folder.glob(f"*{SEGMENT}")):
                raise self._error(
                    f"segments without {STATE_FILE}", hint="restore the folder as a whole from a copy"
                )
            self._acked = NumberSet()
            return self._write_state(uuid.uuid4().hex)
        if (state["origin"], state["destination"]) != (self.origin, self.destination):
            raise self._error(f"the folder belongs to the link {state['origin']} -> {state['destination']}")
        return state

    def _write_state(self, epoch: str) -> dict[str, Any]:
        state = {
            "epoch": epoch,
            "origin": self.origin,
            "destination": self.destination,
            "acked": self._acked.to_record(),
        }
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
            self._pending[sequence] = Pending(sequence, path, path.stat().st_size)
            self._next = max(self._next, sequence + 1)

    def _check_file(self, path: Path, sequence: int) -> None:
        try:
            envelope = read_envelope(path.read_bytes(), self._limits)
            if (envelope.origin, envelope.epoch, envelope.sequence) != (self.origin, self.epoch, sequence):
                raise WireError(f"it holds segment {envelope.sequence} of {envelope.origin!r}")
        except WireError as error:
            aside = path.with_name(path.name + CORRUPT)
            os.replace(path, aside)
            raise WireError(
                f"a stored segment is damaged and was set aside as {aside.name}: {error.message}",
                where=str(path),
                hint="start again: the site's journal stores the segment anew if it still holds that commit; "
                "if not, restore the file from a copy, or let repair recompute its slices from history",
            ) from error

    def _path(self, sequence: int) -> Path:
        return self.folder / f"{sequence:020d}{SEGMENT}"

    def _error(self, message: str, hint: str | None = None) -> WireError:
        return WireError(
            message, where=f"outbox {self.origin} -> {self.destination} ({self.folder})", hint=hint
        )
