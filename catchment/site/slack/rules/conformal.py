"""Conformal slack: wait as long as most recent windows turned out to need.

For streams whose sources are sparse or out of order in themselves, where their progress says little. Once a window has
settled, its arrivals tell how far beyond its end the front had to be for its answer to be right. K is the
(1 - d)-quantile of these needed waits over recent windows, and d follows the misses (adaptive conformal inference,
Gibbs and Candes, NeurIPS'21): d += gain (delta - miss), so that the long-run share of misses is held whatever the
delays do. While the violation budget is overdrawn, the quantile is taken closer to 1.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from catchment.site.slack.missing import idle_sources, sources_behind
from catchment.site.slack.observations import Observations, SettledWindow
from catchment.site.slack.rules.base import CloseDecision, Rule, decide_by_slack
from catchment.site.slack.task import SlackTask
from catchment.storage.codec import stored

MAX_WAITS = 512  # recent windows whose needed wait is kept
LEAST_WAITS = 30  # before this many are known, K is the longest delay seen
TARGET_SHARE = 0.8  # share of delta aimed at for misses; the rest covers the noise of a finite run
OVERDRAWN_SHARE = 0.25  # share of d that is used while the budget is overdrawn
GAIN = 0.01  # how fast d follows the misses
LARGEST_LEVEL = 0.5


@stored()
@dataclass
class ConformalRule(Rule):
    """Waits for a quantile of the waits that recent windows needed; `level` is d, the share of them beyond it."""

    level: float
    waits_us: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_WAITS))
    slack_us: float | None = None  # K, until the next window has settled

    learns_waits = True

    @classmethod
    def start(cls, task: SlackTask) -> ConformalRule:
        """Return the rule before anything was learned."""
        return cls(TARGET_SHARE * task.contract.delta)

    def needed_slack_us(self, obs: Observations) -> float:
        """Return how far the front must be beyond the end of a window."""
        if len(self.waits_us) < LEAST_WAITS:
            return float(obs.sources.max_delay_us)
        if self.slack_us is None:
            level = self.level if obs.budget.balance >= 0.0 else OVERDRAWN_SHARE * self.level
            self.slack_us = float(np.quantile(np.array(self.waits_us), 1.0 - level, method="higher"))
        return self.slack_us

    def decide(self, obs: Observations, end_us: int, now_us: int) -> CloseDecision:
        front = obs.front_us(now_us)
        decision = decide_by_slack(obs, end_us, now_us, front - end_us, self.needed_slack_us(obs))
        if not decision.close:
            return decision
        not_awaited = idle_sources(obs.sources, front) | sources_behind(obs.sources)
        return replace(decision, idle=obs.sources.names_of(not_awaited))

    def learn(self, obs: Observations, settled: SettledWindow) -> None:
        self.waits_us.append(settled.needed_wait_us)
        level = self.level + GAIN * (TARGET_SHARE * obs.task.contract.delta - float(settled.violated))
        self.level = min(max(level, 0.0), LARGEST_LEVEL)
        self.slack_us = None
