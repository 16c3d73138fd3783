"""Which fragment each slice of a query is taken from.

A query's partials come from a shared fragment by a derivation. A query may switch to another fragment at a slice
boundary, because both yield the same partials: every slice is taken from exactly one fragment, and a window that spans
the boundary is merged of both. A query that comes during a run begins where every site has begun to compute its
fragment, so that no window is published that was seen only in part.

Invariants: the sources of a query cover the time from its start on without gap or overlap. What lands of a fragment
before it is known where its source starts waits, and is then taken or passed over: never lost and never taken twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.query import CenterQuery
from catchment.optimizer.sharing.derive import Derivation, derive
from catchment.progress.frontier import Frontier
from catchment.query.fragment import SLICE_COLUMN
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing

RecordCounts = tuple[tuple[str, int, int], ...]  # (site, slice, raw records)
Arrival = tuple[pa.Table, RecordCounts]  # partials that have landed, with the raw records behind them


@stored()
@dataclass
class FragmentSource:
    """The slices in [start, until) that a query takes from one fragment.

    `start_us` is unknown (None) until every site has begun to compute the fragment.
    """

    fragment: str
    derivation: Derivation | None  # None: the fragment's partials are the query's own
    floor_us: int = START_OF_TIME_US  # slices before it were merged before anyone listened
    waits: bool = False  # whether the first mark of each site says where it began
    start_us: int | None = None
    until_us: int = END_OF_TIME_US
    waiting: list[Arrival] = field(default_factory=list)  # arrivals that wait until the start is known

    def find_start(self, sites: Iterable[str], frontiers: Mapping[str, Frontier], slicing: Slicing) -> bool:
        """Learn where it starts, if every site has said so; return whether that was learned just now."""
        if self.start_us is not None:
            return False
        first_marks = []
        for site in sites if self.waits else ():
            first_mark = frontiers[site].first_mark(self.fragment) if site in frontiers else None
            if first_mark is None:
                return False
            first_marks.append(first_mark)
        self.start_us = _next_boundary(slicing, max((self.floor_us, *first_marks)))
        return True

    def derive(self, table: pa.Table) -> pa.Table:
        """Derive the query's own partials from the fragment's."""
        return derive(table, self.derivation) if self.derivation is not None else table

    def restrict(self, arrival: Arrival) -> Arrival:
        """Return the part of some partials that lies in its slices."""
        table, records = arrival
        assert self.start_us is not None
        if self.start_us > START_OF_TIME_US or self.until_us < END_OF_TIME_US:
            slices = table[SLICE_COLUMN]
            inside = pc.and_(pc.greater_equal(slices, self.start_us), pc.less(slices, self.until_us))
            table = table.filter(inside)
            records = tuple(r for r in records if self.start_us <= r[1] < self.until_us)
        return table, records

    def take_waiting(self) -> list[Arrival]:
        """Return what has waited for its start, once."""
        waiting = self.waiting
        self.waiting = []
        return [self.restrict(arrival) for arrival in waiting]


class FragmentSources:
    """The sources of one query over one stream, oldest first."""

    def __init__(self, query: CenterQuery, sources: list[FragmentSource]) -> None:
        self.query = query
        self.sources = sources
        self._slicing = Slicing.of([query.window])

    @classmethod
    def begin(cls, query: CenterQuery, floor_us: int = START_OF_TIME_US, waits: bool = False) -> FragmentSources:
        """Begin a query; `floor_us` is behind what of its fragment was merged before anyone listened."""
        start_us = START_OF_TIME_US if floor_us == START_OF_TIME_US and not waits else None
        return cls(query, [FragmentSource(query.source_fragment, query.derivation, floor_us, waits, start_us)])

    @property
    def parts(self) -> tuple[FragmentSources, ...]:
        """What it is made of over one stream each: itself."""
        return (self,)

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(source.fragment for source in self.sources)

    @property
    def start_us(self) -> int | None:
        """From when on windows are answered, if that is known."""
        return self.sources[0].start_us

    def newest_fragment(self, query: str) -> str:
        """Return the fragment that a query, or a side of one, takes its newest slices from."""
        assert query == self.query.name
        return self.sources[-1].fragment

    def move(self, derivation: Derivation, floor_us: int, waits: bool) -> None:
        """Take the slices from another fragment, from where that is possible on. One move at a time."""
        if self.sources[-1].fragment != derivation.fragment:
            self.sources.append(FragmentSource(derivation.fragment, derivation, floor_us, waits))

    def take(self, fragment: str, table: pa.Table, records: RecordCounts) -> Iterator[Arrival]:
        """Yield the query's own partials in what landed of a fragment; they wait where the start is not known."""
        for source in (s for s in self.sources if s.fragment == fragment):
            arrival = source.derive(table), records
            if source.start_us is None:
                source.waiting.append(arrival)
            else:
                yield source.restrict(arrival)

    def find_starts(self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int]) -> Iterator[Arrival]:
        """Learn where sources start; yield what has waited for that. `newest`: the newest slice of each fragment."""
        before: FragmentSource | None = None
        for source in self.sources:
            if before is not None and source.start_us is None:
                if before.start_us is None:
                    return
                # What was taken of the fragment before stays taken: the next one starts after it.
                taken_us = newest.get(before.fragment, START_OF_TIME_US) + 1
                source.floor_us = max(source.floor_us, before.start_us, taken_us)
            if source.find_start(self.query.sites, frontiers, self._slicing):
                if before is not None and source.start_us is not None:
                    before.until_us = source.start_us
                yield from source.take_waiting()
            before = source

    def forget_final(self, final_us: int) -> None:
        """Drop sources whose windows are all final."""
        while len(self.sources) > 1 and self.sources[1].start_us is not None:
            if final_us < self.sources[0].until_us + self.query.window.size_us:
                return
            start_us = self.sources[0].start_us
            del self.sources[0]
            self.sources[0].start_us = start_us  # what comes for the windows before is registered as too late

    def mark(self, frontier: Frontier) -> int:
        """Return how far a site has come with the query's slices."""
        mark = frontier.mark(self.sources[0].fragment)
        for before, after in zip(self.sources, self.sources[1:], strict=False):
            if after.start_us is None or mark < before.until_us:
                return mark
            mark = max(before.until_us, frontier.mark(after.fragment))
        return mark


def _next_boundary(slicing: Slicing, at_us: int) -> int:
    """Return the first slice that starts at an instant or after."""
    if at_us <= START_OF_TIME_US:
        return START_OF_TIME_US
    start_us = slicing.start_of(at_us)
    return at_us if start_us == at_us else slicing.end_of(start_us)
