"""The laws that load can be divided by, by name: what a query needs for an error, promised or foreseen."""

from __future__ import annotations

from enum import StrEnum

from catchment.quality.needs import Need
from catchment.quality.populations import Population
from catchment.shedding.variance_need import VarianceNeed

AnyNeed = Need | VarianceNeed


class Law(StrEnum):
    """How an error follows from a rate."""

    HOEFFDING = "hoeffding"  # the paper's: promised, whatever the values are; loose at low rates
    VARIANCE = "variance"  # what will be seen, by the normal limit: no promise


def make_need(law: Law, aggregate: str, population: Population, delta: float) -> AnyNeed:
    """What a query needs, by this law."""
    return (Need if law is Law.HOEFFDING else VarianceNeed)(aggregate, population, delta)
