"""Late partials that wait for their repair.

A record of a closed window is registered, not merged at once: one repair serves many. `RepairRule` says when it is due.
Bound: `max_records` of the rule, after which the next tick repairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from catchment.aggregates.partials import group_codes
from catchment.center.query import RepairRule
from catchment.center.shards.parts import concat_rows
from catchment.storage.codec import stored
from catchment.timeline import SECOND_US

WINDOW_COLUMN = "window_start_us"


@dataclass(frozen=True, slots=True)
class LatePartials:
    """What one window waits to have merged: partials, and the number of raw records behind them."""

    partials: pa.Table
    records: int


@stored()
@dataclass
class LateRegistry:
    """The registered late partials of one query, by the start of their window."""

    tables: dict[int, list[pa.Table]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # raw records per window
    since_us: int | None = None  # when the first of them was registered
    span: tuple[int, int] | None = None  # the first and the last of their slices
    records: int = 0  # distinct raw records that are registered

    def __bool__(self) -> bool:
        return bool(self.tables)

    def __contains__(self, start_us: int) -> bool:
        return start_us in self.tables

    @property
    def starts_us(self) -> tuple[int, ...]:
        return tuple(sorted(self.tables))

    def register(self, start_us: int, rows: pa.Table, slice_us: int, now_us: int) -> None:
        """Register partials (keys, states) of one slice of a closed window."""
        self.tables.setdefault(start_us, []).append(rows)
        if self.since_us is None:
            self.since_us = now_us
        low, high = self.span or (slice_us, slice_us)
        self.span = min(low, slice_us), max(high, slice_us)

    def count(self, starts_us: Iterable[int], records: int) -> None:
        """Count raw records that stand behind what was registered for these windows."""
        self.records += records
        for start_us in starts_us:
            self.counts[start_us] = self.counts.get(start_us, 0) + records

    def why_due(self, rule: RepairRule, now_us: int) -> str | None:
        """Return why everything that is registered should be repaired now; None if it may wait."""
        if self.since_us is None or self.span is None:
            return None
        if self.span[1] - self.span[0] > rule.spread_us:
            return f"late records span more than {rule.spread_us / SECOND_US:g} s"
        if self.records >= rule.max_records:
            return f"{self.records} late records"
        if now_us - self.since_us >= rule.max_age_us:
            return f"late records have waited {rule.max_age_us / SECOND_US:g} s"
        return None

    def changed_keys(self, starts_us: Iterable[int], keys: list[str]) -> pa.Table:
        """Return (window_start_us, keys...) of the published rows that a repair of these windows changes, each once."""
        parts = [with_window(t.select(keys), start_us) for start_us in starts_us for t in self.tables[start_us]]
        return group_codes(pa.concat_tables(parts), [WINDOW_COLUMN, *keys])[1]

    def take(self, start_us: int) -> LatePartials:
        """Remove and return what is registered for a window."""
        late = LatePartials(concat_rows(self.tables.pop(start_us)), self.counts.pop(start_us, 0))
        if not self.tables:
            self.since_us = None
            self.span = None
            self.records = 0
            self.counts.clear()
        return late

    def merge_all(self) -> None:
        """Leave one table per window, so that writing the state down is cheap."""
        for start_us, tables in self.tables.items():
            self.tables[start_us] = [concat_rows(tables)]


def with_window(rows: pa.Table, start_us: int) -> pa.Table:
    """Return rows with the start of their window in front."""
    return rows.add_column(0, WINDOW_COLUMN, pa.array([start_us] * rows.num_rows, pa.int64()))
