"""Per-source progress: wait for the sources that lack records, as long as what they lack matters.

For sources that keep their own order. Each has sent everything up to its progress; from its rate follows what it still
lacks in a window, and from all of them the risk: the chance that the answer is off by more than the contract allows.
A window closes

- `covered`: the risk, corrected by what became of earlier ones like it, is small;
- `budget`: the stall is older than risk x threshold, and the violation budget can afford it;
- `idle`: only sources that are silent or behind for too long lack records, and the budget could bear it if they were
  stalled after all; if it could not, they have been silent for the longest wait;
- `limit`: the longest wait has passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

import numpy as np

from catchment.arrays import Floats, Mask
from catchment.quality.contract import relative_error
from catchment.quality.missing_part import MissingPart, error_bound, missing_part, violation_risk
from catchment.site.slack.missing import ExpectedMissing, expected_missing
from catchment.site.slack.observations import Observations, SettledWindow
from catchment.site.slack.rules.base import BUDGET, COVERED, IDLE, LIMIT, OPEN, WAITING, CloseDecision, Rule
from catchment.site.slack.sources import RECORDS
from catchment.site.slack.task import SlackTask
from catchment.site.slack.violation_budget import Calibration, StallThreshold, stall_charge
from catchment.storage.codec import stored

SAFE_SHARE = 0.2  # a window whose risk is below this share of delta closes at once
MAX_PREDICTIONS = 16  # predictions kept per window, for calibration
BOUND_GAIN = 0.05  # how fast the factor of the bounds follows their misses
MAX_BOUND_FACTOR = 4.0
NAMED_SHARE = 0.001  # a source is named as missing when it lacks more than this share of the window's records


@stored()
@dataclass(frozen=True, slots=True)
class RiskPrediction:
    """A decision on an open window: the calibration bin of its risk, and the answer that was possible then."""

    bin_number: int
    count: float
    total: float


@stored()
@dataclass
class ProgressRule(Rule):
    """Decides by the progress of each source, and learns how right its predictions were."""

    stall_threshold: StallThreshold
    calibration: Calibration = field(default_factory=Calibration)
    predictions: dict[int, list[RiskPrediction]] = field(default_factory=dict)  # by the end of the window
    bound_factor: float = 1.0  # widens the bounds, so that they are missed no more often than they say
    stall_began_us: int | None = None  # the front when the first window had to wait

    learns_waits = True

    @classmethod
    def start(cls, task: SlackTask) -> ProgressRule:
        """Return the rule before anything was learned."""
        return cls(StallThreshold(float(task.window.slide_us), task.contract.delta))

    def decide(self, obs: Observations, end_us: int, now_us: int) -> CloseDecision:
        front = obs.front_us(now_us)
        slack_us = front - end_us
        if slack_us < 0:
            return CloseDecision(end_us, now_us, False, OPEN, coverage=0.0, bound=1.0, risk=1.0, slack_us=slack_us)
        missing = expected_missing(obs.sources, end_us, front)
        part = self._missing_part(obs, end_us, missing, missing.time_us, missing.variance_us2)
        predicted = self._predict_risk(obs, part)
        risk = self.calibration.correct(predicted)
        reason = self._reason(obs, risk, slack_us, front)
        if reason == WAITING:
            reason, risk = self._without_lost_sources(obs, end_us, missing, risk)
        lacking = _lacking_sources(part, missing)
        imputed_count, imputed_total = self._impute(part)
        return CloseDecision(
            end_us,
            now_us,
            close=reason != WAITING,
            reason=reason,
            coverage=part.coverage,
            bound=self.bound_factor * self._error_bound(obs, part),
            risk=risk,
            slack_us=slack_us,
            idle=obs.sources.names_of(missing.idle),
            missing=obs.sources.names_of(lacking),
            missing_shares=tuple((missing.time_us[lacking] / obs.task.window.size_us).tolist()),
            predicted_risk=predicted,
            imputed_count=imputed_count,
            imputed_total=imputed_total,
        )

    def _reason(self, obs: Observations, risk: float, slack_us: int, front_us: int) -> str:
        if _is_safe(obs, risk):
            return COVERED
        if slack_us >= obs.task.max_wait_us:
            return LIMIT
        stall_age_us = 0 if self.stall_began_us is None else front_us - self.stall_began_us
        old_enough = stall_age_us >= risk * self.stall_threshold.threshold_us(obs.budget.balance)
        return BUDGET if old_enough and obs.budget.can_afford(stall_charge(risk)) else WAITING

    def _without_lost_sources(
        self, obs: Observations, end_us: int, missing: ExpectedMissing, risk: float
    ) -> tuple[str, float]:
        """Return whether the window may close without the sources that are not waited for, and its risk then.

        Lost sources are left out in any case. Idle ones may be in a stall that is longer than any before, so they are
        left out only if the budget can bear that.
        """
        without_lost = self._risk_without(obs, end_us, missing, missing.lost)
        if _is_safe(obs, without_lost):
            return IDLE, without_lost
        if obs.budget.can_afford(stall_charge(risk)):
            without_idle = self._risk_without(obs, end_us, missing, missing.not_awaited)
            if _is_safe(obs, without_idle):
                return IDLE, risk
        return WAITING, risk

    def _risk_without(self, obs: Observations, end_us: int, missing: ExpectedMissing, ignored: Mask) -> float:
        """Return the risk if these sources lacked nothing; 1 if there are none."""
        if not ignored.any():
            return 1.0
        time_us = np.where(ignored, 0.0, missing.time_us)
        variance_us2 = np.where(ignored, 0.0, missing.variance_us2)
        part = self._missing_part(obs, end_us, missing, time_us, variance_us2)
        return self.calibration.correct(self._predict_risk(obs, part))

    def _missing_part(
        self, obs: Observations, end_us: int, missing: ExpectedMissing, time_us: Floats, variance_us2: Floats
    ) -> MissingPart:
        return missing_part(obs.task.measure, obs.window_totals(end_us), missing.rates, time_us, variance_us2)

    def _predict_risk(self, obs: Observations, part: MissingPart) -> float:
        return violation_risk(obs.task.measure, obs.task.contract.max_error, part)

    def _error_bound(self, obs: Observations, part: MissingPart) -> float:
        return error_bound(obs.task.measure, obs.task.contract.delta, part)

    def _impute(self, part: MissingPart) -> tuple[float, float]:
        """Return the count and the total that the answer adds for missing records: none, it is made of what is in."""
        return 0.0, 0.0

    def after_decision(self, obs: Observations, decision: CloseDecision) -> None:
        count, total = obs.window_totals(decision.end_us)
        if decision.reason == OPEN or not count:
            return
        bin_number = self.calibration.bin_of(decision.predicted_risk)
        made = self.predictions.setdefault(decision.end_us, [])
        if len(made) < MAX_PREDICTIONS and (not made or made[-1].bin_number != bin_number):
            answer = (count + decision.imputed_count, total + decision.imputed_total)
            made.append(RiskPrediction(bin_number, *answer))
        self._follow_stall(obs, decision)

    def _follow_stall(self, obs: Observations, decision: CloseDecision) -> None:
        """Note where a stall begins and ends: from the first window that must wait until the newest need not."""
        if not decision.close and self.stall_began_us is None:
            self.stall_began_us = decision.end_us + decision.slack_us
        elif decision.reason == COVERED and decision.slack_us < obs.task.window.slide_us:
            self.stall_began_us = None

    def after_stated(self) -> None:
        self.stall_began_us = None

    def learn(self, obs: Observations, settled: SettledWindow) -> None:
        contract = obs.task.contract
        self.stall_threshold.learn(settled.needed_wait_us)
        missed = float(settled.error > settled.closed.bound)
        factor = self.bound_factor * exp(BOUND_GAIN * (missed - contract.delta))
        self.bound_factor = min(max(factor, 1.0), MAX_BOUND_FACTOR)
        for made in self.predictions.pop(settled.closed.end_us, ()):
            error = float(relative_error(obs.task.measure, made.count, made.total, settled.count, settled.total))
            self.calibration.learn(made.bin_number, error >= contract.max_error)

    def is_settled(self, obs: Observations, end_us: int, front_us: int) -> bool:
        """Return whether all sources that keep their order are past a window, or none can wait longer for it."""
        if front_us - end_us >= obs.task.max_wait_us:
            return True
        if not obs.keeps_order():
            return super().is_settled(obs, end_us, front_us)
        progress = obs.sources.progress[obs.sources.present]
        return bool(len(progress)) and int(progress.min()) >= end_us


def _is_safe(obs: Observations, risk: float) -> bool:
    return risk <= SAFE_SHARE * obs.task.contract.delta


def _lacking_sources(part: MissingPart, missing: ExpectedMissing) -> Mask:
    """Return the sources that lack a part of the window that is worth naming."""
    least = NAMED_SHARE * max(part.count + part.missing_count, 1.0)
    return np.asarray(missing.rates[:, RECORDS] * missing.time_us > least)
