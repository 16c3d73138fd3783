"""One pass ahead: the files of the next micro-batch are scanned while the batch before it is committed.

Tasks would otherwise wait while the driver journals, caches and sends. What is found ahead counts for nothing until its
own batch takes it: the files are named in the journal entry of that batch alone. It is taken only if the batch wants
the same pass over the same files; otherwise, and if the batch before it fails, it is thrown away. Bound: one batch of
each stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from catchment.files.watch import FilePiece
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.scan import ScanFindings, ScanPlan

Spawn = Callable[[Callable[[], None]], threading.Thread]  # starts a thread that does something


@dataclass
class PassAhead:
    """A pass that was begun ahead: over which files, and what has become of it."""

    plan: ScanPlan
    pieces: tuple[FilePiece, ...]
    thread: threading.Thread | None = None
    found: ScanFindings | None = None
    failure: BaseException | None = None

    def run(self, scan: Callable[[], ScanFindings]) -> None:
        try:
            self.found = scan()
        except BaseException as failure:  # noqa: BLE001 - the batch that takes it decides what follows
            self.failure = failure


@dataclass
class ScanAhead:
    """The pass ahead of one stream, if there is one; `spawn` starts its thread."""

    spawn: Spawn
    _ahead: PassAhead | None = field(default=None, init=False)

    def start(self, plan: ScanPlan, pieces: Sequence[FilePiece], scan: Callable[[], ScanFindings]) -> None:
        """Begin a pass over the files of the next batch."""
        self.discard()
        ahead = PassAhead(plan, tuple(pieces))
        ahead.thread = self.spawn(lambda: ahead.run(scan))
        self._ahead = ahead

    def take(self, plan: ScanPlan, pieces: Sequence[FilePiece]) -> ScanFindings | None:
        """Return what was found ahead, when the pass has ended; None if it was another one, or has failed.

        That Arrow cannot read these files is a finding too, and is raised.
        """
        ahead = self._finish()
        if ahead is None or ahead.plan is not plan or ahead.pieces != tuple(pieces):
            return None
        if isinstance(ahead.failure, NotVectorisedError):
            raise ahead.failure
        return ahead.found

    def discard(self) -> None:
        """Wait until nothing is scanned ahead, and forget what was found."""
        self._finish()

    def _finish(self) -> PassAhead | None:
        ahead = self._ahead
        self._ahead = None
        if ahead is not None and ahead.thread is not None:
            ahead.thread.join()
        return ahead
