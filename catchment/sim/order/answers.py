"""The answers of windows: as published at closing, and as they are over all records.

Everything is computed from scratch out of the records, independently of what a controller believed. Windows
are those that hold at least one record; an answer is of the records that had arrived when its window closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats, Ints, Mask
from catchment.quality.contract import Measure
from catchment.sim.order.trace import ArrivalTrace
from catchment.timeline import WindowSpec


@dataclass(frozen=True)
class Windows:
    """The windows of a trace and, for each window a record lies in, the pair (record, window)."""

    spec: WindowSpec
    ends_us: Ints
    record: Ints
    window: Ints

    @classmethod
    def of(cls, trace: ArrivalTrace, spec: WindowSpec) -> Windows:
        """Return all windows that hold a record and have ended by the newest event time."""
        pairs = list(_pairs(trace.event_us, spec))
        record = np.concatenate([r for r, _ in pairs])
        end = np.concatenate([e for _, e in pairs])
        over = end <= trace.event_us.max()
        ends, window = np.unique(end[over], return_inverse=True)
        order = np.argsort(window, kind="stable")
        return cls(spec, ends, record[over][order], window[order].astype(np.int64))

    def __len__(self) -> int:
        return len(self.ends_us)

    def by_key(self, key: npt.NDArray[np.int32]) -> tuple[Windows, Ints]:
        """Return the same pairs with each (window, key) as a window of its own, and their new order."""
        groups, group = np.unique(np.stack([self.window, key[self.record]]), axis=1, return_inverse=True)
        order = np.argsort(group.reshape(-1), kind="stable")
        return Windows(self.spec, self.ends_us[groups[0]], self.record[order], group.reshape(-1)[order]), order


def _pairs(event_us: Ints, spec: WindowSpec) -> Iterator[tuple[Ints, Ints]]:
    """Yield for k = 0, 1, ...: the records that lie in the k-th last window that may contain them, and its end."""
    newest = (event_us - spec.offset_us) // spec.slide_us * spec.slide_us + spec.offset_us
    for k in range(-(-spec.size_us // spec.slide_us)):
        end = newest - k * spec.slide_us + spec.size_us
        inside = np.flatnonzero(event_us < end)
        yield inside, end[inside]


@dataclass(frozen=True)
class WindowAnswers:
    """Per window: records, total, and the answer; NaN where there is no record."""

    count: Floats
    total: Floats
    value: Floats


def answers(trace: ArrivalTrace, windows: Windows, measure: Measure, known: Mask | None = None) -> WindowAnswers:
    """Return the answers over the (record, window) pairs that are known; over all of them where no mask is given."""
    window = windows.window
    record = windows.record
    if known is not None:
        window = window[known]
        record = record[known]
    values = trace.value[record]
    count = np.bincount(window, minlength=len(windows)).astype(np.float64)
    total = np.bincount(window, values, minlength=len(windows)).astype(np.float64)
    return WindowAnswers(count, total, _value(measure, count, total, window, values))


def _value(measure: Measure, count: Floats, total: Floats, window: Ints, values: Floats) -> Floats:
    if measure.name == "count":
        return count
    if measure.name == "sum":
        return total
    with np.errstate(divide="ignore", invalid="ignore"):
        return total / count if measure.name == "avg" else quantiles(window, values, count, measure.p)


def quantiles(window: Ints, values: Floats, count: Floats, p: float) -> Floats:
    """Return the smallest value with at least a share p of its window's values at or below it."""
    ordered = values[np.lexsort((values, window))]
    first = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    place = first[:-1] + np.maximum(np.ceil(p * count - 1e-9).astype(np.int64) - 1, 0)
    return np.where(count > 0, ordered[np.minimum(place, len(ordered) - 1)], np.nan) if len(ordered) else count * np.nan


def errors(trace: ArrivalTrace, windows: Windows, measure: Measure, published: Floats, truth: WindowAnswers) -> Floats:
    """Return how far published answers are off: relative, or for a quantile in rank among the window's values."""
    if measure.name == "quantile":
        return _rank_errors(trace, windows, measure.p, published, truth.count)
    gap = np.abs(published - truth.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(truth.value == 0.0, np.where(gap == 0.0, 0.0, np.inf), gap / np.abs(truth.value))
    return np.where(np.isnan(relative), np.inf, relative)


def _rank_errors(trace: ArrivalTrace, windows: Windows, p: float, published: Floats, count: Floats) -> Floats:
    """Return the distance from p to the ranks that the published value takes among its window's values.

    A quantile of n values is only meant to within 1/n of its rank: that grain is no error.
    """
    values = trace.value[windows.record]
    size = len(windows)
    mine = published[windows.window]
    below = np.bincount(windows.window, values < mine, minlength=size) / count
    upto = np.bincount(windows.window, values <= mine, minlength=size) / count
    distance = np.maximum(np.maximum(below - p, p - upto), 0.0)
    return np.where(np.isnan(published), np.inf, distance)
