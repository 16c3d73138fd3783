"""A spool: a timestamped log laid out for replay, in order of arrival, addressable by row.

This is the reading side. It runs in Spark's workers, which start often: it imports little.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.arrays import Ints

ARRIVAL = "arrival_us"  # the column of arrival times
ROWS_PER_BATCH = 65_536  # rows per record batch of a spool


def read_rows(spool: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows [start, end) without their arrival times."""
    with pa.memory_map(str(spool)) as source:
        reader = pa.ipc.open_file(source)
        for i in range(start // ROWS_PER_BATCH, reader.num_record_batches):
            first = i * ROWS_PER_BATCH
            if first >= end:
                return
            batch = reader.get_batch(i)
            low = max(start - first, 0)
            high = min(end - first, batch.num_rows)
            yield batch.slice(low, high - low).drop_columns([ARRIVAL])


def read_arrivals(spool: Path) -> Ints:
    """Return when each row arrives, never decreasing."""
    with pa.memory_map(str(spool)) as source:
        reader = pa.ipc.open_file(source)
        parts = [reader.get_batch(i)[ARRIVAL].to_numpy() for i in range(reader.num_record_batches)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def write_beginning(spool: Path, wall_us: int, log_us: int) -> None:
    """Record when, by the wall clock, the instant `log_us` of the log was replayed since the last start."""
    path = spool.with_suffix(".began")
    unfinished = path.with_suffix(".began.tmp")
    unfinished.write_text(f"{wall_us} {log_us}")
    unfinished.replace(path)  # in one step: another process reads it at any moment


def read_beginning(spool: Path) -> tuple[int, int] | None:
    """Return (wall clock, clock of the log) at the start of the replay, so that one gives the other."""
    try:
        wall_us, log_us = spool.with_suffix(".began").read_text().split()
    except FileNotFoundError:
        return None
    return int(wall_us), int(log_us)
