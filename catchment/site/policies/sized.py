"""Policies of Heintz et al., HPDC'15: a cache size and an eviction order (Theorem 6), such as `hybrid:0.25+lfu`.

Whatever is pending above the size leaves, in the order of the eviction. A size (sections 5.1.1, 5.2.1 and 5.3) is a
function of the last slice, of this slice so far and of the moment. Eager sizes emulate the schedule that sends a key at
its last arrival: they estimate how many keys have been seen and will come again. Lazy sizes emulate the schedule that
sends as late as the link allows: they count what the link can still drain. Without a last slice the eager sizes are
unbounded: nothing is known yet that would justify sending early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from catchment.arrays import Floats, Ints
from catchment.errors import SiteError
from catchment.site.ewma import move_average
from catchment.site.policies.base import NOTHING, OVER_SIZE, Moment, Proposal, SliceView
from catchment.site.slot_table import Slots
from catchment.storage.codec import stored

DEFAULT_EVICTION = "lfu"  # the better one in the paper
_MISS_RATE_GAIN = 0.02  # share of one record in the moving average of the miss rate
_ROUNDING = 1e-9  # a size this close to a whole number is that number
_MIN_ELAPSED = 1e-9  # the arrival rate so far is undefined at the very start of a slice
_RECENCY_BITS = 41  # microseconds since the slice began: over 25 days
_MAX_COUNTED_ARRIVALS = 2**21 - 1  # what is left of 63 bits


# --- what is remembered -------------------------------------------------------------------------------------


@stored()
@dataclass(frozen=True, eq=False)
class LastSlice:
    """How often and when the keys of the last finished slice came.

    Arrivals per key are (value, how many keys have it). The sorted times of first and last arrivals are positions in
    the slice, 0 at its start and 1 when it is due, so that slices of any pace compare.
    """

    arrivals: Floats
    keys: Floats
    first: Floats
    last: Floats

    @classmethod
    def of(cls, view: SliceView, moment: Moment) -> LastSlice | None:
        """Describe a slice that is over; None if nothing came."""
        slots = view.slots()
        if not len(slots):
            return None
        arrivals, keys = np.unique(view.slot_table.arrivals[slots], return_counts=True)
        span_us = moment.span_s * 1e6
        first = 1 - (moment.now_us - view.slot_table.first_us[slots]) / span_us
        last = 1 - (moment.now_us - view.slot_table.last_us[slots]) / span_us
        return cls(arrivals.astype(np.float64), keys.astype(np.float64), np.sort(first), np.sort(last))

    @property
    def distinct(self) -> float:
        return float(self.keys.sum())

    @property
    def mean_arrivals(self) -> float:
        return float((self.arrivals * self.keys).sum()) / self.distinct


@stored()
@dataclass
class MissRate:
    """The moving average of the miss rate of one open slice; it begins with an empty cache: all misses."""

    arrivals: int = 0
    misses: int = 0
    rate: float = 1.0

    def follow(self, view: SliceView) -> float:
        """Account for what came since the last call: many records at once as if one by one, evenly."""
        came = view.arrivals - self.arrivals
        missed = view.misses - self.misses
        if came:
            self.rate = move_average(self.rate, missed / came, 1 - (1 - _MISS_RATE_GAIN) ** came)
            self.arrivals = view.arrivals
            self.misses = view.misses
        return self.rate


# --- cache sizes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeInputs:
    """What a size may look at."""

    last_slice: LastSlice | None
    view: SliceView
    moment: Moment
    miss_rate: float  # moving average over the records of this slice


Size = Callable[[SizeInputs], float]


def seen_and_to_come(arrivals: Floats, elapsed: float) -> Floats:
    """Return the probability that a key with so many arrivals in a slice has come by `elapsed` and will come again.

    This is the binomial of the paper's Poisson model; a key is taken to have at least one arrival.
    """
    return 1.0 - elapsed**arrivals - (1.0 - elapsed) ** arrivals


def uniform(inputs: SizeInputs) -> float:
    """Return the eager size where all keys are alike: the mean number of arrivals stands for every key."""
    if inputs.last_slice is None:
        return inf
    mean = np.array([inputs.last_slice.mean_arrivals])
    return inputs.last_slice.distinct * float(seen_and_to_come(mean, inputs.moment.elapsed)[0])


def nonuniform(inputs: SizeInputs) -> float:
    """Return the eager size where each key counts by its own number of arrivals in the last slice."""
    if inputs.last_slice is None:
        return inf
    chance = seen_and_to_come(inputs.last_slice.arrivals, inputs.moment.elapsed)
    return float((inputs.last_slice.keys * chance).sum())


def eager_empirical(inputs: SizeInputs) -> float:
    """Return the eager size as the last slice went: the keys between their first and last arrival."""
    if inputs.last_slice is None:
        return inf
    elapsed = inputs.moment.elapsed
    begun = np.searchsorted(inputs.last_slice.first, elapsed, "right")
    return float(begun - np.searchsorted(inputs.last_slice.last, elapsed, "right"))


def lazy_pessimistic(inputs: SizeInputs) -> float:
    """Return the lazy size that takes every arrival still to come for a miss."""
    return _drainable(inputs.moment) - _arrivals_to_come(inputs)


def lazy_optimistic(inputs: SizeInputs) -> float:
    """Return the lazy size that expects misses at the recent miss rate."""
    return _drainable(inputs.moment) - inputs.miss_rate * _arrivals_to_come(inputs)


def lazy_empirical(inputs: SizeInputs) -> float:
    """Return the lazy size by the last slice: keys seen, less those that the lazy schedule had sent."""
    last_slice = inputs.last_slice
    moment = inputs.moment
    rate = moment.link.believed_rate
    if last_slice is None or rate is None:
        return inf
    sends = lazy_sends(last_slice.last, rate * moment.span_s)
    seen = np.searchsorted(last_slice.first, moment.elapsed, "right")
    return float(seen - np.searchsorted(sends, moment.elapsed, "right"))


def lazy_sends(last: Floats, updates_per_slice: float) -> Floats:
    """Return when the lazy optimal schedule sends each key, given the sorted last arrivals."""
    turns = np.arange(len(last))
    end = max(float(np.max(last + (len(last) - turns) / updates_per_slice)), 1.0)
    return end - (len(last) - turns) / updates_per_slice


def hybrid(laziness: float) -> Size:
    """Return the size that is `laziness` parts optimistic lazy, the rest nonuniform eager."""

    def size(inputs: SizeInputs) -> float:
        lazy = max(lazy_optimistic(inputs), 0.0)
        if inputs.last_slice is None:
            return lazy
        return laziness * lazy + (1 - laziness) * nonuniform(inputs)

    return size


def _drainable(moment: Moment) -> float:
    """Return how many updates the link can carry until the slice is due."""
    return inf if moment.link.believed_rate is None else moment.link.believed_rate * moment.left_s


def _arrivals_to_come(inputs: SizeInputs) -> float:
    """Return the arrivals in the rest of the slice, at the average rate so far."""
    elapsed = max(inputs.moment.elapsed, _MIN_ELAPSED)
    return inputs.view.arrivals * (1 - elapsed) / elapsed


SIZES: dict[str, Size] = {
    "uniform": uniform,
    "nonuniform": nonuniform,
    "eager-empirical": eager_empirical,
    "lazy-pessimistic": lazy_pessimistic,
    "lazy-optimistic": lazy_optimistic,
    "lazy-empirical": lazy_empirical,
}


# --- evictions (section 5.1.2) ------------------------------------------------------------------------------

Eviction = Callable[[SliceView, int], Slots]


def evict_lru(view: SliceView, count: int) -> Slots:
    """Return the `count` pending slots whose last arrival is longest ago."""
    return _least(view.pending, view.slot_table.last_us[view.pending], count)


def evict_lfu(view: SliceView, count: int) -> Slots:
    """Return the `count` pending slots with the fewest arrivals, the least recently used first among equals.

    Arrivals are counted over the whole slice, also across evictions, so that a hot key that was once evicted is not
    taken for a cold one.
    """
    recency = np.clip(view.slot_table.last_us[view.pending] - view.start_us, 0, 2**_RECENCY_BITS - 1)
    frequency = np.minimum(view.slot_table.arrivals[view.pending], _MAX_COUNTED_ARRIVALS)
    return _least(view.pending, (frequency << _RECENCY_BITS) + recency, count)


def _least(slots: Slots, order: Ints, count: int) -> Slots:
    if count >= len(slots):
        return slots
    return slots[np.argpartition(order, count - 1)[:count]]


EVICTIONS: dict[str, Eviction] = {"lru": evict_lru, "lfu": evict_lfu}


# --- the policy ---------------------------------------------------------------------------------------------


@stored()
@dataclass(frozen=True)
class SizePolicy:
    """A cache size by name (or hybrid, with its laziness) and an eviction by name."""

    sizing: str
    laziness: float | None = None
    eviction: str = DEFAULT_EVICTION

    def __post_init__(self) -> None:
        if self.eviction not in EVICTIONS:
            raise SiteError(
                f"there is no eviction {self.eviction!r}",
                where=self.sizing,
                hint=f"use one of {', '.join(EVICTIONS)}",
            )
        if self.sizing == "hybrid":
            if self.laziness is None or not 0 <= self.laziness <= 1:
                raise SiteError(f"hybrid needs a laziness from 0 to 1, not {self.laziness}", hint="write hybrid:0.25")
        elif self.sizing not in SIZES or self.laziness is not None:
            raise SiteError(
                f"there is no cache size {self.sizing!r}", hint=f"use one of hybrid:ALPHA, {', '.join(SIZES)}"
            )

    @property
    def name(self) -> str:
        head = self.sizing if self.laziness is None else f"{self.sizing}:{self.laziness:g}"
        return head if self.eviction == DEFAULT_EVICTION else f"{head}+{self.eviction}"

    def size(self) -> Size:
        return hybrid(self.laziness) if self.laziness is not None else SIZES[self.sizing]

    def build(self) -> SizePolicyState:
        return SizePolicyState(self)


@stored()
@dataclass
class SizePolicyState:
    """What is known of the last slice, and the miss rates of the open ones."""

    policy: SizePolicy
    last_slice: LastSlice | None = None
    miss_rates: dict[int, MissRate] = field(default_factory=dict)  # by the start of the slice

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        miss_rate = self.miss_rates.setdefault(view.start_us, MissRate()).follow(view)
        size = max(self.policy.size()(SizeInputs(self.last_slice, view, moment, miss_rate)), 0.0)
        excess = len(view.pending) - size
        if excess <= _ROUNDING:
            return NOTHING
        return Proposal(
            EVICTIONS[self.policy.eviction](view, ceil(excess - _ROUNDING)),
            OVER_SIZE,
            f"the cache should hold {size:.0f} keys and held {len(view.pending)}",
        )

    def close(self, view: SliceView, moment: Moment) -> None:
        self.miss_rates.pop(view.start_us, None)
        self.last_slice = LastSlice.of(view, moment) or self.last_slice
