"""Water filling: the least common error at which the load of many pieces of work fits a capacity.

Each piece costs `weight` at rate 1 and runs at the rate clamp(pressure * slope, floor, 1), where pressure is 1 / error:
what its neediest reader needs. The load, a sum over pieces, is a continuous, piecewise linear, non-decreasing function
of the pressure, so the pressure that fills the capacity is found exactly: sort the pressures at which a piece starts to
grow or is full, and solve one linear equation between two of them. O(k log k) for k pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Bisection searches the error between these.
MIN_ERROR = 1e-12
MAX_ERROR = 1e12
_MAX_STEPS = 200  # steps of the bisection


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work: its load at rate 1, and the rate that its readers need as the pressure grows."""

    weight: float
    slope: float
    floor: float = 0.0

    def rate(self, pressure: float) -> float:
        if not self.slope:
            return self.floor
        return min(1.0, max(self.floor, pressure * self.slope))


def solve_capacity(pieces: Sequence[Piece], capacity: float) -> float | None:
    """Return the greatest pressure whose load fits: infinite if the whole load fits, None if not even the floors do."""
    if math.fsum(p.weight * p.floor for p in pieces) > capacity:
        return None
    if math.fsum(p.weight * p.rate(math.inf) for p in pieces) <= capacity:
        return math.inf
    low, high = _interval(pieces, capacity)
    growing = [bool(p.slope) and p.floor / p.slope <= low and 1.0 / p.slope >= high for p in pieces]
    grows = math.fsum(p.weight * p.slope for p, grown in zip(pieces, growing, strict=True) if grown)
    still = math.fsum(p.weight * p.rate(low) for p, grown in zip(pieces, growing, strict=True) if not grown)
    return min(high, max(low, (capacity - still) / grows))


def _interval(pieces: Sequence[Piece], capacity: float) -> tuple[float, float]:
    """Return the two neighbouring breakpoints between which the load reaches the capacity."""
    starts = [(p.floor / p.slope, p.weight * p.slope, p.weight * p.floor) for p in pieces if p.slope]
    ends = [(1.0 / p.slope, -p.weight * p.slope, -p.weight) for p in pieces if p.slope]
    grows = 0.0
    still = math.fsum(p.weight * p.floor for p in pieces)
    before = 0.0
    for at, slope, load in sorted(starts + ends):
        if grows * at + still > capacity:
            return before, at
        grows += slope
        still -= load
        before = at
    return before, math.inf


def solve_by_bisection(load: Callable[[float], float], capacity: float) -> float | None:
    """Return the least error whose load fits, for any load that falls with the error; None if no load fits."""
    low = MIN_ERROR
    high = MAX_ERROR
    if load(math.inf) > capacity:
        return None
    if load(0.0) <= capacity:
        return 0.0
    for _ in range(_MAX_STEPS):
        middle = math.sqrt(low * high)
        if middle in (low, high):
            break
        if load(middle) <= capacity:
            high = middle
        else:
            low = middle
    return high
