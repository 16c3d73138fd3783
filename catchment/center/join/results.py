"""The tables of a query that joins streams: beside its answers, the pairing that each window was answered from.

`sides/<query>`: one row per (window, partial of a side, revision), only those that a revision changed. A repair recalls
the newest of each from here, and answers the window again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.events import Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import instants, retracted_state, state_of
from catchment.center.results.write import OnUnfinished, ResultTables
from catchment.query.fragment import Fragment


@dataclass(frozen=True, kw_only=True)
class JoinedTables(ResultTables):
    """The tables of one join; `pairing` is the fragment whose rows hold the partials of all streams."""

    pairing: Fragment
    kinds: ClassVar[tuple[str, ...]] = ("results", "windows", "late", "sides")

    def publish(
        self, sequence: int, revisions: Sequence[Publish], on_unfinished: OnUnfinished = lambda windows, reason: None
    ) -> None:
        super().publish(sequence, revisions, on_unfinished)
        kept = [r for r in revisions if r.kept is not None and (r.kept.num_rows or r.replaces)]
        if kept:
            self._append("sides", sequence, lambda: pa.concat_tables([t for r in kept for t in self._all_sides(r)]))

    @property
    def is_indirect(self) -> bool:
        """Whether records are not what its rows count: pairs are."""
        return True

    def _all_sides(self, revision: Publish) -> Iterator[pa.Table]:
        """Yield the partials that changed, and what takes back those that a replacing revision has no more."""
        assert revision.kept is not None
        yield self._sides(revision, state_of(revision.kept, self.pairing))
        if revision.replaces:
            before = self.recall_windows([revision.window.start_us])
            gone = partials.select_others(before, revision.kept, list(self.pairing.key_names))
            yield self._sides(revision, retracted_state(gone, self.pairing))

    def _sides(self, revision: Publish, states: pa.Array) -> pa.Table:
        return pa.table(
            {
                "window_start": instants(revision.window.start_us, len(states)),
                "revision": pa.array([revision.revision] * len(states), pa.int32()),
                "state": states,
            }
        )

    def recall_windows(self, starts_us: Sequence[int]) -> pa.Table:
        """Return the whole pairing of some windows."""
        return self.recall(pa.table({WINDOW_COLUMN: pa.array(starts_us, pa.int64())}))

    def recall(self, wanted: pa.Table) -> pa.Table:
        """Return the newest partials of all streams of some windows: (window_start_us, the pairing's keys, states)."""
        return self._recall("sides", self.pairing, wanted)
