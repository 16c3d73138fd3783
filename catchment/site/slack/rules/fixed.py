"""One slack for the whole stream: a window closes when the newest event time is K beyond its end.

`FixedRule` is the watermark that Spark and Flink have. `LongestDelayRule` (MP-K-slack, Mutschler and Philippsen) takes
for K the longest delay seen so far. `CoverageLoopRule` is the controller of Yang et al. (HPM, section 1.2), which
adopts that of AQ-K-slack: K = alpha times the longest delay, alpha += Kp err_i + Kd (err_i - err_(i-1)), err_i = needed
coverage - coverage of window i, measured some time after it closed. It steers the mean coverage; nothing looks at the
chance of a miss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field

from catchment.quality.coverage import needed_coverage, units_of_records
from catchment.site.slack.observations import Observations
from catchment.site.slack.rules.base import CloseDecision, Rule, decide_by_slack
from catchment.storage.codec import stored

MAX_MEASURING = 65_536  # windows whose coverage is still being measured; beyond it the oldest is taken as it is
PROPORTIONAL_GAIN = 0.2  # Kp, as in the paper
DERIVATIVE_GAIN = 4.0  # Kd, as in the paper
MEASURING_WINDOWS = 10.0  # coverage is measured this many window lengths after a window closed


class WatermarkRule(Rule):
    """A rule that closes windows by the newest event time alone."""

    @abstractmethod
    def needed_slack_us(self, obs: Observations) -> float:
        """Return how far the newest event time must be beyond the end of a window."""

    def decide(self, obs: Observations, end_us: int, now_us: int) -> CloseDecision:
        return decide_by_slack(obs, end_us, now_us, obs.sources.newest_us - end_us, self.needed_slack_us(obs))


@stored()
@dataclass
class FixedRule(WatermarkRule):
    """A constant slack."""

    slack_us: int

    def needed_slack_us(self, obs: Observations) -> float:
        return self.slack_us


@stored()
@dataclass
class LongestDelayRule(WatermarkRule):
    """The longest delay seen so far."""

    def needed_slack_us(self, obs: Observations) -> float:
        return obs.sources.max_delay_us


@stored()
@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """A closed window whose coverage is still being measured: its end, when it closed, and the records it had then."""

    end_us: int
    closed_at_us: int
    count: float


@stored()
@dataclass
class CoverageLoopRule(WatermarkRule):
    """A share `alpha` of the longest delay, steered by a PD loop on the coverage of windows."""

    alpha: float = 1.0
    last_error: float = 0.0
    measuring: deque[MeasuredWindow] = field(default_factory=deque)

    def needed_slack_us(self, obs: Observations) -> float:
        return self.alpha * obs.sources.max_delay_us

    def after_decision(self, obs: Observations, decision: CloseDecision) -> None:
        if not decision.close:
            return
        count, _ = obs.window_totals(decision.end_us)
        if count:
            self.measuring.append(MeasuredWindow(decision.end_us, decision.at_us, count))

    def after_batch(self, obs: Observations, now_us: int) -> None:
        period = MEASURING_WINDOWS * obs.task.window.size_us
        while self.measuring:
            oldest = self.measuring[0]
            if now_us - oldest.closed_at_us < period and len(self.measuring) <= MAX_MEASURING:
                break
            self.measuring.popleft()
            count, _ = obs.window_totals(oldest.end_us)
            self._correct(_needed_coverage(obs) - oldest.count / max(count, oldest.count))

    def _correct(self, error: float) -> None:
        change = PROPORTIONAL_GAIN * error + DERIVATIVE_GAIN * (error - self.last_error)
        self.alpha = min(max(self.alpha + change, 0.0), 1.0)
        self.last_error = error

    def is_settled(self, obs: Observations, end_us: int, front_us: int) -> bool:
        is_measured = not self.measuring or self.measuring[0].end_us > end_us
        return is_measured and super().is_settled(obs, end_us, front_us)


def _needed_coverage(obs: Observations) -> float:
    """Return the coverage that the contract needs of a window of the usual size, with records as sampling units."""
    count, total, square = obs.sources.rates().sum(axis=0) * obs.task.window.size_us
    units = units_of_records(max(float(count), 1.0), float(total), float(square))
    return needed_coverage(obs.task.measure, obs.task.contract, units)
