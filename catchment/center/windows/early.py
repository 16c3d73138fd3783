"""Early answers: what an open window holds so far, against what windows usually hold.

The last `RECENT` closed windows are the measure. Coverage is the share of their mean number of records that are in.
The bound is by their greatest: if windows are alike in any order, the next one exceeds the greatest of twenty with a
chance of at most 1 in 21, so an early sum or count lacks at most 1 - (now / greatest) but for 5%. Averages have no such
bound, and sums that may be negative neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.quality.contract import WatchedQuantity

RECENT = 20


@dataclass
class EarlyWindow:
    """An open window that was published early."""

    revision: int
    records: int


class Recent:
    """What the last closed windows held: records, and the total of each watched sum."""

    def __init__(self, measured: Sequence[WatchedQuantity], aggregates: Sequence[Aggregate]) -> None:
        self._measured, self._aggregates = tuple(measured), tuple(aggregates)
        self._held: deque[tuple[int, tuple[float | None, ...]]] = deque(maxlen=RECENT)

    def note(self, records: int, rows: pa.Table) -> None:
        """A window closed with these records and rows (keys, states)."""
        self._held.append((records, self._totals(rows)))

    def coverage(self, records: int) -> float:
        """The share of a usual window that is in; 0 where nothing is usual yet."""
        mean = sum(r for r, _ in self._held) / len(self._held) if self._held else 0.0
        return min(records / mean, 1.0) if mean else 0.0

    def errors(self, records: int, rows: pa.Table) -> tuple[tuple[str, float | None], ...]:
        """What may still be missing of each column, relative to the whole; None where it is not known."""
        totals = self._totals(rows)
        bounds = [self._error(i, m, records, totals[i]) for i, m in enumerate(self._measured)]
        return tuple((c, bounds[i]) for i, m in enumerate(self._measured) for c in m.columns)

    def _error(self, place: int, measured: WatchedQuantity, records: int, total: float | None) -> float | None:
        if len(self._held) < RECENT or not measured.bounded or measured.measure.name == "avg":
            return None
        if measured.measure.name == "sum":
            usual = [totals[place] for _, totals in self._held]
            known = [t for t in usual if t is not None and t >= 0.0]
            return _lacking(total, max(known)) if len(known) == RECENT and total is not None else None
        factor = measured.measure.rank_factor if measured.measure.name == "quantile" else 1.0
        lacking = _lacking(float(records), float(max(r for r, _ in self._held)))
        return None if lacking is None else factor * lacking

    def _totals(self, rows: pa.Table) -> tuple[float | None, ...]:
        """The total over all keys of each watched sum; None for what is not one."""
        summed = {m.columns[0] for m in self._measured if m.measure.name == "sum"}
        lowered = partials.lower(rows, (), [a for a in self._aggregates if a.name in summed]) if summed else None
        return tuple(
            _total(lowered[m.columns[0]]) if lowered is not None and m.columns[0] in summed else None
            for m in self._measured
        )

    def to_list(self) -> list[Any]:
        return [[records, list(totals)] for records, totals in self._held]

    def from_list(self, state: Sequence[Any]) -> None:
        self._held = deque(((records, tuple(totals)) for records, totals in state), maxlen=RECENT)


def _total(column: pa.ChunkedArray) -> float | None:
    value = pc.sum(column.cast(pa.float64())).as_py()
    return None if value is None else float(value)


def _lacking(now: float | None, greatest: float) -> float | None:
    if now is None or now < 0.0:
        return None
    return max(1.0 - now / greatest, 0.0) if greatest else None
