"""Records of a topic that were read before, read again by their offsets.

The records of a batch are numbered within it: those of its first partition by their distance from the first offset of
the batch there, those of the next one after them, and so on. Where offsets have gaps (compaction, transactions), so
have the numbers. A sample is taken by the numbers alone, before a value is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from catchment.records.topic_reader import OffsetRange
from catchment.shedding.reader_filter import ROW, ReadRequest
from catchment.spark.sources.kafka import ROWS_PER_TASK, KafkaReader, read_began
from catchment.spark.sources.reread import BatchRows, passes
from catchment.spark.streaming import offset_of_batch


@dataclass(frozen=True)
class NumberedRange(OffsetRange, InputPartition):
    """Offsets [start, end) of a partition; the first has a number in its batch."""

    first_row: int


def offsets_of_batch(checkpoint: Path, batch: int) -> BatchRows | None:
    """Return where the records of a batch are, by the offsets that Spark has planned."""
    before = offset_of_batch(checkpoint, batch - 1) if batch else read_began(checkpoint)
    after = offset_of_batch(checkpoint, batch)
    if before is None or after is None:
        return None
    ranges = [
        [int(p), int(before.get(p, 0)), int(end)] for p, end in sorted(after.items(), key=lambda item: int(item[0]))
    ]
    return BatchRows(batch, 0, sum(end - start for _, start, end in ranges), json.dumps(ranges))


@dataclass(frozen=True)
class TopicPartReader:
    """Reads the records of a batch that are `wanted`, by the rule of `stream`, with their numbers (`ROW`)."""

    options: Mapping[str, str]
    rows: BatchRows
    stream: str
    wanted: Sequence[ReadRequest]

    def partitions(self) -> list[NumberedRange]:
        found: list[NumberedRange] = []
        first_row = 0
        for partition, start, end in json.loads(self.rows.place):
            cuts = [*range(start, end, ROWS_PER_TASK), end]
            found += [NumberedRange(partition, a, b, first_row + a - start) for a, b in pairwise(cuts)]
            first_row += end - start
        return found

    def read(self, partition: NumberedRange) -> Iterator[pa.RecordBatch]:
        reader = KafkaReader(self.options)
        for messages in reader.records.read_messages(partition):
            offsets = np.array([message.offset() for message in messages], dtype=np.int64)
            rows = pa.array(offsets - partition.start + partition.first_row)
            kept = np.flatnonzero(passes(self.stream, self.rows.batch, self.wanted, rows))
            if kept.size:
                records = reader.to_arrow([messages[i] for i in kept.tolist()])
                yield records.append_column(ROW, rows.take(pa.array(kept)))
