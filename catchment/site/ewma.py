"""Exponential averages: the newest value counts most, older ones less and less.

`move_average` is for a value that is known from the start: each step takes a share (the gain) of the newest one.
`DecayedMean` begins with nothing: each value counts `decay` times as much for every value that was added after it.
Gains and decays are passed in, not stored: they are constants of the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from catchment.arrays import Floats
from catchment.storage.codec import stored

Value = TypeVar("Value", float, Floats)


def move_average(average: float, value: float, gain: float) -> float:
    """Return the average after one more value; a gain of 1 forgets everything before it."""
    return average + gain * (value - average)


@stored()
@dataclass
class DecayedMean(Generic[Value]):
    """A decayed sum of numbers or of arrays, and the weight by which it is to be divided."""

    total: Value
    weight: float = 0.0

    def add(self, value: Value, decay: float) -> None:
        self.total = decay * self.total + value
        self.weight = decay * self.weight + 1.0
