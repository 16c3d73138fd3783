"""The spillway: hold every key while the link can still carry all of them, then let go those least likely to
return.

Pull, just in time. At each look the policy compares the demand, the updates that the slice still needs
(pending keys, keys not seen yet, keys already sent that will return), with what the link can carry until the
slice is due. Their ratio is the load. The higher the load, the likelier to return a key may be and still
leave: under a light load only keys that are all but finished, under a full one also doubtful ones, never the
hot ones. Nothing queues in front of the link: only so much is let go as it takes until the next look. No
state of a single key outlives its slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import ceil, sqrt
from typing import Any

import numpy as np

from catchment.errors import SiteError
from catchment.site.policies.base import NOTHING, Moment, Proposal, SliceView
from catchment.site.policies.reasons import DRAIN, FINISHED, PROBE
from catchment.site.policies.spillway.forecast import Forecast, LearnedForecast, SliceForecast
from catchment.site.policies.spillway.forecast_deviation import ForecastDeviation
from catchment.site.policies.spillway.key_returns import Floats, instant_of
from catchment.site.policies.spillway.link_capacity import LinkCapacity
from catchment.site.slot_table import Mask
from catchment.storage.codec import stored

_LOOK_AGAIN = 0.04  # of what is left of a slice until the next look
_AHEAD = 1.2  # times what the link takes until the next look is let go, so that it never runs dry
_FAR_AHEAD = 2.0  # the same when the link is what everything waits for: a dry link is then time lost for good
_PAUSE_KEEP = 0.8  # of the longest pause so far that may come again
_LOADS = (0.9, 1.0, 1.6)  # at these loads ...
_CHANCES = (0.003, 0.3, 0.5)  # ... a key leaves if its chance to return is at most this
_GRACE_GAIN = 0.3  # of the newest slice, in how much later than expected slices are due; counted upon at once if less
_MARGIN = 2.5  # times the usual error of the forecast inflow, kept in reserve
_SPREADS = 2.0  # standard deviations of it, kept in reserve
_MOST_FRAMING = 0.25  # of the link, at most, goes to the frames of releases that are as large as they should be
_SAME_RATE = 0.01  # a reading that differs by less from the one before says nothing new
MAX_READINGS = 256  # of the link's rate in one slice
_SPARE = 2.0  # updates that the link could still take when the last one is through


@stored()
@dataclass(frozen=True)
class Spillway:
    """`insurance` is how many times weaker the link may become during the drain without harm."""

    insurance: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.insurance <= 100:
            raise SiteError(
                f"the insurance of a spillway is from 1 to 100, not {self.insurance}", hint="write spillway:1.5"
            )

    @property
    def name(self) -> str:
        return "spillway" if self.insurance == 1.0 else f"spillway:{self.insurance:g}"

    def build(self, resume: Mapping[str, Any] | None = None) -> SpillwayState:
        saved = resume or {}
        return SpillwayState(self, LearnedForecast(saved.get("forecast", {})), saved)


@dataclass
class _Looks:
    """The looks at one open slice: when the last one was, at which share of it the next one is, what they found."""

    last_us: int
    due_us: int  # when it was expected to be due, at the last look
    next_share: float = 0.0
    pause_s: float = 0.0  # the longest of the pauses, recent ones counting most
    rates: list[tuple[int, float]] = field(default_factory=list)
    said: dict[int, tuple[float, int]] = field(default_factory=dict)  # at each instant: forecast updates, misses so far

    def go_on(self, moment: Moment) -> None:
        """This is a look. Until the next one a share of what is left may pass, or, where a runner comes by less often,
        a pause such as there were."""
        paused_s = (moment.now_us - self.last_us) / 1e6
        self.pause_s = max(paused_s, _PAUSE_KEEP * self.pause_s, _LOOK_AGAIN * moment.left_s)
        self.last_us, self.due_us = moment.now_us, moment.now_us + int(moment.left_s * 1e6)
        self.next_share = moment.elapsed + _LOOK_AGAIN * (1 - moment.elapsed)

    @classmethod
    def load(cls, dump: Mapping[str, Any]) -> _Looks:
        said = {int(instant): (forecast, misses) for instant, (forecast, misses) in dump["said"].items()}
        return cls(**{**dump, "rates": list(dump["rates"]), "said": said})

    def note(self, now_us: int, rate: float) -> None:
        """Keep a reading that says something new; at the bound, the newest stands for the last."""
        if self.rates and abs(rate - self.rates[-1][1]) <= _SAME_RATE * rate:
            return
        if len(self.rates) >= MAX_READINGS:
            self.rates.pop()
        self.rates.append((now_us, rate))


class SpillwayState:
    """A forecast of the keys, one of the link, the time by which slices turn out to be due later than expected, and the
    looks at each open slice."""

    def __init__(self, policy: Spillway, forecast: Forecast, resume: Mapping[str, Any]) -> None:
        self._policy = policy
        self._forecast = forecast
        self._capacity = LinkCapacity(resume.get("capacity"))
        self._error = ForecastDeviation(resume.get("error"))
        self._grace_s = float(resume.get("grace_s", 0.0))
        saved = resume.get("looks", {}).items()
        self._looks = {int(start): _Looks.load(looks) for start, looks in saved}

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        looks = self._looks.setdefault(view.start_us, _Looks(moment.now_us, moment.now_us))
        rate = moment.measured or moment.rate or 0.0
        if moment.elapsed < looks.next_share:
            return NOTHING
        looks.go_on(moment)
        if rate:
            looks.note(moment.now_us, rate)
        return self._let_go(view, moment, self._forecast.look(view, moment), rate, looks.pause_s)

    def close(self, view: SliceView, moment: Moment) -> None:
        looks = self._looks.pop(view.start_us, None)
        if looks is not None:
            self._error.learn(looks.said, view.misses)
        if looks is not None and looks.rates:
            self._capacity.learn(looks.rates, moment.now_us, moment.span_s)
            late_s = min(max((moment.now_us - looks.due_us) / 1e6, 0.0), moment.span_s)
            self._grace_s = min(late_s, self._grace_s + _GRACE_GAIN * (late_s - self._grace_s))
        self._forecast.close(view, moment)

    def dump(self) -> dict[str, Any]:
        return {
            "forecast": self._forecast.dump(),
            "capacity": self._capacity.dump(),
            "error": self._error.dump(),
            "grace_s": self._grace_s,
            "looks": {str(start): asdict(looks) for start, looks in self._looks.items()},
        }

    def _let_go(
        self, view: SliceView, moment: Moment, forecast: SliceForecast, rate: float, pause_s: float
    ) -> Proposal:
        pending = view.slot_table.pending[forecast.slots]
        left_s = moment.left_s + self._grace_s
        capacity = self._capacity.until_due(rate / self._policy.insurance, left_s, moment.span_s)
        framing = min(moment.frame / (moment.frame + rate * pause_s + 1e-9), _MOST_FRAMING)
        capacity = max(capacity * (1 - framing) - moment.queued, 1e-9)
        load = self._demand(view, moment, forecast, pending, capacity) / capacity
        limit = float(np.interp(load, _LOADS, _CHANCES))
        ahead_s = max(_AHEAD * pause_s, min(_FAR_AHEAD * pause_s, left_s)) if load > 1 else _AHEAD * pause_s
        room = ceil(rate * ahead_s - moment.queued)
        room = max(room, 1) if moment.queued < 1 else room  # an idle link is asked what it can do
        # An update that leaves early costs its chance to be sent again, and its share of the frame it leaves in.
        least = max(ceil(moment.frame / limit), 1) if rate else 1
        candidates = np.flatnonzero(pending & (forecast.chance <= limit))
        if room <= 0 or len(candidates) < least:
            return NOTHING
        best = candidates[np.argsort(forecast.chance[candidates], kind="stable")[: max(room, least)]]
        reason = FINISHED if load < _LOADS[0] else DRAIN
        return Proposal(
            forecast.slots[best],
            PROBE if rate == 0 else reason,
            f"load {min(load, 99):.2f}: keys with a chance to return of up to {limit:.3f} leave",
        )

    def _demand(
        self, view: SliceView, moment: Moment, forecast: SliceForecast, pending: Mask, capacity: float
    ) -> float:
        """Updates that the slice still needs, with a reserve for what a forecast may miss."""
        inflow = forecast.new_keys + float(forecast.chance[~pending].sum()) + _again(forecast.chance[pending], capacity)
        left = min(moment.left_s / moment.span_s, 1.0)
        self._looks[view.start_us].said[instant_of(left)] = (inflow, view.misses)
        reserve = _MARGIN * self._error.share * inflow + _SPREADS * sqrt(inflow) + _SPARE
        return int(np.count_nonzero(pending)) + inflow + reserve


def _again(chance: Floats, capacity: float) -> float:
    """How many pending keys will return after they have left: they leave one by one, the least likely to return first,
    as late as the link allows, and those that it cannot carry when the slice is due; each that has left has the rest of
    the time to return in."""
    turns = min(len(chance), capacity) - np.arange(len(chance))
    return float((np.sort(chance) * np.maximum(turns / capacity, 0.0)).sum())
