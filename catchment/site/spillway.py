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
from catchment.site.ledger import Mask
from catchment.site.policy import NOTHING, Moment, Proposal, SliceView
from catchment.site.reasons import DRAIN, FINISHED, PROBE
from catchment.site.spillway_capacity import Capacity
from catchment.site.spillway_forecast import Forecast, LearnedForecast, Outlook

_LOOK_AGAIN = 0.04  # of the time left until the next look
_AHEAD = 1.2  # times what the link takes until the next look is let go, so that it never runs dry
_LOADS = (0.9, 1.0, 1.6)  # at these loads ...
_CHANCES = (0.003, 0.3, 0.5)  # ... a key leaves if its chance to return is at most this
_AGAIN = 0.2  # of the pending keys that will return do so after they were sent
_MARGIN = 1.5  # times the usual error of the forecast inflow, kept in reserve
_SPREADS = 2.0  # standard deviations of it, kept in reserve
_LEAST_RELEASE = 8  # updates: what surrounds them on the wire costs about as much as so many
_SMALL = 0.1  # of what the link takes in the time left: near the end smaller releases are worth their price
_SAME_RATE = 0.01  # a reading that differs by less from the one before says nothing new
MAX_READINGS = 256  # of the link's rate in one slice
_SPARE = 2.0  # updates that the link could still take when the last one is through


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
    """When one open slice was last looked at, when it will be next, and the link's rate at each look."""

    last_us: int
    next_us: int
    rates: list[tuple[int, float]] = field(default_factory=list)

    def note(self, now_us: int, rate: float) -> None:
        """Keep a reading that says something new; at the bound, the newest stands for the last."""
        if self.rates and abs(rate - self.rates[-1][1]) <= _SAME_RATE * rate:
            return
        if len(self.rates) >= MAX_READINGS:
            self.rates.pop()
        self.rates.append((now_us, rate))


class SpillwayState:
    """A forecast of the keys, one of the link, and the looks at each open slice."""

    def __init__(self, policy: Spillway, forecast: Forecast, resume: Mapping[str, Any]) -> None:
        self._policy = policy
        self._forecast = forecast
        self._capacity = Capacity(resume.get("capacity"))
        saved = resume.get("looks", {}).items()
        self._looks = {int(start): _Looks(**{**looks, "rates": list(looks["rates"])}) for start, looks in saved}

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        looks = self._looks.setdefault(view.start_us, _Looks(moment.now_us, moment.now_us))
        rate = moment.measured or moment.rate or 0.0
        if moment.now_us < looks.next_us:
            return NOTHING
        wait_s = _LOOK_AGAIN * moment.left_s
        # A runner may come by less often than wished for: then the last pause is the best guess of the next.
        pause_s = max((moment.now_us - looks.last_us) / 1e6, wait_s)
        looks.last_us, looks.next_us = moment.now_us, moment.now_us + int(wait_s * 1e6)
        looks.note(moment.now_us, rate)
        return self._let_go(view, moment, self._forecast.look(view, moment), rate, pause_s)

    def close(self, view: SliceView, moment: Moment) -> None:
        looks = self._looks.pop(view.start_us, None)
        if looks is not None and looks.rates:
            self._capacity.learn(looks.rates, moment.now_us, moment.span_s)
        self._forecast.close(view, moment)

    def dump(self) -> dict[str, Any]:
        return {
            "forecast": self._forecast.dump(),
            "capacity": self._capacity.dump(),
            "looks": {str(start): asdict(looks) for start, looks in self._looks.items()},
        }

    def _let_go(self, view: SliceView, moment: Moment, outlook: Outlook, rate: float, pause_s: float) -> Proposal:
        pending = view.ledger.pending[outlook.slots]
        capacity = self._capacity.until_due(rate / self._policy.insurance, moment.left_s, moment.span_s) - moment.queued
        load = _demand(outlook, pending) / max(capacity, 1e-9)
        limit = float(np.interp(load, _LOADS, _CHANCES))
        room = ceil(_AHEAD * rate * pause_s - moment.queued)
        room = max(room, 1) if moment.queued < 1 else room  # an idle link is asked what it can do
        least = ceil(min(_LEAST_RELEASE, _SMALL * rate * moment.left_s))
        candidates = np.flatnonzero(pending & (outlook.chance <= limit))
        if room <= 0 or len(candidates) < max(least, 1):
            return NOTHING
        best = candidates[np.argsort(outlook.chance[candidates], kind="stable")[: max(room, least)]]
        reason = FINISHED if load < _LOADS[0] else DRAIN
        return Proposal(
            outlook.slots[best],
            PROBE if rate == 0 else reason,
            f"load {min(load, 99):.2f}: keys with a chance to return of up to {limit:.3f} leave",
        )


def _demand(outlook: Outlook, pending: Mask) -> float:
    """Updates that the slice still needs, with a reserve for what a forecast may miss."""
    inflow = outlook.new_keys + float(outlook.chance[~pending].sum())
    again = _AGAIN * float(outlook.chance[pending].sum())
    reserve = _MARGIN * outlook.error * inflow + _SPREADS * sqrt(inflow) + _SPARE
    return int(np.count_nonzero(pending)) + again + inflow + reserve
