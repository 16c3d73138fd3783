"""The laws by which load can be divided: the rate that a query needs for an error, promised or estimated."""

from __future__ import annotations

from enum import StrEnum

from catchment.quality.needs import Need
from catchment.quality.populations import Population
from catchment.shedding.variance_need import VarianceNeed

AnyNeed = Need | VarianceNeed


class Law(StrEnum):
    """A law by which an error follows from a rate."""

    HOEFFDING = "hoeffding"  # that of the paper: promised, whatever the values are; loose at low rates
    VARIANCE = "variance"  # an estimate of what will be seen, by the normal limit: no promise


def make_need(law: Law, aggregate: str, population: Population, delta: float) -> AnyNeed:
    """Return what a query needs by this law."""
    if law is Law.HOEFFDING:
        return Need(aggregate, population, delta)
    return VarianceNeed(aggregate, population, delta)
