"""What a controller knows of its stream: its sources, its recent slices, its contract, and how its windows turned out.

Rules read the observations and never change them; the controller does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from catchment.site.slack.slice_arrivals import SliceArrivals
from catchment.site.slack.sources import RECORDS, SQUARE, SourceTable
from catchment.site.slack.surprises import Surprises, error_without_a_record
from catchment.site.slack.task import SlackTask
from catchment.site.slack.violation_budget import ViolationBudget
from catchment.storage.codec import stored

MAX_OUTCOMES = 512  # recent windows whose outcome is kept
TARGET_SHARE = 0.8  # share of delta aimed at for misses of bounds; the rest covers the noise of a finite run
TAIL_GAIN = 0.01  # how fast the share of recent windows beyond the bound follows the misses
LEAST_TAIL = -1.0
LARGEST_TAIL = 0.5
# No more records are expected for a window once the front is the longer of these beyond its end.
SETTLE_WINDOWS = 4.0  # multiples of the window size
ORDERLY_SHARE = 0.02  # inversions up to this share of the times that sources are heard: they keep their order
SETTLE_DELAYS = 2.0  # multiples of the longest delay seen


@stored(version=2, migrations={1: dict})  # version 2 has expected_whole
@dataclass(frozen=True, slots=True)
class UnsettledWindow:
    """A closed window that may still gain records.

    `count` is what was in when it closed; `published_count` and `published_total` are what was published, with what
    was imputed. `charge` is what the violation budget was charged, `bound` the error bound that was published.
    `expected_whole`: nothing was expected to be missing.
    """

    end_us: int
    count: float
    published_count: float
    published_total: float
    charge: float
    bound: float
    expected_whole: bool = False


@dataclass(frozen=True, slots=True)
class SettledWindow:
    """A window that gains no more records, and what it should have been."""

    closed: UnsettledWindow
    count: float
    total: float
    error: float
    violated: bool
    needed_wait_us: float  # how far the front had to be beyond its end; 0 unless the rule learns waits

    @property
    def coverage(self) -> float:
        return self.closed.count / self.count if self.count else 1.0


class RecentQuality(NamedTuple):
    """The mean coverage of recent windows, a bound on their errors, and the share that violated the contract."""

    coverage: float
    bound: float
    risk: float


@stored()
@dataclass
class RecentOutcomes:
    """The errors of recent windows: the bound of rules that predict none.

    The bound is a quantile of recent errors. The errors of one season are not those of the next, so the share of them
    beyond the bound follows the misses (adaptive conformal inference, Gibbs and Candes, NeurIPS'21); where it falls
    below zero, the bound is larger than any error known. In the long run bounds are missed as rarely as they say.
    """

    delta: float
    max_error: float
    tail_share: float  # share of recent windows whose error is beyond the bound
    outcomes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_OUTCOMES))  # error, coverage
    _quality: RecentQuality | None = field(default=None, init=False, repr=False, metadata={"stored": False})

    @classmethod
    def start(cls, task: SlackTask) -> RecentOutcomes:
        return cls(task.contract.delta, task.contract.max_error, TARGET_SHARE * task.contract.delta)

    def learn(self, settled: SettledWindow) -> None:
        """Learn how a window turned out."""
        self.outcomes.append((settled.error, settled.coverage))
        missed = float(settled.error > settled.closed.bound)
        share = self.tail_share + TAIL_GAIN * (TARGET_SHARE * self.delta - missed)
        self.tail_share = min(max(share, LEAST_TAIL), LARGEST_TAIL)
        self._quality = None

    def quality(self) -> RecentQuality:
        """Return what can be said of a window without a prediction."""
        if not self.outcomes:
            return RecentQuality(1.0, 1.0, 1.0)
        if self._quality is None:
            self._quality = self._quality_of_outcomes()
        return self._quality

    def _quality_of_outcomes(self) -> RecentQuality:
        errors, coverages = np.array(self.outcomes).T
        bound = float(np.quantile(errors, 1.0 - max(self.tail_share, 0.0), method="higher"))
        beyond_known = 1.0 + max(-self.tail_share, 0.0) / self.delta
        return RecentQuality(float(coverages.mean()), beyond_known * bound, float(np.mean(errors >= self.max_error)))


@stored(version=2, migrations={1: dict})  # version 2 has surprises
@dataclass(eq=False)
class Observations:
    """The knowledge that one controller shares with its rule."""

    task: SlackTask
    sources: SourceTable
    arrivals: SliceArrivals
    budget: ViolationBudget
    recent: RecentOutcomes
    surprises: Surprises = field(default_factory=Surprises)

    @classmethod
    def start(cls, task: SlackTask, sources: SourceTable | None = None) -> Observations:
        """Return the observations of a stream before its first record."""
        return cls(
            task,
            sources or SourceTable(task),
            SliceArrivals(task.window),
            ViolationBudget(task.contract.delta),
            RecentOutcomes.start(task),
        )

    def window_totals(self, end_us: int) -> tuple[float, float]:
        """Return the records and the total that a window holds now."""
        return self.arrivals.window_totals(end_us)

    def front_us(self, now_us: int) -> int:
        """Return where event time stands."""
        return self.sources.front_us(now_us)

    def learn(self, settled: SettledWindow) -> None:
        """Learn how a window turned out, for the budget and for later bounds."""
        self.budget.settle(settled.closed.charge, settled.violated)
        self.recent.learn(settled)
        if settled.closed.expected_whole:
            self.surprises.learn(settled.error)

    def keeps_order(self) -> bool:
        """Return whether sources send, and were seen to send, nothing of windows that all of them are past."""
        in_order = self.sources.inverted_share() <= ORDERLY_SHARE
        return in_order and self.surprises.show_order(self.task.contract.delta)

    def least_bound(self, end_us: int) -> float:
        """Return the least error that may be stated of a window, whatever is expected of it."""
        count, total = self.window_totals(end_us)
        records, squares = self.sources.sums[:, RECORDS].sum(), self.sources.sums[:, SQUARE].sum()
        usual_value = float(np.sqrt(squares / records)) if records else 1.0
        one_record = error_without_a_record(self.task.measure, count, total, usual_value)
        return self.surprises.least_bound(self.task.contract.delta, one_record)

    def is_settled(self, end_us: int, front_us: int) -> bool:
        """Return whether no more records are expected for a window, by the longest delay seen."""
        least = SETTLE_WINDOWS * self.task.window.size_us
        return front_us - end_us >= max(least, SETTLE_DELAYS * self.sources.max_delay_us)
