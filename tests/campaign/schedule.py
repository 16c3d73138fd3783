"""Which faults come together in a round: drawn from the seed and the number of the round alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from tests.campaign.faults import absence, disks, files, identity, links, processes, records
from tests.campaign.faults.base import Fault
from tests.campaign.living import ALL, SITES, Living, roles_of

KINDS: Mapping[str, type[Fault]] = {
    kind.kind: kind for module in (processes, links, disks, files, identity, records, absence) for kind in module.KINDS
}
MAX_TOGETHER = 8


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


def draw_round(
    seed: int, number: int, kinds: Sequence[str] = tuple(KINDS), sites: Sequence[str] = SITES
) -> list[Drawn]:
    """Draw the faults of one round: kinds that were drawn least so far come first, on parts that no other touches."""
    return next(islice(draw_rounds(seed, kinds, sites), number, None))


def draw_rounds(seed: int, kinds: Sequence[str] = tuple(KINDS), sites: Sequence[str] = SITES) -> Iterator[list[Drawn]]:
    """Draw one round after another, without end."""
    targets = {*roles_of(sites), ALL}
    kinds = [kind for kind in kinds if targets & set(KINDS[kind].targets)]
    counts: Counter[str] = Counter()
    for number in count():
        chance = random.Random(f"{seed} round {number}")
        order = sorted(kinds, key=lambda kind: (counts[kind] + _handicap(kind), chance.random()))
        drawn = _draw_together([KINDS[kind] for kind in order], targets, chance)
        counts.update(d.kind for d in drawn)
        yield drawn


def _handicap(kind: str) -> float:
    """Return how much later a kind comes than others; one that needs a deployment of its own costs a minute more."""
    return 1.5 if KINDS[kind].needs_own_deployment else 0.0


def _draw_together(order: Sequence[type[Fault]], targets: Collection[str], chance: random.Random) -> list[Drawn]:
    """Draw targets for the first kinds of an order that can be struck together."""
    if order[0].needs_own_deployment:
        order = order[:1]
    drawn: list[Drawn] = []
    occupied: set[str] = set()
    for kind in (k for k in order if k is order[0] or not k.needs_own_deployment):
        free = [t for t in kind.targets if t in targets and not kind.parts(t) & occupied]
        if free and len(drawn) < MAX_TOGETHER:
            target = chance.choice(free)
            drawn.append(Drawn(kind.kind, target, chance.randrange(2**31)))
            occupied |= kind.parts(target)
    return drawn
