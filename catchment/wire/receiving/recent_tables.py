"""The tables that a process has taken lately, so that brief frames may name them (`wire.frames.brief`).

They are remembered in memory, under the name of who sent them: a sender names only what it has sent itself. What is
forgotten, by a restart or because of the bound, is sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from catchment.errors import WireError
from catchment.wire.frames.brief import BriefFrame, UnknownTableError, is_brief, read_brief
from catchment.wire.frames.limits import WireLimits
from catchment.wire.sending.uplink import RefusedError

MAX_BYTES = 64 * 2**20  # of remembered tables
ENTRY_BYTES = 256  # what a remembered table takes beside its bytes, about

MayTake = Callable[[str, int], bool]  # whether a peer may have so many bytes taken now


class TakesFrames(Protocol):
    """An inbox."""

    limits: WireLimits

    def accept(self, data: bytes, *, peer: str | None = None) -> int: ...

    def refuse(self, reason: str, message: str, hint: str | None = None, origin: str | None = None) -> RefusedError: ...


class RecentTables:
    """Completes brief frames for the inboxes of a process; safe for threads.

    `may_take` is asked for what a brief frame stands for beyond its own bytes: an inbox has to take all of it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, may_take: MayTake | None = None) -> None:
        self._max_bytes = max_bytes
        self._may_take = may_take
        self._lock = threading.Lock()
        self._tables: dict[tuple[str | None, bytes], bytes] = {}  # by sender and name, the oldest first
        self._size_bytes = 0
        self.named = 0  # tables that were found for brief frames

    def accept(self, inbox: TakesFrames, data: bytes, *, peer: str | None = None) -> int:
        """Give a frame, or what a brief one stands for, to an inbox; return the number that it acknowledges.

        Tables are remembered after it did: what is refused is nobody's to name.
        """
        if not is_brief(data):
            return inbox.accept(data, peer=peer)
        brief = self._complete(inbox, data, peer)
        self._charge(inbox, len(brief.frame) - len(data), peer)
        number = inbox.accept(brief.frame, peer=peer)
        self._keep(brief, peer)
        return number

    def _complete(self, inbox: TakesFrames, data: bytes, peer: str | None) -> BriefFrame:
        def find(name: bytes) -> bytes | None:
            with self._lock:
                found = self._tables.get((peer, name))
                self.named += found is not None
                return found

        try:
            return read_brief(data, find, inbox.limits.frame_bytes)
        except UnknownTableError as error:  # not counted: it is nothing that the sender has done
            raise RefusedError("not_here", error.message) from error
        except WireError as error:
            raise inbox.refuse("corrupt", error.message, origin=peer) from error

    def _charge(self, inbox: TakesFrames, spared_bytes: int, peer: str | None) -> None:
        if spared_bytes > 0 and self._may_take is not None and not self._may_take(peer or "", spared_bytes):
            message = f"the brief frames of {peer!r} stand for more than its share; send again later"
            raise inbox.refuse("too_fast", message, origin=peer)

    def _keep(self, brief: BriefFrame, peer: str | None) -> None:
        with self._lock:
            for name, table in brief.kept.items():
                if (peer, name) not in self._tables:
                    self._tables[peer, name] = table
                    self._size_bytes += ENTRY_BYTES + len(table)
            while self._size_bytes > self._max_bytes:
                self._size_bytes -= ENTRY_BYTES + len(self._tables.pop(next(iter(self._tables))))
