"""Lines of text files that were read before, read again by their numbers: a sample of them, or all.

A sample is taken by the numbers alone, before a line is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from catchment.files.numbered_lines import LinePart, read_part
from catchment.shedding.reader_filter import ROW, ReadRequest
from catchment.spark.sources.reread import passes

LINES_PER_BATCH = 100_000  # that a task hands on together


@dataclass
class PartNumber(InputPartition):
    """The number of a part among those that are read."""

    number: int


@dataclass(frozen=True)
class LinePartReader:
    """Reads the lines of a batch that are `wanted`, by the rule of `stream`, with their numbers (`ROW`)."""

    parts: Sequence[LinePart]
    batch: int
    stream: str
    wanted: Sequence[ReadRequest]

    def partitions(self) -> list[PartNumber]:
        return [PartNumber(number) for number in range(len(self.parts))]

    def read(self, partition: PartNumber) -> Iterator[pa.RecordBatch]:
        part = self.parts[partition.number]
        lines = read_part(part)
        rows = np.arange(part.first_line, part.first_line + len(lines), dtype=np.int64)
        kept = np.flatnonzero(passes(self.stream, self.batch, self.wanted, pa.array(rows)))
        for start in range(0, len(kept), LINES_PER_BATCH):
            chosen = kept[start : start + LINES_PER_BATCH]
            texts = [lines[i].decode("utf-8", errors="replace") for i in chosen.tolist()]
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string()), pa.array(rows[chosen])], ["value", ROW])
