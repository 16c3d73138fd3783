"""The violation budget of a contract: earned by every window, spent on those not worth waiting for.

A contract allows a share delta of the windows to be off. `Ledger` counts: each closed window earns delta and
is charged the chance that it is off; when its truth is known, the charge becomes 0 or 1. Windows that are let go
in a stall are charged their `price`, several times the chance: they tend to be off together. `Calibration`
compares predicted chances with what came true. `Patience` says which waits are worth a violation: those of
the longest stalls, as many as the budget pays for in full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor, log2
from typing import Any

MEMORY_WINDOWS = 10_000  # credit and debt are forgotten beyond what this many windows earn
TOGETHER = 3.0  # a window that is let go in a stall is charged this many times its chance, until it is known


@dataclass
class Ledger:
    """Balance in windows: what may still be spent without breaking the contract over the windows so far."""

    delta: float
    balance: float = 0.0
    windows: int = 0
    violations: int = 0  # of the windows whose truth is known
    settled: int = 0
    overdrawn: int = 0  # windows closed while the balance was below zero

    @property
    def limit(self) -> float:
        return self.delta * MEMORY_WINDOWS

    def affords(self, charge: float) -> bool:
        """Whether a window can be closed at this charge and the balance not fall below zero."""
        return self.balance + self.delta - charge >= 0.0

    def windows_to_regain(self) -> int:
        """How many windows without a violation it takes until the contract is kept again."""
        return max(0, ceil(-self.balance / self.delta - 1e-9))

    def charge(self, charge: float) -> None:
        self.windows += 1
        self.overdrawn += self.balance < 0.0
        self._move(self.delta - charge)

    def settle(self, charge: float, violated: bool) -> None:
        """The truth about a window that was charged so much."""
        self.settled += 1
        self.violations += violated
        self._move(charge - float(violated))

    def _move(self, amount: float) -> None:
        self.balance = min(max(self.balance + amount, -self.limit), self.limit)

    def snapshot(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def price(risk: float) -> float:
    """What a window of this risk is charged when it is let go in a stall."""
    return min(TOGETHER * risk, 1.0)


EDGES = (0.0005, 0.002, 0.007, 0.02, 0.05, 0.12, 0.25, 0.5, 0.75, 0.9, 0.98)
TRUST = 10.0  # a prediction counts as much as this many outcomes
FADE = 0.998  # of the weight of an outcome, at each newer one in its bin


@dataclass
class Calibration:
    """What came true of predictions, by how likely they said it was."""

    seen: list[float] = field(default_factory=lambda: [0.0] * (len(EDGES) + 1))
    true: list[float] = field(default_factory=lambda: [0.0] * (len(EDGES) + 1))

    @staticmethod
    def bin_of(risk: float) -> int:
        place = 0
        while place < len(EDGES) and risk > EDGES[place]:
            place += 1
        return place

    def learn(self, place: int, violated: bool) -> None:
        self.seen[place] = self.seen[place] * FADE + 1.0
        self.true[place] = self.true[place] * FADE + float(violated)

    def corrected(self, risk: float) -> float:
        """The prediction, moved towards what became of earlier ones like it."""
        if risk == 0.0:
            return 0.0  # nothing is owed: to wait longer would help nothing
        place = self.bin_of(risk)
        return (self.true[place] + TRUST * risk) / (self.seen[place] + TRUST)

    def snapshot(self) -> dict[str, Any]:
        return {"seen": list(self.seen), "true": list(self.true)}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen, self.true = list(state["seen"]), list(state["true"])


STAIRS_PER_DOUBLING = 2
MAX_DOUBLINGS = 24
SPENT_ON_STALLS = 0.9  # of the budget; the rest covers what is closed as safe and is not


@dataclass
class Patience:
    """How long to wait in a stall before spending budget on it, from what windows turned out to need.

    Windows in a row that needed to wait were held up by one stall, as long as the longest of these waits. Closing them
    at once would cost a violation each, and save each its wait; so the longest stalls are the best buy, and are known
    by having lasted. The threshold is the length from which on the budget pays for all stalls.
    """

    unit_us: float
    delta: float
    total: float = 0.0
    by_length: dict[int, float] = field(default_factory=dict)
    row_windows: int = 0
    row_longest_us: float = 0.0

    def learn(self, needed_us: float) -> None:
        """The wait that the next window in order turned out to need."""
        self.total += 1.0
        if needed_us > self.unit_us:
            self.row_windows += 1
            self.row_longest_us = max(self.row_longest_us, needed_us)
        elif self.row_windows:
            self._end_row()
        if self.total > 2 * MEMORY_WINDOWS:
            self.total /= 2
            self.by_length = {stair: number / 2 for stair, number in self.by_length.items()}

    def _end_row(self) -> None:
        stair = self._stair(self.row_longest_us)
        self.by_length[stair] = self.by_length.get(stair, 0.0) + self.row_windows
        self.row_windows, self.row_longest_us = 0, 0.0

    def threshold_us(self, balance: float) -> float:
        """Age from which a stall is worth its violations, with what has been saved."""
        budget = SPENT_ON_STALLS * self.delta * self.total + balance
        for stair in sorted(self.by_length, reverse=True):
            budget -= self.by_length[stair]
            if budget < 0:
                return max(self.unit_us, self.unit_us * 2 ** (stair / STAIRS_PER_DOUBLING))
        return self.unit_us

    def _stair(self, length_us: float) -> int:
        """Lengths by their logarithm: stair 0 begins at the unit."""
        stair = floor(log2(length_us / self.unit_us) * STAIRS_PER_DOUBLING)
        return min(stair, MAX_DOUBLINGS * STAIRS_PER_DOUBLING)

    def snapshot(self) -> dict[str, Any]:
        own = {k: v for k, v in vars(self).items() if k not in ("by_length", "unit_us", "delta")}
        return {**own, "by_length": {str(k): v for k, v in self.by_length.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.by_length = {int(k): v for k, v in state["by_length"].items()}
