"""Policies that look at nothing but the time: send everything at once, nothing before it is due, or all every so often.

Streaming and batching are the two extremes of Heintz et al., HPDC'15, section 1: pure streaming is early and sends
most; pure batching is late and sends least.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.site.policies.base import EARLY, NOTHING, STREAMED, Moment, Policy, PolicyState, Proposal, SliceView
from catchment.storage.codec import stored


@stored()
@dataclass(frozen=True)
class Streaming:
    """Every partial leaves with the micro-batch that brought it."""

    name: str = "streaming"

    def build(self) -> Streaming:
        return self

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        return Proposal(view.pending, STREAMED)

    def close(self, view: SliceView, moment: Moment) -> None:
        return None


@stored()
@dataclass(frozen=True)
class Batching:
    """Every partial waits until its slice is due."""

    name: str = "batching"

    def build(self) -> Batching:
        return self

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        return NOTHING

    def close(self, view: SliceView, moment: Moment) -> None:
        return None


@stored()
@dataclass(frozen=True)
class EarlyPolicy:
    """`inner`, with everything pending sent every `every_us`: for views that publish early answers."""

    inner: Policy
    every_us: int

    @property
    def name(self) -> str:
        return f"{self.inner.name} (early every {self.every_us} us)"

    def build(self) -> EarlyPolicyState:
        return EarlyPolicyState(self.every_us, self.inner.build())


@stored()
@dataclass
class EarlyPolicyState:
    """The state of the inner policy, and when each open slice was last emptied."""

    every_us: int
    inner: PolicyState
    emptied_at_us: dict[int, int] = field(default_factory=dict)  # by the start of the slice

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        emptied_at_us = self.emptied_at_us.setdefault(view.start_us, moment.now_us)
        if moment.now_us - emptied_at_us < self.every_us:
            return self.inner.propose(view, moment)
        self.emptied_at_us[view.start_us] = moment.now_us
        return Proposal(view.pending, EARLY)

    def close(self, view: SliceView, moment: Moment) -> None:
        self.emptied_at_us.pop(view.start_us, None)
        self.inner.close(view, moment)
