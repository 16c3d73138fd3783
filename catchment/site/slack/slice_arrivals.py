"""The book of a stream's recent past: what each slice held, and at which front it came in.

A controller learns from windows that are over: how much was missing when they closed, and how long they
should have waited. Both follow from one staircase a slice, (front when it grew, records, total). The book is
bounded by MAX_SLICES and MAX_STEPS. At the first bound the oldest slice is forgotten early; at the second the
newest step takes in the next, which makes needed waits look longer, the safe side.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from catchment.quality.coverage import Measure, relative_error
from catchment.site.slack.batch import Batch
from catchment.timeline import END_OF_TIME_US, Slicing, WindowSpec

MAX_SLICES = 65_536
MAX_STEPS = 256

Step = list[float]  # front_us, records, total


class _Page:
    """One slice: its totals so far and the steps in which they came."""

    __slots__ = ("count", "steps", "total")

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.count = sum(step[1] for step in steps)
        self.total = sum(step[2] for step in steps)

    def add(self, front_us: int, count: float, total: float) -> None:
        self.count += count
        self.total += total
        steps = self.steps
        if steps and (steps[-1][0] == front_us or len(steps) >= MAX_STEPS):
            steps[-1] = [float(front_us), steps[-1][1] + count, steps[-1][2] + total]
        else:
            steps.append([float(front_us), count, total])


class SliceBook:
    """Pages of recent slices, by slice number."""

    def __init__(self, spec: WindowSpec) -> None:
        self._spec = spec
        self.slicing = Slicing.of([spec])
        self._cuts = self.slicing.cuts_us
        self._pages: dict[int, _Page] = {}
        self._kept_from = -(2**63)

    def record(self, batch: Batch, front_us: int) -> int:
        """Add what a micro-batch brought; gives how many of its records are of slices already forgotten."""
        sums: dict[int, list[float]] = {}
        for start, count, total in zip(
            batch.slice_us.tolist(), batch.count.tolist(), batch.total.tolist(), strict=True
        ):
            known = sums.get(start)
            if known is None:
                sums[start] = [count, total]
            else:
                known[0] += count
                known[1] += total
        forgotten = 0
        for start, (count, total) in sums.items():
            number = self._number(start)
            if number < self._kept_from:
                forgotten += int(count)
            elif count:
                self._page(number).add(front_us, count, total)
        return forgotten

    def window(self, end_us: int) -> tuple[float, float]:
        """Records and total of a window as they are now."""
        count = total = 0.0
        for page in self._window_pages(end_us):
            count += page.count
            total += page.total
        return count, total

    def first_slice_us(self, from_us: int) -> int:
        """Where the first slice with records begins, from an instant on; the end of time if there is none."""
        low = self._number(from_us)
        number = min((n for n in self._pages if n >= low), default=None)
        if number is None:
            return END_OF_TIME_US
        turn, place = divmod(number, len(self._cuts))
        return turn * self.slicing.period_us + self._cuts[place]

    def needed_slack_us(self, end_us: int, measure: Measure, max_error: float) -> float:
        """How far the front had to be beyond the window's end for the answer to be right from then on."""
        steps = [step for page in self._window_pages(end_us) for step in page.steps]
        if not steps:
            return 0.0
        steps.sort()
        at, count, total = np.array(steps).T
        count, total = np.cumsum(count), np.cumsum(total)
        wrong = np.flatnonzero(relative_error(measure, count, total, count[-1], total[-1]) >= max_error)
        right = int(wrong[-1]) + 1 if len(wrong) else 0
        return max(float(at[right]) - end_us, 0.0) if right < len(at) else float(at[-1]) - end_us

    def forget_before(self, instant_us: int) -> None:
        """Drop the slices that end at or before an instant, for good."""
        keep_from = self._number(instant_us)
        if keep_from <= self._kept_from:
            return
        for number in [n for n in self._pages if n < keep_from]:
            del self._pages[number]
        self._kept_from = keep_from

    def _number(self, instant_us: int) -> int:
        """Slices are numbered along the time line, one number after the other."""
        turn, inside = divmod(instant_us, self.slicing.period_us)
        return turn * len(self._cuts) + bisect_right(self._cuts, inside) - 1

    def _page(self, number: int) -> _Page:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _Page([])
            if len(self._pages) > MAX_SLICES:
                oldest = min(self._pages)
                del self._pages[oldest]
                self._kept_from = oldest + 1
        return page

    def _window_pages(self, end_us: int) -> list[_Page]:
        low, high = self._number(end_us - self._spec.size_us), self._number(end_us)
        pages = self._pages
        return [pages[n] for n in range(low, high) if n in pages]

    def snapshot(self) -> dict[str, Any]:
        pages = {str(n): page.steps for n, page in self._pages.items()}
        return {
            "kept_from": self._kept_from,
            "pages": {n: [list(s) for s in steps] for n, steps in pages.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._kept_from = state["kept_from"]
        self._pages = {int(n): _Page([list(s) for s in steps]) for n, steps in state["pages"].items()}
