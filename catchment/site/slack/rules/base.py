"""What every rule of a slack controller is: observations in, a decision on one window out.

A rule is plain state. It reads the observations of its controller, which are an argument of every method, and learns
from windows that have settled. Deciding changes nothing: a decision closes a window only when the controller enacts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from catchment.site.slack.observations import Observations, SettledWindow

OPEN = "open"  # event time has not reached the end of the window
WAITING = "waiting"
COVERED = "covered"  # the contract is kept
BUDGET = "budget"  # a violation that the budget can afford
IDLE = "idle"  # only sources that are not waited for any more lack records
LIMIT = "limit"  # the longest wait has passed


@dataclass(frozen=True, slots=True)
class CloseDecision:
    """Whether the window that ends at `end_us` may close now, why, and what closing it would mean.

    `bound` is the error that the answer stays under except with chance delta, `coverage` the expected share of its
    records that are in, `risk` the chance that the error exceeds the contract's, `slack_us` how far event time is
    beyond the end.
    """

    end_us: int
    at_us: int
    close: bool
    reason: str
    coverage: float
    bound: float
    risk: float
    slack_us: int
    idle: tuple[str, ...] = ()  # sources that are silent and not waited for
    missing: tuple[str, ...] = ()  # sources that are expected to have records of this window that are not in
    missing_shares: tuple[float, ...] = ()  # the share of the window that each of these lacks
    predicted_risk: float = 1.0  # the risk before it was corrected by experience
    imputed_count: float = 0.0  # what the answer adds for missing records, by rules that estimate the whole window
    imputed_total: float = 0.0
    expected_whole: bool = False  # whether nothing is expected to be missing, whatever bound is stated


class Rule(ABC):
    """When a window may close. A rule overrides what it needs besides `decide`."""

    learns_waits = False  # whether it learns from how long windows needed to wait

    @abstractmethod
    def decide(self, obs: Observations, end_us: int, now_us: int) -> CloseDecision:
        """Decide whether the window that ends at `end_us` may close; changes nothing."""

    def after_batch(self, obs: Observations, now_us: int) -> None:  # noqa: B027 - optional
        """Learn from a micro-batch that was observed."""

    def after_decision(self, obs: Observations, decision: CloseDecision) -> None:  # noqa: B027 - optional
        """Learn that the controller asked in earnest; the window is closed if the decision says so."""

    def after_stated(self) -> None:  # noqa: B027 - optional
        """Note that a window was closed because all sources had stated that nothing of it will come."""

    def learn(self, obs: Observations, settled: SettledWindow) -> None:  # noqa: B027 - optional
        """Learn how a window turned out."""

    def is_settled(self, obs: Observations, end_us: int, front_us: int) -> bool:
        """Return whether no more records are expected for a window."""
        return obs.is_settled(end_us, front_us)


def decide_by_slack(
    obs: Observations, end_us: int, now_us: int, slack_us: int, needed_slack_us: float
) -> CloseDecision:
    """Decide for a rule that waits for one slack and states what recent windows turned out to be."""
    close = slack_us >= needed_slack_us
    if close:
        reason = COVERED
    elif obs.front_us(now_us) - end_us >= obs.task.max_wait_us:
        close = True
        reason = LIMIT
    else:
        reason = OPEN if slack_us < 0 else WAITING
    coverage, bound, risk = obs.recent.quality()
    return CloseDecision(end_us, now_us, close, reason, coverage, bound, risk, slack_us)
