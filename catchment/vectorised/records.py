"""Records as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from catchment.arrays import Index


@dataclass(frozen=True)
class RecordColumns:
    """Records as columns of one length."""

    columns: Mapping[str, pa.Array]
    rows: int

    @classmethod
    def empty(cls, columns: pa.Schema) -> RecordColumns:
        """Return no records."""
        return cls({column.name: pa.array([], column.type) for column in columns}, 0)

    @classmethod
    def of(cls, table: pa.Table, columns: pa.Schema) -> RecordColumns:
        """Return the rows of a table with these columns."""
        return cls({c.name: table[c.name].combine_chunks().cast(c.type) for c in columns}, table.num_rows)

    def filter(self, chosen: pa.Array) -> RecordColumns:
        """Return the chosen records."""
        return RecordColumns({n: c.filter(chosen) for n, c in self.columns.items()}, chosen.true_count)

    def take(self, rows: Index) -> RecordColumns:
        """Return these records."""
        chosen = pa.array(rows)
        return RecordColumns({n: c.take(chosen) for n, c in self.columns.items()}, len(rows))
