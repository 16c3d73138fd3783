"""Surprises: what windows turn out to lack of which nothing was expected to be missing.

Where all sources are past a window, nothing of it is expected any more, and its answer would be stated exact. That
rests on sources that keep their order, and on all of them being known; a record that comes after all is a surprise.
How often windows are surprised is counted, and until that is known to be rare no answer that is still awaited has a
bound of 0:

- rare: at most a share delta of the windows, (surprised + 1/2) / (closed + 1) <= delta. The half is what the share
  begins with (Jeffreys), so that a few windows without a surprise show little.
- else the bound is at least what recent windows of this kind lacked, the (1 - delta)-quantile of their errors; of fewer
  than 1 / delta windows the greatest. It is one record in any case: windows that settled early seem to lack nothing.

Windows settle as soon as all sources are past them where sources have been seen to keep their order: for
SHOWN_WINDOWS windows, of which no more than a share delta was surprised. Otherwise they settle later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from catchment.quality.contract import Measure
from catchment.storage.codec import stored

MAX_ERRORS = 512  # recent windows whose error is kept
MAX_LACKING = 512  # recent windows that are known to lack something; late records of older ones are surprises
SHOWN_WINDOWS = 4.0  # that were watched before sources are believed to keep their order
MEMORY_CHANCES = 40.0  # counters are halved at this many times 1 / delta windows, so that they follow changes


@stored()
@dataclass
class Surprises:
    """How often, and by how much, windows of which nothing was expected to be missing lacked something."""

    closed: float = 0.0  # windows of which nothing was expected to be missing when they closed
    surprised: float = 0.0  # those of them that got a record after all
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_ERRORS))  # of those that have settled
    lacking: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_LACKING))  # ends of the other windows

    def count_closed(self, end_us: int, delta: float, *, expected_whole: bool) -> None:
        """Count one more window that closes."""
        if not expected_whole:
            self.lacking.append(end_us)
            return
        self.closed += 1.0
        if self.closed * delta > MEMORY_CHANCES:
            self.closed /= 2.0
            self.surprised /= 2.0

    def count_late(self, ends_us: Iterable[int]) -> None:
        """Count the windows that got records though nothing of them was expected to be missing."""
        self.surprised += sum(end not in self.lacking for end in ends_us)

    def learn(self, error: float) -> None:
        """Learn how a window of this kind turned out."""
        self.errors.append(error)

    def are_rare(self, delta: float) -> bool:
        """Return whether it is known that at most a share delta of the windows is surprised."""
        return (self.surprised + 0.5) / (self.closed + 1.0) <= delta

    def show_order(self, delta: float) -> bool:
        """Return whether sources have been seen to keep their order."""
        return self.closed >= SHOWN_WINDOWS and self.surprised / (self.closed + 1.0) <= delta

    def least_bound(self, delta: float, one_record: float) -> float:
        """Return the least error that may be stated; `one_record` is that of a window that lacks a single record."""
        if self.are_rare(delta):
            return 0.0
        if (len(self.errors) + 1) * delta < 1.0:
            return max([one_record, *self.errors])
        return max(one_record, float(np.quantile(np.array(self.errors), 1.0 - delta, method="higher")))


def error_without_a_record(measure: Measure, count: float, total: float, usual_value: float) -> float:
    """Return the relative error (of a quantile: of rank) of an answer that lacks one record of the usual size."""
    if measure.name == "count":
        return 1.0 / (count + 1.0)
    if measure.name == "quantile":
        return measure.rank_factor / (count + 1.0)
    whole = abs(total) + usual_value
    return usual_value / whole if whole else 0.0
