"""What windows usually hold, by which an early answer is judged.

The last `RECENT` closed windows are the measure. Coverage is the share of their mean number of records that are in.
The bound is by their greatest: if windows are alike in any order, the next one exceeds the greatest of twenty with a
chance of at most 1 in 21, so an early sum or count lacks at most 1 - (now / greatest) but for 5%. Averages have no such
bound, and sums that may be negative neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.center.windows.closed import ColumnErrors
from catchment.quality.contract import WatchedQuantity
from catchment.storage.codec import stored

RECENT = 20  # closed windows that are remembered

Totals = tuple[float | None, ...]  # the sum of each watched quantity over all keys; None if it is not a sum


@stored()
@dataclass
class EarlyWindow:
    """An open window that was published early."""

    revision: int
    records: int


@stored()
@dataclass
class RecentWindows:
    """Records and totals of the last closed windows."""

    windows: deque[tuple[int, Totals]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, records: int, totals: Totals) -> None:
        """Remember a window that has closed."""
        self.windows.append((records, totals))

    def coverage(self, records: int) -> float:
        """Return the share of a usual window that is in; 0 where nothing is usual yet."""
        mean = sum(r for r, _ in self.windows) / len(self.windows) if self.windows else 0.0
        return min(records / mean, 1.0) if mean else 0.0

    def errors(self, watched: Sequence[WatchedQuantity], records: int, totals: Totals) -> ColumnErrors:
        """Return what may still be missing of each column, relative to the whole."""
        bounds = [self._error(i, m, records, totals[i]) for i, m in enumerate(watched)]
        return tuple((column, bounds[i]) for i, m in enumerate(watched) for column in m.columns)

    def _error(self, index: int, quantity: WatchedQuantity, records: int, total: float | None) -> float | None:
        if len(self.windows) < RECENT or not quantity.bounded or quantity.measure.name == "avg":
            return None
        if quantity.measure.name == "sum":
            usual = [totals[index] for _, totals in self.windows]
            known = [t for t in usual if t is not None and t >= 0.0]
            return _missing_share(total, max(known)) if len(known) == RECENT and total is not None else None
        missing = _missing_share(float(records), float(max(r for r, _ in self.windows)))
        factor = quantity.measure.rank_factor if quantity.measure.name == "quantile" else 1.0
        return None if missing is None else factor * missing


def totals_of(watched: Sequence[WatchedQuantity], aggregates: Sequence[Aggregate], rows: pa.Table) -> Totals:
    """Return the totals of a window's rows (keys, states)."""
    summed = {m.columns[0] for m in watched if m.measure.name == "sum"}
    if not summed:
        return (None,) * len(watched)
    lowered = partials.lower(rows, (), [a for a in aggregates if a.name in summed])
    return tuple(_total(lowered[m.columns[0]]) if m.columns[0] in summed else None for m in watched)


def _total(column: pa.ChunkedArray) -> float | None:
    value = pc.sum(column.cast(pa.float64())).as_py()
    return None if value is None else float(value)


def _missing_share(now: float | None, greatest: float) -> float | None:
    if now is None or now < 0.0:
        return None
    return max(1.0 - now / greatest, 0.0) if greatest else None
