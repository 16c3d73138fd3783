"""The outbox holds what a site has committed to send over one link, on disk until it is acknowledged.

Invariant: every number below `next_sequence` is either acknowledged or a file in the folder; numbers have no gaps. An
acknowledgement is recorded durably before the file is removed, so a kill between the two leaves a file that the next
start removes.

At its bound (`full`) nothing is dropped and nothing is refused: the site core is expected to hold its updates in the
cache, where updates of the same slice and key merge, until segments are acknowledged. So the bound may be exceeded by
what one commit sends.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from catchment.errors import WireError
from catchment.storage.files import read_record, write_record
from catchment.storage.numbers import NumberSet
from catchment.wire.codec import EncodedSegment, UnknownVersionError, encode_segment
from catchment.wire.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.messages import Message, Segment
from catchment.wire.segment_folder import SegmentFolder

STATE_FILE = "outbox.json"


class Pending(NamedTuple):
    """A segment that is not yet acknowledged, with its bytes by the fragment that causes them."""

    sequence: int
    path: Path
    size_bytes: int
    table_bytes: int = 0
    fragment_bytes: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, segment: EncodedSegment, path: Path) -> Pending:
        header = segment.header
        return cls(header.sequence, path, len(segment.data), header.table_bytes, segment.fragment_bytes())


class _LinkState:
    """The state file of an outbox: whose link it is, its epoch, and which numbers were acknowledged."""

    def __init__(self, path: Path, origin: str, destination: str) -> None:
        self._path = path
        self._link = {"origin": origin, "destination": destination}
        self.epoch = uuid.uuid4().hex
        self.acked = NumberSet()

    def load(self) -> bool:
        """Read the file; return False if there is none."""
        state = read_record(self._path)
        if state is None:
            return False
        if (state["origin"], state["destination"]) != tuple(self._link.values()):
            raise WireError(
                f"the folder belongs to the link {state['origin']} -> {state['destination']}, "
                f"not to {self._link['origin']} -> {self._link['destination']}",
                where=str(self._path.parent),
            )
        self.epoch = state["epoch"]
        self.acked = NumberSet.from_record(state["acked"])
        return True

    def save(self) -> None:
        """Write the file, durably."""
        write_record(self._path, {**self._link, "epoch": self.epoch, "acked": self.acked.to_record()})


class Outbox:
    """Segments from `origin` to `destination`; safe to use from several threads of one process."""

    def __init__(
        self, folder: Path, origin: str, destination: str, max_bytes: int, limits: WireLimits = DEFAULT_LIMITS
    ) -> None:
        self.folder = folder
        self.origin = origin
        self.destination = destination
        self.max_bytes = max_bytes
        self.limits = limits
        self._lock = threading.RLock()
        self._segments = SegmentFolder(folder, limits)
        self._state = _LinkState(folder / STATE_FILE, origin, destination)
        self._pending: dict[int, Pending] = {}
        self._next = 0
        self._recover()

    @property
    def epoch(self) -> str:
        """The life of this folder: its numbers mean nothing in another one."""
        return self._state.epoch

    @property
    def next_sequence(self) -> int:
        """The number of the next segment that is new."""
        return self._next

    @property
    def lowest_unacked(self) -> int:
        """The lowest number that is not acknowledged."""
        with self._lock:
            return self._state.acked.lowest_missing

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments that are not yet acknowledged."""
        return self._segments.size_bytes

    @property
    def full(self) -> bool:
        """Whether updates should wait in the cache."""
        return self.size_bytes >= self.max_bytes

    def pending(self) -> list[Pending]:
        """List what is not yet acknowledged, lowest number first."""
        with self._lock:
            return [self._pending[number] for number in sorted(self._pending)]

    def missing(self) -> list[int]:
        """List the numbers neither acknowledged nor on disk: their files were damaged, and must be appended again."""
        with self._lock:
            return [n for n in range(self._state.acked.lowest_missing, self._next) if not self._knows(n)]

    def append(self, sequence: int, messages: Iterable[Message]) -> Pending | None:
        """Store a segment durably; storing a number again changes nothing.

        Return what is stored under the number, or None if it was acknowledged meanwhile.
        """
        if self._is_new(sequence):
            segment = self._encode(Segment(self.origin, self.epoch, sequence, tuple(messages)))
            with self._lock:
                if self._is_new(sequence):
                    self._segments.write(sequence, segment)
                    self._add(sequence, segment)
        with self._lock:
            return self._pending.get(sequence)

    def read(self, sequence: int) -> bytes | None:
        """Return the bytes of a segment, or None if it has been acknowledged meanwhile."""
        with self._lock:
            segment = self._pending.get(sequence)
            return segment.path.read_bytes() if segment else None

    def ack(self, sequence: int) -> None:
        """Forget a segment that the far side has stored; doing so again changes nothing."""
        self._forget([sequence])

    def ack_below(self, sequence: int) -> None:
        """Forget every segment below a number."""
        with self._lock:
            self._forget([n for n in self._pending if n < sequence])

    def _forget(self, sequences: list[int]) -> None:
        with self._lock:
            unknown = [n for n in sequences if not self._knows(n)]
            if unknown:
                raise self._error(f"an ack for {unknown}, which were not stored; the next is {self._next}")
            done = [n for n in sequences if n in self._pending]
            if not done:
                return
            for sequence in done:
                self._state.acked.add(sequence)
            self._state.save()
            for sequence in done:
                del self._pending[sequence]
                self._segments.remove(sequence)

    def _is_new(self, sequence: int) -> bool:
        with self._lock:
            if sequence > self._next:
                raise self._error(f"segment {sequence} would leave a gap: the next number is {self._next}")
            return not self._knows(sequence)

    def _knows(self, sequence: int) -> bool:
        return sequence in self._pending or sequence in self._state.acked

    def _add(self, sequence: int, segment: EncodedSegment) -> None:
        self._pending[sequence] = Pending.of(segment, self._segments.file(sequence))
        self._next = max(self._next, sequence + 1)

    def _encode(self, segment: Segment) -> EncodedSegment:
        """Make the frame; what no receiver would take is refused here, where the mistake is."""
        try:
            return encode_segment(segment, self.limits)
        except WireError as error:
            raise self._error(
                f"segment {segment.sequence} would be refused at the far side: {error.message}",
                hint="distribute the messages over several segments (segments_of)",
            ) from error

    def _recover(self) -> None:
        if not self._state.load():
            if self._segments.find_numbers():
                hint = "restore the whole folder from a copy"
                raise self._error(f"there are segments but no {STATE_FILE}", hint)
            self._state.save()
        self._next = max([self._state.acked.end, *(number + 1 for number in self._segments.find_damaged())])
        for sequence in self._segments.find_numbers():
            if sequence in self._state.acked:
                self._segments.remove(sequence)
                continue
            segment = self._load(sequence)
            self._segments.add(sequence, segment)
            self._add(sequence, segment)

    def _load(self, sequence: int) -> EncodedSegment:
        path = self._segments.file(sequence)
        try:
            segment = self._segments.read(sequence)
            found = segment.header
            if (found.origin, found.epoch, found.sequence) != (self.origin, self.epoch, sequence):
                raise WireError(f"it holds segment {found.sequence} of {found.origin!r}, epoch {found.epoch}")
            return segment
        except UnknownVersionError as error:
            raise error.found_in(str(path)) from None
        except WireError as error:
            aside = self._segments.set_aside(sequence)
            raise WireError(
                f"a stored segment is damaged and was set aside as {aside.name}: {error.message}",
                where=str(path),
                hint="start again: the segment is stored anew if the site's journal still holds its commit; "
                "if not, restore the file from a copy, or let repair recompute its slices from history",
            ) from error

    def _error(self, message: str, hint: str | None = None) -> WireError:
        return WireError(message, where=f"{self.folder} ({self.origin} -> {self.destination})", hint=hint)
