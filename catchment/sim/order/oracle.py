"""The clairvoyant: how early could a window have been published, had one known everything?

For anyone who publishes what is in (nothing imputed). The lower bound publishes each window at the first step of the
clock at or after its end at which its answer is right, and spends the contract's violations on the windows that would
wait longest: it publishes those at their ends. No controller that knows less can be faster and hold the contract. The
best fixed slack is the least one that, known beforehand, holds the contract over the whole trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats, Ints
from catchment.quality.contract import Contract, Measure, relative_error
from catchment.sim.order.answers import Windows
from catchment.sim.order.replay import step_of
from catchment.sim.order.trace import ArrivalTrace
from catchment.timeline import SECOND_US


@dataclass(frozen=True)
class Oracle:
    """Mean latencies in seconds: with the contract's violations, with none, and of the best fixed slack."""

    latency_s: float
    strict_latency_s: float
    fixed_latency_s: float


def oracle(trace: ArrivalTrace, windows: Windows, measure: Measure, contract: Contract, step_us: int) -> Oracle:
    """Return the bounds for a trace; the clock is read in steps, as by every controller."""
    first, last = _waits(trace, windows, measure, contract.max_error, step_us)
    at_end = (-windows.ends_us % step_us) / SECOND_US
    spent = floor(contract.delta * len(first))
    longest = np.argsort(first)[len(first) - spent :]
    mixed = first.copy()
    mixed[longest] = at_end[longest]
    allowed = np.sort(last)[::-1][min(spent, len(last) - 1)]
    return Oracle(float(mixed.mean()), float(first.mean()), float(np.maximum(allowed, at_end).mean()))


def _waits(
    trace: ArrivalTrace, windows: Windows, measure: Measure, max_error: float, step_us: int
) -> tuple[Floats, Floats]:
    """Return for each window, in seconds, how long until its answer is first right, and until it stays right."""
    first = np.zeros(len(windows))
    last = np.zeros(len(windows))
    for w, at, values in _in_order(trace, windows, step_us):
        end = int(windows.ends_us[w])
        wrong = _is_wrong(values, measure, max_error)
        times = np.maximum(at, -(-end // step_us) * step_us) - end
        settled = np.append(times[1:] > times[:-1], True)  # at one instant, only the last state counts
        right = np.flatnonzero(settled & ~wrong)
        ever = np.flatnonzero(settled & wrong)
        first[w] = times[right[0]] / SECOND_US
        last[w] = (times[min(ever[-1] + 1, len(times) - 1)] if len(ever) else times[0]) / SECOND_US
    return first, last


def _in_order(trace: ArrivalTrace, windows: Windows, step_us: int) -> Iterator[tuple[int, Ints, Floats]]:
    """Yield for each window the steps in which its records arrive, in order, and their values."""
    steps = step_of(trace, step_us)
    edges = np.searchsorted(windows.window, np.arange(len(windows) + 1))
    for w in range(len(windows)):
        record = np.sort(windows.record[edges[w] : edges[w + 1]])  # the order of a trace is that of arrival
        yield w, steps[record], trace.value[record]


def _is_wrong(values: Floats, measure: Measure, max_error: float) -> npt.NDArray[np.bool_]:
    """Return whether the answer over the first k values is off, for every k."""
    if measure.name == "quantile":
        return _quantile_is_wrong(values, measure.p, max_error)
    count = np.arange(1.0, len(values) + 1)
    total = np.cumsum(values)
    return np.asarray(relative_error(measure, count, total, count[-1], total[-1]) >= max_error)


def _quantile_is_wrong(values: Floats, p: float, max_error: float) -> npt.NDArray[np.bool_]:
    """Return whether the quantile over the first k values is off, for every k.

    It goes backwards from the full window: taking values away one by one moves the place of the quantile among all.
    """
    size = len(values)
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left") / size
    upto = np.searchsorted(ordered, values, side="right") / size
    place = np.argsort(np.argsort(values, kind="stable"))
    wrong = np.zeros(size, dtype=bool)
    for k in _shares_that_may_err(size, p, max_error):
        rank = max(int(np.ceil(p * k - 1e-9)) - 1, 0)
        chosen = int(np.flatnonzero(place[:k] == np.partition(place[:k], rank)[rank])[0])
        wrong[k - 1] = max(below[chosen] - p, p - upto[chosen]) >= max_error
    return wrong


def _shares_that_may_err(size: int, p: float, max_error: float) -> range:
    """Return the numbers of values at which the quantile may be off: with more, too few are missing to move it."""
    safe = size * (1.0 - max_error / max(p, 1.0 - p))
    return range(1, min(int(np.ceil(safe)) + 2, size) + 1)
