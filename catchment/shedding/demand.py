"""What the queries ask of the samplers, as the worst error that they share grows.

Two rounds. In the ordinary one every query gives, but a query with a contract only down to the rate that
the contract needs. If that does not fit, the contracts cannot all be kept: then the queries without one
have given everything (rate 0), and those with one exceed theirs by a common factor, the least that fits.
Queries that no rate below 1 promises anything are whole in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from catchment.shedding.allocation import AnyNeed
from catchment.shedding.forest import ShedForest


@dataclass(frozen=True)
class Demand:
    """What one query asks of one stratum: an error of 1 / `weight` times the shared one, never over
    `max_error`."""

    needs: tuple[AnyNeed, ...]
    weight: float = 1.0
    max_error: float | None = None

    def rate(self, error: float) -> float:
        """The rate that it asks for when the shared error is this."""
        return max((self.floor, *(need.rate(error / self.weight) for need in self.needs)))

    @cached_property
    def floor(self) -> float:
        """The rate below which it does not go."""
        return max((self._least(need) for need in self.needs), default=0.0)

    def _least(self, need: AnyNeed) -> float:
        if need.rigid:
            return 1.0
        return need.promised_rate(self.max_error) if self.max_error is not None else 0.0

    @cached_property
    def slope(self) -> float:
        """The rate is min(1, max(floor, slope / error)), where all its curves are of that form."""
        return max((self.weight * (need.slope or 0.0) for need in self.needs), default=0.0)


@dataclass(frozen=True)
class Demands:
    """The demand of every query on every stratum of its stream."""

    of: Mapping[tuple[str, str], Demand]

    @cached_property
    def linear(self) -> bool:
        """Whether every curve is slope / error, so that the least error is found in closed form."""
        return all(need.slope is not None for demand in self.of.values() for need in demand.needs)

    def rates(self, error: float) -> dict[tuple[str, str], float]:
        return {key: demand.rate(error) for key, demand in self.of.items()}

    def slopes(self) -> dict[tuple[str, str], float]:
        return {key: demand.slope for key, demand in self.of.items()}

    def floors(self) -> dict[tuple[str, str], float]:
        return {key: demand.floor for key, demand in self.of.items()}


def ordinary_demands(forest: ShedForest) -> Demands:
    """Every query gives by its weight, down to its contract."""
    queries = {query.name: query for query in forest.queries}
    return Demands(
        {
            (name, stratum): Demand(needs, queries[name].weight, queries[name].max_error)
            for (name, stratum), needs in forest.needs.items()
        }
    )


def contracted_demands(forest: ShedForest) -> Demands:
    """Queries without a contract give all; the others exceed theirs by a common factor."""
    contracts = {query.name: query.max_error for query in forest.queries}
    asked: dict[tuple[str, str], Demand] = {}
    for (name, stratum), needs in forest.needs.items():
        allowed = contracts[name]
        if allowed is None:
            asked[name, stratum] = Demand(tuple(need for need in needs if need.rigid))
        else:
            asked[name, stratum] = Demand(needs, 1.0 / allowed)
    return Demands(asked)
