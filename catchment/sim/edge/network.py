"""The network of the simulator: a single-server FIFO queue whose bandwidth may vary.

Heintz et al., HPDC'15, section 5: deterministic service, one update at a time. With a bandwidth b(t) all
arithmetic is done in work, B(t) = the integral of b: an update takes one unit, so a queue needs one number,
the work at which it will be empty.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, inf, isfinite

import numpy as np

from catchment.arrays import Floats
from catchment.errors import SimulationError

_MEASURE_UPDATES = 8.0  # the goodput is averaged over about this many updates


@dataclass(frozen=True, eq=False)
class Bandwidth:
    """Updates per second, constant between changes: `rates[i]` from `from_s[i]` on, `rates[0]` also before."""

    rates: tuple[float, ...]
    from_s: tuple[float, ...] = (0.0,)
    _steps: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.from_s) or any(
            b <= a for a, b in zip(self.from_s, self.from_s[1:], strict=False)
        ):
            raise SimulationError(f"a bandwidth has {len(self.rates)} rates for {len(self.from_s)} rising instants")
        if not all(0 < rate < float("inf") for rate in self.rates):
            worst = min(self.rates)
            raise SimulationError(
                f"the bandwidth is {worst:g} updates/s, and must be a positive number",
                hint="say --bandwidth 100; a link that takes nothing has no staleness",
            )
        spans = zip(self.from_s, self.from_s[1:], self.rates, strict=False)
        steps = accumulate(((b - a) * rate for a, b, rate in spans), initial=0.0)
        object.__setattr__(self, "_steps", tuple(steps))

    def work(self, at_s: float) -> float:
        """Return B(t), the updates that could have been served by t."""
        place = max(bisect_right(self.from_s, at_s) - 1, 0)
        return self._steps[place] + (at_s - self.from_s[place]) * self.rates[place]

    def works(self, at_s: Floats) -> Floats:
        place = np.maximum(np.searchsorted(self.from_s, at_s, "right") - 1, 0)
        starts, steps, rates = (np.asarray(c)[place] for c in (self.from_s, self._steps, self.rates))
        return np.asarray(steps + (at_s - starts) * rates)

    def when(self, work: float) -> float:
        """Return the inverse of `work`."""
        place = max(bisect_right(self._steps, work) - 1, 0)
        return self.from_s[place] + (work - self._steps[place]) / self.rates[place]

    def whens(self, work: Floats) -> Floats:
        place = np.maximum(np.searchsorted(self._steps, work, "right") - 1, 0)
        starts, steps, rates = (np.asarray(c)[place] for c in (self.from_s, self._steps, self.rates))
        return np.asarray(starts + (work - steps) / rates)


class FifoLink:
    """One queue, served in order; it also measures its goodput as a sender would, while it is busy."""

    def __init__(self, bandwidth: Bandwidth) -> None:
        self.bandwidth = bandwidth
        self.goodput: float | None = None
        self._clear = -inf
        self._seen_s = 0.0

    def send(self, updates: float, at_s: float) -> None:
        """Put updates at the end of the queue."""
        if updates:
            self._clear = max(self._clear, self.bandwidth.work(at_s)) + updates

    def queue_length(self, at_s: float) -> float:
        """Return how many updates are not yet at the center; the one in service counts by its remaining part."""
        return max(self._clear - self.bandwidth.work(at_s), 0.0)

    def finish_s(self) -> float:
        """Return when the last update so far is at the center."""
        return self.bandwidth.when(self._clear) if isfinite(self._clear) else -inf

    def measure(self, at_s: float) -> None:
        """Update the goodput with what was served since the last call."""
        begun = self.bandwidth.work(self._seen_s)
        ended = min(self.bandwidth.work(at_s), self._clear)
        busy_s = self.bandwidth.when(ended) - self._seen_s if ended > begun else 0.0
        if busy_s > 0:
            weight = 1.0 if self.goodput is None else 1 - exp(-(ended - begun) / _MEASURE_UPDATES)
            self.goodput = (1 - weight) * (self.goodput or 0.0) + weight * (ended - begun) / busy_s
        self._seen_s = at_s
