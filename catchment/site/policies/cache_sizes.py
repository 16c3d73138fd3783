"""How many partials the cache should hold at a moment (Heintz et al., HPDC'15, sections 5.1.1, 5.2.1 and
5.3).

A size is a function (history of the last slice, slice so far, moment) -> number of partials; what is above it
is evicted. Without a history the eager sizes are unbounded: nothing is known yet that would justify sending
early.

Eager sizes emulate the schedule that sends a key at its last arrival: they estimate how many keys have been
seen and will come again. Lazy sizes emulate the one that sends as late as the link allows: they count what
the link can still drain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from catchment.site.policies.base import Moment, SliceView
from catchment.site.policies.slice_history import Floats, SliceHistory

_LEAST_ELAPSED = 1e-9  # the arrival rate so far is undefined at the very start of a slice


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a size may look at."""

    history: SliceHistory | None
    view: SliceView
    moment: Moment
    miss_rate: float  # moving average over the records of this slice


Size = Callable[[Sizing], float]


def seen_and_to_come(arrivals: Floats, elapsed: float) -> Floats:
    """The probability that a key with so many arrivals in a slice has come by `elapsed` and will come again.

    The binomial of the paper's Poisson model; a key is taken to have at least one arrival."""
    return 1.0 - elapsed**arrivals - (1.0 - elapsed) ** arrivals


def uniform(sizing: Sizing) -> float:
    """Eager, all keys alike: the mean number of arrivals stands for every key."""
    if sizing.history is None:
        return inf
    mean = np.array([sizing.history.mean_arrivals])
    return sizing.history.distinct * float(seen_and_to_come(mean, sizing.moment.elapsed)[0])


def nonuniform(sizing: Sizing) -> float:
    """Eager, each key by its own number of arrivals in the last slice."""
    if sizing.history is None:
        return inf
    chance = seen_and_to_come(sizing.history.arrivals, sizing.moment.elapsed)
    return float((sizing.history.keys * chance).sum())


def eager_empirical(sizing: Sizing) -> float:
    """Eager, as the last slice really went: keys between their first and last arrival."""
    if sizing.history is None:
        return inf
    at = sizing.moment.elapsed
    return float(np.searchsorted(sizing.history.first, at, "right") - np.searchsorted(sizing.history.last, at, "right"))


def lazy_pessimistic(sizing: Sizing) -> float:
    """Lazy, every arrival still to come taken for a miss."""
    return _drainable(sizing.moment) - _arrivals_to_come(sizing)


def lazy_optimistic(sizing: Sizing) -> float:
    """Lazy, misses to come at the recent miss rate."""
    return _drainable(sizing.moment) - sizing.miss_rate * _arrivals_to_come(sizing)


def lazy_empirical(sizing: Sizing) -> float:
    """Lazy, as the last slice should have gone: keys seen, less those that the lazy schedule had sent."""
    history, moment = sizing.history, sizing.moment
    if history is None or moment.rate is None:
        return inf
    sends = lazy_sends(history.last, moment.rate * moment.span_s)
    seen = np.searchsorted(history.first, moment.elapsed, "right")
    return float(seen - np.searchsorted(sends, moment.elapsed, "right"))


def lazy_sends(last: Floats, per_slice: float) -> Floats:
    """When the lazy optimal schedule sends each key: `last` sorted last arrivals, `per_slice` updates a
    slice.
    """
    turn = np.arange(len(last))
    end = max(float(np.max(last + (len(last) - turn) / per_slice)), 1.0)
    return end - (len(last) - turn) / per_slice


def hybrid(laziness: float) -> Size:
    """`laziness` parts of the optimistic lazy size and the rest of the nonuniform eager one."""

    def size(sizing: Sizing) -> float:
        lazy = max(lazy_optimistic(sizing), 0.0)
        if sizing.history is None:
            return lazy
        return laziness * lazy + (1 - laziness) * nonuniform(sizing)

    return size


SIZES: dict[str, Size] = {
    "uniform": uniform,
    "nonuniform": nonuniform,
    "eager-empirical": eager_empirical,
    "lazy-pessimistic": lazy_pessimistic,
    "lazy-optimistic": lazy_optimistic,
    "lazy-empirical": lazy_empirical,
}


def _drainable(moment: Moment) -> float:
    return inf if moment.rate is None else moment.rate * moment.left_s


def _arrivals_to_come(sizing: Sizing) -> float:
    """The rest of the slice at the average rate so far."""
    elapsed = max(sizing.moment.elapsed, _LEAST_ELAPSED)
    return sizing.view.arrivals * (1 - elapsed) / elapsed
