"""Controllers that publish an estimate of the whole window: what is in, plus what is expected to be missing.

`adaptive:imputed` and `progress:imputed` are for the simulator: a live site cannot publish records that it does not
have. They add the expected missing part to sums, counts and averages; the risk is then that of the estimate being off.
Rates drift, so the doubt in them is learned as well: by comparing recent rates with the long-term ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from catchment.arrays import Floats, Ints
from catchment.quality.contract import Measure
from catchment.quality.missing_part import (
    MissingPart,
    certain_risk,
    max_share,
    missing_part,
    normal_quantile,
    relative_bound,
    tail_chance,
)
from catchment.site.slack import SlackConfig, SlackController, SlackTask, parse_slack
from catchment.site.slack.batch import SourceBatch
from catchment.site.slack.missing import ExpectedMissing
from catchment.site.slack.observations import Observations, SettledWindow
from catchment.site.slack.rules.adaptive import AdaptiveRule
from catchment.site.slack.rules.base import Rule
from catchment.site.slack.rules.conformal import ConformalRule
from catchment.site.slack.rules.progress import ProgressRule
from catchment.site.slack.sources import SPAN, TOTAL, SourceTable, fade
from catchment.site.slack.violation_budget import StallThreshold
from catchment.storage.codec import stored

RECENT_FACTOR = 8.0  # recent rates are over a memory this many times shorter than the long-term ones
MAX_DRIFT = 1.0  # largest relative variance of a rate


@stored()
@dataclass(eq=False)
class DriftingSources(SourceTable):
    """A source table that also follows how far recent rates stray from the long-term ones."""

    recent_sums: Floats = field(default_factory=lambda: np.zeros((0, 4)))  # like `sums`, with a shorter memory
    rate_variance: Floats = field(default_factory=lambda: np.zeros(0))  # mean square of the relative drift

    def _join(self, batch: SourceBatch, new: Ints) -> None:
        super()._join(batch, new)
        self.recent_sums = np.append(self.recent_sums, np.zeros((len(new), 4)), axis=0)
        self.rate_variance = np.append(self.rate_variance, np.zeros(len(new)))

    def _learn_rates(self, rows: Ints, gained: Floats) -> None:
        super()._learn_rates(rows, gained)
        weight = fade(gained, self.memory_us) ** RECENT_FACTOR
        self.recent_sums[rows] = self.recent_sums[rows] * weight + gained

    def learn_drift(self) -> None:
        """Learn how far recent rates are from the long-term ones; to be called once per window."""
        slow = self.sums[:, TOTAL] * self.recent_sums[:, SPAN]
        quick = self.recent_sums[:, TOTAL] * self.sums[:, SPAN]
        drift = np.where(slow != 0.0, quick / np.where(slow != 0.0, slow, 1.0) - 1.0, 0.0)
        weight = self.task.window.slide_us / self.memory_us
        self.rate_variance += weight * (np.minimum(drift * drift, MAX_DRIFT) - self.rate_variance)


@stored()
@dataclass
class ImputingRule(ProgressRule):
    """A rule that decides by progress, for answers to which the expected missing part is added."""

    @classmethod
    def start(cls, task: SlackTask) -> ImputingRule:
        """Return the rule before anything was learned."""
        return cls(StallThreshold(float(task.window.slide_us), task.contract.delta))

    def learn(self, obs: Observations, settled: SettledWindow) -> None:
        super().learn(obs, settled)
        _drifting(obs).learn_drift()

    def _missing_part(
        self, obs: Observations, end_us: int, missing: ExpectedMissing, time_us: Floats, variance_us2: Floats
    ) -> MissingPart:
        held = obs.window_totals(end_us)
        drift = _drifting(obs).rate_variance
        return missing_part(obs.task.measure, held, missing.rates, time_us, variance_us2, drift)

    def _predict_risk(self, obs: Observations, part: MissingPart) -> float:
        return imputed_risk(obs.task.measure, obs.task.contract.max_error, part)

    def _error_bound(self, obs: Observations, part: MissingPart) -> float:
        distance = normal_quantile(obs.task.contract.delta) * part.deviation
        return relative_bound(obs.task.measure, distance, part)

    def _impute(self, part: MissingPart) -> tuple[float, float]:
        return part.missing_count, part.missing_total


def imputed_risk(measure: Measure, max_error: float, part: MissingPart) -> float:
    """Return the chance that the answer with the expected missing part added is off by `max_error` or more."""
    certain = certain_risk(part)
    if certain is not None:
        return certain
    allowed = max_share(measure, max_error) * part.answer_size(measure)
    return 2.0 * tail_chance(allowed, part.deviation)


def _drifting(obs: Observations) -> DriftingSources:
    assert isinstance(obs.sources, DriftingSources)
    return obs.sources


@dataclass(frozen=True)
class ImputingConfig(SlackConfig):
    """A kind of controller that imputes."""

    def build(self, task: SlackTask) -> SlackController:
        return SlackController(Observations.start(task, DriftingSources(task)), self.start_rule(task))


def parse_simulated_slack(text: str) -> SlackConfig:
    """Return the kind of controller that a text names: as `parse_slack`, and 'adaptive:imputed', 'progress:imputed'."""
    name = text.strip().lower()
    if name == "adaptive:imputed":
        return ImputingConfig(name, _start_adaptive)
    if name == "progress:imputed":
        return ImputingConfig(name, _start_progress)
    return parse_slack(text)


def _start_progress(task: SlackTask) -> ProgressRule:
    """Return a rule that imputes; no quantile can be imputed from counts and totals."""
    return ProgressRule.start(task) if task.measure.name == "quantile" else ImputingRule.start(task)


def _start_adaptive(task: SlackTask) -> Rule:
    return AdaptiveRule(_start_progress(task), ConformalRule.start(task))
