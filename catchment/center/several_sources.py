"""The fragments of a query over several streams; arrivals of one wait until all have begun."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from catchment.aggregates.content_bytes import content_bytes
from catchment.center.fragment_sources import MAX_WAITING_BYTES, Arrival, FragmentSources, RecordCounts
from catchment.center.join.pairing import widen
from catchment.center.query import CenterQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.frontier import Frontier


class SeveralSources:
    """The sources of all sides of a query.

    The sides of a join become rows of one pairing; those of a union have one layout, and are taken as they are.
    """

    def __init__(
        self, query: CenterQuery, parts: Sequence[FragmentSources], waiting: list[Arrival] | None = None
    ) -> None:
        self.query = query
        self.parts = tuple(parts)
        self.waiting = waiting or []  # arrivals that wait until all sides have begun

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(fragment for part in self.parts for fragment in part.fragments)

    @property
    def start_us(self) -> int | None:
        """The instant from which on all sides are complete, if it is known."""
        starts = [part.start_us for part in self.parts]
        return None if None in starts else max(s for s in starts if s is not None)

    @property
    def taken_from_us(self) -> int | None:
        """From when on slices of all sides are taken, if that is known."""
        starts = [part.taken_from_us for part in self.parts]
        return None if None in starts else max(s for s in starts if s is not None)

    def newest_fragment(self, query: str) -> str:
        """Return the fragment that a side takes its newest slices from."""
        return self._part(query).newest_fragment(query)

    def move(self, derivation: Derivation, floor_us: int, waits: bool, takes_over: bool = False) -> None:
        """Take the slices of one side from another fragment, from where that is possible on."""
        self._part(derivation.query).move(derivation, floor_us, waits, takes_over)

    def take(
        self, fragment: str, table: pa.Table, records: RecordCounts, sites: Sequence[str] = ()
    ) -> Iterator[Arrival]:
        """Yield the query's rows in what landed of a fragment; they wait until all sides have begun."""
        for part in self.parts:
            yield from self._pass_on(self._unify(part, part.take(fragment, table, records, sites)))

    def find_starts(
        self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int], now_us: int
    ) -> Iterator[Arrival]:
        """Learn where the sides start; yield what has waited for that."""
        found = [a for part in self.parts for a in self._unify(part, part.find_starts(frontiers, newest, now_us))]
        yield from self._pass_on(found)

    def forget_final(self, final_us: int, frontiers: Mapping[str, Frontier], awaited: Collection[str] = ()) -> None:
        """Drop sources whose windows are all final, when every site has passed them and nothing of them is awaited."""
        for part in self.parts:
            part.forget_final(final_us, frontiers, awaited)

    def _unify(self, part: FragmentSources, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield a side's partials in the layout of the query."""
        join = self.query.join
        if join is None:
            return iter(arrivals)
        place = join.places[part.query.name]
        return ((widen(join, place, table), records) for table, records in arrivals)

    def _pass_on(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield what has waited and these arrivals, if all sides have begun; otherwise let them wait."""
        self.waiting.extend(arrivals)
        if self.start_us is not None:
            ready = self.waiting
            self.waiting = []
            yield from ready
        else:
            self._bound_waiting()

    def _bound_waiting(self) -> None:
        """Pass over the oldest of what waits for another side, which then starts after it."""
        size_bytes = sum(content_bytes(table) for table, _ in self.waiting)
        while size_bytes > MAX_WAITING_BYTES and len(self.waiting) > 1:
            table, _ = self.waiting.pop(0)
            size_bytes -= content_bytes(table)
            for part in self.parts:
                part.sources[0].start_after(table)

    def _part(self, query: str) -> FragmentSources:
        return next(part for part in self.parts if part.query.name == query)
