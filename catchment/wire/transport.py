"""How segments cross a link: the interface that senders use, and its form inside one process."""

from __future__ import annotations

from typing import Protocol

from catchment.wire.inbox import Inbox


class Uplink(Protocol):
    """One connection to the inbox at the far side, used by one thread.

    Failures are a `LinkError` (not reached; it may have landed all the same) or a `RefusedError` (with a
    reason).
    """

    def connect(self, origin: str, epoch: str) -> int:
        """Introduce the sender; the lowest of its numbers that the far side has not seen."""
        ...

    def send(self, data: bytes) -> int:
        """Send one segment; its number, once the far side has it safe."""
        ...

    def close(self) -> None: ...


class LocalUplink:
    """An uplink to an inbox of the same process."""

    def __init__(self, inbox: Inbox, peer: str | None = None) -> None:
        self._inbox, self._peer = inbox, peer

    def connect(self, origin: str, epoch: str) -> int:
        return self._inbox.greet(origin, epoch, peer=self._peer)

    def send(self, data: bytes) -> int:
        return self._inbox.accept(data, peer=self._peer)

    def close(self) -> None:
        """Nothing is held."""
