"""The violation budget of a contract: every window earns some, windows not worth waiting for spend it.

A contract allows a share delta of the windows to be off. `ViolationBudget` counts: each closed window earns delta and
is charged the chance that it is off; once its true answer is known, the charge becomes 0 or 1. Windows that close in a
stall are charged several times that chance (`stall_charge`), because they tend to be off together. `Calibration`
compares predicted chances with what came true. `StallThreshold` spends violations on the longest stalls first, as far
as the budget reaches.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import ceil, floor, log2

from catchment.storage.codec import stored

MEMORY_WINDOWS = 10_000  # the balance never exceeds what this many windows earn, in either direction
STALL_FACTOR = 3.0  # charge of a window that closes in a stall, in multiples of its risk


@stored()
@dataclass
class ViolationBudget:
    """The balance, in windows: what may still be spent without breaking the contract over the windows so far."""

    delta: float
    balance: float = 0.0
    windows: int = 0
    settled: int = 0  # windows whose true answer is known
    violations: int = 0  # settled windows that were off

    def can_afford(self, charge: float) -> bool:
        """Return whether a window can close at this charge without the balance falling below zero."""
        return self.balance + self.delta - charge >= 0.0

    def windows_to_regain(self) -> int:
        """Return how many windows without a violation it takes until the contract is kept again."""
        return max(0, ceil(-self.balance / self.delta - 1e-9))

    def charge(self, charge: float) -> None:
        """Book a window that closes."""
        self.windows += 1
        self._move(self.delta - charge)

    def settle(self, charge: float, violated: bool) -> None:
        """Replace the charge of a window by what became of it."""
        self.settled += 1
        self.violations += violated
        self._move(charge - float(violated))

    def _move(self, amount: float) -> None:
        limit = self.delta * MEMORY_WINDOWS
        self.balance = min(max(self.balance + amount, -limit), limit)


def stall_charge(risk: float) -> float:
    """Return what a window of this risk is charged when it closes in a stall."""
    return min(STALL_FACTOR * risk, 1.0)


# The bins by which predicted chances are compared with what came true.
BIN_EDGES = (0.0005, 0.002, 0.007, 0.02, 0.05, 0.12, 0.25, 0.5, 0.75, 0.9, 0.98)
PRIOR_OUTCOMES = 10.0  # a prediction counts as much as this many outcomes
OUTCOME_DECAY = 0.998  # weight of an outcome, per newer one in its bin


def _empty_bins() -> list[float]:
    return [0.0] * (len(BIN_EDGES) + 1)


@stored()
@dataclass
class Calibration:
    """What came true of predicted chances, by bins of the prediction."""

    seen: list[float] = field(default_factory=_empty_bins)
    violated: list[float] = field(default_factory=_empty_bins)

    @staticmethod
    def bin_of(risk: float) -> int:
        """Return the bin of a predicted chance."""
        return bisect_left(BIN_EDGES, risk)

    def learn(self, bin_number: int, violated: bool) -> None:
        """Learn whether a prediction of this bin came true."""
        self.seen[bin_number] = self.seen[bin_number] * OUTCOME_DECAY + 1.0
        self.violated[bin_number] = self.violated[bin_number] * OUTCOME_DECAY + float(violated)

    def correct(self, risk: float) -> float:
        """Return the prediction, moved towards what became of earlier ones like it."""
        if risk == 0.0:
            return 0.0  # nothing is missing: waiting longer would not help
        bin_number = self.bin_of(risk)
        return (self.violated[bin_number] + PRIOR_OUTCOMES * risk) / (self.seen[bin_number] + PRIOR_OUTCOMES)


CLASSES_PER_DOUBLING = 2  # stalls are counted in classes of length, two per doubling
MAX_DOUBLINGS = 24
SHARE_FOR_STALLS = 0.9  # share of the budget; the rest covers windows that close as safe and are not


@stored()
@dataclass
class StallThreshold:
    """How long to wait in a stall before spending budget on it, learned from what windows turned out to need.

    Consecutive windows that needed to wait were held up by one stall, as long as the longest of these waits. Closing
    them at once would cost a violation each and save each its wait, so the longest stalls are the best to spend on,
    and are known by having lasted. The threshold is the length from which on the budget covers all stalls.
    """

    unit_us: float  # shorter waits are no stalls
    delta: float
    windows: float = 0.0
    windows_by_class: dict[int, float] = field(default_factory=dict)  # windows held up, by the length of their stall
    stall_windows: int = 0  # windows held up by the stall that is being learned
    stall_longest_us: float = 0.0

    def learn(self, needed_us: float) -> None:
        """Learn the wait that the next window in order turned out to need."""
        self.windows += 1.0
        if needed_us > self.unit_us:
            self.stall_windows += 1
            self.stall_longest_us = max(self.stall_longest_us, needed_us)
        elif self.stall_windows:
            self._end_stall()
        if self.windows > 2 * MEMORY_WINDOWS:
            self.windows /= 2
            self.windows_by_class = {length: number / 2 for length, number in self.windows_by_class.items()}

    def threshold_us(self, balance: float) -> float:
        """Return the age from which a stall is worth its violations, with what has been saved."""
        budget = SHARE_FOR_STALLS * self.delta * self.windows + balance
        for length in sorted(self.windows_by_class, reverse=True):
            budget -= self.windows_by_class[length]
            if budget < 0:
                return max(self.unit_us, self.unit_us * 2 ** (length / CLASSES_PER_DOUBLING))
        return self.unit_us

    def _end_stall(self) -> None:
        length = self._length_class(self.stall_longest_us)
        self.windows_by_class[length] = self.windows_by_class.get(length, 0.0) + self.stall_windows
        self.stall_windows = 0
        self.stall_longest_us = 0.0

    def _length_class(self, length_us: float) -> int:
        """Return the class of a length by its logarithm; class 0 begins at the unit."""
        length = floor(log2(length_us / self.unit_us) * CLASSES_PER_DOUBLING)
        return min(length, MAX_DOUBLINGS * CLASSES_PER_DOUBLING)
