"""The rates that queries need, as functions of the worst error that they share.

There are two rounds. In the ordinary one every query is sampled, but a query with a contract only down to the rate that
the contract needs. If that does not fit, the contracts cannot all be kept: then queries without one have rate 0, and
queries with one exceed theirs by a common factor, the least that fits. Queries for which no rate below 1 promises
anything are whole in both rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from catchment.shedding.forest import ShedForest
from catchment.shedding.laws import AnyNeed


@dataclass(frozen=True)
class RateDemand:
    """What one query needs of one stratum: an error of 1 / `weight` times the shared one, never over `max_error`."""

    needs: tuple[AnyNeed, ...]
    weight: float = 1.0
    max_error: float | None = None

    def rate(self, error: float) -> float:
        """Return the rate that it needs for this shared error."""
        return max((self.floor, *(need.rate(error / self.weight) for need in self.needs)))

    @cached_property
    def floor(self) -> float:
        """Return the rate below which it does not go."""
        return max((self._least(need) for need in self.needs), default=0.0)

    def _least(self, need: AnyNeed) -> float:
        if need.needs_every_record:
            return 1.0
        return need.promised_rate(self.max_error) if self.max_error is not None else 0.0

    @cached_property
    def slope(self) -> float:
        """Return the slope of the rate min(1, max(floor, slope / error)), where all its needs are of that form."""
        return max((self.weight * (need.slope or 0.0) for need in self.needs), default=0.0)


@dataclass(frozen=True)
class RateDemands:
    """What every query needs of every stratum of its stream."""

    of: Mapping[tuple[str, str], RateDemand]

    @cached_property
    def linear(self) -> bool:
        """Whether every need is slope / error, so that the least error is found in closed form."""
        return all(need.slope is not None for demand in self.of.values() for need in demand.needs)

    def rates(self, error: float) -> dict[tuple[str, str], float]:
        return {key: demand.rate(error) for key, demand in self.of.items()}

    def slopes(self) -> dict[tuple[str, str], float]:
        return {key: demand.slope for key, demand in self.of.items()}

    def floors(self) -> dict[tuple[str, str], float]:
        return {key: demand.floor for key, demand in self.of.items()}


def ordinary_demands(forest: ShedForest) -> RateDemands:
    """Return the demands where every query is sampled by its weight, down to its contract."""
    queries = {query.name: query for query in forest.queries}
    return RateDemands(
        {
            (name, stratum): RateDemand(needs, queries[name].weight, queries[name].max_error)
            for (name, stratum), needs in forest.needs.items()
        }
    )


def contracted_demands(forest: ShedForest) -> RateDemands:
    """Return the demands where only queries with a contract get records, and exceed theirs by a common factor."""
    contracts = {query.name: query.max_error for query in forest.queries}
    asked: dict[tuple[str, str], RateDemand] = {}
    for (name, stratum), needs in forest.needs.items():
        allowed = contracts[name]
        if allowed is None:
            asked[name, stratum] = RateDemand(tuple(need for need in needs if need.needs_every_record))
        else:
            asked[name, stratum] = RateDemand(needs, 1.0 / allowed)
    return RateDemands(asked)
