"""The `replay` source: a spooled log released at its own pace times a speed-up, in order of arrival.

An offset is a row number, so a restart continues where it stopped, at the same pace: it does not catch up a pause.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from catchment.arrays import Ints
from catchment.replay.spool import read_arrivals, read_rows, write_beginning

ROWS_PER_PARTITION = 250_000  # rows per task


@dataclass
class RowRange(InputPartition):
    """Rows [start, end) of the spool."""

    start: int
    end: int


class ReplaySource(DataSource):
    """Options: spool (made by `make_spool`), speed (1 = as it was; 0 = as fast as it can), max_rows (of a batch)."""

    @classmethod
    def name(cls) -> str:
        return "catchment_replay"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        options = self.options
        return ReplayReader(Path(options["spool"]), float(options["speed"]), int(options["max_rows"]))


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over the rows of a spool that have arrived by now, and reads them."""

    def __init__(self, spool: Path, speed: float, max_rows: int) -> None:
        self.spool = spool
        self.speed = speed
        self.max_rows = max_rows
        self._arrivals: Ints | None = None
        self._began: tuple[float, int] | None = None  # (our clock, the clock of the log) at the first row

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.max_rows)

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
        """Return how many rows have arrived by now."""
        if self._arrivals is None:
            self._arrivals = read_arrivals(self.spool)
        if self.speed <= 0 or start >= len(self._arrivals):
            return len(self._arrivals)
        if self._began is None:
            self._began = (time.monotonic(), int(self._arrivals[start]))
            write_beginning(self.spool, time.time_ns() // 1_000, self._began[1])
        clock, log_clock = self._began
        reached = log_clock + int((time.monotonic() - clock) * self.speed * 1e6)  # a float would convert all arrivals
        return int(np.searchsorted(self._arrivals, reached, side="right"))
