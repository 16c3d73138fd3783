"""The records of a simulated deployment: what arrives of each stream at each site, in the order in which it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Ints, Mask
from catchment.errors import QueryError
from catchment.query.sql.statements import Stream


@dataclass(frozen=True)
class ArrivingRecords:
    """All records of one stream at one site, ordered by when they arrive; a record's number is its place here."""

    stream: Stream
    site: str
    table: pa.Table
    arrival_us: Ints

    @classmethod
    def of(cls, stream: Stream, site: str, records: pa.Table, arrival_us: Ints | None = None) -> ArrivingRecords:
        """Return records in the order of arrival; without instants each arrives at its own event time."""
        names = [c.name for c in stream.columns]
        missing = [name for name in names if name not in records.column_names]
        if missing:
            raise QueryError(
                f"the records of {stream.name!r} at {site!r} lack the columns {missing}",
                hint=f"give a table with the columns {names}",
            )
        table = records.select(names).cast(stream.schema)
        given = _micros(table[stream.event_time], 0) if arrival_us is None else np.asarray(arrival_us, np.int64)
        order = np.argsort(given, kind="stable")
        return cls(stream, site, table.take(pa.array(order)), given[order])

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def times_us(self) -> Ints:
        """The event times; 0 where a record has none."""
        return _micros(self.table[self.stream.event_time], 0)

    @cached_property
    def are_good(self) -> Mask:
        """Which records have an event time; the others are quarantined."""
        return np.asarray(pc.is_valid(self.table[self.stream.event_time]))

    def arrived_by(self, now_us: int) -> int:
        """Return how many records have arrived."""
        return int(np.searchsorted(self.arrival_us, now_us, side="right"))


Workload = Mapping[tuple[str, str], ArrivingRecords]  # by stream and site


def _micros(column: pa.ChunkedArray, absent: int) -> Ints:
    micros = pc.fill_null(column.cast(pa.timestamp("us")).cast(pa.int64()), absent)
    return np.asarray(micros, dtype=np.int64)
