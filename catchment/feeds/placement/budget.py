"""Budgets: how much a device may compute for views placed on it.

A view computed on a device loads it; the loads of what device i downloads on may not exceed `capacity[i]`.
Where uploads nest, the views of a device go in the order of its rates, so a budget only raises the least
allowed threshold: the constrained optimum is a constrained minimum of the same curve, exact for every
device, and what others do is not affected (Chandramouli et al., VLDB'13, section 4.6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catchment.arrays import Floats
from catchment.errors import FeedError


@dataclass(frozen=True, eq=False)
class Budget:
    """The load that each device may carry; infinite where there is no limit."""

    capacity: Floats

    def __post_init__(self) -> None:
        bad = np.flatnonzero(~(self.capacity >= 0))
        if bad.size:
            raise FeedError(
                f"the budget of device {bad[0]} is {self.capacity[bad[0]]}; expected a number, 0 or more",
                where="budget",
                hint="leave a device out to give it no limit",
            )

    def per_device(self, devices: int) -> Floats:
        """Return the capacities, checked to be one per device."""
        if self.capacity.shape != (devices,):
            raise FeedError(f"{self.capacity.shape[0]} budgets for {devices} devices", where="budget")
        return self.capacity
