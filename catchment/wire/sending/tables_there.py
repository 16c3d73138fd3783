"""Which tables a neighbour has taken lately, for the exits of a process that send to it: they are not sent again.

Two exits to one neighbour, each for a sink of its own, hold many of the same tables. Before a segment is sent its
tables are claimed: whoever claims one sends it, and whoever has it too waits until it is there, or has failed, and
then names it in a brief frame (`wire.frames.brief`), or sends it. Nobody who has claimed a table waits for another one,
so nobody waits for ever.

All of this is a guess of what the neighbour remembers. A wrong one costs a refusal and a pause: then everything is
forgotten, and segments are sent whole again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

MAX_NAMES = 4096  # of tables that are thought to be there


@dataclass(frozen=True, eq=False)
class Claim:
    """What one sending of a segment may name, and what it sends for all others too."""

    there: frozenset[bytes] = frozenset()
    sent: frozenset[bytes] = frozenset()


NO_CLAIM = Claim()


class TablesThere:
    """The names of tables at one neighbour; safe for threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all that follows
        self._senders: set[object] = set()
        self._there: dict[bytes, None] = {}  # the oldest first
        self._under_way: dict[bytes, Claim] = {}

    def join(self, sender: object) -> None:
        """Count one more sender to this neighbour."""
        with self._changed:
            self._senders.add(sender)

    def leave(self, sender: object) -> None:
        """Count a sender no longer: it has stopped."""
        with self._changed:
            self._senders.discard(sender)

    @property
    def are_shared(self) -> bool:
        """Whether several senders go to this neighbour: else nothing is ever sent twice."""
        return len(self._senders) > 1

    def claim(self, names: Collection[bytes]) -> Claim | None:
        """Claim the tables of a segment; None while another sender has one of them under way."""
        with self._changed:
            if any(name in self._under_way for name in names):
                return None
            there = frozenset(name for name in names if name in self._there)
            made = Claim(there, frozenset(names) - there)
            self._under_way.update(dict.fromkeys(made.sent, made))
            return made

    def wait(self, timeout_s: float) -> None:
        """Wait until some claim has ended, but no longer than this."""
        with self._changed:
            self._changed.wait(timeout_s)

    def end(self, claim: Claim, *, arrived: bool) -> None:
        """End a claim, whose tables are there or not; ending it again changes nothing."""
        with self._changed:
            for name in claim.sent:
                if self._under_way.get(name) is claim:
                    del self._under_way[name]
                    if arrived:
                        self._there[name] = None
            while len(self._there) > MAX_NAMES:
                del self._there[next(iter(self._there))]
            self._changed.notify_all()

    def forget(self) -> None:
        """Take nothing for granted any more: the neighbour did not know a name."""
        with self._changed:
            self._there.clear()
