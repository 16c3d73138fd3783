"""The desk that a slack rule works at: what is known of sources, of recent slices, and of the contract.

A rule answers one question, its `outlook` on a window, and may learn from windows that are over. It reads the desk and
never writes on it; the controller does.

Rules that do not predict errors state as bound what recent windows turned out to be off by, but for a share of them.
The errors of one season are not those of the next, so that share follows the misses, as the conformal slack does
(adaptive conformal inference, Gibbs and Candes, NeurIPS'21), and where it falls below zero bounds are larger than any
error known: in the long run they are missed as rarely as they say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from catchment.site.slack.setting import Outlook, Setting
from catchment.site.slack.slice_arrivals import SliceBook
from catchment.site.slack.sources import SourceTable
from catchment.site.slack.violation_budget import Ledger

MAX_OUTCOMES = 512  # recent windows whose error is kept, for the bounds of rules that do not predict one
BOUND_AIM = 0.8  # of delta: the misses of bounds aimed at; the rest is for the noise of a finite run
BOUND_GAIN = 0.01  # how fast the share of recent windows beyond the bound follows the misses
SETTLE_WINDOWS = 4.0
SETTLE_DELAYS = 2.0  # a window is over when the front is this many times the longest delay beyond it


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed window that may still gain records; `published` is what was said, with what was imputed."""

    end_us: int
    at_us: int
    count: float
    published: float
    published_count: float
    charge: float
    bound: float


@dataclass(frozen=True, slots=True)
class Settled:
    """A window that is over, and what it should have been."""

    closed: Closed
    count: float
    total: float
    error: float
    violated: bool
    needed_us: float  # how far the front had to be beyond its end; 0 unless the rule wants to know

    @property
    def coverage(self) -> float:
        return self.closed.count / self.count if self.count else 1.0


class Desk:
    """The shared knowledge of one controller."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.sources = SourceTable(setting)
        self.book = SliceBook(setting.window)
        self.ledger = Ledger(setting.contract.delta)
        self._outcomes: deque[tuple[float, float]] = deque(maxlen=MAX_OUTCOMES)  # error, coverage
        self._beyond = BOUND_AIM * setting.contract.delta  # share of recent windows that a bound leaves out
        self._usual: tuple[float, float, float] | None = None

    def note(self, settled: Settled) -> None:
        """The truth about a window, for the ledger and for what is usual."""
        self.ledger.settle(settled.closed.charge, settled.violated)
        self._outcomes.append((settled.error, settled.coverage))
        missed = float(settled.error > settled.closed.bound)
        self._beyond += BOUND_GAIN * (BOUND_AIM * self.setting.contract.delta - missed)
        self._beyond = min(max(self._beyond, -1.0), 0.5)
        self._usual = None

    def usual(self) -> tuple[float, float, float]:
        """Coverage, bound and risk of recent windows: what can be stood for without a prediction."""
        if self._usual is None:
            self._usual = self._usual_of_recent() if self._outcomes else (1.0, 1.0, 1.0)
        return self._usual

    def _usual_of_recent(self) -> tuple[float, float, float]:
        errors, coverages = np.array(self._outcomes).T
        contract = self.setting.contract
        bound = float(np.quantile(errors, 1.0 - max(self._beyond, 0.0), method="higher"))
        further = 1.0 + max(-self._beyond, 0.0) / contract.delta  # where the largest error known was not enough
        return float(coverages.mean()), further * bound, float(np.mean(errors >= contract.max_error))

    def is_over(self, end_us: int, front_us: int) -> bool:
        """Whether no more is expected for a window, by the longest delay known."""
        least = SETTLE_WINDOWS * self.setting.window.size_us
        return front_us - end_us >= max(least, SETTLE_DELAYS * self.sources.max_delay_us)

    def snapshot(self) -> dict[str, Any]:
        return {
            "sources": self.sources.snapshot(),
            "book": self.book.snapshot(),
            "ledger": self.ledger.snapshot(),
            "outcomes": [list(o) for o in self._outcomes],
            "beyond": self._beyond,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.sources.restore(state["sources"])
        self.book.restore(state["book"])
        self.ledger.restore(state["ledger"])
        self._outcomes = deque(((e, c) for e, c in state["outcomes"]), maxlen=MAX_OUTCOMES)
        self._beyond, self._usual = state["beyond"], None


class Rule(ABC):
    """When a window may close. All but `outlook` may be left as they are."""

    wants_needs = False  # whether it learns from how long windows needed to wait

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @abstractmethod
    def outlook(self, end_us: int, now_us: int) -> Outlook:
        """What closing the window that ends at `end_us` would mean now; changes nothing."""

    def observed(self, now_us: int) -> None:  # noqa: B027 - may be left as it is
        """A micro-batch is on the desk."""

    def looked(self, outlook: Outlook) -> None:  # noqa: B027 - may be left as it is
        """A window was looked at in its turn; it is closed if the outlook says so."""

    def learn(self, settled: Settled) -> None:  # noqa: B027 - may be left as it is
        """The truth about a window is known."""

    def is_over(self, end_us: int, front_us: int) -> bool:
        """Whether the truth about a window is known."""
        return self.desk.is_over(end_us, front_us)

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - may be left as it is
        """Take up where a snapshot was made."""


def by_slack(desk: Desk, end_us: int, now_us: int, slack_us: int, k_us: float) -> Outlook:
    """The outlook of a rule that waits for a slack of K and knows no more than what was usual."""
    waited = desk.sources.front_us(now_us) - end_us
    close = slack_us >= k_us
    limit = not close and waited >= desk.setting.max_wait_us
    reason = "covered" if close else "limit" if limit else "open" if slack_us < 0 else "waiting"
    return Outlook(end_us, now_us, close or limit, reason, *desk.usual(), slack_us)
