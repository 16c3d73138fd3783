"""The origins of one fragment at a relay: whose records wait here, and what may be stated of each site.

A waiting partial may be merged from several sites, so it is only known which neighbours have sent something of a
slice. A slice counts as waiting for every site behind those neighbours until nothing of it is here any more. Laws:
every raw record is counted onwards exactly once, under its own site; a mark of a site is stated only when no slice that
ends at or before it waits for the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing
from catchment.wire.messages import Backfilled, Delivered, Repaired

MAX_FIRST_MARKS = 256  # first marks remembered until the wait is over; at the bound the newest replaces the last
Counts = tuple[tuple[int, int], ...]


@stored(version=2, migrations={1: dict})  # version 2 has stated_queries
@dataclass
class Origins:
    """The sites of one fragment, each with the neighbour by which it comes."""

    senders: dict[str, str]
    counts: dict[int, dict[str, int]] = field(default_factory=dict)  # slice -> site -> records not counted onwards
    waiting: dict[int, set[str]] = field(default_factory=dict)  # slice -> neighbours that sent something of it
    stated: dict[str, int] = field(default_factory=dict)  # site -> the newest mark that was passed on
    complete_until: dict[str, dict[str, int]] = field(default_factory=dict)  # site -> query -> as the site stated it
    announced: dict[str, dict[str, int]] = field(default_factory=dict)  # site -> query -> as it was passed on
    first_marks: list[tuple[int, int]] = field(default_factory=list)  # (when, the mark of the site that was first)
    repaired: list[tuple[str, Repaired | Delivered | Backfilled, tuple[int, ...]]] = field(
        default_factory=list
    )  # (site, what was repaired, delivered or backfilled, slices that must leave before it is stated)
    stated_queries: dict[str, dict[str, int]] = field(default_factory=dict)  # site -> query -> newest mark passed on

    def take(self, records: Iterable[tuple[str, int, int]], senders: Iterable[tuple[str, int]]) -> Counts:
        """Take in records of (site, slice, count) and partials by (neighbour, slice); return the records per slice."""
        total: dict[int, int] = {}
        for site, slice_us, count in records:
            mine = self.counts.setdefault(slice_us, {})
            mine[site] = mine.get(site, 0) + count
            total[slice_us] = total.get(slice_us, 0) + count
        for sender, slice_us in senders:
            self.waiting.setdefault(slice_us, set()).add(sender)
        return tuple(total.items())

    def count_out(self, records: Counts) -> Iterator[tuple[str, Counts]]:
        """Return the sites of the records in slices that have left.

        Which of the sites is counted first does not matter: the last release of a slice counts the rest.
        """
        parts: dict[str, list[tuple[int, int]]] = {}
        for slice_us, count in records:
            mine = self.counts[slice_us]
            left = count
            for site in sorted(mine):
                part = min(left, mine[site])
                mine[site] -= part
                left -= part
                if part:
                    parts.setdefault(site, []).append((slice_us, part))
            assert left == 0, f"slice {slice_us} counts {left} records that never came"
        return ((site, tuple(counts)) for site, counts in parts.items())

    def keep_waiting(self, waiting: frozenset[int]) -> None:
        """Forget all slices but these, which still have something here."""
        self.waiting = {s: senders for s, senders in self.waiting.items() if s in waiting}
        for slice_us in [s for s in self.counts if s not in waiting]:
            assert not any(self.counts.pop(slice_us).values()), f"slice {slice_us} left with uncounted records"

    def safe_mark(self, site: str, mark_us: int, slicing: Slicing) -> int:
        """Return how far a mark of a site holds for what has left."""
        return min((s for s in self.waiting_of(site) if slicing.end_of(s) <= mark_us), default=mark_us)

    def waiting_of(self, site: str) -> tuple[int, ...]:
        """Return the slices that wait for a site."""
        return tuple(s for s, senders in self.waiting.items() if self.senders.get(site) in senders)

    def take_repaired(self) -> list[tuple[str, Repaired | Delivered | Backfilled]]:
        """Remove and return the repairs, deliveries and backfills whose partials have all left."""
        ready = [r for r in self.repaired if not any(s in self.waiting for s in r[2])]
        self.repaired = [r for r in self.repaired if any(s in self.waiting for s in r[2])]
        return [(origin, fact) for origin, fact, _ in ready]

    def note_first_mark(self, marks: Mapping[str, int], now_us: int, slicing: Slicing) -> None:
        """Remember how far the first of the sites has come; one that has ended, as far as its last slice here."""
        running = [m for m in marks.values() if m < END_OF_TIME_US]
        ended = [site for site, m in marks.items() if m == END_OF_TIME_US]
        last_us = [slicing.end_of(s) for site in ended for s in self.waiting_of(site)]
        first = max([*running, *last_us]) if running else END_OF_TIME_US
        if first <= START_OF_TIME_US or (self.first_marks and first <= self.first_marks[-1][1]):
            return
        if len(self.first_marks) >= MAX_FIRST_MARKS:
            self.first_marks.pop()
        self.first_marks.append((now_us, first))

    def due_until(self, marks: Mapping[str, int], now_us: int, wait_us: int) -> int:
        """Return up to where nothing waits any longer: all sites have passed it, or the first one `wait_us` ago."""
        waited = max((m for at, m in self.first_marks if now_us - at >= wait_us), default=START_OF_TIME_US)
        return max(waited, min(marks.values()))

    def is_due(self, now_us: int, wait_us: int, reached_us: int) -> bool:
        """Return whether time alone would let something go."""
        return any(now_us - at >= wait_us and mark > reached_us for at, mark in self.first_marks)

    def forget_first_marks(self, reached_us: int) -> None:
        """Forget marks that were reached, but for the newest: the next one must be beyond it."""
        self.first_marks = [(at, m) for at, m in self.first_marks[:-1] if m > reached_us] + self.first_marks[-1:]
