"""The outbox holds what a site has committed to send over one link, on disk until it is acknowledged.

Invariant: every number below `next_sequence` is either acknowledged or a file in the folder; numbers have no gaps. An
acknowledgement is recorded durably before the file is removed, so a kill between the two leaves a file that the next
start removes.

At its bound (`full`), which is one of bytes and of files, nothing is dropped and nothing is refused: the site core is
expected to hold its updates in the cache, where updates of the same slice and key merge, until segments are
acknowledged, and below the bound to send no more updates than there is room for (`room_bytes`). So the bound may be
exceeded by facts, and by one update that is larger than all of it.

Every number has one version of frames (`versions.py`), in which its segment is stored again if its file is damaged:
both ends compare checksums, so what has the same content must have the same bytes.

A folder may begin a new life (`renew`): what it has not sent is forgotten, because all of it is computed again, and
numbers begin at 0 under another epoch. `first` is the number of the journal that is 0 in this life. Until the files of
the former life are gone the state file says so, and a start goes on removing them: the number of one that is damaged,
whose epoch nobody can read, would be taken for one of this life.

A start does not read a large backlog whole: of each file the header, and its checksum for the chain (`chain.py`). Up to
`CHECKED_AT_START_BYTES` of files are checked whole; any other when it is sent.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from catchment.errors import WireError
from catchment.storage.files import read_record, write_record
from catchment.storage.group_commit import GroupCommit
from catchment.storage.numbers import NumberSet
from catchment.wire.chain import SegmentChain
from catchment.wire.frames.codec import (
    EncodedSegment,
    FrameHead,
    UnknownVersionError,
    encode_segment,
    is_frame_of,
    read_frame,
)
from catchment.wire.frames.header import FrameHeader
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.frames.versions import VersionsByNumber
from catchment.wire.messages import Message, Segment
from catchment.wire.segment_folder import SegmentFolder
from catchment.wire.sending.epochs import make_epoch

STATE_FILE = "outbox.json"
MAX_SEGMENTS = 50_000  # files; fewer than a receiver takes ahead of a missing number
MAX_ENDED = 16  # former epochs that are remembered
MAX_FORMER = 8  # former incarnations that are remembered
ACKS_AT_ONCE = 256  # that are written down together
CHECKED_AT_START_BYTES = 64 * 2**20  # files that a start reads whole


class Pending(NamedTuple):
    """A segment that is not yet acknowledged, with its bytes by the fragment that causes them."""

    sequence: int
    path: Path
    size_bytes: int
    table_bytes: int = 0
    fragment_bytes: Mapping[str, int] = MappingProxyType({})
    digest: int = 0  # the checksum of its bytes
    table_sizes: tuple[int, ...] = ()  # bytes of each table, as they come in it

    @classmethod
    def of(cls, frame: FrameHead, path: Path) -> Pending:
        header = frame.header
        sizes = tuple(entry.packed_bytes for entry in header.packed())
        return cls(
            header.sequence, path, frame.size_bytes, header.table_bytes, frame.fragment_bytes(), frame.digest, sizes
        )


class _LinkState:
    """The state file of an outbox: whose link it is, its epoch, which numbers were acknowledged, and the chain.

    `incarnation` is new at every start, so that two processes with copies of one folder can be told apart; `former` are
    those of the last processes that had this folder, whose messages may still be under way. `ended` are epochs that
    this folder had in former lives: files of theirs may be left over. While `is_clearing`, all segments that are there
    are of former lives.
    """

    def __init__(self, path: Path, origin: str, destination: str, life: int) -> None:
        self._path = path
        self._link = {"origin": origin, "destination": destination}
        self.epoch = make_epoch(life)
        self.incarnation = uuid.uuid4().hex
        self.former: tuple[str, ...] = ()
        self.acked = NumberSet()
        self.chain = SegmentChain()
        self.life = life
        self.first = 0
        self.ended: tuple[str, ...] = ()
        self.is_clearing = False
        self.versions = VersionsByNumber()

    def begin_life(self, life: int, first: int) -> None:
        """Begin anew, durably, under another epoch; the segments that are there are to be removed."""
        self.ended = (*self.ended, self.epoch)[-MAX_ENDED:]
        self.epoch = make_epoch(life)
        self.acked = NumberSet()
        self.chain = SegmentChain()
        self.life = life
        self.first = first
        self.is_clearing = True
        self.versions = VersionsByNumber()
        self.save()

    def load(self) -> bool:
        """Read the file; return False if there is none.

        A folder that is about to begin a new life, with no segments, may begin it with another link.
        """
        state = read_record(self._path)
        if state is None:
            return False
        is_other_link = (state["origin"], state["destination"]) != tuple(self._link.values())
        if is_other_link and (state["origin"] != self._link["origin"] or self.life <= state.get("life", 0)):
            raise WireError(
                f"the folder belongs to the link {state['origin']} -> {state['destination']}, "
                f"not to {self._link['origin']} -> {self._link['destination']}",
                where=str(self._path.parent),
                hint="what it sent by the other link cannot be told from what it sends by this one: let it be computed "
                f"again, with every process stopped: catchment sites heal {self._link['origin']}",
            )
        self.epoch = state["epoch"]
        self.life = state.get("life", 0)
        self.first = state.get("first", 0)
        self.ended = tuple(state.get("ended", ()))
        self.is_clearing = state.get("clearing", False)
        self.former = (*state.get("former", ()), *([state["incarnation"]] if "incarnation" in state else []))[
            -MAX_FORMER:
        ]
        self.acked = NumberSet.from_record(state["acked"])
        self.versions = VersionsByNumber(state.get("versions", ()))
        if "chain" in state:
            self.chain = SegmentChain.from_record(state["chain"])
        else:
            self.chain = SegmentChain(self.acked.lowest_missing, value=None)  # written before there were chains
        return True

    def save(self) -> None:
        """Write the file, durably."""
        state = {
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "former": list(self.former),
            "acked": self.acked.to_record(),
            "chain": self.chain.to_record(self.acked.above),
            "life": self.life,
            "first": self.first,
            "ended": list(self.ended),
            "clearing": self.is_clearing,
            "versions": self.versions.to_record(self.acked.lowest_missing),
        }
        write_record(self._path, {**self._link, **state})


def stored_destination(folder: Path) -> str | None:
    """Return where the outbox of a folder has sent to; None if there is none yet."""
    state = read_record(folder / STATE_FILE)
    return None if state is None else str(state["destination"])


class Outbox:
    """Segments from `origin` to `destination`; safe to use from several threads of one process."""

    def __init__(
        self,
        folder: Path,
        origin: str,
        destination: str,
        max_bytes: int,
        limits: WireLimits = DEFAULT_LIMITS,
        max_segments: int = MAX_SEGMENTS,
        life: int = 0,
    ) -> None:
        self.folder = folder
        self.origin = origin
        self.destination = destination
        self.max_bytes = max_bytes
        self.max_segments = max_segments
        self.limits = limits
        self._lock = threading.RLock()
        self._acks = GroupCommit[int](ACKS_AT_ONCE)
        self._segments = SegmentFolder(folder, limits)
        self._state = _LinkState(folder / STATE_FILE, origin, destination, life)
        self._pending: dict[int, Pending] = {}
        self._numbers: list[int] = []  # those pending, in order
        self._next = 0
        self._is_life_saved = False
        self._recover()

    @property
    def epoch(self) -> str:
        """The life of this folder: its numbers mean nothing in another one."""
        return self._state.epoch

    @property
    def incarnation(self) -> str:
        """The life of this process; it is on disk before anyone is told."""
        with self._lock:
            if not self._is_life_saved:
                self._state.save()
                self._is_life_saved = True
            return self._state.incarnation

    @property
    def former_incarnations(self) -> tuple[str, ...]:
        """The lives of the last processes that had this folder and have ended, oldest first."""
        return self._state.former

    @property
    def life(self) -> int:
        """How often the site, or relay, of this folder had been replaced or healed when it began."""
        return self._state.life

    @property
    def first(self) -> int:
        """The number of the journal whose segment is number 0."""
        return self._state.first

    @property
    def enacted(self) -> int:
        """How many numbers of the journal this folder has seen."""
        return self._state.first + self._next

    def renew(self, life: int, first: int) -> None:
        """Begin a new life: forget what was not sent, and number the next segment, which is `first` in the journal, 0.

        Nobody may be sending from here meanwhile.
        """
        with self._lock:
            self._state.begin_life(life, first)
            self._clear()
            self._pending.clear()
            self._numbers.clear()
            self._next = 0

    def _clear(self) -> None:
        """Remove what a former life has left."""
        self._segments.clear()
        self._state.is_clearing = False
        self._state.save()

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
        return self.size_bytes >= self.max_bytes or len(self._numbers) >= self.max_segments

    @property
    def room_bytes(self) -> int:
        """How many bytes it takes until it is at its bound."""
        return max(self.max_bytes - self.size_bytes, 0)

    @property
    def is_empty(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._numbers

    def pending(self) -> list[Pending]:
        """List what is not yet acknowledged, lowest number first; it may be long, so ask for what you need."""
        with self._lock:
            return [self._pending[number] for number in self._numbers]

    def first_pending(self, start: int = 0, excluding: Collection[int] = ()) -> Pending | None:
        """Return the lowest segment from a number on that is not yet acknowledged, and not excluded."""
        with self._lock:
            for place in range(bisect_left(self._numbers, start), len(self._numbers)):
                if self._numbers[place] not in excluding:
                    return self._pending[self._numbers[place]]
            return None

    def pending_below(self, sequence: int) -> list[Pending]:
        """List what is not yet acknowledged below a number, lowest first."""
        with self._lock:
            return [self._pending[number] for number in self._numbers[: bisect_left(self._numbers, sequence)]]

    def chain_at(self, sequence: int) -> str | None:
        """Return the chain of all segments below a number; None where it is not known."""
        with self._lock:
            return self._state.chain.at(sequence)

    def adopt_chain(self, sequence: int, value: str) -> None:
        """Begin a chain with what the far side has, if none is known: the folder may be older than chains are."""
        with self._lock:
            if self._state.chain.value is None:
                self._state.chain.adopt(sequence, value)
                self._state.save()

    def missing(self) -> list[int]:
        """List the numbers neither acknowledged nor on disk: their files were damaged, and must be appended again."""
        with self._lock:
            return [n for n in range(self._state.acked.lowest_missing, self._next) if not self._knows(n)]

    def append(self, sequence: int, messages: Iterable[Message]) -> Pending | None:
        """Store a segment durably; storing a number again changes nothing.

        Return what is stored under the number, or None if it was acknowledged meanwhile.
        """
        segment = Segment(self.origin, self.epoch, sequence, tuple(messages))
        while self._is_new(sequence):
            version = self._state.versions.of(sequence)
            encoded = self._encode(segment, version)
            with self._lock:
                if self._is_new(sequence) and self._state.versions.of(sequence) == version:
                    self._segments.write(sequence, encoded)
                    self._add(sequence, encoded.head)
        with self._lock:
            return self._pending.get(sequence)

    def write_in(self, version: int) -> None:
        """Write segments that are new in a version of frames from now on."""
        with self._lock:
            if self._state.versions.of(self._next) != version:
                self._state.versions.change(self._next, version)
                self._state.save()

    def read(self, sequence: int) -> bytes | None:
        """Return the bytes of a segment, or None if it has been acknowledged meanwhile."""
        with self._lock:
            return self._read_whole(sequence) if sequence in self._pending else None

    def ack(self, sequence: int) -> None:
        """Forget a segment that the far side has stored; doing so again changes nothing.

        Acknowledgements that come while others are written down are written down together.
        """
        with self._lock:
            self._check_known([sequence])
        self._acks.submit(sequence, self._forget)

    def ack_below(self, sequence: int) -> None:
        """Forget every segment below a number."""
        with self._lock:
            self._forget(self._numbers[: bisect_left(self._numbers, sequence)])

    def _check_known(self, sequences: Sequence[int]) -> None:
        unknown = [n for n in sequences if not self._knows(n)]
        if unknown:
            raise self._error(f"an ack for {unknown}, which were not stored; the next is {self._next}")

    def _forget(self, sequences: Sequence[int]) -> None:
        with self._lock:
            self._check_known(sequences)
            done = [n for n in dict.fromkeys(sequences) if n in self._pending]
            if not done:
                return
            for sequence in done:
                self._state.acked.add(sequence)
            self._state.chain.advance_to(self._state.acked.lowest_missing)
            self._state.save()
            for sequence in done:
                self._drop(sequence)
                self._segments.remove(sequence)

    def _drop(self, sequence: int) -> None:
        del self._pending[sequence]
        del self._numbers[bisect_left(self._numbers, sequence)]

    def _is_new(self, sequence: int) -> bool:
        with self._lock:
            if sequence > self._next:
                raise self._error(f"segment {sequence} would leave a gap: the next number is {self._next}")
            return not self._knows(sequence)

    def _knows(self, sequence: int) -> bool:
        return sequence in self._pending or sequence in self._state.acked

    def _add(self, sequence: int, frame: FrameHead) -> None:
        self._pending[sequence] = Pending.of(frame, self._segments.file(sequence))
        insort(self._numbers, sequence)
        self._state.chain.add(sequence, frame.digest)
        self._next = max(self._next, sequence + 1)

    def _encode(self, segment: Segment, version: int) -> EncodedSegment:
        """Make the frame; what no receiver would take is refused here, where the mistake is."""
        try:
            return encode_segment(segment, self.limits, version)
        except WireError as error:
            raise self._error(
                f"segment {segment.sequence} would be refused at the far side: {error.message}",
                hint="distribute the messages over several segments (segments_of)",
            ) from error

    def _recover(self) -> None:
        if not self._state.load():
            if self._segments.find_numbers():
                raise self._error(f"there are segments but no {STATE_FILE}", "restore the whole folder from a copy")
            self._state.save()
        if self._state.is_clearing:
            self._clear()
        self._next = max([self._state.acked.end, *(number + 1 for number in self._segments.find_damaged())])
        for sequence in self._segments.find_numbers():
            if sequence in self._state.acked:
                self._segments.remove(sequence)
                continue
            if self._is_left_over(sequence):
                self._segments.remove(sequence)
                continue
            frame = self._load(sequence)
            self._segments.add(sequence, frame.size_bytes)
            self._add(sequence, frame)

    def _is_left_over(self, sequence: int) -> bool:
        """Return whether a file is of a former life: a kill may have come before it was removed."""
        if not self._state.ended:
            return False
        try:
            return self._segments.read_head(sequence).header.epoch in self._state.ended
        except WireError:
            return False  # it is damaged, and dealt with as such

    def _load(self, sequence: int) -> FrameHead:
        """Read what is needed of a stored segment, or all of it while little was read."""
        is_checked = self._segments.size_bytes < CHECKED_AT_START_BYTES
        try:
            frame = self._segments.read(sequence).head if is_checked else self._segments.read_head(sequence)
            self._check_identity(frame.header, sequence)
        except UnknownVersionError as error:
            raise error.found_in(str(self._segments.file(sequence))) from None
        except WireError as error:
            raise self._set_aside(sequence, error) from error
        return frame

    def _read_whole(self, sequence: int) -> bytes:
        """Read a segment and check it, also that it is the one of its number: a disk may write one over another."""
        stored = self._pending[sequence]
        data = stored.path.read_bytes()
        if is_frame_of(data, stored.digest):
            return data
        try:
            self._check_identity(read_frame(data, self.limits).header, sequence)
            raise WireError("it is not the segment that was stored here")
        except WireError as error:
            self._drop(sequence)
            raise self._set_aside(sequence, error) from error

    def _check_identity(self, found: FrameHeader, sequence: int) -> None:
        if (found.origin, found.epoch, found.sequence) != (self.origin, self.epoch, sequence):
            raise WireError(f"it holds segment {found.sequence} of {found.origin!r}, epoch {found.epoch}")

    def _set_aside(self, sequence: int, error: WireError) -> WireError:
        """Set a damaged segment aside; return the error to raise for it."""
        aside = self._segments.set_aside(sequence)
        return WireError(
            f"a stored segment is damaged and was set aside as {aside.name}: {error.message}",
            where=str(self._segments.file(sequence)),
            hint="start again: the segment is stored anew if the site's journal still holds its commit; "
            "if not, restore the file from a copy, or let repair recompute its slices from history",
        )

    def _error(self, message: str, hint: str | None = None) -> WireError:
        return WireError(message, where=f"{self.folder} ({self.origin} -> {self.destination})", hint=hint)
