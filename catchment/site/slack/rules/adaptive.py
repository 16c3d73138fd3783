"""The default: per-source progress where sources keep their order, conformal slack where they do not.

Disorder in real streams is mostly between sources; there, progress tells what is missing, and nothing else comes near
it. Where sources are out of order in themselves, or so sparse that their silence tells nothing, progress is worse than
waiting as long as recent windows needed. Which of the two a stream is, is measured: by the share of inversions within
sources, and by the records a source has in a window. Both rules learn all the time; one decides. A stream is judged
anew at each micro-batch: the first may hold a single record, and on a busy machine there are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from catchment.site.slack.observations import Desk, Rule, Settled
from catchment.site.slack.rules.conformal import Conformal, ConformalRule
from catchment.site.slack.rules.progress import ORDERLY, BySources, ProgressRule
from catchment.site.slack.setting import Outlook
from catchment.site.slack.sources import RECORDS

SPARSE = 1.0  # fewer records a source and window than this: its silence tells nothing


@dataclass(frozen=True)
class Adaptive:
    """Chooses by what it measures; `impute` as in `BySources`."""

    impute: bool = False

    def rule(self, desk: Desk) -> Rule:
        return AdaptiveRule(desk, self)


class AdaptiveRule(Rule):
    wants_needs = True

    def __init__(self, desk: Desk, config: Adaptive) -> None:
        super().__init__(desk)
        self._progress = ProgressRule(desk, BySources(config.impute))
        self._conformal = ConformalRule(desk, Conformal())
        self.trusts_progress = True

    def observed(self, now_us: int) -> None:
        self.trusts_progress = self._is_orderly()

    def _is_orderly(self) -> bool:
        sources = self.desk.sources
        if sources.inverted_share() > ORDERLY:
            return False
        rates = sources.rates()[sources.present, RECORDS]
        return bool(rates.sum() * self.desk.setting.window.size_us >= SPARSE * len(rates))

    @property
    def _chosen(self) -> Rule:
        return self._progress if self.trusts_progress else self._conformal

    def outlook(self, end_us: int, now_us: int) -> Outlook:
        return self._chosen.outlook(end_us, now_us)

    def looked(self, outlook: Outlook) -> None:
        self._chosen.looked(outlook)

    def learn(self, settled: Settled) -> None:
        self._progress.learn(settled)
        self._conformal.learn(settled)

    def is_over(self, end_us: int, front_us: int) -> bool:
        return self._chosen.is_over(end_us, front_us)

    def snapshot(self) -> dict[str, Any]:
        rules = {"progress": self._progress.snapshot(), "conformal": self._conformal.snapshot()}
        return {**rules, "trusts_progress": self.trusts_progress}

    def restore(self, state: dict[str, Any]) -> None:
        self._progress.restore(state["progress"])
        self._conformal.restore(state["conformal"])
        self.trusts_progress = state["trusts_progress"]
