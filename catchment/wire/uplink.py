"""The far side as a sender sees it: the interface of a connection, and the two ways in which a segment may fail.

The far side refuses it (`RefusedError`), with a reason that is one word of `REASONS`, so that it can be counted; or the
link fails (`LinkError`), after which nobody knows whether it arrived, and it is sent again.
"""

from __future__ import annotations

from typing import Protocol

from catchment.errors import WireError

# Each word is a counter at the inbox. The value says whether the same bytes may soon be accepted.
REASONS = {
    "corrupt": False,  # not a segment, or damaged on the way
    "unknown_version": False,  # a frame of another version of catchment
    "oversized": False,  # beyond a limit of the receiver
    "wrong_site": False,  # a peer wrote another site's name
    "wrong_epoch": False,  # the origin's state folder was replaced
    "too_many_origins": False,  # beyond the number of sites an inbox serves
    "unauthenticated": False,  # no certificate or token, or a wrong one
    "unfit": False,  # a fragment, a schema or slices that the receiver has no use for
    "blocked": False,  # an acknowledged segment of the site could not be merged
    "too_far_ahead": True,  # too far ahead of the lowest number not yet seen
    "full": True,  # the receiver has no room until it has consumed some
    "too_fast": True,  # more calls or bytes per second than one peer may make
    "closed": True,  # the receiver is going down, or its disk failed
}


class RefusedError(WireError):
    """The far side refuses a segment or a connection."""

    def __init__(self, reason: str, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        assert reason in REASONS, reason
        self.reason = reason
        self.retryable = REASONS[reason]
        super().__init__(message, where=where, hint=hint)


class LinkError(WireError):
    """The far side cannot be reached or does not answer in time; what was sent may have arrived or not."""

    retryable = True


class Uplink(Protocol):
    """One connection to the inbox at the far side, used by one thread."""

    def connect(self, origin: str, epoch: str) -> int:
        """Introduce the sender; return the lowest of its numbers that the far side has not seen."""
        ...

    def send(self, data: bytes) -> int:
        """Send one segment; return its number once the far side has stored it durably."""
        ...

    def close(self) -> None: ...
