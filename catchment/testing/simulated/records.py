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
from catchment.timeline import START_OF_TIME_US


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

    @cached_property
    def breaks_word(self) -> bool:
        """Whether a record comes that is older than what its source had stated, or all sources that were heard.

        A record without a source speaks for the whole stream at its site.
        """
        stream = self.stream
        if stream.progress_column is None:
            return False
        stated_us = _micros(self.table[stream.progress_column], START_OF_TIME_US).tolist()
        names = self.table[stream.source].to_pylist() if stream.source is not None else [None] * len(self)
        whole_us = START_OF_TIME_US
        by_source: dict[object, int] = {}
        for name, good, at_us, said_us in zip(names, self.are_good, self.times_us.tolist(), stated_us, strict=True):
            believed_us = by_source.get(name, min(by_source.values(), default=START_OF_TIME_US))
            if good and at_us < max(whole_us, believed_us):
                return True
            if name is None:
                whole_us = max(whole_us, said_us)
            else:
                by_source[name] = max(by_source.get(name, START_OF_TIME_US), said_us)
        return False

    def arrived_by(self, now_us: int) -> int:
        """Return how many records have arrived."""
        return int(np.searchsorted(self.arrival_us, now_us, side="right"))


Workload = Mapping[tuple[str, str], ArrivingRecords]  # by stream and site


def _micros(column: pa.ChunkedArray, absent: int) -> Ints:
    micros = pc.fill_null(column.cast(pa.timestamp("us")).cast(pa.int64()), absent)
    return np.asarray(micros, dtype=np.int64)
