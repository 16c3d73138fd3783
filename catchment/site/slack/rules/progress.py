"""Per-source progress: wait for the sources that owe, for as long as what they owe matters.

For sources that keep their own order. Each has told everything up to its progress; from its rate follows what it still
owes a window, and from all of them the chance that the answer is off by more than the contract allows. A window closes

- `covered`, when that chance, corrected by what became of earlier ones like it, is small;
- `budget`, in a stall that has become so old that it is among the longest the violation budget pays for; where the
  chance is small, so is the price, and the stall need only be that much of that age;
- `idle`, when only sources that are silent or behind beyond all patience owe it, and the budget could bear it if they
  were stalled after all; if it could not, when they have been silent for the longest wait;
- `limit`, after the longest wait.

With `impute`, what is owed is added to sums, counts and averages, and the chance is that of the estimate being off.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from statistics import NormalDist
from typing import Any

import numpy as np

from catchment.quality.coverage import relative_error
from catchment.site.slack.batch import Floats
from catchment.site.slack.missing import Debt, debt_to
from catchment.site.slack.observations import Desk, Rule, Settled
from catchment.site.slack.risk import Owed, bound, owed, risk
from catchment.site.slack.setting import Outlook
from catchment.site.slack.sources import RECORDS, Mask
from catchment.site.slack.violation_budget import Calibration, Patience, price

SAFE_SHARE = 0.2  # of delta: a window of less risk than this is closed at once
MAX_LOOKS = 16  # at one window, kept for calibration
ORDERLY = 0.02  # inversions up to this share: a window is over as soon as all sources are past it
STRETCH_GAIN = 0.05
MAX_STRETCH = 4.0
NAMED_SHARE = 0.001  # a source is named as missing when it owes more than this share of the window


@dataclass(frozen=True)
class BySources:
    """`impute` publishes estimates of the whole window instead of what is in."""

    impute: bool = False

    def rule(self, desk: Desk) -> Rule:
        return ProgressRule(desk, self)


class ProgressRule(Rule):
    wants_needs = True

    def __init__(self, desk: Desk, config: BySources) -> None:
        super().__init__(desk)
        setting = desk.setting
        self._impute = config.impute and setting.measure.name != "quantile"
        desk.sources.tracks_drift |= self._impute
        self._z = NormalDist().inv_cdf(1.0 - setting.contract.delta / 2.0)
        self._calibration = Calibration()
        self._patience = Patience(float(setting.window.slide_us), setting.contract.delta)
        self._looks: dict[int, list[tuple[int, float, float]]] = {}
        self._stretch = 1.0  # of the bounds, so that they are missed no more often than they say
        self._stalled_since: int | None = None  # the front when the first window had to wait

    def outlook(self, end_us: int, now_us: int) -> Outlook:
        sources = self.desk.sources
        front = sources.front_us(now_us)
        if front < end_us:
            return Outlook(end_us, now_us, False, "open", 0.0, 1.0, 1.0, front - end_us)
        debt = debt_to(sources, end_us, front)
        what = self._owed(end_us, debt, debt.time_us, debt.doubt_us2)
        predicted = self._risk(what)
        corrected = self._calibration.corrected(predicted)
        reason = self._reason(corrected, front - end_us, front)
        if reason == "waiting":
            reason, corrected = self._forgo(end_us, debt, corrected)
        added = (what.missing_count, what.missing_total) if self._impute else (0.0, 0.0)
        sure = self._stretch * bound(self.desk.setting.measure, self._z, what, self._impute)
        idle, missing, shares = self._names(what, debt)
        return Outlook(end_us, now_us, reason != "waiting", reason, what.coverage, sure, corrected, front - end_us,
                       idle, missing, *added, predicted, shares)  # fmt: skip

    def _reason(self, chance: float, slack_us: int, front_us: int) -> str:
        if self._is_safe(chance):
            return "covered"
        if slack_us >= self.desk.setting.max_wait_us:
            return "limit"
        age = front_us - self._stalled_since if self._stalled_since is not None else 0
        ledger = self.desk.ledger
        worth_it = age >= chance * self._patience.threshold_us(ledger.balance)
        return "budget" if worth_it and ledger.affords(price(chance)) else "waiting"

    def _is_safe(self, chance: float) -> bool:
        return chance <= SAFE_SHARE * self.desk.setting.contract.delta

    def _forgo(self, end_us: int, debt: Debt, chance: float) -> tuple[str, float]:
        """Whether only sources that are lost owe it, of which nothing is expected; or idle ones, and the ledger can
        bear that they are stalled: after delays have grown, a stall may last longer than any before. And the risk."""
        without = self._risk_without(end_us, debt, debt.lost)
        if self._is_safe(without):
            return "idle", without
        if self.desk.ledger.affords(price(chance)) and self._is_safe(self._risk_without(end_us, debt, debt.forgone)):
            return "idle", chance
        return "waiting", chance

    def _risk_without(self, end_us: int, debt: Debt, ignored: Mask) -> float:
        """The chance, if these sources owed nothing; 1 where there are none."""
        if not ignored.any():
            return 1.0
        time, doubt = (np.where(ignored, 0.0, column) for column in (debt.time_us, debt.doubt_us2))
        return self._calibration.corrected(self._risk(self._owed(end_us, debt, time, doubt)))

    def _owed(self, end_us: int, debt: Debt, time: Floats, doubt: Floats) -> Owed:
        drift = self.desk.sources.unsteady if self._impute else None
        return owed(self.desk.setting.measure, self.desk.book.window(end_us), debt.rates, time, doubt, drift)

    def _risk(self, what: Owed) -> float:
        setting = self.desk.setting
        return risk(setting.measure, setting.contract.max_error, what, self._impute)

    def _names(self, what: Owed, debt: Debt) -> tuple[tuple[str, ...], tuple[str, ...], tuple[float, ...]]:
        """The idle sources, and those that owe a part of the window that is worth naming, with that part."""
        least = NAMED_SHARE * max(what.count + what.missing_count, 1.0)
        owing = debt.rates[:, RECORDS] * debt.time_us > least
        shares = tuple((debt.time_us[owing] / self.desk.setting.window.size_us).tolist())
        return self.desk.sources.named(debt.idle), self.desk.sources.named(owing), shares

    def looked(self, outlook: Outlook) -> None:
        count, total = self.desk.book.window(outlook.end_us)
        if outlook.reason == "open" or not count:
            return
        place = self._calibration.bin_of(outlook.predicted)
        looks = self._looks.setdefault(outlook.end_us, [])
        if len(looks) < MAX_LOOKS and (not looks or looks[-1][0] != place):
            looks.append((place, count + outlook.missing_count, total + outlook.missing_total))
        self._follow_stall(outlook)

    def _follow_stall(self, outlook: Outlook) -> None:
        """A stall lasts from the first window that must wait until the newest need not."""
        if not outlook.close and self._stalled_since is None:
            self._stalled_since = outlook.end_us + outlook.slack_us
        elif outlook.reason == "covered" and outlook.slack_us < self.desk.setting.window.slide_us:
            self._stalled_since = None

    def learn(self, settled: Settled) -> None:
        setting = self.desk.setting
        self._patience.learn(settled.needed_us)
        missed = float(settled.error > settled.closed.bound)
        stretch = self._stretch * exp(STRETCH_GAIN * (missed - setting.contract.delta))
        self._stretch = min(max(stretch, 1.0), MAX_STRETCH)
        if self._impute:
            self.desk.sources.learn_drift()
        for place, count, total in self._looks.pop(settled.closed.end_us, ()):
            error = float(relative_error(setting.measure, count, total, settled.count, settled.total))
            self._calibration.learn(place, error >= setting.contract.max_error)

    def is_over(self, end_us: int, front_us: int) -> bool:
        """All sources are past it; or no window can wait longer, and what still comes is a surprise."""
        sources = self.desk.sources
        if front_us - end_us >= self.desk.setting.max_wait_us:
            return True
        if sources.inverted_share() > ORDERLY:
            return super().is_over(end_us, front_us)
        present = sources.progress[sources.present]
        return bool(len(present)) and int(present.min()) >= end_us

    def snapshot(self) -> dict[str, Any]:
        return {
            "calibration": self._calibration.snapshot(),
            "patience": self._patience.snapshot(),
            "looks": {str(end): [list(look) for look in looks] for end, looks in self._looks.items()},
            "stretch": self._stretch,
            "stalled_since": self._stalled_since,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._calibration.restore(state["calibration"])
        self._patience.restore(state["patience"])
        self._looks = {int(e): [(p, c, t) for p, c, t in looks] for e, looks in state["looks"].items()}
        self._stretch, self._stalled_since = state["stretch"], state["stalled_since"]
