"""Which faults come together in a round: drawn from the seed and the number of the round alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.campaign.faults import absence, disks, files, identity, links, processes, records
from tests.campaign.faults.base import Fault
from tests.campaign.living import Living

KINDS: Mapping[str, type[Fault]] = {
    kind.kind: kind for module in (processes, links, disks, files, identity, records, absence) for kind in module.KINDS
}
MAX_TOGETHER = 8
SIMILAR_COST = 1.6  # faults of a round take about as long as its slowest


@dataclass(frozen=True)
class Drawn:
    """A fault as it is drawn: its kind, its target, and a seed for what else it draws."""

    kind: str
    target: str
    seed: int

    def make(self, living: Living) -> Fault:
        return KINDS[self.kind](living, self.target, random.Random(self.seed))


def needs_own_deployment(drawn: Sequence[Drawn]) -> bool:
    """Return whether a round ends its deployment, or needs one with other settings."""
    return any(KINDS[d.kind].needs_own_deployment for d in drawn)


def draw_round(seed: int, number: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Drawn]:
    """Draw the faults of one round; every kind leads a round before any leads a second one."""
    turn, place = divmod(number, len(kinds))
    order = random.Random(f"{seed} order {turn}").sample(list(kinds), len(kinds))
    chance = random.Random(f"{seed} round {number}")
    leader = KINDS[order[place]]
    drawn: list[Drawn] = []
    occupied: set[str] = set()
    others = [KINDS[k] for k in kinds if KINDS[k].cost_s <= leader.cost_s * SIMILAR_COST]
    others = [] if leader.needs_own_deployment else [kind for kind in others if not kind.needs_own_deployment]
    for kind in [leader, *chance.sample(others, len(others))]:
        if len(drawn) == MAX_TOGETHER or kind.kind in (d.kind for d in drawn):
            continue
        free = [target for target in kind.targets if not kind.parts(target) & occupied]
        if free:
            drawn.append(Drawn(kind.kind, chance.choice(free), chance.randrange(2**31)))
            occupied |= kind.parts(drawn[-1].target)
    return drawn
