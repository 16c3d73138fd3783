"""What each recent slice of a stream holds, and where the front stood when its records came in.

A controller learns from windows that are over: how much was missing when they closed, and how long they should have
waited. Both follow from the arrivals of each slice: steps of (front, records, total of their values).

Bounds: MAX_SLICES and MAX_STEPS. At the first the oldest slice is forgotten early. At the second new arrivals are
added to the newest step, which makes needed waits look longer: the safe side.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from catchment.quality.contract import Measure, relative_error
from catchment.site.slack.batch import SourceBatch
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, Slicing, WindowSpec

MAX_SLICES = 65_536
MAX_STEPS = 256  # steps of arrivals per slice

Step = tuple[float, float, float]  # front_us, records, total


@stored()
@dataclass(slots=True)
class SliceHistory:
    """The totals of one slice so far, and the steps in which they came."""

    count: float = 0.0
    total: float = 0.0
    steps: list[Step] = field(default_factory=list)

    def add(self, front_us: int, count: float, total: float) -> None:
        self.count += count
        self.total += total
        steps = self.steps
        if steps and (steps[-1][0] == front_us or len(steps) >= MAX_STEPS):
            _, step_count, step_total = steps[-1]
            steps[-1] = (float(front_us), step_count + count, step_total + total)
        else:
            steps.append((float(front_us), count, total))


@stored()
@dataclass(eq=False)
class SliceArrivals:
    """The histories of recent slices. Slices are numbered along the time line, one number after the other."""

    window: WindowSpec
    slices: dict[int, SliceHistory] = field(default_factory=dict)
    first_kept: int = -(2**63)  # slices with a lower number are forgotten

    @cached_property
    def slicing(self) -> Slicing:
        return Slicing.of([self.window])

    def record(self, batch: SourceBatch, front_us: int) -> None:
        """Add what a micro-batch brought; records of slices that are already forgotten are left out."""
        sums: dict[int, tuple[float, float]] = {}
        for start, count, total in zip(
            batch.slice_us.tolist(), batch.count.tolist(), batch.total.tolist(), strict=True
        ):
            known_count, known_total = sums.get(start, (0, 0.0))
            sums[start] = (known_count + count, known_total + total)
        for start, (count, total) in sums.items():
            number = self._number(start)
            if count and number >= self.first_kept:
                self._history(number).add(front_us, count, total)

    def window_totals(self, end_us: int) -> tuple[float, float]:
        """Return the records and the total that a window holds now."""
        count = 0.0
        total = 0.0
        for history in self._window_histories(end_us):
            count += history.count
            total += history.total
        return count, total

    def first_slice_us(self, from_us: int) -> int:
        """Return where the first slice with records begins, from an instant on; the end of time if there is none."""
        low = self._number(from_us)
        number = min((n for n in self.slices if n >= low), default=None)
        if number is None:
            return END_OF_TIME_US
        period, cut = divmod(number, len(self.slicing.cuts_us))
        return period * self.slicing.period_us + self.slicing.cuts_us[cut]

    def needed_wait_us(self, end_us: int, measure: Measure, max_error: float) -> float:
        """Return how far the front had to be beyond the window's end for the answer to be right from then on."""
        steps = [step for history in self._window_histories(end_us) for step in history.steps]
        if not steps:
            return 0.0
        steps.sort()
        fronts, counts, totals = np.array(steps).T
        counts = np.cumsum(counts)
        totals = np.cumsum(totals)
        wrong = np.flatnonzero(relative_error(measure, counts, totals, counts[-1], totals[-1]) >= max_error)
        first_right = int(wrong[-1]) + 1 if len(wrong) else 0
        if first_right == len(fronts):
            return float(fronts[-1]) - end_us
        return max(float(fronts[first_right]) - end_us, 0.0)

    def forget_before(self, instant_us: int) -> None:
        """Drop the slices that end at or before an instant, for good."""
        first_kept = self._number(instant_us)
        if first_kept <= self.first_kept:
            return
        for number in [n for n in self.slices if n < first_kept]:
            del self.slices[number]
        self.first_kept = first_kept

    def _number(self, instant_us: int) -> int:
        period, inside = divmod(instant_us, self.slicing.period_us)
        cuts = self.slicing.cuts_us
        return period * len(cuts) + bisect_right(cuts, inside) - 1

    def _history(self, number: int) -> SliceHistory:
        history = self.slices.get(number)
        if history is None:
            history = self.slices[number] = SliceHistory()
            if len(self.slices) > MAX_SLICES:
                oldest = min(self.slices)
                del self.slices[oldest]
                self.first_kept = oldest + 1
        return history

    def _window_histories(self, end_us: int) -> list[SliceHistory]:
        low = self._number(end_us - self.window.size_us)
        high = self._number(end_us)
        slices = self.slices
        return [slices[n] for n in range(low, high) if n in slices]
