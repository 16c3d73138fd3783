"""The `replay` source: a spooled log released at its own pace times a speed-up, in order of arrival.

An offset is a row number, so a restart goes on where it stopped, at the same pace: a pause is not made up for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from catchment.spark.spool import read_arrivals, read_rows, write_beginning
from catchment.wanted import Wanted, from_json, is_wanted, takes_all

ROWS_PER_PARTITION = 250_000
LEAST_ROWS_PER_PARTITION = 20_000
MAX_ROWS_PER_BATCH = 8_000_000
ROW = "_row"


@dataclass
class RowRange(InputPartition):
    """Rows [start, end) of the spool."""

    start: int
    end: int


class ReplaySource(DataSource):
    """Options: spool (a file made by `make_spool`), speed (1 = as it was; 0 = as fast as it can).

    As a table rather than a stream: the rows from `start` to `end` with their numbers (`ROW`), of which those that are
    `wanted` pass, by the sampler of `stream`. It stands in the tasks that read: what is shed costs next to nothing.
    """

    @classmethod
    def name(cls) -> str:
        return "catchment_replay"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        return ReplayReader(Path(self.options["spool"]), float(self.options["speed"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        given = self.options
        rows = RowRange(int(given["start"]), int(given["end"]))
        return RangeReader(Path(given["spool"]), rows, given["stream"], from_json(given["wanted"]))


class RangeReader(DataSourceReader):
    """Rows that were released before, all or a sample of them."""

    def __init__(self, spool: Path, rows: RowRange, stream: str, wanted: Sequence[Wanted]) -> None:
        self.spool, self.rows, self.stream, self.wanted = spool, rows, stream, wanted

    def partitions(self) -> Sequence[InputPartition]:
        start, end = self.rows.start, self.rows.end
        most = ROWS_PER_PARTITION if takes_all(self.wanted) else end - start  # of a sample, few rows are handed on
        step = max(LEAST_ROWS_PER_PARTITION, min(most, -(-(end - start) // 2)))
        return [RowRange(a, min(a + step, end)) for a in range(start, end, step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        first = partition.start
        for batch in read_rows(self.spool, partition.start, partition.end):
            numbered = batch.append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
            first += batch.num_rows
            yield numbered if takes_all(self.wanted) else self._sampled(numbered)

    def _sampled(self, numbered: pa.RecordBatch) -> pa.RecordBatch:
        from catchment.sampling import SamplingRule  # workers start often: only those that sample load it

        places = SamplingRule(self.stream, (ROW,)).places([numbered.column(ROW)])
        return numbered.filter(pa.array(is_wanted(self.wanted, numbered, places)))


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, spool: Path, speed: float) -> None:
        self.spool, self.speed = spool, speed
        self._arrivals: Any = None
        self._began: tuple[float, int] | None = None  # (our clock, the log's clock) at the first row we release

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(MAX_ROWS_PER_BATCH)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        due = self._due(start["row"])
        if isinstance(limit, ReadMaxRows) and not isinstance(limit, ReadAllAvailable):
            due = min(due, start["row"] + limit.max_rows)
        return {"row": max(due, start["row"])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.speed = 0.0

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        cuts = [*range(start["row"], end["row"], ROWS_PER_PARTITION), end["row"]]
        return [RowRange(a, b) for a, b in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        return read_rows(self.spool, partition.start, partition.end)

    def _due(self, start: int) -> int:
        """How many rows have arrived by now."""
        if self._arrivals is None:
            self._arrivals = read_arrivals(self.spool)
        if self.speed <= 0 or start >= len(self._arrivals):
            return len(self._arrivals)
        if self._began is None:
            self._began = (time.monotonic(), int(self._arrivals[start]))
            write_beginning(self.spool, time.time_ns() // 1_000, self._began[1])
        clock, log_clock = self._began
        reached = log_clock + (time.monotonic() - clock) * self.speed * 1e6
        return int(np.searchsorted(self._arrivals, reached, side="right"))
