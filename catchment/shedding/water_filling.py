"""Filling a capacity: the least common error that a load of many pieces can be brought down to.

Each piece of work costs `weight` at rate 1 and runs at the rate clamp(pressure * slope, floor, 1), where
pressure is 1 / error: what its neediest reader asks for. The load, a sum over pieces, is a continuous,
piecewise linear, growing function of the pressure, so the pressure that fills the capacity is found
exactly: sort the places where a piece starts to grow and where it is full, and solve one linear equation
between two of them. O(k log k) for k pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Where no closed form is, the error is looked for between these.
LEAST_ERROR, GREATEST_ERROR = 1e-12, 1e12
_HALVINGS = 200


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work: its load at rate 1, and the rate that its readers ask for as the pressure grows."""

    weight: float
    slope: float
    floor: float = 0.0

    def rate(self, pressure: float) -> float:
        return min(1.0, max(self.floor, pressure * self.slope)) if self.slope else self.floor


def solve_capacity(pieces: Sequence[Piece], capacity: float) -> float | None:
    """The greatest pressure whose load fits the capacity: infinite if all of it fits, None if not even
    the floors do."""
    if math.fsum(p.weight * p.floor for p in pieces) > capacity:
        return None
    if math.fsum(p.weight * p.rate(math.inf) for p in pieces) <= capacity:
        return math.inf
    low, high = _segment(pieces, capacity)
    growing = [bool(p.slope) and p.floor / p.slope <= low and 1.0 / p.slope >= high for p in pieces]
    grows = math.fsum(p.weight * p.slope for p, grown in zip(pieces, growing, strict=True) if grown)
    still = math.fsum(p.weight * p.rate(low) for p, grown in zip(pieces, growing, strict=True) if not grown)
    return min(high, max(low, (capacity - still) / grows))


def _segment(pieces: Sequence[Piece], capacity: float) -> tuple[float, float]:
    """The two neighbouring breakpoints between which the load reaches the capacity."""
    starts = [(p.floor / p.slope, p.weight * p.slope, p.weight * p.floor) for p in pieces if p.slope]
    ends = [(1.0 / p.slope, -p.weight * p.slope, -p.weight) for p in pieces if p.slope]
    grows, still, before = 0.0, math.fsum(p.weight * p.floor for p in pieces), 0.0
    for at, slope, load in sorted(starts + ends):
        if grows * at + still > capacity:
            return before, at
        grows, still, before = grows + slope, still - load, at
    return before, math.inf


def solve_by_bisection(load: Callable[[float], float], capacity: float) -> float | None:
    """The same for loads that fall with the error in any way: the least error whose load fits, by halving."""
    low, high = LEAST_ERROR, GREATEST_ERROR
    if load(math.inf) > capacity:
        return None
    if load(0.0) <= capacity:
        return 0.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if middle in (low, high):
            break
        low, high = (low, middle) if load(middle) <= capacity else (middle, high)
    return high
