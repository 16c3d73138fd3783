"""For early answers: any policy, and at most so long until what waits for an open slice is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catchment.site.policies.base import Moment, Policy, PolicyState, Proposal, SliceView
from catchment.storage.codec import stored


@stored()
@dataclass(frozen=True)
class EarlyPolicy:
    """`inner`, with everything pending sent every `every_us`."""

    inner: Policy
    every_us: int

    @property
    def name(self) -> str:
        return f"{self.inner.name} (early every {self.every_us} us)"

    def build(self, resume: Mapping[str, Any] | None = None) -> _EarlyState:
        saved = resume or {"sent": (), "inner": None}
        return _EarlyState(self.inner.build(saved["inner"]), self.every_us, dict(saved["sent"]))


class _EarlyState:
    """When each open slice was last emptied."""

    def __init__(self, inner: PolicyState, every_us: int, sent: dict[int, int]) -> None:
        self._inner, self._every_us, self._sent = inner, every_us, sent

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        since = self._sent.setdefault(view.start_us, moment.now_us)
        if moment.now_us - since < self._every_us:
            return self._inner.propose(view, moment)
        self._sent[view.start_us] = moment.now_us
        return Proposal(view.pending, "an early answer is due")

    def close(self, view: SliceView, moment: Moment) -> None:
        self._sent.pop(view.start_us, None)
        self._inner.close(view, moment)

    def dump(self) -> dict[str, Any]:
        return {"sent": [list(item) for item in self._sent.items()], "inner": self._inner.dump()}
