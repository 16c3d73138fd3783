"""The fragments of both sides of a join; arrivals of one side wait until the other has begun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from catchment.center.fragment_sources import MAX_WAITING_BYTES, Arrival, FragmentSources, RecordCounts
from catchment.center.join.pairing import widen
from catchment.center.query import CenterQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.frontier import Frontier


class JoinedSources:
    """The sources of both sides, whose partials become rows of one pairing."""

    def __init__(
        self, query: CenterQuery, parts: Sequence[FragmentSources], waiting: list[Arrival] | None = None
    ) -> None:
        assert query.join is not None
        self.query = query
        self.parts = tuple(parts)
        self.waiting = waiting or []  # arrivals that wait until both sides have begun
        self._join = query.join

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(fragment for part in self.parts for fragment in part.fragments)

    @property
    def start_us(self) -> int | None:
        """The instant from which on both sides are complete, if it is known."""
        starts = [part.start_us for part in self.parts]
        return None if None in starts else max(s for s in starts if s is not None)

    def newest_fragment(self, query: str) -> str:
        """Return the fragment that a side takes its newest slices from."""
        return self._part(query).newest_fragment(query)

    def move(self, derivation: Derivation, floor_us: int, waits: bool) -> None:
        """Take the slices of one side from another fragment, from where that is possible on."""
        self._part(derivation.query).move(derivation, floor_us, waits)

    def take(self, fragment: str, table: pa.Table, records: RecordCounts) -> Iterator[Arrival]:
        """Yield the rows of the pairing in what landed of a fragment; they wait until both sides have begun."""
        for part in self.parts:
            yield from self._pass_on(self._widen(part, part.take(fragment, table, records)))

    def find_starts(
        self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int], now_us: int
    ) -> Iterator[Arrival]:
        """Learn where the sides start; yield what has waited for that."""
        found = [a for part in self.parts for a in self._widen(part, part.find_starts(frontiers, newest, now_us))]
        yield from self._pass_on(found)

    def forget_final(self, final_us: int) -> None:
        """Drop sources whose windows are all final."""
        for part in self.parts:
            part.forget_final(final_us)

    def _widen(self, part: FragmentSources, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield a side's partials as rows of the pairing."""
        side = self._join.sides[part.query.name]
        return ((widen(self._join, side, table), records) for table, records in arrivals)

    def _pass_on(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield what has waited and these arrivals, if both sides have begun; otherwise let them wait."""
        self.waiting.extend(arrivals)
        if self.start_us is not None:
            ready = self.waiting
            self.waiting = []
            yield from ready
        else:
            self._bound_waiting()

    def _bound_waiting(self) -> None:
        """Pass over the oldest of what waits for the other side, which then starts after it."""
        size_bytes = sum(table.nbytes for table, _ in self.waiting)
        while size_bytes > MAX_WAITING_BYTES and len(self.waiting) > 1:
            table, _ = self.waiting.pop(0)
            size_bytes -= table.nbytes
            for part in self.parts:
                part.sources[0].start_after(table)

    def _part(self, query: str) -> FragmentSources:
        return next(part for part in self.parts if part.query.name == query)
