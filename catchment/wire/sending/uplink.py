"""The far side as a sender sees it: the interface of a connection, and the two ways in which a segment may fail.

The far side refuses it (`RefusedError`), with a reason that is one word of `REASONS`, so that it can be counted; or the
link fails (`LinkError`), after which nobody knows whether it arrived, and it is sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from catchment.errors import WireError
from catchment.wire.frames.versions import PREVIOUS_VERSION

# Each word is a counter at the inbox. The value says whether the same bytes may soon be accepted.
REASONS = {
    "corrupt": False,  # not a segment, or damaged on the way
    "unknown_version": False,  # a frame of another version of catchment
    "oversized": False,  # beyond a limit of the receiver
    "wrong_site": False,  # a peer wrote another site's name
    "wrong_epoch": False,  # the origin's state folder was replaced
    "too_many_origins": False,  # beyond the number of sites an inbox serves
    "unauthenticated": False,  # no certificate or token, or a wrong one
    "other_functions": False,  # the origin has other code of a function that both sides have
    "unfit": False,  # a fragment, a schema or slices that the receiver has no use for
    "other_history": False,  # the origin's state folder is an older copy, or a clone: known numbers, other content
    "two_processes": False,  # another process introduced itself under the same name since
    "already_taken": True,  # so long ago that the content cannot be compared: connect again
    "blocked": False,  # an acknowledged segment of the site could not be merged
    "not_here": True,  # a table that a brief frame names is not here any more: send the segment whole
    "too_far_ahead": True,  # too far ahead of the lowest number not yet seen
    "full": True,  # the receiver has no room until it has consumed some
    "too_fast": True,  # more calls or bytes per second than one peer may make
    "closed": True,  # the receiver is going down, its disk failed, or it is not taken itself where it sends to
}
OTHER_STATE = ("wrong_epoch", "other_history", "two_processes")  # the state folder is not the one that is known


OTHER_HISTORY_HINT = (
    "a state folder is an old copy or lacks files, or was copied from a site that runs: restore its newest copy and "
    "end the other process; or let it come back as it is, and what was merged of it be computed again: at the center, "
    "catchment sites heal"
)


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


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a sender says of itself when it connects.

    `epoch` is the life of its state folder, `incarnation` that of its process, and `former` names those of its folder
    that have ended, each after a space. `disagreement` says what is wrong with the far side's greeting, if anything is:
    the far side should know it too. `functions` are those of its project.
    """

    origin: str
    epoch: str
    incarnation: str = ""
    disagreement: str = ""
    functions: str = ""  # the functions of its project, with the digits of their code
    former: str = ""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the far side answers: the lowest number that it has not seen, and the chain of all below, if it is known.

    `versions` are those of the frames that it reads, and `takes_brief` says whether it completes brief ones.
    """

    expected: int
    chain: str | None = None
    versions: tuple[int, ...] = (PREVIOUS_VERSION,)  # of one that says nothing
    takes_brief: bool = False


class Uplink(Protocol):
    """One connection to the inbox at the far side, used by one thread."""

    def connect(self, introduction: Introduction) -> Greeting:
        """Introduce the sender; learn what of its segments the far side has seen."""
        ...

    def send(self, data: bytes) -> int:
        """Send one segment; return its number once the far side has stored it durably."""
        ...

    def close(self) -> None: ...
