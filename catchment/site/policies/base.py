"""What a policy is: a frozen configuration that builds a state. The state proposes, the release gate checks.

A policy sees the slots of one open slice at a time and says which of them should leave now. It cannot lose, duplicate
or delay anything past the low mark: late and due slots leave without being asked for, and a proposal is cut down to the
slots that are really pending. Every update that leaves has exactly one reason of `REASONS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from catchment.site.slot_table import Slots, SlotTable
from catchment.storage.codec import stored

NO_SLOTS: Slots = np.empty(0, dtype=np.int64)

DUE = "due"
LATE = "late"
RELIEF = "relief"
STREAMED = "streamed"
EARLY = "early"
OVER_SIZE = "over-size"
FINISHED = "finished"
DRAIN = "drain"
PROBE = "probe"
APART = "apart"

REASONS: Mapping[str, str] = {
    DUE: "its window is closing",
    LATE: "its window had already been announced",
    RELIEF: "the cache is at its bound",
    STREAMED: "the policy sends every partial as it comes",
    EARLY: "an early answer is due",
    OVER_SIZE: "the cache holds more than the policy's size",
    FINISHED: "unlikely to return, and the link has room",
    DRAIN: "the link could not carry all at the end: the least likely to return go first",
    PROBE: "the link is idle and is asked what it can do",
    APART: "a sum of what is cached would not fit, so its parts leave apart",
}


@stored()
@dataclass
class ReasonCounts:
    """Updates by reason, and what the policy said when it last let something go."""

    updates: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def add(self, reason: str, updates: int, detail: str = "") -> None:
        assert reason in REASONS, f"{reason!r} is not one of {', '.join(REASONS)}"
        if updates:
            self.updates[reason] += updates
            self.last = detail or REASONS[reason]


@dataclass(slots=True)
class SliceView:
    """An open slice as a policy sees it: its totals so far and its pending slots in the slot table."""

    slot_table: SlotTable
    start_us: int
    end_us: int
    arrivals: int
    misses: int
    sent: int
    pending: Slots

    def slots(self) -> Slots:
        """Return all slots of the slice, pending or sent."""
        return np.flatnonzero(self.slot_table.slice_us == self.start_us)


@dataclass(frozen=True, slots=True)
class LinkView:
    """The link as one fragment sees it, counted in updates."""

    believed_rate: float | None = None  # updates per second that the link is believed to take; None: unknown
    measured_rate: float | None = None  # updates per second that it took when it was last busy
    queued: float = 0.0  # updates in the outbox
    frame: float = 0.0  # updates that the frame around a release is worth on the wire


@dataclass(frozen=True, slots=True)
class Moment:
    """The time as it bears on one slice, and the link as it bears on one fragment."""

    now_us: int
    elapsed: float  # share of the slice that the low mark has passed, from 0 to 1
    left_s: float  # seconds until the slice is expected to be due
    span_s: float  # seconds from the start of the slice until it is due
    link: LinkView

    @property
    def left(self) -> float:
        """The share of the slice that is left until it is due, from 0 to 1."""
        return min(self.left_s / self.span_s, 1.0)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Slots that should leave now, and why: one of `REASONS`, and a few words that `show status` repeats."""

    slots: Slots
    reason: str = OVER_SIZE
    detail: str = ""


NOTHING = Proposal(NO_SLOTS)


class PolicyState(Protocol):
    """The working memory of a policy for one fragment: a stored dataclass, part of the state of the site."""

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        """Return which pending slots of this open slice should leave now."""
        ...

    def close(self, view: SliceView, moment: Moment) -> None:
        """Learn from a slice that is over; its last slots are still in the slot table."""
        ...


class Policy(Protocol):
    """A frozen configuration, chosen by name. A policy without memory builds itself."""

    @property
    def name(self) -> str: ...

    def build(self) -> PolicyState: ...
