"""How wrong the answers of recent windows were when they closed, by which the next one is judged.

A record that is late may be in any number of pairs of a join, and in any number of the rows that `explode` makes of it:
what sites know of their own records says nothing certain of these. So the answers of windows are compared: what a total
was when its window closed, v, and what it has become, T. If windows are alike in any order, the share (T - v) / T that
the next one lacks exceeds the greatest of the last n with a chance of at most 1 / (n + 1); so with n = 1 / delta - 1 it
lacks at most v e / (1 - e), e being the greatest share, except with chance delta. Late records only add pairs and rows,
so no row lacks more than its window does, for counts, and for sums of values of one sign.

Windows count in their order, up to the first that is not settled yet: those that take long to settle would otherwise be
missing among the last n, and they are the ones that lack most. A window that never was whole is one of which nothing is
known; while it is among the last n, no bound is stated. Only windows that closed while records were awaited are a
measure of one that does: those that closed whole lacked less, and of those without a site nothing is stated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.quality.laws import BoundLaw, law_of
from catchment.quality.merge_sites import ColumnLateness, Lateness
from catchment.storage.codec import stored

LEAST_SHARE = 1e-9  # of a total that may always be missing: a bound of 0 would be a claim to be exact
MAX_LEARNED = 500  # windows that are remembered; bounds that need more are not stated

Totals = tuple[float, ...]  # of each column that adds up, over all keys


@stored()
@dataclass
class LearnedWindow:
    """The totals of a window when it closed, and the newest ones; it is settled once it was exact."""

    closed: Totals
    newest: Totals
    is_settled: bool = False

    def share(self, column: int) -> float | None:
        """Return the share of a total that was missing when the window closed; None where that is not known."""
        first, last = self.closed[column], self.newest[column]
        if first == last:
            return 0.0 if self.is_settled else None
        return (last - first) / last if self.is_settled and 0.0 <= first < last else None


@stored()
@dataclass
class LearnedErrors:
    """The last windows of a query, by their starts."""

    windows: dict[int, LearnedWindow] = field(default_factory=dict)

    def close(self, start_us: int, totals: Totals) -> None:
        """Remember a window that closes; one that is computed again has other totals now."""
        if start_us in self.windows:
            self.windows[start_us].newest = totals
            return
        self.windows[start_us] = LearnedWindow(totals, totals)
        while len(self.windows) > MAX_LEARNED:
            del self.windows[min(self.windows)]

    def revise(self, start_us: int, totals: Totals) -> None:
        """Note the totals that a window has now."""
        if start_us in self.windows:
            self.windows[start_us].newest = totals

    def add(self, start_us: int, totals: Totals) -> None:
        """Note what has come to the totals of a window."""
        if start_us in self.windows:
            known = self.windows[start_us]
            known.newest = tuple(a + b for a, b in zip(known.newest, totals, strict=True))

    def settle(self, start_us: int) -> None:
        """Note that a window lacks nothing any more."""
        if start_us in self.windows:
            self.windows[start_us].is_settled = True

    def lateness(
        self, start_us: int, columns: Sequence[str], late: Lateness, unsettled: Collection[int], delta: float
    ) -> Lateness:
        """Return what a window may lack of each column, except with chance delta; `unsettled` may change still."""
        known = self.windows.get(start_us)
        needed = ceil(1.0 / delta - 1e-9) - 1
        ordered = ((start, self.windows[start]) for start in sorted(self.windows) if start != start_us)
        settled = takewhile(lambda item: item[1].is_settled or item[0] not in unsettled, ordered)
        last = [window for _, window in settled][-needed:]
        if known is None or len(last) < needed:
            return replace(late, records=None, columns=())
        found = (_column_lateness(name, known, i, last) for i, name in enumerate(columns))
        return replace(late, records=None, columns=tuple(found))


def _column_lateness(name: str, known: LearnedWindow, column: int, last: Sequence[LearnedWindow]) -> ColumnLateness:
    shares = [window.share(column) for window in last]
    greatest = max((share for share in shares if share is not None), default=0.0)
    first, newest = known.closed[column], known.newest[column]
    if None in shares or greatest >= 1.0 or not 0.0 <= first <= newest:
        return ColumnLateness(name, None)
    amount = first / (1.0 - greatest) - newest
    if amount < -LEAST_SHARE * newest:  # more has come than ever came: nothing is known of what else may come
        return ColumnLateness(name, None)
    amount = max(amount, LEAST_SHARE * newest)
    return ColumnLateness(name, amount / (newest + amount) if amount else 0.0, amount)


def learned_columns(aggregates: Sequence[Aggregate]) -> tuple[str, ...]:
    """Return the aggregates whose totals are learned: counts and sums."""
    return tuple(a.name for a in aggregates if law_of(a) in (BoundLaw.COUNT, BoundLaw.SUM))


def totals_of_answers(aggregates: Sequence[Aggregate], rows: pa.Table) -> Totals:
    """Return the totals of the counts and sums of some rows (keys, states)."""
    summed = [a for a in aggregates if law_of(a) in (BoundLaw.COUNT, BoundLaw.SUM)]
    lowered = partials.lower(rows, (), summed)
    return tuple(float(pc.sum(lowered[a.name].cast(pa.float64(), safe=False)).as_py() or 0.0) for a in summed)
