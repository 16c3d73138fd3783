"""Passes ahead: the files of the next micro-batches are scanned while the batches before them are committed.

Whoever scans would otherwise wait while the driver journals, caches and sends. What is found ahead counts for nothing
until its own batch takes it: the files are named in the journal entry of that batch alone. It is taken only if the
batch wants the same pass over the same files; otherwise, and if the batch before it fails, it is thrown away. Bound:
`MAX_AHEAD` batches of each stream.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from catchment.files.watch import FilePiece
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.scan import ScanPlan
from catchment.vectorised.scan_order import PassEndedError

MAX_AHEAD = 2  # with one, whoever scans waits between the end of a pass and the commit of the batch before it
Found = TypeVar("Found")
Scan = Callable[[Sequence[FilePiece], Callable[[], None]], Found]  # calls this once others may be asked for more
Spawn = Callable[[Callable[[], None]], threading.Thread]  # starts a thread that does something


@dataclass
class PassAhead(Generic[Found]):
    """A pass that was begun: over which files, and what has become of it."""

    plan: ScanPlan
    pieces: tuple[FilePiece, ...]
    before: PassAhead[Found] | None = None  # it is under way before this one begins, so that it is not held up
    thread: threading.Thread | None = None
    found: Found | None = None
    failure: BaseException | None = None
    _is_under_way: threading.Event = field(default_factory=threading.Event)

    def run(self, scan: Scan[Found]) -> None:
        try:
            if self.before is not None:
                self.before._is_under_way.wait()
                self.before = None
            self.found = scan(self.pieces, self._is_under_way.set)
        except BaseException as failure:  # noqa: BLE001 - the batch that takes it decides what follows
            self.failure = failure
        finally:
            self._is_under_way.set()

    def is_over(self, plan: ScanPlan, pieces: Sequence[FilePiece]) -> bool:
        """Return whether it is this pass over these files."""
        return self.plan is plan and self.pieces == tuple(pieces)


@dataclass
class ScanAhead(Generic[Found]):
    """The passes of one stream that were begun, in the order of their batches.

    `spawn` starts the thread of a pass. `throw_away` is called with what was found and is not wanted.
    """

    spawn: Spawn
    throw_away: Callable[[Found], None] = lambda found: None
    _begun: deque[PassAhead[Found]] = field(default_factory=deque, init=False)

    def begin(self, plan: ScanPlan, batches: Sequence[Sequence[FilePiece]], scan: Scan[Found]) -> None:
        """Let there be a pass over the files of each of these batches, and no other."""
        wanted = [tuple(pieces) for pieces in batches]
        is_begun = [ahead.is_over(plan, pieces) for ahead, pieces in zip(self._begun, wanted, strict=False)]
        if not all(is_begun) or len(self._begun) > len(wanted):
            self.discard()
        for pieces in wanted[len(self._begun) :]:
            self._start(plan, pieces, scan)

    def take(self, plan: ScanPlan, pieces: Sequence[FilePiece]) -> Found | None:
        """Return what was found by the first pass, when it has ended; None if it was another one, or has failed.

        That Arrow cannot read these files is a finding too, and is raised; and so is that the pass was told to end.
        """
        if not self._begun or not self._begun[0].is_over(plan, pieces):
            self.discard()
            return None
        first = self._begun.popleft()
        _wait(first)
        if isinstance(first.failure, NotVectorisedError | PassEndedError):
            raise first.failure
        return first.found

    def discard(self) -> None:
        """Wait until nothing is scanned, and forget what was found."""
        while self._begun:
            ahead = self._begun.popleft()
            _wait(ahead)
            if ahead.found is not None:
                self.throw_away(ahead.found)

    def _start(self, plan: ScanPlan, pieces: tuple[FilePiece, ...], scan: Scan[Found]) -> None:
        ahead = PassAhead(plan, pieces, self._begun[-1] if self._begun else None)
        ahead.thread = self.spawn(lambda: ahead.run(scan))
        self._begun.append(ahead)


def _wait(ahead: PassAhead[Found]) -> None:
    if ahead.thread is not None:
        ahead.thread.join()
