"""The groups that records form if every group is equally likely, and the other way round."""

from __future__ import annotations

import math

MOST_VALUES = 1e12  # where no value was met twice


def expected_groups(possible: float, records: float) -> float:
    """Return how many of d equally likely groups n records meet: d (1 - (1 - 1/d)^n)."""
    return possible * -math.expm1(records * math.log1p(-1 / possible)) if possible > 1 else min(1.0, records)


def likely_values(records: float, groups: float) -> float:
    """Return of how many equally likely values so many records meet so many, on average."""
    low, high = 1.0, MOST_VALUES
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if expected_groups(middle, records) > groups else (middle, high)
    return low
