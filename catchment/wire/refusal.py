"""Why a segment does not get across: the far side says no, or the link fails.

A refusal carries its reason as one word of `REASONS`, so that it can be counted, and whether sending the same
bytes again can help. A link error always can be retried.
"""

from __future__ import annotations

from catchment.errors import WireError

# Each word is a counter at the inbox. The value says whether the same bytes may be accepted later.
REASONS = {
    "corrupt": False,  # not a segment, or damaged on the way
    "oversized": False,  # beyond a limit of the receiver
    "wrong_site": False,  # a peer wrote another site's name
    "wrong_epoch": False,  # the origin's state folder was replaced
    "too_many_origins": False,  # beyond the number of sites an inbox serves
    "unauthenticated": False,  # no certificate or token, or a wrong one
    "unfit": False,  # a fragment, a schema or slices that the receiver has no use for
    "beyond_window": True,  # too far ahead of the lowest number not yet seen
    "full": True,  # the receiver has no room until it has consumed some
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
    """The far side cannot be reached or does not answer in time; what was sent may have landed or not."""

    retryable = True
