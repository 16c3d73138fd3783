"""Rows of a spool that were released before, read again: all of them, or those that somebody wants.

The sampler stands in the tasks that read, so that what is shed costs next to nothing; what it does cost, for every row
that arrives, is told to whoever divides the load.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from catchment.replay.spool import read_rows
from catchment.shedding.reader_filter import Wanted, is_wanted, takes_all
from catchment.spark.sources.replay import ROWS_PER_PARTITION, RowRange

LEAST_ROWS_PER_PARTITION = 20_000
ROW = "_row"  # the number of a row in its spool


@dataclass(frozen=True)
class RangeReader:
    """The rows of a spool with their numbers (`ROW`), of which those that are `wanted` pass, by the sampler of
    `stream`; they are read in about so many `tasks`."""

    spool: Path
    rows: RowRange
    stream: str
    wanted: Sequence[Wanted]
    tasks: int = 2

    def partitions(self) -> list[RowRange]:
        start, end = self.rows.start, self.rows.end
        most = ROWS_PER_PARTITION if takes_all(self.wanted) else end - start  # of a sample, few rows are handed on
        step = max(LEAST_ROWS_PER_PARTITION, min(most, -(-(end - start) // self.tasks)))
        return [RowRange(a, min(a + step, end)) for a in range(start, end, step)]

    def read(self, partition: RowRange) -> Iterator[pa.RecordBatch]:
        first = partition.start
        for batch in read_rows(self.spool, partition.start, partition.end):
            numbered = batch.append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
            first += batch.num_rows
            yield numbered if takes_all(self.wanted) else self._sampled(numbered)

    def _sampled(self, numbered: pa.RecordBatch) -> pa.RecordBatch:
        from catchment.shedding.places import SamplingRule  # workers start often: only those that sample load it

        places = SamplingRule(self.stream, (ROW,)).places([numbered.column(ROW)])
        return numbered.filter(pa.array(is_wanted(self.wanted, numbered, places)))


def read_again(spark: SparkSession, reader: RangeReader, columns: str, sifted_s: Accumulator[float]) -> DataFrame:
    """The rows as a table of these columns and `ROW`. To `sifted_s` are added the seconds that the processors of
    workers took to read and sift them, where a sample is taken."""
    partitions, sifts = reader.partitions(), not takes_all(reader.wanted)

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if sifts:
            import catchment.shedding.places  # noqa: F401 - a worker loads it once: that is no work of these rows
        began = time.process_time()
        for number in (n for batch in numbers for n in batch.column(0).to_pylist()):
            for batch in reader.read(partitions[number]):
                sifted_s.add((time.process_time() - began) * sifts)
                yield batch
                began = time.process_time()

    places = spark.range(0, len(partitions), 1, max(len(partitions), 1))
    return places.mapInArrow(work, f"{columns}, `{ROW}` BIGINT")
