"""Which share of the groups of each fragment is merged now, where merging itself is the load: the others wait.

A receiver of partials (the center, a relay) that cannot keep up merges the groups whose keys hash below a share, and
lets the partials of the others wait on disk. What each view gives is then the share of its groups that come later,
times its weight, over its tolerance. The chooser makes the worst of these least, as the planner of samplers does with
errors (`catchment.shedding.planner`): queries without tolerance give nothing, those that tolerate more give more.

With load w_f at share 1, weight g_f and tolerance t_f, the shares p_f in [MIN_SHARE, 1] minimise
max g_f (1 - p_f) / t_f under fixed load + sum w_f p_f <= capacity. At a common e the fragment gives 1 - p_f =
min(e t_f / g_f, 1 - MIN_SHARE), so what is given grows piecewise linearly with e: water filling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from catchment.errors import QualityError
from catchment.shedding.water_filling import Piece, solve_capacity

MIN_SHARE = 1 / 64  # of the groups that are merged whatever the load: every window says something of itself


@dataclass(frozen=True)
class DeferrableFragment:
    """A fragment whose views all tolerate that some of their groups come later.

    `keys` are those of its keys that every view groups by, `queries` its views, `tolerance` the least `max_error` that
    any of them states, and 1 where none does.
    """

    name: str
    keys: tuple[str, ...]
    queries: frozenset[str] = frozenset()
    tolerance: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.keys or not 0.0 < self.tolerance <= 1.0 or not self.weight > 0.0:
            raise QualityError(
                f"fragment {self.name!r} is deferred by keys {self.keys}, with a tolerance of {self.tolerance} and a "
                f"weight of {self.weight}; there must be a key, a tolerance in (0, 1] and a weight over 0"
            )

    @property
    def willingness(self) -> float:
        """What it gives of its groups at a common loss of 1."""
        return self.tolerance / self.weight


def choose_shares(
    fragments: Mapping[str, DeferrableFragment], loads: Mapping[str, float], capacity: float
) -> dict[str, float]:
    """Return the share of its groups that each deferrable fragment merges now.

    `loads` are the loads of all fragments at share 1; those that are not deferrable are merged whole. Where even the
    least shares exceed the capacity, the least shares are returned: the rest waits in the inbox.
    """
    excess = math.fsum(loads.values()) - capacity
    if excess <= 0.0:
        return dict.fromkeys(fragments, 1.0)
    most = 1.0 - MIN_SHARE
    pieces = {name: Piece(loads.get(name, 0.0) * most, f.willingness / most) for name, f in fragments.items()}
    loss = solve_capacity(list(pieces.values()), excess)
    assert loss is not None, "nothing is given at a loss of 0"
    return {name: 1.0 - most * piece.rate(loss) for name, piece in pieces.items()}


def worst_loss(fragments: Mapping[str, DeferrableFragment], shares: Mapping[str, float]) -> float:
    """Return the greatest weighted share of groups that a view gives, over its tolerance."""
    return max(((1.0 - shares[name]) / f.willingness for name, f in fragments.items()), default=0.0)
