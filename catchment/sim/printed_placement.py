"""The rule of Algorithms 1 and 2 of Sana (Jonathan et al., SoCC'18) as printed, errata included: a baseline.

The planner's own rule is `choose_cheapest` of `catchment.optimizer.placement.greedy`; `docs/papers.md` says what it
corrects.
"""

from __future__ import annotations

from catchment.optimizer.placement.greedy import PlacementChoice, PlacementKind, QueryArrival
from catchment.optimizer.placement.operators import WanOperator


def choose_as_printed(
    arrival: QueryArrival, operator: WanOperator, choices: tuple[PlacementChoice, ...]
) -> PlacementChoice:
    """Choose by Algorithm 2: IN-OP before IN before local before least link cost, with the tests of Algorithm 1.

    Line 6 is as printed too: a share that is all new has an extra output of 0.
    """
    for kind in (PlacementKind.IN_OP, PlacementKind.IN):
        fit = [c for c in choices if c.kind is kind and _has_room(arrival, operator, c)]
        if fit:
            return min(fit, key=lambda c: (c.added.wan_bytes_per_s, c.site))
    local = [c for c in choices if c.kind is PlacementKind.LOCAL]
    return local[0] if local else min(choices, key=lambda c: (c.added.link_cost, c.site))


def _has_room(arrival: QueryArrival, operator: WanOperator, choice: PlacementChoice) -> bool:
    """Test lines 5 to 15 of Algorithm 1: room for the extra output, and for the inputs that do not arrive yet."""
    room_out = _room(arrival, choice.site, outgoing=True)
    if choice.kind is PlacementKind.IN_OP:
        readers = {reader for reader, o in arrival.base.graph.operators.items() if operator.name in o.inputs}
        mine = {reader for reader, o in arrival.graph.operators.items() if operator.name in o.inputs}
        extra = len(mine & readers) / len(readers) * operator.rate if readers else 0.0
        return room_out > extra
    arriving = choice.added.wan_bytes_per_s
    return room_out > operator.rate and _room(arrival, choice.site, outgoing=False) > arriving


def _room(arrival: QueryArrival, site: str, *, outgoing: bool) -> float:
    """Return the unused bandwidth of all links out of a site, or into it."""
    end = 0 if outgoing else 1
    links = {name: link for name, link in arrival.base.topology.links.items() if name[end] == site}
    return sum(max(0.0, link.bandwidth_bytes_per_s - arrival.rates.get(n, 0.0)) for n, link in links.items())
