"""How wrong the answers of recent windows were when they closed, by which the next one is judged.

A record that is late may be in any number of pairs of a join, and in any number of the rows that `explode` makes of it:
what sites know of their own records says nothing certain of these. So the answers of windows are compared: what a total
was when its window closed, v, and what it has become, T. If windows are alike in any order, the share (T - v) / T that
the next one lacks exceeds the greatest of the last n with a chance of at most 1 / (n + 1); so with n = 1 / delta - 1 it
lacks at most v e / (1 - e), e being the greatest share, except with chance delta. Late records only add pairs and rows,
so no row lacks more than its window does, for counts, and for sums of values of one sign.

In an outer join they also take rows back, and a pair may count under another key than the row in whose place it is. So
there it is added up what every revision adds to rows, and what it takes from rows: a row is off by no more than the
greater of what is still to be added and still to be taken in its whole window, whatever the signs of its values are.
Both are learned as shares of the sizes of all rows when the window closed, in the same way.

Windows count in their order, up to the first that is not settled yet: those that take long to settle would otherwise be
missing among the last n, and they are the ones that lack most. A window that never was whole is one of which nothing is
known; while it is among the last n, no bound is stated. Only windows that closed while records were awaited are a
measure of one that does: those that closed whole lacked less, and of those without a site nothing is stated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import ceil, inf, isfinite

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.grouped import floats_of
from catchment.arrays import Floats
from catchment.quality.laws import BoundLaw, law_of
from catchment.quality.merge_sites import ColumnLateness, Lateness
from catchment.query.fragment import Fragment
from catchment.storage.codec import stored

LEAST_SHARE = 1e-9  # of a total that may always be missing: a bound of 0 would be a claim to be exact
MAX_LEARNED = 500  # windows that are remembered; bounds that need more are not stated

Totals = tuple[float, ...]  # of each column that adds up, over all keys


@stored()
@dataclass(frozen=True)
class RowChanges:
    """What has come to the rows of a window since it closed, and what was taken from them; `size` is what they were."""

    size: float
    added: float = 0.0
    taken: float = 0.0

    def plus(self, other: RowChanges) -> RowChanges:
        """Return these changes and those of a further revision."""
        return RowChanges(self.size, self.added + other.added, self.taken + other.taken)

    @property
    def shares(self) -> tuple[float, float]:
        """What was added and what was taken, as shares of the size; infinite where there was nothing before."""
        return self._share(self.added), self._share(self.taken)

    def _share(self, amount: float) -> float:
        if not amount:
            return 0.0
        return amount / self.size if self.size else inf


# Version 2 has changes.
@stored(2, {1: dict})
@dataclass
class LearnedWindow:
    """The totals of a window when it closed, and the newest ones; it is settled once it was exact.

    Where rows may be taken back, `changes` has what each revision changed of them, summed up.
    """

    closed: Totals
    newest: Totals
    is_settled: bool = False
    changes: tuple[RowChanges | None, ...] | None = None

    def change(self, column: int) -> RowChanges | None:
        """Return what has changed since the window closed; None where that is not known."""
        if self.changes is not None:
            return self.changes[column]
        first, last = self.closed[column], self.newest[column]
        return RowChanges(first, last - first) if first == last or 0.0 <= first < last else None


@stored()
@dataclass
class LearnedErrors:
    """The last windows of a query, by their starts."""

    windows: dict[int, LearnedWindow] = field(default_factory=dict)

    def close(self, start_us: int, totals: Totals, sizes: Totals | None = None) -> None:
        """Remember a window that closes; one that is computed again has other totals now.

        With the `sizes` of its rows it is one whose rows may be taken back: what is then changed of them is told.
        """
        known = self.windows.get(start_us)
        if known is not None:
            known.newest = totals
            known.changes = None if known.changes is None else (None,) * len(totals)
            return
        changes = None if sizes is None else tuple(map(RowChanges, sizes))
        self.windows[start_us] = LearnedWindow(totals, totals, changes=changes)
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

    def change(self, start_us: int, totals: Totals, changes: Sequence[RowChanges]) -> None:
        """Note what a revision has changed of the rows of a window, and its totals now."""
        if start_us in self.windows:
            known = self.windows[start_us]
            known.newest = totals
            before = known.changes or (None,) * len(totals)
            known.changes = tuple(None if a is None else a.plus(b) for a, b in zip(before, changes, strict=True))

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
    own = known.change(column)
    others = [window.change(column) if window.is_settled else None for window in last]
    shares = [change.shares for change in others if change is not None and isfinite(change.size)]
    if own is None or own.size < 0.0 or len(shares) < len(last):
        return ColumnLateness(name, None)
    newest = abs(known.newest[column])
    most_added, most_taken = (max(of_all) for of_all in zip(*shares, strict=True))
    rests = (most_added * own.size - own.added, most_taken * own.size - own.taken)
    if not all(isfinite(rest) for rest in rests) or min(rests) < -LEAST_SHARE * max(newest, own.size):
        return ColumnLateness(name, None)  # more has come than ever came: nothing is known of what else may come
    amount = max(*rests, LEAST_SHARE * newest)
    if known.changes is None:
        return ColumnLateness(name, amount / (newest + amount) if amount else 0.0, amount)
    return ColumnLateness(name, amount / (newest - amount) if amount < newest else None, amount)


def learned_columns(aggregates: Sequence[Aggregate]) -> tuple[str, ...]:
    """Return the aggregates whose totals are learned: counts and sums."""
    return tuple(a.name for a in aggregates if law_of(a) in (BoundLaw.COUNT, BoundLaw.SUM))


def totals_of_answers(aggregates: Sequence[Aggregate], rows: pa.Table) -> Totals:
    """Return the totals of the counts and sums of some rows (keys, states)."""
    return tuple(float(column.sum()) for column in _learned_values(aggregates, rows))


def sizes_of_answers(aggregates: Sequence[Aggregate], rows: pa.Table) -> Totals:
    """Return the totals of the counts and sums of some rows, without their signs."""
    return tuple(float(np.abs(column).sum()) for column in _learned_values(aggregates, rows))


def changes_of_answers(answers: Fragment, before: pa.Table, after: pa.Table) -> list[RowChanges]:
    """Return what was added to rows, and taken from them, between two revisions of all answers of a window."""
    keys = list(answers.key_names)
    groups, _ = partials.number_groups(pa.concat_tables([before, after]), keys)
    number = int(groups.max(initial=-1)) + 1
    changes = []
    for old, new in zip(*(_learned_values(answers.aggregates, table) for table in (before, after)), strict=True):
        grown = np.bincount(groups, np.concatenate([-old, new]), number)
        changes.append(RowChanges(0.0, float(grown[grown > 0.0].sum()), float(-grown[grown < 0.0].sum())))
    return changes


def _learned_values(aggregates: Sequence[Aggregate], rows: pa.Table) -> list[Floats]:
    """Return the counts and sums of some rows (keys, states), each as a column; a sum of nothing counts as 0."""
    summed = [a for a in aggregates if law_of(a) in (BoundLaw.COUNT, BoundLaw.SUM)]
    lowered = partials.lower(rows, (), summed)
    columns = (partials.one_array(lowered[a.name]) for a in summed)
    return [floats_of(column) for column in columns]
