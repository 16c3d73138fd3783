"""The inbox is where the segments of all sites arrive, once each, in an order that never changes.

Invariants: a segment is acked only after it and its name are synced to disk; a segment (origin, epoch, sequence) is
taken at most once, and a number that comes again with another content is refused; positions of arrival are dense from
0, and a position names the same segment forever. Everything is recovered from the files alone: what was seen is in the
state file (for what has been discarded) and in the segments that are still here.

Segments that come at the same time land in one file, and are acked after one sync of it and one of its name: how many
segments an inbox takes per second does not follow from how long its disk takes to sync. `_landing` is held by whoever
changes what the next position is, or of whom segments are taken; `_lock`, which comes after it, by whoever looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchment.errors import WireError
from catchment.functions.project_functions import disagreement
from catchment.storage.files import read_record, write_record
from catchment.storage.free_space import FreeSpace
from catchment.storage.group_commit import GroupCommit
from catchment.timeline import Clock, SystemClock
from catchment.wire.chain import START
from catchment.wire.frames import versions as frame_versions
from catchment.wire.frames.codec import EncodedSegment, FrameHead, UnknownVersionError, read_frame, unknown_version
from catchment.wire.frames.header import FrameHeader
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.messages import Segment
from catchment.wire.receiving.refusals import Refusals
from catchment.wire.receiving.seen_segments import MAX_OLD_INCARNATIONS, Known, SeenByOrigin, SeenSegments
from catchment.wire.receiving.set_aside import SetAside
from catchment.wire.receiving.waiting_segments import DecodedSegments, WaitingSegments
from catchment.wire.segment_folder import SegmentFolder
from catchment.wire.sending.uplink import OTHER_HISTORY_HINT, Greeting, Introduction, RefusedError

STATE_FILE = "inbox.json"
DECODED_BYTES = 64 * 2**20  # accepted segments kept decoded, so that their consumer need not decode them again
MAX_MESSAGE = 500  # characters that are kept of what a sender says
SEGMENTS_PER_FILE = 64  # that land at once; no more calls are under way at once


@dataclass(eq=False)
class _Arrival:
    """A segment that was checked and is to land, and why it was refused after all if it was."""

    encoded: EncodedSegment
    segment: Segment
    peer: str | None
    refusal: RefusedError | None = None


class Inbox:
    """Take segments from any thread; keep them until they are discarded.

    `admit`, if given, is called with each segment before it is stored and raises a WireError if the segment is of no
    use here (a fragment or a schema that is not known, slices too far away). While `free_space` is low, nothing is
    taken. `versions` are those of the frames that are taken, and that senders are told of.
    """

    def __init__(
        self,
        folder: Path,
        limits: WireLimits = DEFAULT_LIMITS,
        admit: Callable[[Segment], None] | None = None,
        free_space: FreeSpace | None = None,
        clock: Clock | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        self.folder = folder
        self.limits = limits
        self._versions = versions or frame_versions.SPOKEN_VERSIONS
        self._admit = admit
        self._free_space = free_space
        self._landing = threading.RLock()
        self._lock = threading.RLock()
        self._arrivals = GroupCommit[_Arrival](SEGMENTS_PER_FILE)
        self._refusals = Refusals(clock or SystemClock())
        self._failure: OSError | None = None
        self._stopped: set[str] = set()  # sites whose present life has ended and whose next has not begun
        self._segments = SegmentFolder(folder, limits)
        self._decoded = DecodedSegments(DECODED_BYTES)
        self._waiting = WaitingSegments()
        self._blocked: dict[str, str] = {}  # sites of which nothing is taken, and why
        self._held_back: Mapping[str, str] = {}  # senders that have to wait, and why
        self.functions = ""  # those of the project here, with the digits of their code
        self._closed: str | None = None  # why nothing is taken of anybody
        self.set_aside = SetAside(folder)
        state = read_record(folder / STATE_FILE) or {"discarded": 0, "origins": {}}
        self._first: int = state["discarded"]  # the lowest position that is not discarded
        self._origins = SeenByOrigin.from_record(state["origins"], state.get("lives", {}))
        self._recover()

    # ---- what is here

    @property
    def first_position(self) -> int:
        """The lowest position that is not discarded."""
        return self._first

    @property
    def last_position(self) -> int:
        """The position of the newest segment, -1 before the first."""
        with self._lock:
            return self._first + len(self._segments) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes that have arrived and are not yet discarded."""
        return self._segments.size_bytes

    def size_between(self, start: int, end: int) -> int:
        """Return the bytes of the segments at positions in [start, end)."""
        with self._lock:
            return sum(self._segments.size_of(position) for position in range(start, end))

    @property
    def refused(self) -> Mapping[str, int]:
        """How many segments and connections were refused since the start, by reason."""
        with self._lock:
            return dict(self._refusals.by_reason)

    def refusals(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """Return what was refused since the start, by site and reason, with the first and the last time."""
        with self._lock:
            return self._refusals.status()

    @property
    def checks_content(self) -> bool:
        """Whether segments are checked before they are stored."""
        return self._admit is not None

    def lowest_missing(self, origin: str) -> int:
        """Return the lowest number of a site's segments that has not been seen."""
        with self._lock:
            return self._origins.lowest_missing(origin)

    def raise_failure(self) -> None:
        """Raise the disk's error if storing has failed: the process must end and recover from its files."""
        if self._failure is not None:
            raise self._failure

    # ---- for senders

    def greet(self, introduction: Introduction, *, peer: str | None = None) -> Greeting:
        """Check that a sender may send under its name; say from where it should go on, and what was seen of it."""
        with self._lock:
            origin = introduction.origin
            self._check_sender(origin, introduction.epoch, peer)
            if introduction.disagreement:
                raise self.refuse("other_history", introduction.disagreement[:MAX_MESSAGE], origin=origin)
            self._check_functions(introduction)
            known = self._origins.get(origin)
            if known is None:
                return Greeting(0, START, self._versions)
            self._check_incarnation(known, introduction)
            expected = known.seen.lowest_missing
            return Greeting(expected, known.chain.at(expected), self._versions)

    def _check_functions(self, introduction: Introduction) -> None:
        """Refuse a sender whose project has other code of a function: its partials would mean something else."""
        differing = disagreement(self.functions, introduction.functions)
        if differing is not None:
            raise self.refuse(
                "other_functions",
                f"functions of {introduction.origin!r} have other code than here: {differing[:MAX_MESSAGE]}",
                hint="install the same functions with the project at every site, and start again",
                origin=introduction.origin,
            )

    def accept(self, data: bytes, *, peer: str | None = None) -> int:
        """Store a segment durably unless it was seen before; return its number, which is the ack.

        `peer` is the name under which the sender was authenticated; it may write no other.
        """
        encoded = self._read_frame(data)
        header = encoded.header
        with self._lock:  # who sends, and whether it is new, is known before a table is unpacked
            self._check_sender(header.origin, header.epoch, peer)
            if not self._is_new(encoded):
                return header.sequence
        segment = self._decode(encoded)
        self._check_content(segment)
        arrival = _Arrival(encoded, segment, peer)
        self._arrivals.submit(arrival, self._land)
        if arrival.refusal is not None:
            raise arrival.refusal
        return segment.sequence

    @property
    def landing(self) -> int:
        """How many segments wait until those before them have landed."""
        return self._arrivals.waiting

    def refuse(self, reason: str, message: str, hint: str | None = None, origin: str | None = None) -> RefusedError:
        """Count a refusal of a site, or of somebody unknown, and log it; return the error to raise for it."""
        error = RefusedError(reason, message, where=f"inbox {self.folder.name}", hint=hint)
        with self._lock:
            self._refusals.note(origin, reason, message, retryable=error.retryable)
        return error

    def close(self, why: str) -> None:
        """Take nothing of anybody until it is opened; senders are told why, and try again."""
        with self._landing, self._lock:
            self._closed = why

    def open(self) -> None:
        """Take what comes."""
        with self._lock:
            self._closed = None

    # ---- for the consumer

    def read_segments(self, start: int, end: int) -> list[Segment]:
        """Return the segments at positions in [start, end), in order."""
        with self._lock:
            if start < self._first or end > self.last_position + 1:
                raise self._error(
                    f"positions [{start}, {end}) were asked for, [{self._first}, {self.last_position + 1}) are here"
                )
        return [self._read(position) for position in range(start, end)]

    def locate(self, position: int) -> tuple[Path, FrameHead]:
        """Return the file of a segment that is here, and its head, for those who read it elsewhere."""
        with self._lock:
            return self._segments.file(position), self._waiting.head(position)

    def discard(self, position: int) -> None:
        """Remove everything below a position, which was consumed; what was seen is remembered."""
        with self._lock:
            if position > self.last_position + 1:
                raise self._error(f"cannot discard below {position}: {self.last_position + 1} is the next one")
            consumed = range(self._first, position)
            if not consumed:
                return
            # The state covers all that was seen, also what stays here: more than must be remembered.
            self._write_state(position)
            self._first = position
            for gone in consumed:
                self._decoded.remove(gone)
                self._waiting.remove(gone)
                self._segments.remove(gone)

    # ---- blocked sites

    def block(self, origin: str, sequence: int, reason: str, since_us: int) -> None:
        """Take nothing more of a site: this segment of it was acknowledged and could not be merged."""
        with self._landing, self._lock:
            self._blocked[origin] = f"segment {sequence} could not be merged: {reason}"
            self.set_aside.explain(origin, sequence, reason, since_us)

    def keep_aside(self, position: int) -> None:
        """Keep a segment of a blocked site durably outside of the inbox, before its position is discarded."""
        encoded = self._read_stored(position)
        self.set_aside.add(encoded.header.origin, encoded.header.sequence, encoded.data)

    def take_back(self, origin: str, is_consumed: Callable[[int], bool]) -> None:
        """Take a site again: what was set aside of it lands once more, unless it was consumed or is still here."""
        with self._landing, self._lock:
            here = {(h.origin, h.sequence) for h in map(self._read_header, range(self._first, self.last_position + 1))}
            for sequence in self.set_aside.sequences(origin):
                if (origin, sequence) not in here and not is_consumed(sequence):
                    encoded = read_frame(self.set_aside.read(origin, sequence), self.limits)
                    position = self.last_position + 1
                    self._segments.write(position, encoded)
                    self._waiting.add(position, encoded)
                self.set_aside.remove(origin, sequence)
            self.set_aside.forget(origin)
            self._blocked.pop(origin, None)

    def _read_header(self, position: int) -> FrameHeader:
        return self._read_stored(position).header

    # ---- lives of sites

    def life_of(self, origin: str) -> int:
        """Return how often a site was replaced."""
        with self._lock:
            return self._origins.life_of(origin)

    def is_in_life(self, origin: str, life: int) -> bool:
        """Return whether what was taken of a site is of a life already: nothing of a former one had come."""
        with self._lock:
            return self._origins.is_in_life(origin, life)

    def stop_life(self, origin: str) -> None:
        """Take nothing more of a site until its new life begins; after a restart it is taken as before."""
        with self._landing, self._lock:
            self._stopped.add(origin)

    def begin_life(self, origin: str, life: int, *, is_healed: bool = False) -> None:
        """Take a site that was replaced or healed: its segments are numbered from 0 again, under a new epoch.

        Everything that has landed of its former life must be consumed.
        """
        with self._landing, self._lock:
            self._origins.begin_life(origin, life, is_healed=is_healed)
            self._write_state(self._first)
            self._stopped.discard(origin)
            self.set_aside.forget(origin)
            self._blocked.pop(origin, None)

    def _write_state(self, discarded: int) -> None:
        state = {"discarded": discarded, "origins": self._origins.to_record(), "lives": self._origins.lives_record()}
        write_record(self.folder / STATE_FILE, state)

    # ---- accepting

    def _read_frame(self, data: bytes) -> EncodedSegment:
        if len(data) > self.limits.frame_bytes:
            raise self.refuse("oversized", f"{len(data)} bytes, at most {self.limits.frame_bytes} are taken")
        try:
            encoded = read_frame(data, self.limits)
            if encoded.version not in self._versions:
                raise unknown_version(encoded.version, self._versions)
            return encoded
        except UnknownVersionError as error:
            raise self.refuse("unknown_version", error.message, error.hint) from error
        except WireError as error:
            raise self.refuse("corrupt", error.message) from error

    def _decode(self, encoded: EncodedSegment) -> Segment:
        try:
            return encoded.decode(self.limits)
        except WireError as error:
            raise self.refuse("corrupt", error.message, origin=encoded.header.origin) from error

    def _check_sender(self, origin: str, epoch: str, peer: str | None) -> None:
        if self._failure is not None:
            raise self.refuse(
                "closed", f"the disk failed ({self._failure}); the receiver must be restarted", origin=origin
            )
        if self._closed is not None:  # not counted: it is nothing that the sender has done
            raise self._not_yet(self._closed)
        if peer is not None and peer != origin:
            raise self.refuse("wrong_site", f"{peer!r} may write only its own name, not {origin!r}", origin=peer)
        if origin in self._blocked:
            raise self.refuse(
                "blocked",
                f"{origin!r} is blocked here: {self._blocked[origin]}",
                hint="what it sends stays in its outbox; the status of the receiver says how to go on",
                origin=origin,
            )
        if origin in self._stopped:
            raise self.refuse("closed", f"{origin!r} is being replaced; send again later", origin=origin)
        if self._origins.is_ended(origin, epoch):
            raise self.refuse(
                "wrong_epoch",
                f"{origin!r} was replaced by another state folder; this one, of epoch {epoch}, has ended",
                hint="end this process: another one runs under the name, and what this one has not sent is not taken",
                origin=origin,
            )
        known = self._origins.get(origin)
        if known is None and len(self._origins) >= self.limits.origins:
            raise self.refuse("too_many_origins", f"{origin!r} would be site {len(self._origins) + 1}")
        if known is not None and known.epoch != epoch:
            raise self.refuse(
                "wrong_epoch",
                f"the state folder of {origin!r} was replaced: it was of another epoch than {epoch}",
                hint="restore the site's state folder; or, if it is lost, go on with the new one: at the center, "
                f"catchment sites heal {origin}; or, if its source is gone too, catchment sites replace {origin}",
                origin=origin,
            )

    def _check_incarnation(self, known: SeenSegments, introduction: Introduction) -> None:
        """Refuse a process of a site after another one has introduced itself: both send under one name."""
        if known.is_old(introduction.incarnation):
            raise self.refuse(
                "two_processes",
                f"two processes send as {introduction.origin!r}: another one has connected since this one did",
                hint="a state folder was copied while its site runs: end one of the two, then start the other again",
                origin=introduction.origin,
            )
        known.note_incarnation(introduction.incarnation, introduction.former.split()[-MAX_OLD_INCARNATIONS:])

    def _is_new(self, segment: EncodedSegment) -> bool:
        """Return whether a segment was never taken; refuse one whose number was taken with another content."""
        header = segment.header
        known = self._origins.compare(segment)
        if known is Known.OTHER:
            raise self.refuse(
                "other_history",
                f"segment {header.sequence} of {header.origin!r} is here with another content",
                hint=OTHER_HISTORY_HINT,
                origin=header.origin,
            )
        if known is Known.FORGOTTEN:
            raise self.refuse(
                "already_taken",
                f"segment {header.sequence} of {header.origin!r} was taken long ago; connect again",
                origin=header.origin,
            )
        return known is Known.NEW

    def hold_back(self, senders: Mapping[str, str]) -> None:
        """Take nothing of these senders for the time being, and tell them why; the others are taken."""
        with self._landing, self._lock:
            self._held_back = dict(senders)

    def _check_room(self, arrival: _Arrival, before: Sequence[_Arrival]) -> None:
        """Refuse a segment for which there is no room, beside those that land with it."""
        segment = arrival.segment
        size_bytes = len(arrival.encoded.data)
        landing_bytes = sum(len(other.encoded.data) for other in before)
        if segment.origin in self._held_back:
            reason = f"{self._held_back[segment.origin]}; send again later"
            raise self.refuse("full", reason, origin=segment.origin)
        ahead = segment.sequence - self.lowest_missing(segment.origin)
        if ahead >= self.limits.ahead_segments:
            raise self.refuse(
                "too_far_ahead",
                f"segment {segment.sequence} of {segment.origin!r} is {ahead} ahead of the lowest missing, "
                f"fewer than {self.limits.ahead_segments} are taken",
                origin=segment.origin,
            )
        if self.size_bytes + landing_bytes + size_bytes > self.limits.inbox_bytes:
            raise self.refuse(
                "full", f"{self.size_bytes} bytes wait to be consumed; send again later", origin=segment.origin
            )
        own = (other for other in before if other.segment.origin == segment.origin)
        waiting_bytes = self._waiting.of(segment.origin) + sum(len(other.encoded.data) for other in own)
        if waiting_bytes + size_bytes > self.limits.origin_bytes:
            raise self.refuse(
                "full",
                f"{waiting_bytes} bytes of {segment.origin!r} wait to be consumed; send again later",
                origin=segment.origin,
            )
        if self._free_space is not None and self._free_space.is_low():
            raise self.refuse("full", f"{self._free_space.describe()}; send again later", origin=segment.origin)

    def _check_content(self, segment: Segment) -> None:
        """Refuse what is of no use here; outside of the lock, because it reads all that a segment holds."""
        if self._admit is None:
            return
        try:
            self._admit(segment)
        except WireError as error:
            raise self.refuse("unfit", error.message, error.hint, segment.origin) from error

    def _land(self, arrivals: Sequence[_Arrival]) -> None:
        """Store segments durably, but for those that are refused or came before; then they count as taken."""
        with self._landing:
            with self._lock:
                taken = self._choose(arrivals)
                first = self.last_position + 1
            if not taken:
                return
            try:
                self._segments.write_group(first, [arrival.encoded for arrival in taken])
            except OSError as error:
                self._failure = error
                raise
            with self._lock:
                for position, arrival in enumerate(taken, first):
                    self._segments.add(position, len(arrival.encoded.data))
                    self._origins.add(arrival.encoded)
                    self._waiting.add(position, arrival.encoded)
                    self._decoded.add(position, arrival.segment)

    def _choose(self, arrivals: Sequence[_Arrival]) -> list[_Arrival]:
        """Return the arrivals that are new and that there is room for; the others know why they are not."""
        taken: list[_Arrival] = []
        for arrival in arrivals:
            try:
                if self._is_new(arrival.encoded) and not self._is_among(arrival, taken):
                    self._check_sender(arrival.segment.origin, arrival.segment.epoch, arrival.peer)
                    self._check_room(arrival, taken)
                    taken.append(arrival)
            except RefusedError as refusal:
                arrival.refusal = refusal
        return taken

    def _is_among(self, arrival: _Arrival, taken: Sequence[_Arrival]) -> bool:
        """Return whether a segment lands already, because it was sent twice at the same time.

        Whether one may land after those that land with it is known when these have: then it is sent again.
        """
        header = arrival.encoded.header
        for other in (a.encoded for a in taken if a.segment.origin == header.origin):
            is_same_number = other.header.sequence == header.sequence
            if is_same_number and (other.header.epoch, other.digest) == (header.epoch, arrival.encoded.digest):
                return True
            if is_same_number or other.header.epoch != header.epoch:
                raise self._not_yet(f"another segment of {header.origin!r} lands at this moment")
        strangers = {a.segment.origin for a in taken if self._origins.get(a.segment.origin) is None}
        is_stranger = self._origins.get(header.origin) is None and header.origin not in strangers
        if is_stranger and len(self._origins) + len(strangers) >= self.limits.origins:
            raise self._not_yet("another site sends its first segment at this moment")
        return False

    def _not_yet(self, why: str) -> RefusedError:
        """Return a refusal for the time being that is not counted: it is nothing that the sender has done."""
        return RefusedError("closed", f"{why}; send again later", where=f"inbox {self.folder.name}")

    # ---- reading

    def _read(self, position: int) -> Segment:
        with self._lock:
            decoded = self._decoded.get(position)
        return decoded or self._read_stored(position).decode(self.limits)

    def _read_stored(self, position: int) -> EncodedSegment:
        """Read a segment and see that it is the one that came there: a disk may write one over another."""
        encoded = self._segments.read(position)
        if not self._waiting.is_at(position, encoded):
            raise self._written_over(position, encoded)
        return encoded

    def _written_over(self, position: int, found: EncodedSegment) -> WireError:
        header = found.header
        return self._error(
            f"the segment {self._segments.file(position).name} is damaged: it holds segment {header.sequence} of "
            f"{header.origin!r}, which did not come there",
            "restore the file from a copy of the folder; it was acked, so its site has forgotten it",
        )

    def _recover(self) -> None:
        for position in self._segments.find_numbers():
            if position < self._first:
                self._segments.remove(position)
                continue
            if position != self.last_position + 1:
                hint = "restore the file from a copy of the folder"
                raise self._error(f"position {self.last_position + 1} is missing", hint)
            encoded = self._load(position)
            if self._waiting.position_of(encoded) is not None:
                raise self._written_over(position, encoded)
            self._segments.add(position, len(encoded.data))
            self._waiting.add(position, encoded)
            self._origins.add(encoded)

    def _load(self, position: int) -> EncodedSegment:
        file = self._segments.file(position)
        try:
            return self._segments.read(position)
        except UnknownVersionError as error:
            raise error.found_in(str(file)) from None
        except WireError as error:
            raise self._error(
                f"the segment {file.name} is damaged: {error.message}",
                "restore the file from a copy of the folder; it was acked, so its site has forgotten it",
            ) from error

    def _error(self, message: str, hint: str | None = None) -> WireError:
        return WireError(message, where=str(self.folder), hint=hint)


class LocalUplink:
    """An uplink to an inbox of the same process."""

    def __init__(self, inbox: Inbox, peer: str | None = None) -> None:
        self._inbox = inbox
        self._peer = peer

    def connect(self, introduction: Introduction) -> Greeting:
        return self._inbox.greet(introduction, peer=self._peer)

    def send(self, data: bytes) -> int:
        return self._inbox.accept(data, peer=self._peer)

    def close(self) -> None:
        """Do nothing: nothing is held."""
