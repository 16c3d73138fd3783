"""The default rule: per-source progress where sources keep their order, conformal slack where they do not.

Disorder in real streams is mostly between sources. There, progress tells what is missing, and nothing else comes near
it. Where sources are out of order in themselves, or so sparse that their silence tells nothing, progress is worse than
waiting as long as recent windows needed. Which of the two a stream is, is measured: by the share of inversions within
sources, and by the records per source and window. Both rules learn all the time; one decides. The choice is made again
at each micro-batch, because the first may hold a single record, and on a busy machine there are few.
"""

from __future__ import annotations

from dataclasses import dataclass

from catchment.site.slack.observations import ORDERLY_SHARE, Observations, SettledWindow
from catchment.site.slack.rules.base import CloseDecision, Rule
from catchment.site.slack.rules.conformal import ConformalRule
from catchment.site.slack.rules.progress import ProgressRule
from catchment.site.slack.sources import RECORDS
from catchment.site.slack.task import SlackTask
from catchment.storage.codec import stored

SPARSE_RECORDS = 1.0  # records per source and window; with fewer, silence tells nothing


@stored()
@dataclass
class AdaptiveRule(Rule):
    """Decides by progress or by conformal slack, whichever fits the stream."""

    progress: ProgressRule
    conformal: ConformalRule
    trusts_progress: bool = True

    learns_waits = True

    @classmethod
    def start(cls, task: SlackTask) -> AdaptiveRule:
        """Return the rule before anything was learned."""
        return cls(ProgressRule.start(task), ConformalRule.start(task))

    @property
    def _chosen(self) -> Rule:
        return self.progress if self.trusts_progress else self.conformal

    def decide(self, obs: Observations, end_us: int, now_us: int) -> CloseDecision:
        return self._chosen.decide(obs, end_us, now_us)

    def after_batch(self, obs: Observations, now_us: int) -> None:
        self.trusts_progress = _is_orderly(obs)

    def after_decision(self, obs: Observations, decision: CloseDecision) -> None:
        self._chosen.after_decision(obs, decision)

    def learn(self, obs: Observations, settled: SettledWindow) -> None:
        self.progress.learn(obs, settled)
        self.conformal.learn(obs, settled)

    def is_settled(self, obs: Observations, end_us: int, front_us: int) -> bool:
        return self._chosen.is_settled(obs, end_us, front_us)


def _is_orderly(obs: Observations) -> bool:
    """Return whether sources keep their own order and are heard often enough for their silence to mean something."""
    sources = obs.sources
    if sources.inverted_share() > ORDERLY_SHARE:
        return False
    rates = sources.rates()[sources.present, RECORDS]
    return bool(rates.sum() * obs.task.window.size_us >= SPARSE_RECORDS * len(rates))
