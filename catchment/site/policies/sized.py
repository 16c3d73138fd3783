"""Policies made of a cache size and an eviction order (Heintz et al., HPDC'15, Theorem 6).

Whatever is pending above the size leaves, in the order of the eviction: `hybrid:0.25+lfu`, `uniform+lru`. The
eviction defaults to LFU, the better one in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from catchment.errors import SiteError
from catchment.site.policies.base import NOTHING, Moment, Proposal, SliceView
from catchment.site.policies.cache_sizes import SIZES, Size, Sizing, hybrid
from catchment.site.policies.evictions import EVICTIONS
from catchment.site.policies.reasons import OVER_SIZE
from catchment.site.policies.slice_history import SliceHistory
from catchment.storage.codec import stored

DEFAULT_EVICTION = "lfu"
_ROUNDING = 1e-9  # a size that is a whole number but for rounding is that number
MISS_RATE_GAIN = 0.02  # of one record in the moving average of the miss rate


@dataclass
class _Misses:
    """The moving average of the miss rate of one open slice; it begins with an empty cache: all misses."""

    arrivals: int = 0
    misses: int = 0
    rate: float = 1.0

    def follow(self, view: SliceView) -> float:
        """Account for what came since the last call: many records at once as if one by one, evenly."""
        came, missed = view.arrivals - self.arrivals, view.misses - self.misses
        if came:
            keep = (1 - MISS_RATE_GAIN) ** came
            self.rate = keep * self.rate + (1 - keep) * missed / came
            self.arrivals, self.misses = view.arrivals, view.misses
        return self.rate


class SizePolicyState:
    """The history of the last slice and the miss rates of the open ones."""

    def __init__(self, policy: SizePolicy, resume: Mapping[str, Any]) -> None:
        self._policy = policy
        self._size = policy.size()
        self._evict = EVICTIONS[policy.eviction]
        self._history = SliceHistory.load(resume.get("history"))
        self._misses = {int(s): _Misses(**m) for s, m in resume.get("misses", {}).items()}

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        miss_rate = self._misses.setdefault(view.start_us, _Misses()).follow(view)
        size = max(self._size(Sizing(self._history, view, moment, miss_rate)), 0.0)
        excess = len(view.pending) - size
        if excess <= _ROUNDING:
            return NOTHING
        return Proposal(
            self._evict(view, ceil(excess - _ROUNDING)),
            OVER_SIZE,
            f"the cache should hold {size:.0f} keys and held {len(view.pending)}",
        )

    def close(self, view: SliceView, moment: Moment) -> None:
        self._misses.pop(view.start_us, None)
        self._history = SliceHistory.of(view, moment) or self._history

    def dump(self) -> dict[str, Any]:
        return {
            "history": self._history.dump() if self._history else None,
            "misses": {str(s): vars(m).copy() for s, m in self._misses.items()},
        }


@stored()
@dataclass(frozen=True)
class SizePolicy:
    """A cache size by name (or hybrid, with its laziness) and an eviction by name."""

    sizing: str
    laziness: float | None = None
    eviction: str = DEFAULT_EVICTION

    def __post_init__(self) -> None:
        if self.eviction not in EVICTIONS:
            raise SiteError(
                f"there is no eviction {self.eviction!r}",
                where=self.sizing,
                hint=f"use one of {', '.join(EVICTIONS)}",
            )
        if self.sizing == "hybrid":
            if self.laziness is None or not 0 <= self.laziness <= 1:
                raise SiteError(f"hybrid needs a laziness from 0 to 1, not {self.laziness}", hint="write hybrid:0.25")
        elif self.sizing not in SIZES or self.laziness is not None:
            raise SiteError(
                f"there is no cache size {self.sizing!r}", hint=f"use one of hybrid:ALPHA, {', '.join(SIZES)}"
            )

    @property
    def name(self) -> str:
        head = self.sizing if self.laziness is None else f"{self.sizing}:{self.laziness:g}"
        return head if self.eviction == DEFAULT_EVICTION else f"{head}+{self.eviction}"

    def size(self) -> Size:
        return hybrid(self.laziness) if self.laziness is not None else SIZES[self.sizing]

    def build(self, resume: Mapping[str, Any] | None = None) -> SizePolicyState:
        return SizePolicyState(self, resume or {})
