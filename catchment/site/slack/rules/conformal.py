"""Conformal slack: wait as long as most recent windows turned out to need.

For streams whose sources are sparse or out of order in themselves, where progress says little. When a window is over,
the book tells how far beyond its end the front had to be for its answer to be right. K is the (1 - d)-quantile of these
needed waits over recent windows, and d follows the misses (adaptive conformal inference, Gibbs and Candes, NeurIPS'21):
d += gain (delta - miss), so that the long-run share of misses is held whatever the delays do. While the ledger of the
contract is overdrawn, the quantile is taken closer to 1. Sources silent or behind beyond all patience are named.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from catchment.errors import SiteError
from catchment.site.slack.missing import behind, idle
from catchment.site.slack.observations import Desk, Rule, Settled, by_slack
from catchment.site.slack.setting import Outlook

MAX_NEEDS = 512  # recent windows whose needed wait is kept
LEAST_NEEDS = 30  # before this many are known, K is the longest delay seen
AIM = 0.8  # of delta: the misses aimed at; the rest is for the noise of a finite run
CAUTION = 0.25  # of d, while the ledger is overdrawn


@dataclass(frozen=True)
class Conformal:
    """`gain` is how fast the level follows the misses."""

    gain: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.gain < 1.0:
            raise SiteError(f"the gain of a conformal controller is between 0 and 1, not {self.gain!r}")

    def rule(self, desk: Desk) -> Rule:
        return ConformalRule(desk, self)


class ConformalRule(Rule):
    wants_needs = True

    def __init__(self, desk: Desk, config: Conformal) -> None:
        super().__init__(desk)
        self._config = config
        self.level = AIM * desk.setting.contract.delta
        self._needs: deque[float] = deque(maxlen=MAX_NEEDS)
        self._k_us: float | None = None

    def k_us(self) -> float:
        if len(self._needs) < LEAST_NEEDS:
            return float(self.desk.sources.max_delay_us)
        if self._k_us is None:
            level = self.level if self.desk.ledger.balance >= 0.0 else CAUTION * self.level
            self._k_us = float(np.quantile(np.array(self._needs), 1.0 - level, method="higher"))
        return self._k_us

    def outlook(self, end_us: int, now_us: int) -> Outlook:
        sources, front = self.desk.sources, self.desk.sources.front_us(now_us)
        outlook = by_slack(self.desk, end_us, now_us, front - end_us, self.k_us())
        lacking = sources.named(idle(sources, front) | behind(sources)) if outlook.close else ()
        return replace(outlook, idle=lacking) if lacking else outlook

    def learn(self, settled: Settled) -> None:
        self._needs.append(settled.needed_us)
        self.level += self._config.gain * (AIM * self.desk.setting.contract.delta - float(settled.violated))
        self.level = min(max(self.level, 0.0), 0.5)
        self._k_us = None

    def snapshot(self) -> dict[str, Any]:
        return {"level": self.level, "needs": list(self._needs)}

    def restore(self, state: dict[str, Any]) -> None:
        self.level, self._needs, self._k_us = state["level"], deque(state["needs"], maxlen=MAX_NEEDS), None
