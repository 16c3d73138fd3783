"""The windows and the intake of a query that joins two streams.

To everything else it is one query: its slices hold the partials of both sides as rows of one pairing, its sites are
those of both streams, and a window closes when every one of them has passed its end with each stream that it has. Only
what is published is made of pairs. Late partials change any answer that they have a pair in: the pairing of a published
window is kept in a table of its own and recalled whole for its repair, so memory is bounded by what is open, and the
cost of a repair by the windows that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.events import CenterQuery, Publish
from catchment.center.fragment_sources import Intake, Records, Taken
from catchment.center.join.pairing import answer, changed_answers, widen
from catchment.center.late import WINDOW_COLUMN
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.open import QueryWindows
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.frontier import Frontier
from catchment.query.join import Join
from catchment.timeline import START_OF_TIME_US, Window


class JoinedWindows(QueryWindows):
    """Open slices of both sides, and published windows."""

    @property
    def join(self) -> Join:
        assert self.query.join is not None
        return self.query.join

    def wanted(self, starts_us: Sequence[int]) -> pa.Table:
        """(window_start_us): the whole pairing of these windows."""
        return pa.table({WINDOW_COLUMN: pa.array(starts_us, pa.int64())})

    def _answer(self, rows: pa.Table) -> pa.Table:
        return answer(self.join, rows)

    def _publish(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        return replace(super()._publish(window, known, reason, self._answer(rows), now_us), kept=rows)

    def _revise(
        self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, changed: pa.Table, now_us: int
    ) -> Publish:
        kept = partials.select_matching(rows, changed.select(self._keys))
        answers = changed_answers(self.join, rows, kept)
        return replace(super()._publish(window, known, reason, answers, now_us), kept=kept)


class JoinedIntake:
    """The intakes of both sides; what one side has before the other has begun waits for it."""

    def __init__(self, query: CenterQuery, sides: Sequence[Intake]) -> None:
        assert query.join is not None
        self.query, self.parts, self._join = query, tuple(sides), query.join
        self._held: list[Taken] = []

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(f for part in self.parts for f in part.fragments)

    @property
    def start_us(self) -> int | None:
        """From when on both sides are whole, if that is known."""
        starts = [part.start_us for part in self.parts]
        return None if None in starts else max(s for s in starts if s is not None)

    def feed(self, query: str) -> str:
        return self._part(query).feed(query)

    def move(self, derivation: Derivation, floor_us: int, waits: bool) -> None:
        self._part(derivation.query).move(derivation, floor_us, waits)

    def take(self, fragment: str, table: pa.Table, records: Records) -> Iterator[Taken]:
        """The pairing's rows in what landed of a fragment."""
        for part in self.parts:
            yield from self._hold(part, part.take(fragment, table, records))

    def settle(self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int]) -> Iterator[Taken]:
        """Learn where the sides begin; what was held until then."""
        found = [taken for part in self.parts for taken in self._hold(part, part.settle(frontiers, newest))]
        if self.start_us is not None:
            held, self._held = self._held, []
            yield from (*held, *found)

    def _hold(self, part: Intake, taken: Iterator[Taken]) -> Iterator[Taken]:
        """A side's partials as rows of the pairing, once both sides have begun."""
        side = self._join.sides[part.query.name]
        for table, records in taken:
            wide = widen(self._join, side, table), records
            if self.start_us is None:
                self._held.append(wide)
            else:
                yield wide

    def forget(self, final_us: int) -> None:
        for part in self.parts:
            part.forget(final_us)

    def _part(self, query: str) -> Intake:
        return next(part for part in self.parts if part.query.name == query)

    def to_dict(self) -> dict[str, Any]:
        return {"parts": [part.to_dict() for part in self.parts], "held": list(self._held)}

    def from_dict(self, saved: Any) -> None:
        for part, state in zip(self.parts, saved["parts"], strict=True):
            part.from_dict(state)
        self._held = [(table, tuple(map(tuple, records))) for table, records in saved["held"]]


def make_windows(query: CenterQuery) -> QueryWindows:
    """The windows of a query of one stream or of two."""
    return JoinedWindows(query) if query.join is not None else QueryWindows(query)


def make_intake(
    query: CenterQuery, floor_us: Callable[[str], int] = lambda fragment: START_OF_TIME_US, waits: bool = False
) -> Intake | JoinedIntake:
    """What a query takes; `floor_us` tells what of a fragment was merged before anyone listened."""
    parts = [Intake(part, floor_us(part.feed), waits) for part in query.parts]
    return JoinedIntake(query, parts) if query.join is not None else parts[0]
