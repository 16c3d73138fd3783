"""JSON lines as columns, by Arrow's parser; lines that Spark may read otherwise are left to Spark.

Arrow reads objects one after another, wherever lines end. That each line is one object is certain because every line
begins with { and ends with }, and there are as many objects as lines: behind a } that ends a value within an object or
a list, no { may follow, so each line begins at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from catchment.arrays import Mask
from catchment.query.types import TIMESTAMP
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.lines import LineBlock, flag
from catchment.vectorised.parsed_lines import ParsedLines
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.text_values import PIECES, ReadValues, read_values

MAX_REFUSED = 2_000  # lines of a block that are searched for; with more of them Spark is not slower
_LONG_LINE = 1_000  # bytes; below it, no line can meet a limit of Spark's parser
_VERY_LONG_LINE = 50_000
_MAX_NESTED = 900
_LONG_NUMBER = re.compile(r"[0-9.eE+-]{900}")


@dataclass(frozen=True)
class JsonLineParser:
    """Reads these columns of JSON lines; a line without the event time is for Spark to judge."""

    columns: pa.Schema
    event_time: str | None  # None: it is not among the columns

    def parse(self, block: LineBlock, is_first: bool) -> ParsedLines:
        """Return the records of some lines, and the lines that are doubtful."""
        odd = (block.first_bytes() != ord("{")) | (block.last_bytes() != ord("}")) | self._beyond_limits(block)
        doubtful = block.texts_unless_blank(odd)
        kept = block.keep(~odd)
        refused: list[int] = []
        tables = list(self._read(kept, 0, kept.rows, refused)) if kept.rows else []
        if refused:
            doubtful += [kept.text(row) for row in refused]
            kept = kept.keep(~flag(kept.rows, refused))
        if not tables:
            return ParsedLines(RecordColumns.empty(self.columns), doubtful)
        return self._convert(pa.concat_tables(tables).combine_chunks(), kept, doubtful)

    def _read(self, block: LineBlock, first: int, end: int, refused: list[int]) -> Iterator[pa.Table]:
        """Yield the lines [first, end) as tables, but for those that are refused."""
        table = self._try_read(block.joined(first, end), end - first)
        if table is not None:
            yield table
        elif end - first == 1:
            refused.append(first)
            if len(refused) > MAX_REFUSED:
                raise NotVectorisedError(f"more than {MAX_REFUSED} lines of a block are no plain records")
        else:
            step = -(-(end - first) // PIECES)
            for at in range(first, end, step):
                yield from self._read(block, at, min(at + step, end), refused)

    def _try_read(self, data: bytes, rows: int) -> pa.Table | None:
        reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        parsing = pj.ParseOptions(explicit_schema=self._as_read, unexpected_field_behavior="ignore")
        try:
            table = pj.read_json(pa.BufferReader(data), reading, parsing)
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == rows else None

    @property
    def _as_read(self) -> pa.Schema:
        """The columns as Arrow reads them: times as text, which Arrow reads more generously than Spark."""
        return pa.schema([(c.name, pa.string() if _is_time(c.type) else c.type) for c in self.columns])

    def _convert(self, table: pa.Table, block: LineBlock, doubtful: list[str]) -> ParsedLines:
        read = {c.name: self._convert_column(table[c.name].combine_chunks(), c.type) for c in self.columns}
        return ParsedLines.of(read, block, self.event_time, doubtful)

    @staticmethod
    def _convert_column(column: pa.Array, type_: pa.DataType) -> ReadValues:
        if _is_time(type_):
            return read_values(column, type_)
        odd = np.zeros(len(column), dtype=bool)
        if type_ == pa.float64():
            numbers = np.asarray(column.fill_null(1.0))
            odd = ~np.isfinite(numbers) | ((numbers == 0.0) & np.signbit(numbers))  # Spark reads -0 as 0, and -0.0 not
        return ReadValues(column, odd)

    @staticmethod
    def _beyond_limits(block: LineBlock) -> Mask:
        """Return the lines that may be deeper, or have longer numbers or names, than Spark's parser takes."""
        lengths = block.lengths
        beyond = lengths > _VERY_LONG_LINE
        for row in np.flatnonzero((lengths > _LONG_LINE) & ~beyond).tolist():
            text = block.text(row)
            is_deep = text.count("[") + text.count("{") > _MAX_NESTED
            beyond[row] = is_deep or _LONG_NUMBER.search(text) is not None
        return beyond


def _is_time(type_: pa.DataType) -> bool:
    return bool(type_ == TIMESTAMP or type_ == pa.date32())
