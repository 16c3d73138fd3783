"""Operators dealt round over the sites that compute, whatever the links: a baseline without awareness of the network.

It is what a scheduler of one cluster does with tasks. An operator that runs already, for another query, is shared where
it runs, so with shared operators the rule shares without awareness of the network.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from catchment.optimizer.placement.greedy import PlacementChoice, PlacementKind, QueryArrival
from catchment.optimizer.placement.operators import WanOperator


@dataclass
class EvenSpread:
    """A rule that gives each new operator to a site that has the fewest so far, to any of them with equal chance."""

    chance: random.Random
    dealt: dict[str, int] = field(default_factory=dict)  # site -> operators

    def __call__(
        self, arrival: QueryArrival, operator: WanOperator, choices: tuple[PlacementChoice, ...]
    ) -> PlacementChoice:
        """Return a choice where the operator runs already, else one at a site whose turn it is."""
        running = [choice for choice in choices if choice.kind is PlacementKind.IN_OP]
        if running:
            return running[0]
        fewest = min(self.dealt.get(choice.site, 0) for choice in choices)
        chosen = self.chance.choice([choice for choice in choices if self.dealt.get(choice.site, 0) == fewest])
        self.dealt[chosen.site] = self.dealt.get(chosen.site, 0) + 1
        return chosen
