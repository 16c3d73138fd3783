"""Which sources a pass has heard, and what they state of their progress (`catchment.site.stated_progress`).

A record that has nothing but its progress, and possibly its source, is a marker: it states something and is no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Ints, Mask
from catchment.query.sql.statements import Stream
from catchment.site.stated_progress import HEARD_SCHEMA, UNNAMED, Statements
from catchment.vectorised.expressions import VectorExpression
from catchment.vectorised.fragments import source_as_text
from catchment.vectorised.records import RecordColumns


@dataclass(frozen=True)
class HeardSources:
    """The columns of a stream whose sources state their progress, and what they have stated before this batch."""

    progress: str
    payload: tuple[str, ...]  # columns of which a marker has none
    event_time: str
    source: VectorExpression | None
    statements: Statements = field(default_factory=Statements)

    @classmethod
    def of(cls, stream: Stream) -> HeardSources | None:
        """Return what is heard of a stream; None where its sources state nothing."""
        if stream.progress_column is None:
            return None
        named = None if stream.source is None else source_as_text(stream.source, stream.schema)
        return cls(stream.progress_column, stream.payload_columns, stream.event_time, named)

    def after(self, statements: Statements) -> HeardSources:
        """Return the same for a batch that comes after these statements."""
        return replace(self, statements=statements)

    def find_markers(self, records: RecordColumns) -> Mask:
        """Return which of the records are markers."""
        is_marker = np.asarray(records.columns[self.progress].is_valid())
        for name in self.payload if is_marker.any() else ():
            is_marker = is_marker & np.asarray(records.columns[name].is_null())
        return is_marker

    def hear(self, good: RecordColumns, markers: RecordColumns) -> pa.Table:
        """Return a row per source of some records and markers."""
        late = pa.array(self._are_late(good).astype(np.int64))
        heard = pa.repeat(pa.scalar(1, pa.int64()), good.rows)
        nothing = pa.repeat(pa.scalar(0, pa.int64()), markers.rows)
        tables = [
            self._table(good, heard, late),
            self._table(markers, nothing, nothing),
        ]
        return self.merge(tables)

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of several tables as one per source."""
        table = pa.concat_tables(tables)
        how = [("records", "sum"), ("late", "sum"), ("stated_us", "max")]
        grouped = table.group_by(["source"], use_threads=False).aggregate(how)
        return grouped.rename_columns(HEARD_SCHEMA.names).cast(HEARD_SCHEMA)

    def _table(self, records: RecordColumns, heard: pa.Array, late: pa.Array) -> pa.Table:
        stated = records.columns[self.progress].cast(pa.int64())
        return pa.table([self._names(records), heard, late, stated], schema=HEARD_SCHEMA)

    def _names(self, records: RecordColumns) -> pa.Array:
        return pa.nulls(records.rows, pa.string()) if self.source is None else self.source.evaluate(records)

    def _are_late(self, good: RecordColumns) -> Mask:
        """Return which records are older than what their source has stated."""
        if self.statements.is_empty() or not good.rows:
            return np.zeros(good.rows, dtype=bool)
        coded = pc.fill_null(self._names(good), UNNAMED).dictionary_encode()
        stated: Ints = np.array([self.statements.of(name) for name in coded.dictionary.to_pylist()], dtype=np.int64)
        micros = np.asarray(good.columns[self.event_time].cast(pa.int64()))
        return np.asarray(micros < stated[np.asarray(coded.indices)])
