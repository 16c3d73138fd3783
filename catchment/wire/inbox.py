"""The inbox: where segments of all sites land, once each, in an order that never changes.

Invariants: a segment is acked only after it and its name are synced to disk; a segment (origin, epoch,
sequence) lands at most once; positions of arrival are dense from 0, and a position names the same segment for
ever. Everything is recovered from the files alone: what was seen is in the state file (for what has been
discarded) and in the landed files.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
from catchment.wire.codec import decode_segment, read_envelope
from catchment.wire.limits import DEFAULT_LIMITS, Limits
from catchment.wire.messages import Segment
from catchment.wire.refusal import RefusedError

STATE_FILE = "inbox.json"
LANDED = ".landed"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Origin:
    """What was seen of one site."""

    epoch: str
    seen: NumberSet = field(default_factory=NumberSet)


class Inbox:
    """Takes segments from any thread; keeps them until they are discarded.

    `check`, if given, is called with each segment before it is stored and raises a WireError if the segment
    is of no use here (a fragment or a schema that is not known, slices too far away).
    """

    def __init__(
        self, folder: Path, limits: Limits = DEFAULT_LIMITS, check: Callable[[Segment], None] | None = None
    ) -> None:
        self.folder, self.limits, self._check_use = folder, limits, check
        self._lock = threading.RLock()
        self._refused: Counter[str] = Counter()
        self._failure: OSError | None = None
        make_folder(folder)
        lock_folder(folder, self)
        remove_remnants(folder)
        self._first = 0  # the lowest position that is not discarded
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._origins: dict[str, _Origin] = {}
        self._read_state()
        self._recover()

    @property
    def last_position(self) -> int:
        """The position of the newest segment, -1 before the first."""
        with self._lock:
            return self._first + len(self._sizes) - 1

    @property
    def first_position(self) -> int:
        """The lowest position that has not been discarded."""
        return self._first

    @property
    def size_bytes(self) -> int:
        """Bytes that have landed and are not yet discarded."""
        return self._size_bytes

    @property
    def refused(self) -> Mapping[str, int]:
        """How many segments and connections were refused since the start, by reason."""
        with self._lock:
            return dict(self._refused)

    def expected(self, origin: str) -> int:
        """The lowest number of this site's segments that has not been seen."""
        with self._lock:
            return self._origins[origin].seen.lowest_missing if origin in self._origins else 0

    def greet(self, origin: str, epoch: str, *, peer: str | None = None) -> int:
        """Check that a sender may send under this name; the number from which it should go on."""
        with self._lock:
            self._check_sender(origin, epoch, peer)
            return self.expected(origin)

    def accept(self, data: bytes, *, peer: str | None = None) -> int:
        """Store a segment durably unless it was seen before; its number, which is the ack.

        `peer` is the name under which the sender was authenticated; it may write no other.
        """
        segment = self._decode(data)
        with self._lock:
            self._check_sender(segment.origin, segment.epoch, peer)
            known = self._origins.get(segment.origin)
            if known is None or segment.sequence not in known.seen:
                self._check_segment(segment, len(data))
                self._land(segment, data)
            return segment.sequence

    def landed(self, start: int, end: int) -> list[Path]:
        """The files at positions in [start, end), in order."""
        with self._lock:
            if start < self._first or end > self.last_position + 1:
                raise self._error(
                    f"positions [{start}, {end}) were asked for, [{self._first}, {self.last_position + 1}) are here"
                )
            return [self._path(position) for position in range(start, end)]

    def discard(self, position: int) -> None:
        """Everything below this position is consumed: its files go, the memory of what was seen stays."""
        with self._lock:
            if position > self.last_position + 1:
                raise self._error(f"cannot discard below {position}: {self.last_position + 1} is the next one")
            consumed = range(self._first, position)
            if not consumed:
                return
            self._write_state(position)
            self._first = position
            for gone in consumed:
                self._size_bytes -= self._sizes.pop(gone)
                remove_file(self._path(gone))

    def check(self) -> None:
        """Raise the disk's error if storing has failed: the process must end and recover from its files."""
        if self._failure is not None:
            raise self._failure

    def refuse(self, reason: str, message: str, hint: str | None = None) -> RefusedError:
        """Count a refusal and log it; the error to raise for it."""
        error = RefusedError(reason, message, where=f"inbox {self.folder.name}", hint=hint)
        with self._lock:
            self._refused[reason] += 1
        _log.log(logging.INFO if error.retryable else logging.WARNING, "refused, %s: %s", reason, message)
        return error

    def _decode(self, data: bytes) -> Segment:
        if len(data) > self.limits.frame_bytes:
            raise self.refuse("oversized", f"{len(data)} bytes, at most {self.limits.frame_bytes} are taken")
        try:
            return decode_segment(data, self.limits)
        except WireError as error:
            raise self.refuse("corrupt", error.message) from error

    def _check_sender(self, origin: str, epoch: str, peer: str | None) -> None:
        if self._failure is not None:
            raise self.refuse("closed", f"the disk failed ({self._failure}); the receiver must be restarted")
        if peer is not None and peer != origin:
            raise self.refuse("wrong_site", f"{peer!r} may write only its own name, not {origin!r}")
        known = self._origins.get(origin)
        if known is None and len(self._origins) >= self.limits.origins:
            raise self.refuse("too_many_origins", f"{origin!r} would be site {len(self._origins) + 1}")
        if known is not None and known.epoch != epoch:
            raise self.refuse(
                "wrong_epoch",
                f"the state folder of {origin!r} was replaced: its life was {known.epoch}, now it is {epoch}",
                hint="restore the site's state folder, or run the site under a new name: "
                "its old numbers cannot be told from its new ones",
            )

    def _check_segment(self, segment: Segment, size: int) -> None:
        ahead = segment.sequence - self.expected(segment.origin)
        if ahead >= self.limits.window:
            raise self.refuse(
                "beyond_window",
                f"segment {segment.sequence} of {segment.origin!r} is {ahead} ahead of the lowest missing, "
                f"fewer than {self.limits.window} are taken",
            )
        if self._size_bytes + size > self.limits.landed_bytes:
            raise self.refuse("full", f"{self._size_bytes} bytes wait to be consumed; send again later")
        if self._check_use is not None:
            try:
                self._check_use(segment)
            except WireError as error:
                raise self.refuse("unfit", error.message, error.hint) from error

    def _land(self, segment: Segment, data: bytes) -> None:
        position = self.last_position + 1
        try:
            write_durably(self._path(position), data)
        except OSError as error:
            self._failure = error
            raise
        self._add(position, segment.origin, segment.epoch, segment.sequence, len(data))

    def _add(self, position: int, origin: str, epoch: str, sequence: int, size_bytes: int) -> None:
        self._sizes[position] = size_bytes
        self._size_bytes += size_bytes
        self._origins.setdefault(origin, _Origin(epoch)).seen.add(sequence)

    def _read_state(self) -> None:
        state = read_record(self.folder / STATE_FILE)
        if state is not None:
            self._first = state["discarded"]
            for name, origin in state["origins"].items():
                self._origins[name] = _Origin(origin["epoch"], NumberSet.from_record(origin["seen"]))

    def _write_state(self, discarded: int) -> None:
        """What is written covers all that was seen, also what is still landed: more than must be kept."""
        origins = {n: {"epoch": o.epoch, "seen": o.seen.to_record()} for n, o in self._origins.items()}
        write_record(self.folder / STATE_FILE, {"discarded": discarded, "origins": origins})

    def _recover(self) -> None:
        for path in sorted(self.folder.glob(f"*{LANDED}")):
            position = int(path.name.removesuffix(LANDED))
            if position < self._first:
                remove_file(path)
                continue
            if position != self.last_position + 1:
                hint = "restore the file from a copy of the folder"
                raise self._error(f"position {self.last_position + 1} is missing", hint)
            self._reload(path, position)

    def _reload(self, path: Path, position: int) -> None:
        data = path.read_bytes()
        try:
            found = read_envelope(data, self.limits)
        except WireError as error:
            raise self._error(
                f"the landed segment {path.name} is damaged: {error.message}",
                "restore the file from a copy of the folder; it was acked, so its site has forgotten it",
            ) from error
        self._add(position, found.origin, found.epoch, found.sequence, len(data))

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:020d}{LANDED}"

    def _error(self, message: str, hint: str | None = None) -> WireError:
        return WireError(message, where=str(self.folder), hint=hint)
