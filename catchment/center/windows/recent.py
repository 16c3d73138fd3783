"""What windows usually hold, by which an early answer is judged.

The last closed windows are the measure. Coverage is the share of the mean number of records of the last `USUAL` that
are in. The bound is by the greatest of the last n: if windows are alike in any order, the next one exceeds it with a
chance of at most 1 / (n + 1), so with n = 1 / delta - 1 an early sum or count lacks at most what the greatest has more,
except with chance delta. Averages have no such bound, and sums that may be negative neither. A window is remembered
with the most that it lacked when it closed; one of which that is not known is not remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.center.shards.parts import add_totals, is_parts
from catchment.quality.contract import WatchedQuantity
from catchment.quality.merge_sites import ColumnLateness, Lateness
from catchment.storage.codec import stored

USUAL = 20  # closed windows that say how many records are usual
MAX_REMEMBERED = 500  # closed windows that are remembered; bounds that need more are not stated

Totals = tuple[float | None, ...]  # the sum of each watched quantity over all keys; None if it is not a sum


@stored()
@dataclass
class EarlyWindow:
    """An open window that was published early."""

    revision: int
    records: int


def _remember_more(fields: dict[str, Any]) -> dict[str, Any]:
    """Make the fields of version 2, which remembers more windows."""
    return {"windows": deque(fields["windows"], MAX_REMEMBERED)}


@stored(2, {1: _remember_more})
@dataclass
class RecentWindows:
    """Records and totals of the last closed windows."""

    windows: deque[tuple[int, Totals]] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def add(self, records: int, totals: Totals) -> None:
        """Remember a window that has closed."""
        self.windows.append((records, totals))

    def coverage(self, records: float) -> float:
        """Return the share of a usual window that is in; 0 where nothing is usual yet."""
        usual = self._last(USUAL)
        mean = sum(r for r, _ in usual) / len(usual) if usual else 0.0
        return min(records / mean, 1.0) if mean else 0.0

    def lateness(self, watched: Sequence[WatchedQuantity], records: float, totals: Totals, delta: float) -> Lateness:
        """Return what may still be missing, except with chance delta."""
        needed = ceil(1.0 / delta - 1e-9) - 1
        if len(self.windows) < needed:
            return Lateness(None, records)
        last = self._last(needed)
        missing = max(max(r for r, _ in last) - records, 0.0)
        columns = [
            _column_lateness(column, quantity, missing, records, totals[i], [t[i] for _, t in last])
            for i, quantity in enumerate(watched)
            for column in quantity.columns
        ]
        return Lateness(missing, records, tuple(columns))

    def _last(self, number: int) -> list[tuple[int, Totals]]:
        return list(islice(self.windows, max(len(self.windows) - number, 0), None))


def _column_lateness(
    column: str,
    quantity: WatchedQuantity,
    missing: float,
    records: float,
    total: float | None,
    usual: Sequence[float | None],
) -> ColumnLateness:
    if quantity.measure.name in ("count", "quantile") and quantity.bounded:
        factor = quantity.measure.rank_factor if quantity.measure.name == "quantile" else 1.0
        return ColumnLateness(column, factor * _share(missing, records))
    known = [t for t in usual if t is not None and t >= 0.0]
    if quantity.measure.name != "sum" or len(known) < len(usual) or total is None or total < 0.0:
        return ColumnLateness(column, None)
    amount = max(max(known) - total, 0.0)
    return ColumnLateness(column, _share(amount, total), amount)


def _share(missing: float, held: float) -> float:
    return missing / (held + missing) if missing else 0.0


def totals_of(watched: Sequence[WatchedQuantity], aggregates: Sequence[Aggregate], rows: pa.Table) -> Totals:
    """Return the totals of a window's rows (keys, states), or of its parts."""
    if is_parts(rows):
        return add_totals(rows, len(watched))
    summed = {m.columns[0] for m in watched if m.measure.name == "sum"}
    if not summed:
        return (None,) * len(watched)
    lowered = partials.lower(rows, (), [a for a in aggregates if a.name in summed])
    return tuple(_total(lowered[m.columns[0]]) if m.columns[0] in summed else None for m in watched)


def _total(column: pa.ChunkedArray) -> float | None:
    value = pc.sum(column.cast(pa.float64(), safe=False)).as_py()  # large whole numbers are rounded
    return None if value is None else float(value)
