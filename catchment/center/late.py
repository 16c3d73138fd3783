"""Late partials that wait for their repair, and when it is due.

A record of a closed window is registered, not merged at once: one repair serves many. A repair is due when the event
times of what is registered span more than `spread_us` (Yang et al., HPM, section 2: Gamma), when it is more than
`max_records`, or when the first of it has waited for `max_age_us`; the paper has the first alone, with which the last
batch of a stream that falls silent is never repaired. Bound: `max_records`, after which the next tick repairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.partials import group_codes
from catchment.errors import CenterError
from catchment.storage.codec import stored
from catchment.timeline import SECOND_US

WINDOW_COLUMN = "window_start_us"


@stored()
@dataclass(frozen=True)
class RepairRule:
    """When what is registered is repaired."""

    spread_us: int = 5 * SECOND_US
    max_records: int = 10_000
    max_age_us: int = 10 * SECOND_US

    def __post_init__(self) -> None:
        if self.spread_us < 0 or self.max_records < 1 or self.max_age_us < 0:
            raise CenterError(f"a repair is due after a spread, a number and an age that are not negative: {self}")


@dataclass(frozen=True, slots=True)
class Late:
    """What one window waits to have merged: partials, and the raw records behind them."""

    partials: pa.Table
    records: int


class LateRegistry:
    """The registered late partials of one query, by window."""

    def __init__(self, rule: RepairRule) -> None:
        self.rule = rule
        self._tables: dict[int, list[pa.Table]] = {}
        self._records: dict[int, int] = {}
        self._since_us: int | None = None
        self._span: tuple[int, int] | None = None
        self.records = 0  # distinct raw records that are registered

    def __bool__(self) -> bool:
        return bool(self._tables)

    def __contains__(self, start_us: int) -> bool:
        return start_us in self._tables

    @property
    def starts_us(self) -> tuple[int, ...]:
        return tuple(sorted(self._tables))

    def register(self, start_us: int, rows: pa.Table, slice_us: int, now_us: int) -> None:
        """Partials (keys, states) of a slice of a closed window."""
        self._tables.setdefault(start_us, []).append(rows)
        self._since_us = now_us if self._since_us is None else self._since_us
        low, high = self._span or (slice_us, slice_us)
        self._span = min(low, slice_us), max(high, slice_us)

    def count(self, starts_us: Iterable[int], records: int) -> None:
        """So many raw records stand behind what was registered for these windows."""
        self.records += records
        for start in starts_us:
            self._records[start] = self._records.get(start, 0) + records

    def due(self, now_us: int) -> str | None:
        """Why everything that is registered should be repaired now; None if it may wait."""
        if self._since_us is None or self._span is None:
            return None
        if self._span[1] - self._span[0] > self.rule.spread_us:
            return f"late records span more than {self.rule.spread_us / SECOND_US:g} s"
        if self.records >= self.rule.max_records:
            return f"{self.records} late records"
        if now_us - self._since_us >= self.rule.max_age_us:
            return f"late records have waited {self.rule.max_age_us / SECOND_US:g} s"
        return None

    def wanted(self, starts_us: Iterable[int], keys: list[str]) -> pa.Table:
        """(window_start_us, keys...) of the published rows that a repair of these windows changes, each once."""
        parts = [with_window(t.select(keys), start) for start in starts_us for t in self._tables[start]]
        return group_codes(pa.concat_tables(parts), [WINDOW_COLUMN, *keys])[1]

    def take(self, start_us: int) -> Late:
        """What is registered for a window, which is thereby repaired."""
        late = Late(pa.concat_tables(self._tables.pop(start_us)), self._records.pop(start_us, 0))
        if not self._tables:
            self._since_us, self._span, self.records = None, None, 0
            self._records.clear()
        return late

    def to_dict(self) -> dict[str, Any]:
        counts = [[start, n] for start, n in self._records.items()]
        return {"since_us": self._since_us, "span": self._span, "records": self.records, "counts": counts}

    def to_table(self, schema: pa.Schema) -> pa.Table:
        """All that is registered, with its window."""
        parts = [with_window(t, start) for start, tables in self._tables.items() for t in tables]
        return pa.concat_tables([with_window(schema.empty_table(), 0), *parts])

    def from_dict(self, state: dict[str, Any], table: pa.Table) -> None:
        self._since_us, self.records = state["since_us"], state["records"]
        self._span = tuple(state["span"]) if state["span"] else None
        self._records = dict(state["counts"])
        starts, rows = table[WINDOW_COLUMN], table.drop_columns([WINDOW_COLUMN])
        self._tables = {s: [rows.filter(pc.equal(starts, s))] for s in pc.unique(starts).to_pylist()}


def with_window(rows: pa.Table, start_us: int) -> pa.Table:
    """Rows with the start of their window in front."""
    return rows.add_column(0, WINDOW_COLUMN, pa.array([start_us] * rows.num_rows, pa.int64()))
