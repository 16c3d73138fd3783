"""The inbox: where segments of all sites land, once each, in an order that never changes.

Invariants: a segment is acked only after it and its name are synced to disk; a segment (origin, epoch,
sequence) lands at most once; positions of arrival are dense from 0, and a position names the same segment for
ever. Everything is recovered from the files alone: what was seen is the state file (for what has been
discarded) plus the landed files.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catchment.errors import WireError
from catchment.wire.codec import decode_segment, read_envelope
from catchment.wire.files import (
    make_folder,
    read_record,
    remove_file,
    remove_remnants,
    write_durably,
    write_record,
)
from catchment.wire.limits import DEFAULT_LIMITS, Limits
from catchment.wire.messages import Segment
from catchment.wire.numbers import NumberSet
from catchment.wire.refusal import RefusedError

STATE_FILE = "inbox.json"
LANDED = ".landed"


class _Origin:
    """What was seen of one site."""

    def __init__(self, epoch: str, seen: NumberSet) -> None:
        self.epoch, self.seen = epoch, seen


class Inbox:
    """Takes segments from any thread; keeps them until they are discarded."""

    def __init__(self, folder: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self.folder, self.limits = folder, limits
        self._lock = threading.RLock()
        self._refused: Counter[str] = Counter()
        self._failure: OSError | None = None
        make_folder(folder)
        remove_remnants(folder)
        state = read_record(folder / STATE_FILE) or {"discarded": 0, "origins": {}}
        self._first: int = state["discarded"]
        self._origins = {
            name: _Origin(o["epoch"], NumberSet.from_record(o["seen"]))
            for name, o in state["origins"].items()
        }
        self._sizes: dict[int, int] = {}
        self._recover()

    @property
    def last_position(self) -> int:
        """The position of the newest segment, -1 before the first."""
        with self._lock:
            return self._first + len(self._sizes) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes that have landed and are not yet discarded."""
        with self._lock:
            return sum(self._sizes.values())

    @property
    def refused(self) -> Mapping[str, int]:
        """How many segments and connections were refused, by reason."""
        with self._lock:
            return dict(self._refused)

    def expected(self, origin: str) -> int:
        """The lowest number of this site's segments that has not been seen."""
        with self._lock:
            return self._origins[origin].seen.low if origin in self._origins else 0

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
                self._check_room(segment, len(data))
                self._land(segment, data)
            return segment.sequence

    def landed(self, start: int, end: int) -> list[Path]:
        """The files at positions in [start, end), in order."""
        with self._lock:
            if start < self._first or end > self.last_position + 1:
                raise WireError(
                    f"positions [{start}, {end}) were asked for, "
                    f"[{self._first}, {self.last_position + 1}) are here",
                    where=str(self.folder),
                )
            return [self._path(position) for position in range(start, end)]

    def discard(self, position: int) -> None:
        """Everything below this position is consumed: its files go, the memory of what was seen stays."""
        with self._lock:
            if position > self.last_position + 1:
                raise WireError(
                    f"cannot discard below {position}: segments end at {self.last_position + 1}",
                    where=str(self.folder),
                )
            consumed = range(self._first, position)
            if consumed:
                self._write_state(position)
                self._first = position
            for gone in consumed:
                del self._sizes[gone]
                remove_file(self._path(gone))

    def check(self) -> None:
        """Raise the disk's error if storing has failed: the process must end and recover from its files."""
        if self._failure is not None:
            raise self._failure

    def refuse(self, reason: str, message: str, hint: str | None = None) -> RefusedError:
        """Count a refusal; the error to raise for it."""
        with self._lock:
            self._refused[reason] += 1
        return RefusedError(reason, message, where=f"inbox {self.folder}", hint=hint)

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
            raise self.refuse("too_many_origins", f"{origin!r} would be site number {len(self._origins) + 1}")
        if known is not None and known.epoch != epoch:
            raise self.refuse(
                "wrong_epoch",
                f"the state folder of {origin!r} was replaced: it was {known.epoch}, now it is {epoch}",
                hint="restore the site's state folder, or run the site under a new name; "
                "its old numbers cannot be told from its new ones",
            )

    def _check_room(self, segment: Segment, size: int) -> None:
        ahead = segment.sequence - self.expected(segment.origin)
        if ahead >= self.limits.window:
            raise self.refuse(
                "beyond_window",
                f"segment {segment.sequence} of {segment.origin!r} is {ahead} ahead of "
                f"the lowest one missing, at most {self.limits.window - 1} are taken",
            )
        if self.size_bytes + size > self.limits.landed_bytes:
            raise self.refuse("full", f"{self.size_bytes} bytes wait to be consumed; send again later")

    def _land(self, segment: Segment, data: bytes) -> None:
        position = self.last_position + 1
        try:
            write_durably(self._path(position), data)
        except OSError as error:
            self._failure = error
            raise
        self._sizes[position] = len(data)
        self._remember(segment.origin, segment.epoch, segment.sequence)

    def _remember(self, origin: str, epoch: str, sequence: int) -> None:
        self._origins.setdefault(origin, _Origin(epoch, NumberSet())).seen.add(sequence)

    def _write_state(self, discarded: int) -> None:
        """What is written covers all that was seen, also what is still landed: a superset of what must be
        kept.
        """
        origins: dict[str, Any] = {
            n: {"epoch": o.epoch, "seen": o.seen.to_record()} for n, o in self._origins.items()
        }
        write_record(self.folder / STATE_FILE, {"discarded": discarded, "origins": origins})

    def _recover(self) -> None:
        paths = sorted(self.folder.glob(f"*{LANDED}"))
        for path in paths:
            position = int(path.name.removesuffix(LANDED))
            if position < self._first:
                remove_file(path)
                continue
            if position != self.last_position + 1:
                raise WireError(
                    f"position {self.last_position + 1} is missing",
                    where=str(self.folder),
                    hint="restore the file from a copy of the folder",
                )
            self._reload(path, position)

    def _reload(self, path: Path, position: int) -> None:
        data = path.read_bytes()
        try:
            envelope = read_envelope(data, self.limits)
        except WireError as error:
            raise WireError(
                f"a landed segment is damaged: {error.message}",
                where=str(path),
                hint="restore the file from a copy of the folder; it was acked, so its site "
                "has forgotten it, and repair can recompute its slices from history",
            ) from error
        self._sizes[position] = len(data)
        self._remember(envelope.origin, envelope.epoch, envelope.sequence)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:020d}{LANDED}"
