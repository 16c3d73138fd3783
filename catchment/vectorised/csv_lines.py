"""CSV lines as columns, by Arrow's parser; lines that Spark may read otherwise are left to Spark.

Lines with a quote or a backslash are among them: the two parsers have other rules for what these mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv

from catchment.arrays import Mask
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.lines import LineBlock
from catchment.vectorised.parsed_lines import ParsedLines
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.text_values import read_values

_SPECIAL = (b'"', b"\\", b"\x00")


@dataclass(frozen=True)
class CsvLineParser:
    """Reads these columns of CSV lines; a line without the event time is for Spark to judge.

    `header` names all columns of the files, in their order.
    """

    columns: pa.Schema
    event_time: str | None  # None: it is not among the columns
    header: tuple[str, ...]
    delimiter: str
    has_header: bool

    def parse(self, block: LineBlock, is_first: bool) -> ParsedLines:
        """Return the records of some lines, and the lines that are doubtful; the first of a file may be its header."""
        if self.has_header and is_first and block.rows and self._is_expected_header(block.text(0)):
            block = block.keep(np.arange(block.rows) > 0)
        odd = (block.lengths == 0) | self._has_special_bytes(block) | self._may_be_header(block)
        odd |= ~self._has_all_fields(block)
        doubtful = block.texts_unless_blank(odd)
        kept = block.keep(~odd)
        if not kept.rows:
            return ParsedLines(RecordColumns.empty(self.columns), doubtful)
        table = self._read(kept)
        read = {c.name: read_values(table[self._place_of[c.name]], c.type) for c in self.columns}
        return ParsedLines.of(read, kept, self.event_time, doubtful)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        """Where in a line each column is, by its name."""
        lowered = [name.lower() for name in self.header]
        if len(set(lowered)) < len(lowered) or len(lowered) == 1:
            raise NotVectorisedError("CSV files with one column, or with two of one name, are parsed by Spark")
        return {column.name: lowered.index(column.name.lower()) for column in self.columns}

    def _read(self, block: LineBlock) -> list[pa.StringArray]:
        """Return all fields as text, null where there is none; a field that is needed by no column is null."""
        names = [str(place) for place in range(len(self.header))]
        wanted = sorted(set(self._place_of.values()))
        reading = pv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=names)
        parsing = pv.ParseOptions(delimiter=self.delimiter, quote_char=False, double_quote=False, escape_char=False)
        converting = pv.ConvertOptions(
            include_columns=[names[place] for place in wanted],
            column_types={names[place]: pa.string() for place in wanted},
            null_values=[""],
            strings_can_be_null=True,
        )
        table = pv.read_csv(pa.BufferReader(block.data), reading, parsing, converting)
        if table.num_rows != block.rows:
            raise NotVectorisedError("lines of a CSV file are not what they seem")
        fields = [pa.nulls(block.rows, pa.string())] * len(names)
        for place in wanted:
            fields[place] = table[names[place]].combine_chunks()
        return fields

    def _has_all_fields(self, block: LineBlock) -> Mask:
        """Return which lines have as many fields as the header."""
        places = np.flatnonzero(np.frombuffer(block.data, np.uint8) == ord(self.delimiter))
        wanted = len(self.header) - 1
        if wanted and len(places) == wanted * block.rows:  # most likely all lines are as they should be
            is_behind_start = places[::wanted] >= block.starts
            is_before_end = places[wanted - 1 :: wanted] < block.ends
            if is_behind_start.all() and is_before_end.all():
                return np.ones(block.rows, dtype=bool)
        return np.asarray(np.searchsorted(places, block.ends) - np.searchsorted(places, block.starts) == wanted)

    @staticmethod
    def _has_special_bytes(block: LineBlock) -> Mask:
        found = np.zeros(block.rows, dtype=bool)
        for special in _SPECIAL:
            if special in block.data:
                places = np.flatnonzero(np.frombuffer(block.data, np.uint8) == special[0])
                found[np.searchsorted(block.ends, places)] = True
        return found

    def _is_expected_header(self, line: str) -> bool:
        """Return whether a line is the header, word for word."""
        return line.removeprefix("\ufeff") == self.delimiter.join(self.header)

    def _may_be_header(self, block: LineBlock) -> Mask:
        """Return the lines in which every declared column is named: Spark decides whether one is a header."""
        found = np.zeros(block.rows, dtype=bool)
        if not self.has_header:
            return found
        names = [column.name.lower() for column in self.columns]
        if block.data.isascii():
            lowered = block.data.lower()
            is_possible = all(name.encode() in lowered for name in names)
        else:
            lowered_text = block.data.decode("utf-8").lower()
            is_possible = all(name in lowered_text for name in names)
        if is_possible:
            for row in range(block.rows):
                text = block.text(row).lower()
                found[row] = all(name in text for name in names)
        return found
