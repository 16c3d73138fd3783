"""Of one fragment at a relay: whose records are in the partials that wait here, and what may be said of each site.

A partial that waits may be merged of several sites, so what is known is by which neighbours something came for a slice.
A slice is held against every site behind those neighbours until nothing of it waits any more. Laws: every raw record is
counted onwards exactly once, under its own site; a mark of a site is stated only when no slice that ends at or before
it is held against the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing
from catchment.wire.messages import Repaired

MAX_LEADS = 256  # marks that are remembered until the wait is over; at the bound the newest takes the place of the last
Counts = tuple[tuple[int, int], ...]


@dataclass
class Origins:
    """The sites of one fragment, each with the neighbour by which it comes."""

    senders: dict[str, str]
    counts: dict[int, dict[str, int]] = field(default_factory=dict)  # slice -> site -> records not counted onwards
    held: dict[int, set[str]] = field(default_factory=dict)  # slice that waits -> neighbours that sent something of it
    stated: dict[str, int] = field(default_factory=dict)  # site -> the newest mark that was passed on
    overs: dict[str, dict[str, int]] = field(default_factory=dict)  # site -> query -> up to where it says to be over
    told: dict[str, dict[str, int]] = field(default_factory=dict)  # the same, as passed on
    leads: list[tuple[int, int]] = field(default_factory=list)  # (when, the mark of the site that was first)
    repaired: list[tuple[str, Repaired, tuple[int, ...]]] = field(default_factory=list)  # until these slices have left

    def take(self, records: Iterable[tuple[str, int, int]], senders: Iterable[tuple[str, int]]) -> Counts:
        """Records of (site, slice, count) came, and partials by (neighbour, slice); the records per slice."""
        total: dict[int, int] = {}
        for site, slice_us, count in records:
            mine = self.counts.setdefault(slice_us, {})
            mine[site] = mine.get(site, 0) + count
            total[slice_us] = total.get(slice_us, 0) + count
        for sender, slice_us in senders:
            self.held.setdefault(slice_us, set()).add(sender)
        return tuple(total.items())

    def count_out(self, records: Counts) -> Iterator[tuple[str, Counts]]:
        """So many records of slices have left; whose they were. Which of the sites is counted first does not matter:
        the last release of a slice counts the rest."""
        told: dict[str, list[tuple[int, int]]] = {}
        for slice_us, count in records:
            mine, left = self.counts[slice_us], count
            for site in sorted(mine):
                part = min(left, mine[site])
                mine[site] -= part
                left -= part
                if part:
                    told.setdefault(site, []).append((slice_us, part))
            assert left == 0, f"slice {slice_us} counts {left} records that never came"
        return ((site, tuple(counts)) for site, counts in told.items())

    def forget(self, waiting: frozenset[int]) -> None:
        """Only these slices still have something that waits."""
        self.held = {s: senders for s, senders in self.held.items() if s in waiting}
        for slice_us in [s for s in self.counts if s not in waiting]:
            assert not any(self.counts.pop(slice_us).values()), f"slice {slice_us} left with uncounted records"

    def sayable(self, site: str, mark_us: int, slicing: Slicing) -> int:
        """How far a mark of a site holds for what has left."""
        return min((s for s in self.held_of(site) if slicing.end_of(s) <= mark_us), default=mark_us)

    def held_of(self, site: str) -> tuple[int, ...]:
        """The slices that are held against a site."""
        return tuple(s for s, senders in self.held.items() if self.senders.get(site) in senders)

    def repairs(self) -> list[tuple[str, Repaired]]:
        """Repairs of which everything has left; they are given once."""
        ready = [r for r in self.repaired if not any(s in self.held for s in r[2])]
        self.repaired = [r for r in self.repaired if any(s in self.held for s in r[2])]
        return [(origin, fact) for origin, fact, _ in ready]

    def lead(self, marks: Mapping[str, int], now_us: int) -> None:
        """Remember how far the first of the sites has come; one that has ended leads nobody."""
        running = [m for m in marks.values() if m < END_OF_TIME_US]
        first = max(running, default=END_OF_TIME_US)
        if first <= START_OF_TIME_US or (self.leads and first <= self.leads[-1][1]):
            return
        if len(self.leads) >= MAX_LEADS:
            self.leads.pop()
        self.leads.append((now_us, first))

    def due(self, marks: Mapping[str, int], now_us: int, wait_us: int) -> int:
        """Up to where nothing waits any longer: all sites have passed it, or the first one did `wait_us` ago."""
        waited = max((m for at, m in self.leads if now_us - at >= wait_us), default=START_OF_TIME_US)
        return max(waited, min(marks.values()))

    def is_due(self, now_us: int, wait_us: int, reached_us: int) -> bool:
        """Whether time alone would let something go."""
        return any(now_us - at >= wait_us and mark > reached_us for at, mark in self.leads)

    def settle(self, reached_us: int) -> None:
        """Marks that were reached need not be remembered, but for the newest: the next one must be beyond it."""
        self.leads = [(at, m) for at, m in self.leads[:-1] if m > reached_us] + self.leads[-1:]

    def to_dict(self) -> dict[str, Any]:
        return {
            "senders": self.senders,
            "counts": [[s, mine] for s, mine in self.counts.items()],
            "held": [[s, sorted(senders)] for s, senders in self.held.items()],
            "stated": self.stated,
            "overs": self.overs,
            "told": self.told,
            "leads": self.leads,
            "repaired": self.repaired,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Origins:
        return cls(
            dict(state["senders"]),
            {s: dict(mine) for s, mine in state["counts"]},
            {s: set(senders) for s, senders in state["held"]},
            dict(state["stated"]),
            {o: dict(said) for o, said in state["overs"].items()},
            {o: dict(said) for o, said in state["told"].items()},
            [(at, mark) for at, mark in state["leads"]],
            [(origin, fact, tuple(slices)) for origin, fact, slices in state["repaired"]],
        )
