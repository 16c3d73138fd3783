"""Sites that are blocked: an acknowledged segment of theirs could not be merged.

Such a segment must not end whoever received it: the site is blocked by a fact of the journal, its segments from that
one on are set aside (`wire.receiving.set_aside`), and everybody else goes on. The marks of a blocked site stand still,
so its windows close by freshness and name it as missing. When a person asks for it the site is resumed: what was set
aside goes through the inbox once more, in order, so nothing is merged twice and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from catchment.errors import CatchmentError
from catchment.progress.events import Landed
from catchment.progress.frontier import Frontier
from catchment.progress.soundness import check_soundness
from catchment.query.fragment import Fragment
from catchment.storage.codec import stored
from catchment.wire.messages import Segment


@stored()
@dataclass(frozen=True, slots=True)
class SiteBlocked:
    """A segment of a site could not be merged: take nothing more of it. `origin` is who sent it, maybe a relay."""

    origin: str
    sequence: int
    reason: str


@stored()
@dataclass(frozen=True, slots=True)
class SiteResumed:
    """Take a blocked site again, from the segment on that could not be merged."""

    origin: str


@stored()
@dataclass(frozen=True, slots=True)
class Blockage:
    """Why a site is blocked, and since when."""

    sequence: int
    reason: str
    since_us: int


Blocked = dict[str, Blockage]


class TakesSegments(Protocol):
    """A core that landed segments are committed to; `deferred` are the partials of them that wait on disk."""

    frontiers: dict[str, Frontier]
    blocked: Blocked
    deferred: set[tuple[str, int]]


def note_blocking(blocked: Blocked, event: SiteBlocked | SiteResumed, now_us: int) -> None:
    """Take in that a site was blocked or resumed."""
    if isinstance(event, SiteResumed):
        blocked.pop(event.origin, None)
    else:
        blocked.setdefault(event.origin, Blockage(event.sequence, event.reason, now_us))


class SegmentSieve:
    """Tells which segments of a run can be taken, in their order, without changing anything.

    A segment cannot be taken if its site is blocked, if it is not sound, or if what it states contradicts what is in.
    """

    def __init__(self, core: TakesSegments, fragments: Mapping[str, Fragment]) -> None:
        self._frontiers = core.frontiers
        self._fragments = fragments
        self._blocked = set(core.blocked)
        self._trials: dict[str, Frontier] = {}
        self.newly_blocked: list[SiteBlocked] = []

    def takes(self, segment: Segment, is_sound: bool) -> bool:
        """Return whether a segment can be taken; `is_sound`: that was found out when it landed."""
        if segment.origin in self._blocked:
            return False
        try:
            if not is_sound:
                check_soundness(segment, self._fragments)
        except CatchmentError as error:
            self.block(segment, error)
            return False
        return self.takes_landed(Landed.of(segment))

    def takes_landed(self, landed: Landed) -> bool:
        """Return whether what a sound segment states can be taken."""
        if landed.origin in self._blocked:
            return False
        try:
            self._trial(landed.origin).add(landed)
        except CatchmentError as error:
            self.block(landed, error)
            return False
        return True

    def is_blocked(self, origin: str) -> bool:
        return origin in self._blocked

    def block(self, segment: Segment | Landed, error: Exception) -> None:
        """Block the site of a segment that cannot be merged."""
        reason = error.message if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
        self._blocked.add(segment.origin)
        self.newly_blocked.append(SiteBlocked(segment.origin, segment.sequence, reason))

    def _trial(self, origin: str) -> Frontier:
        if origin not in self._trials:
            self._trials[origin] = self._frontiers.get(origin, Frontier()).copy_for_trial()
        return self._trials[origin]
