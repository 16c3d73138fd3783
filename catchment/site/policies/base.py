"""What a policy is: a frozen configuration that builds a state; the state proposes, the gate checks and
enacts.

A policy sees slots of one open slice at a time and says which of them should leave now. It cannot lose,
duplicate or delay past the low mark anything: late and due slots leave without being asked, and a proposal
is cut down to the slots that are really pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from catchment.site.policies.reasons import OVER_SIZE
from catchment.site.slot_table import Slots, SlotTable

NO_SLOTS: Slots = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class SliceView:
    """An open slice as a policy sees it: its totals so far and its pending slots in the slot_table."""

    slot_table: SlotTable
    start_us: int
    end_us: int
    arrivals: int
    misses: int
    sent: int
    pending: Slots

    def slots(self) -> Slots:
        """All slots of the slice, pending or sent."""
        return np.flatnonzero(self.slot_table.slice_us == self.start_us)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time, as it bears on one slice, and the link, as it bears on one fragment.

    `elapsed`: share of the slice that the low mark has passed, in [0, 1]. `left_s`: seconds until the slice
    is expected to be due. `span_s`: seconds from the slice's start to its being due. `rate`: updates a
    second that the link is believed to take (None: unknown). `measured`: updates a second that it took when
    last busy. `queued`: updates in the outbox. `frame`: as how many updates the frame around a release counts on
    the wire.
    """

    now_us: int
    elapsed: float
    left_s: float
    span_s: float
    rate: float | None = None
    measured: float | None = None
    queued: float = 0.0
    frame: float = 0.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """Slots that should leave now, and why: one of the reasons, and a few words that `show` repeats."""

    slots: Slots
    reason: str = OVER_SIZE
    detail: str = ""


NOTHING = Proposal(NO_SLOTS)


class PolicyState(Protocol):
    """The working memory of a policy for one fragment."""

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        """Which pending slots of this open slice should leave now."""
        ...

    def close(self, view: SliceView, moment: Moment) -> None:
        """The slice is over (its last slots are still in the slot_table): learn from it."""
        ...

    def dump(self) -> dict[str, Any]:
        """Its memory as plain JSON; `Policy.build(dump)` makes an equal state."""
        ...


class Policy(Protocol):
    """A frozen configuration, chosen by name."""

    @property
    def name(self) -> str: ...

    def build(self, resume: Mapping[str, Any] | None = None) -> PolicyState: ...
