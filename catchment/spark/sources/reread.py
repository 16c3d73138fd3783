"""Records that were read before, read again from their source: all of them, or those that some fragment wants.

Sampling runs inside the read tasks; the CPU time that it takes, also for rejected rows, goes to the load monitor
through an accumulator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from catchment.arrays import Mask
from catchment.replay.spool import read_rows
from catchment.shedding.reader_filter import ROW, ReadRequest, is_wanted, takes_all
from catchment.spark.sources.replay import ROWS_PER_PARTITION, RowRange

MIN_ROWS_PER_PARTITION = 20_000  # fewest rows that are worth a task


@dataclass(frozen=True)
class BatchRows:
    """The records of a batch in its source, numbered [start, end).

    The numbers are those of the source; or, with a `place` that says where the records are, they count within the
    batch.
    """

    batch: int
    start: int
    end: int
    place: str = ""

    @property
    def rows(self) -> tuple[int, int]:
        return self.start, self.end


class PartReader(Protocol):
    """Reads the records of a batch, with their numbers, part by part."""

    @property
    def wanted(self) -> Sequence[ReadRequest]:
        """Return what the fragments ask for."""
        ...

    def partitions(self) -> Sequence[Any]:
        """Return the parts, each for a task."""
        ...

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read a part: the records that are wanted, with their numbers (`ROW`)."""
        ...


@dataclass(frozen=True)
class RangeReader:
    """Reads a range of rows of a spool with their numbers (`ROW`), in about this many tasks.

    The rows that are `wanted` pass, by the sampling rule of `stream`.
    """

    spool: Path
    rows: RowRange
    stream: str
    wanted: Sequence[ReadRequest]
    tasks: int = 2

    def partitions(self) -> list[RowRange]:
        start = self.rows.start
        end = self.rows.end
        most = ROWS_PER_PARTITION if takes_all(self.wanted) else end - start  # a sample hands on few rows
        step = max(MIN_ROWS_PER_PARTITION, min(most, -(-(end - start) // self.tasks)))
        return [RowRange(a, min(a + step, end)) for a in range(start, end, step)]

    def read(self, partition: RowRange) -> Iterator[pa.RecordBatch]:
        first = partition.start
        for batch in read_rows(self.spool, partition.start, partition.end):
            numbered = batch.append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
            first += batch.num_rows
            yield numbered if takes_all(self.wanted) else self._sample(numbered)

    def _sample(self, numbered: pa.RecordBatch) -> pa.RecordBatch:
        from catchment.shedding.places import source_rule  # workers start often: only those that sample load it

        places = source_rule(self.stream).places([numbered.column(ROW)])
        return numbered.filter(pa.array(is_wanted(self.wanted, numbered, places)))


def passes(stream: str, batch: int, wanted: Sequence[ReadRequest], rows: pa.Array) -> Mask:
    """Return which records of a batch are wanted, by their numbers within it alone."""
    if takes_all(wanted):
        return np.ones(len(rows), dtype=np.bool_)
    from catchment.shedding.places import history_rule  # workers start often: only those that sample load it

    places = history_rule(stream, batch).places([pa.repeat(pa.scalar(batch, pa.int64()), len(rows)), rows])
    return is_wanted(wanted, pa.RecordBatch.from_arrays([rows], [ROW]), places)


def reread_rows(spark: SparkSession, reader: PartReader, columns: str, filter_cpu_s: Accumulator[float]) -> DataFrame:
    """Return the rows as a table of these columns and `ROW`.

    Where a sample is taken, the CPU seconds that workers take to read and filter rows are added to `filter_cpu_s`.
    """
    partitions = reader.partitions()
    filters = not takes_all(reader.wanted)

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if filters:
            import catchment.shedding.places  # noqa: F401 - loaded once per worker: not a cost of these rows
        began = time.process_time()
        for number in (n for batch in numbers for n in batch.column(0).to_pylist()):
            for batch in reader.read(partitions[number]):
                filter_cpu_s.add((time.process_time() - began) * filters)
                yield batch
                began = time.process_time()

    numbers = spark.range(0, len(partitions), 1, max(len(partitions), 1))
    return numbers.mapInArrow(work, f"{columns}, `{ROW}` BIGINT")
