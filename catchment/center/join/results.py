"""The tables of a query that joins two streams: beside its answers, the pairing that each window was answered from.

`sides/<query>`: one row per (window, partial of a side, revision), only those that a revision changed. A repair recalls
the newest of each from here, and answers the window again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from catchment.center.events import Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import instants, state_of
from catchment.center.results.write import OnUnfinished, ResultTables
from catchment.query.fragment import Fragment


@dataclass(frozen=True, kw_only=True)
class JoinedTables(ResultTables):
    """The tables of one join; `pairing` is the fragment whose rows hold the partials of both sides."""

    pairing: Fragment
    kinds: ClassVar[tuple[str, ...]] = ("results", "windows", "late", "sides")
    is_join: ClassVar[bool] = True

    def publish(
        self, sequence: int, revisions: Sequence[Publish], on_unfinished: OnUnfinished = lambda windows, reason: None
    ) -> None:
        super().publish(sequence, revisions, on_unfinished)
        kept = [r for r in revisions if r.kept is not None and r.kept.num_rows]
        if kept:
            self._append("sides", sequence, lambda: pa.concat_tables([self._sides(r, r.kept) for r in kept]))

    def _sides(self, revision: Publish, kept: pa.Table) -> pa.Table:
        return pa.table(
            {
                "window_start": instants(revision.window.start_us, kept.num_rows),
                "revision": pa.array([revision.revision] * kept.num_rows, pa.int32()),
                "state": state_of(kept, self.pairing),
            }
        )

    def recall_windows(self, starts_us: Sequence[int]) -> pa.Table:
        """Return the whole pairing of some windows."""
        return self.recall(pa.table({WINDOW_COLUMN: pa.array(starts_us, pa.int64())}))

    def recall(self, wanted: pa.Table) -> pa.Table:
        """Return the newest partials of both sides of some windows: (window_start_us, the pairing's keys, states)."""
        return self._recall("sides", self.pairing, wanted)
