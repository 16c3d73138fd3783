"""A host gives a pure core durability: journal first, then handle, then enact.

Law: after a crash at any point, replaying the journal through the same core gives the same actions, and enacting
them again changes nothing. So the core's state, and everything that left it, are as if no crash had happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from catchment.errors import CatchmentError, StorageError
from catchment.storage.codec import stored
from catchment.storage.journal import Entry, Journal
from catchment.timeline import Clock

Event = TypeVar("Event", contravariant=True)
Action = TypeVar("Action", covariant=True)
Answer = TypeVar("Answer")

# A snapshot writes the whole state down. It is due after so many entries or bytes of journal, but not before these have
# grown to the size of the snapshot before it: so snapshots cost no more than a constant times what is journalled,
# however large the state is. A restart replays at most SNAPSHOT_MAX_ENTRIES.
SNAPSHOT_EVERY_ENTRIES = 256
SNAPSHOT_EVERY_BYTES = 64 * 2**20
SNAPSHOT_MAX_ENTRIES = 4096


class Core(Protocol[Event, Action]):
    """A pure state machine that can be written down.

    `handle_all` takes the events of one journal entry in their order, and returns what follows from all of them.
    """

    def handle_all(self, events: Sequence[Event], now_us: int) -> Sequence[Action]: ...
    def snapshot(self) -> Any: ...
    def restore(self, snapshot: Any) -> None: ...


@stored(version=2, migrations={1: dict})  # version 2 has numbers
@dataclass(frozen=True)
class HostState:
    """The state of a host and its core between two entries."""

    next_sequence: int
    enacted: int
    batches: dict[str, int]
    core: Any
    numbers: dict[str, int] = field(default_factory=dict)


class Host(Generic[Event, Action]):
    """Run one core, one entry at a time.

    What follows from entries is numbered 0, 1, 2, ...: `enact(number, actions)` returns how many numbers it took, and
    must be idempotent by them: after a crash it may be called again with the same actions. Where actions have several
    effects that are numbered by themselves, `enact` keeps the next number of each further one in `numbers`, which are
    written down and restored with the rest.

    A failure is final: what was journalled and not enacted must be the next thing that is, under its own number. So
    after one, whichever thread met it, every other entry is refused until a new host has recovered.
    """

    def __init__(
        self,
        core: Core[Event, Action],
        journal: Journal,
        enact: Callable[[int, Sequence[Action]], int],
        clock: Clock,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.core = core
        self.journal = journal
        self.enact = enact
        self.clock = clock
        self.flush = flush  # makes everything enacted so far durable; called before the journal forgets it
        self.batches: dict[str, int] = {}
        self.next_sequence = 0
        self.enacted = 0
        self.numbers: dict[str, int] = {}
        self._lock = threading.RLock()
        self._failure: Exception | None = None

    def recover(self, already_enacted: int = 0) -> None:
        """Restore the state before the crash, and enact what may not have been enacted.

        `already_enacted` is how many numbers the outside has seen. A journal that accounts for fewer was lost, or is
        an older copy: what it would enact next would be taken for something that was enacted long ago.
        """
        state = self.journal.snapshot()
        if state is not None:
            self.next_sequence = state.next_sequence
            self.enacted = state.enacted
            self.batches = state.batches
            self.numbers = state.numbers
            self._restore(state.core)
        for entry in self.journal.entries():
            self._apply(entry)
        self.check_enacted(self.enacted, already_enacted)

    def check_enacted(self, accounted: int, already_enacted: int) -> None:
        """Refuse a journal that accounts for fewer steps than were carried out."""
        if already_enacted > accounted:
            raise StorageError(
                f"the journal accounts for {accounted} of the {already_enacted} steps that were carried out: it was "
                f"lost, or is older than what left it",
                where=str(self.journal.folder),
                hint="restore the whole state folder from one copy; nothing was changed",
            )

    def _restore(self, state: Any) -> None:
        try:
            self.core.restore(state)
        except CatchmentError as error:
            raise error.found_in(str(self.journal.folder)) from error.__cause__

    @property
    def has_failed(self) -> bool:
        """Whether an entry could not be carried out, so that every other one is refused until a restart."""
        return self._failure is not None

    def is_committed(self, cause: str, batch: int) -> bool:
        """Return whether a batch was handled, by this process or an earlier one."""
        return batch <= self.batches.get(cause, -1)

    def submit(self, cause: str, events: Sequence[Event], batch: int | None = None) -> None:
        """Make events durable, handle them and enact what follows; skip a batch that was handled before."""
        with self._lock:
            self._refuse_after_failure()
            if batch is not None and self.is_committed(cause, batch):
                return
            entry = Entry(self.next_sequence, cause, batch, self.clock.now_us(), tuple(events))
            try:
                self.journal.append(entry)
                self._apply(entry)
            except Exception as failure:
                self._failure = failure
                raise
            if self._is_snapshot_due():
                self.checkpoint()

    def look(self, question: Callable[[], Answer]) -> Answer:
        """Answer a question about the core while no entry can change it."""
        with self._lock:
            return question()

    def checkpoint(self) -> None:
        """Write the core's state down, so that a restart need not replay what came before."""
        with self._lock:
            self._refuse_after_failure()  # a snapshot would forget the entry that is still to be enacted
            self.flush()
            state = HostState(self.next_sequence, self.enacted, self.batches, self.core.snapshot(), self.numbers)
            self.journal.compact(self.next_sequence, state)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"an earlier entry could not be carried out: {self._failure}",
                where=str(self.journal.folder),
                hint="nothing is lost: start the process again, and it goes on from its journal",
            ) from self._failure

    def _is_snapshot_due(self) -> bool:
        entries = self.next_sequence - self.journal.base
        if entries >= SNAPSHOT_MAX_ENTRIES:
            return True
        has_much = self.journal.size_bytes > SNAPSHOT_EVERY_BYTES or entries >= SNAPSHOT_EVERY_ENTRIES
        return has_much and self.journal.size_bytes >= self.journal.snapshot_bytes

    def _apply(self, entry: Entry) -> None:
        actions = self.core.handle_all(entry.events, entry.now_us)
        self.next_sequence = entry.sequence + 1
        if entry.batch is not None:
            self.batches[entry.cause] = entry.batch
        if actions:
            self.enacted += self.enact(self.enacted, actions)
