"""Baselines: the spillway with the true rate of every key, which no policy at a site can know.

On a memoryless trace nothing better than the true rates can be known of the future, so what it sends above the optimum
is the price of not knowing the future at all; what `spillway` sends beyond that is the price of learning. A log has no
true rates; there it is told, as each window begins, how often every key will come in it, but not when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from catchment.arrays import Floats, Ints
from catchment.sim.edge.simulate import EdgeOutcome, EdgeScenario, simulate_online
from catchment.site.policies.base import Moment, SliceView
from catchment.site.policies.spillway.forecast import SliceForecast
from catchment.site.policies.spillway.policy import SpillwayState


class KnownForecaster:
    """The exact forecast of Poisson arrivals at known rates (records per second, by key code)."""

    def __init__(self, rates: Floats) -> None:
        self._rates = rates
        self._codes: Ints = np.empty(0, dtype=np.int64)

    def know(self, rates: Floats) -> None:
        """Replace the rates."""
        self._rates = rates

    def begin(self, codes: Ints) -> None:
        """Begin a window in which slot i stands for the key codes[i]."""
        self._codes = codes

    def forecast(self, view: SliceView, moment: Moment) -> SliceForecast:
        slots = view.slots()
        chance = 1 - np.exp(-self._rates * moment.left_s)
        mine = chance[self._codes[slots]]
        # Keys not seen yet are the rest of the sum, which rounding may leave slightly below 0.
        return SliceForecast(slots, mine, max(float(chance.sum() - mine.sum()), 0.0))

    def close(self, view: SliceView, moment: Moment) -> None:
        return None


@dataclass(frozen=True, eq=False)
class KnownRates:
    """The spillway with a known forecast."""

    forecaster: KnownForecaster
    name: str = "known-rates"

    def build(self) -> SpillwayState:
        return SpillwayState(forecaster=self.forecaster)


def simulate_known_rates(scenario: EdgeScenario, rates: Floats) -> EdgeOutcome:
    """Simulate the baseline over a whole trace; `rates[code]` is the true rate of each key, in records per second."""
    forecaster = KnownForecaster(rates)
    return simulate_online(scenario, KnownRates(forecaster), forecaster.begin)


def simulate_known_counts(scenario: EdgeScenario) -> EdgeOutcome:
    """Simulate the baseline over a log: in each window it knows how many records every key will have, as a rate."""
    forecaster = KnownForecaster(np.zeros(0))
    keys = scenario.trace.keys
    windows = scenario.trace.windows(scenario.window_us)

    def begin(codes: Ints) -> None:
        _, records = next(windows)
        forecaster.know(np.bincount(records.codes, minlength=keys) / (scenario.window_us / 1e6))
        forecaster.begin(codes)

    return replace(simulate_online(scenario, KnownRates(forecaster), begin), name="known-counts")
