"""What a query takes from which fragment, from when until when.

A query's partials come from a shared fragment by a derivation. They are the same partials whichever fragment they are
derived from, so a query may change its fragment at a boundary of its slices: every slice is taken from exactly one
fragment, and a window that spans the boundary is merged of both. A query that comes during a run begins where every
site has begun to compute its fragment, so that no window is published that was seen only in part.

Invariants: the inflows of a query cover the time from its start on without gap or overlap; what lands of a fragment
before it is known where its inflow begins is held and then taken or passed over, never lost and never taken twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.events import CenterQuery
from catchment.optimizer.sharing.derive import Derivation, derive
from catchment.progress.frontier import Frontier
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing, Window, WindowSpec

Records = tuple[tuple[str, int, int], ...]  # (site, slice, raw records)
Taken = tuple[pa.Table, Records]


@dataclass(frozen=True, order=True)
class LaterWindows(WindowSpec):
    """The windows of a specification that start at an instant or after."""

    from_us: int = START_OF_TIME_US

    def containing(self, instant_us: int) -> Iterator[Window]:
        return (w for w in super().containing(instant_us) if w.start_us >= self.from_us)


@dataclass
class Inflow:
    """The slices in [from, until) of one fragment; where it begins is unknown until every site has begun."""

    fragment: str
    derivation: Derivation | None  # None: the fragment's partials are the query's own
    floor_us: int = START_OF_TIME_US  # what came before this was merged before anyone listened
    waits: bool = False  # whether the first mark of each site tells where it began
    from_us: int | None = None
    until_us: int = END_OF_TIME_US
    held: list[Taken] = field(default_factory=list)

    def begin(self, sites: Iterable[str], frontiers: Mapping[str, Frontier], slicing: Slicing) -> bool:
        """Learn where it begins, if every site has said so; whether it was learnt just now."""
        if self.from_us is not None:
            return False
        firsts = [frontiers[s].first(self.fragment) if s in frontiers else None for s in sites] if self.waits else []
        if any(first is None for first in firsts):
            return False
        at = max((self.floor_us, *(f for f in firsts if f is not None)))
        self.from_us = _boundary(slicing, at)
        return True

    def derived(self, partials: pa.Table) -> pa.Table:
        """The query's own partials of a fragment's."""
        return derive(partials, self.derivation) if self.derivation is not None else partials

    def cut(self, taken: Taken) -> Taken:
        """The part of some partials that lies in it."""
        table, records = taken
        assert self.from_us is not None
        if self.from_us > START_OF_TIME_US or self.until_us < END_OF_TIME_US:
            start = table[SLICE_COLUMN]
            inside = pc.and_(pc.greater_equal(start, self.from_us), pc.less(start, self.until_us))
            table = table.filter(inside)
            records = tuple(r for r in records if self.from_us <= r[1] < self.until_us)
        return table, records

    def release(self) -> Iterator[Taken]:
        """What was held, once it is known where it begins."""
        held, self.held = self.held, []
        return (self.cut(taken) for taken in held)


class Intake:
    """The inflows of one query, oldest first."""

    def __init__(self, query: CenterQuery, floor_us: int = START_OF_TIME_US, waits: bool = False) -> None:
        self.query = query
        self.slicing = Slicing.of([query.window])
        begun = START_OF_TIME_US if floor_us == START_OF_TIME_US and not waits else None
        self.inflows = [Inflow(query.feed, query.derivation, floor_us, waits, begun)]

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(i.fragment for i in self.inflows)

    @property
    def start_us(self) -> int | None:
        """From when on windows are answered, if that is known."""
        return self.inflows[0].from_us

    def move(self, derivation: Derivation, floor_us: int, waits: bool) -> None:
        """From where it can, take the slices from another fragment. One move at a time."""
        if self.inflows[-1].fragment != derivation.fragment:
            self.inflows.append(Inflow(derivation.fragment, derivation, floor_us, waits))

    @property
    def parts(self) -> tuple[Intake, ...]:
        """The intakes over one stream that it is made of."""
        return (self,)

    def feed(self, query: str) -> str:
        """The fragment that a query, or a side of one, takes its newest slices from."""
        assert query == self.query.name
        return self.inflows[-1].fragment

    @property
    def moving(self) -> bool:
        return len(self.inflows) > 1

    def take(self, fragment: str, partials: pa.Table, records: Records) -> Iterator[Taken]:
        """The query's own partials in what landed of a fragment."""
        for inflow in self.inflows:
            if inflow.fragment == fragment and inflow.from_us is None:
                inflow.held.append((inflow.derived(partials), records))
        yield from self.peek(fragment, partials, records)

    def peek(self, fragment: str, partials: pa.Table, records: Records = ()) -> Iterator[Taken]:
        """The same, without taking it."""
        for inflow in self.inflows:
            if inflow.fragment == fragment and inflow.from_us is not None:
                yield inflow.cut((inflow.derived(partials), records))

    def settle(self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int]) -> Iterator[Taken]:
        """Learn where inflows begin; what was held for them. `newest`: the newest slice merged of each fragment."""
        before: Inflow | None = None
        for inflow in self.inflows:
            if before is not None and inflow.from_us is None:
                if before.from_us is None:
                    return
                # What was taken of the fragment before stays taken: the next one begins after it.
                taken_us = newest.get(before.fragment, START_OF_TIME_US) + 1
                inflow.floor_us = max(inflow.floor_us, before.from_us, taken_us)
            if inflow.begin(self.query.sites, frontiers, self.slicing):
                if before is not None and inflow.from_us is not None:
                    before.until_us = inflow.from_us
                yield from inflow.release()
            before = inflow

    def forget(self, final_us: int) -> None:
        """Let go of inflows whose windows are all final."""
        while self.moving and self.inflows[1].from_us is not None:
            if final_us < self.inflows[0].until_us + self.query.window.size_us:
                return
            start = self.inflows[0].from_us
            del self.inflows[0]
            self.inflows[0].from_us = start  # what comes for the windows before is registered as too late

    def mark(self, frontier: Frontier) -> int:
        """How far a site has come with the query's slices."""
        mark = frontier.mark(self.inflows[0].fragment)
        for before, after in zip(self.inflows, self.inflows[1:], strict=False):
            if after.from_us is None or mark < before.until_us:
                return mark
            mark = max(before.until_us, frontier.mark(after.fragment))
        return mark

    # --- snapshots ----------------------------------------------------------------------------------------

    def to_dict(self) -> list[dict[str, Any]]:
        return [{f.name: getattr(i, f.name) for f in fields(Inflow)} for i in self.inflows]

    def from_dict(self, saved: Iterable[Mapping[str, Any]]) -> None:
        self.inflows = [Inflow(**{**s, "held": [(t, tuple(map(tuple, r))) for t, r in s["held"]]}) for s in saved]


def _boundary(slicing: Slicing, at_us: int) -> int:
    """The first slice that starts at an instant or after."""
    if at_us <= START_OF_TIME_US:
        return START_OF_TIME_US
    start = slicing.start_of(at_us)
    return at_us if start == at_us else slicing.end_of(start)
