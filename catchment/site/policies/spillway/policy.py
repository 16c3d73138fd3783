"""The spillway: hold every key while the link can carry all of them, then let go those least likely to return.

Pull, just in time. At each look the policy compares the demand, the updates that the slice still needs (pending keys,
keys not seen yet, keys already sent that will return), with what the link can carry until the slice is due. Their ratio
is the load. The higher the load, the likelier to return a key may be and still leave: under a light load only keys that
are all but finished, under a full one also doubtful ones, never the hot ones. Nothing queues in front of the link: only
so much is let go as it takes until the next look. No state of a single key outlives its slice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np

from catchment.arrays import Floats, Mask
from catchment.errors import SiteError
from catchment.site.ewma import move_average
from catchment.site.policies.base import DRAIN, FINISHED, NOTHING, PROBE, Moment, Proposal, SliceView
from catchment.site.policies.spillway.forecast import Forecaster, LearnedForecaster, SliceForecast
from catchment.site.policies.spillway.forecast_deviation import ForecastDeviation
from catchment.site.policies.spillway.instants import instant_of
from catchment.site.policies.spillway.link_capacity import LinkCapacity
from catchment.storage.codec import stored

MAX_READINGS = 256  # readings of the link's rate in one slice
_LOOK_SHARE = 0.04  # share of what is left of a slice until the next look
_PAUSE_DECAY = 0.8  # weight of the longest pause so far, per look
_AHEAD = 1.2  # pauses' worth of updates let go at a look, so that the link never runs dry
_FAR_AHEAD = 2.0  # the same when everything waits for the link: then a dry link is time lost for good
_LOADS = (0.9, 1.0, 1.6)  # at these loads ...
_CHANCES = (0.003, 0.3, 0.5)  # ... a key leaves if its chance to return is at most this
_GRACE_GAIN = 0.3  # share of the newest slice in the time by which slices are due later than expected
_DEVIATIONS = 2.5  # reserve for the usual error of the forecast, in multiples of it
_STANDARD_DEVIATIONS = 2.0  # reserve for chance, in standard deviations of a count
_SPARE_UPDATES = 2.0  # reserve that is always kept
_MAX_FRAMING = 0.25  # share of the link that goes to the frames of releases, at most
_SAME_RATE = 0.01  # relative difference below which a reading of the rate says nothing new


@stored()
@dataclass(frozen=True)
class Spillway:
    """Configures the spillway: `insurance` is how many times weaker the link may become during the drain."""

    insurance: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.insurance <= 100:
            raise SiteError(
                f"the insurance of a spillway is from 1 to 100, not {self.insurance}", hint="write spillway:1.5"
            )

    @property
    def name(self) -> str:
        return "spillway" if self.insurance == 1.0 else f"spillway:{self.insurance:g}"

    def build(self) -> SpillwayState:
        return SpillwayState(self.insurance)


@stored()
@dataclass
class SliceLooks:
    """The looks at one open slice: when the last one was, when the next one is, and what they found."""

    last_us: int
    expected_due_us: int  # as expected at the last look
    next_elapsed: float = 0.0  # share of the slice that has passed at the next look
    pause_s: float = 0.0  # the longest pause between looks, recent ones counting most
    rates: list[tuple[int, float]] = field(default_factory=list)  # (time, updates per second) of the link
    forecasts: dict[int, tuple[float, int]] = field(default_factory=dict)  # by instant: updates, misses until then

    def schedule_next(self, moment: Moment) -> None:
        """Take this moment as a look, and set the next one.

        Until then a share of what is left may pass, or a pause as long as the recent ones where the runner calls less
        often.
        """
        paused_s = (moment.now_us - self.last_us) / 1e6
        self.pause_s = max(paused_s, _PAUSE_DECAY * self.pause_s, _LOOK_SHARE * moment.left_s)
        self.last_us = moment.now_us
        self.expected_due_us = moment.now_us + int(moment.left_s * 1e6)
        self.next_elapsed = moment.elapsed + _LOOK_SHARE * (1 - moment.elapsed)

    def note_rate(self, now_us: int, rate: float) -> None:
        """Keep a reading that says something new; at the bound, the newest replaces the last."""
        if self.rates and abs(rate - self.rates[-1][1]) <= _SAME_RATE * rate:
            return
        if len(self.rates) >= MAX_READINGS:
            self.rates.pop()
        self.rates.append((now_us, rate))


@stored()
@dataclass
class SpillwayState:
    """What is learned of the keys, of the link and of the punctuality of slices, and the looks at each open slice."""

    insurance: float = 1.0
    forecaster: Forecaster = field(default_factory=LearnedForecaster)
    capacity: LinkCapacity = field(default_factory=LinkCapacity)
    deviation: ForecastDeviation = field(default_factory=ForecastDeviation)
    grace_s: float = 0.0  # by how much later than expected slices are due
    looks: dict[int, SliceLooks] = field(default_factory=dict)  # by the start of the slice

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        looks = self.looks.setdefault(view.start_us, SliceLooks(moment.now_us, moment.now_us))
        if moment.elapsed < looks.next_elapsed:
            return NOTHING
        looks.schedule_next(moment)
        rate = moment.link.measured_rate or moment.link.believed_rate or 0.0
        if rate:
            looks.note_rate(moment.now_us, rate)
        forecast = self.forecaster.forecast(view, moment)
        pending = view.slot_table.pending[forecast.slots]
        capacity = self._usable_capacity(moment, rate, looks.pause_s)
        inflow = _inflow(forecast, pending, capacity)
        looks.forecasts[instant_of(moment.left)] = (inflow, view.misses)
        load = (int(np.count_nonzero(pending)) + inflow + self._reserve(inflow)) / capacity
        return self._choose(forecast, pending, load, moment, rate, looks.pause_s)

    def close(self, view: SliceView, moment: Moment) -> None:
        looks = self.looks.pop(view.start_us, None)
        if looks is not None:
            self.deviation.learn(looks.forecasts, view.misses)
        if looks is not None and looks.rates:
            self.capacity.learn(looks.rates, moment.now_us, moment.span_s)
            late_s = min(max((moment.now_us - looks.expected_due_us) / 1e6, 0.0), moment.span_s)
            # A slice that was less late than usual counts in full: the policy must not rely on time that may not come.
            self.grace_s = min(late_s, move_average(self.grace_s, late_s, _GRACE_GAIN))
        self.forecaster.close(view, moment)

    def _usable_capacity(self, moment: Moment, rate: float, pause_s: float) -> float:
        """Return how many updates the link can take until the slice is due, less frames and what is queued."""
        left_s = moment.left_s + self.grace_s
        capacity = self.capacity.until_due(rate / self.insurance, left_s, moment.span_s)
        frame = moment.link.frame
        framing = min(frame / (frame + rate * pause_s + 1e-9), _MAX_FRAMING)
        return max(capacity * (1 - framing) - moment.link.queued, 1e-9)

    def _reserve(self, inflow: float) -> float:
        """Return the updates kept in reserve for what the forecast of the inflow may miss."""
        return _DEVIATIONS * self.deviation.share * inflow + _STANDARD_DEVIATIONS * sqrt(inflow) + _SPARE_UPDATES

    def _choose(
        self, forecast: SliceForecast, pending: Mask, load: float, moment: Moment, rate: float, pause_s: float
    ) -> Proposal:
        """Propose the pending keys least likely to return, as many as the link takes until the next look."""
        max_chance = float(np.interp(load, _LOADS, _CHANCES))
        room = self._room(load, moment, rate, pause_s)
        # An update that leaves early costs its chance to be sent again, and its share of the frame it leaves in.
        least = max(ceil(moment.link.frame / max_chance), 1) if rate else 1
        candidates = np.flatnonzero(pending & (forecast.chance <= max_chance))
        if room <= 0 or len(candidates) < least:
            return NOTHING
        best = candidates[np.argsort(forecast.chance[candidates], kind="stable")[: max(room, least)]]
        return Proposal(
            forecast.slots[best],
            _reason(load, rate),
            f"load {min(load, 99):.2f}: keys with a chance to return of up to {max_chance:.3f} leave",
        )

    def _room(self, load: float, moment: Moment, rate: float, pause_s: float) -> int:
        """Return how many updates the link takes until the next look; an idle link is always asked for one."""
        ahead_s = _AHEAD * pause_s
        if load > 1:
            ahead_s = max(ahead_s, min(_FAR_AHEAD * pause_s, moment.left_s + self.grace_s))
        room = ceil(rate * ahead_s - moment.link.queued)
        return max(room, 1) if moment.link.queued < 1 else room


def _reason(load: float, rate: float) -> str:
    if rate == 0:
        return PROBE
    return FINISHED if load < _LOADS[0] else DRAIN


def _inflow(forecast: SliceForecast, pending: Mask, capacity: float) -> float:
    """Return the updates needed beyond those that wait: for new keys, and for keys that return after they were sent."""
    sent_before = float(forecast.chance[~pending].sum())
    return forecast.new_keys + sent_before + _returns_of_pending(forecast.chance[pending], capacity)


def _returns_of_pending(chance: Floats, capacity: float) -> float:
    """Return how many pending keys will return after they have left.

    They leave one by one, the least likely to return first, as late as the link allows; those that it cannot carry
    leave when the slice is due. Each that has left has the rest of the time to return in.
    """
    turns = min(len(chance), capacity) - np.arange(len(chance))
    return float((np.sort(chance) * np.maximum(turns / capacity, 0.0)).sum())
