"""A topic whose records a pass reads in place of Spark: where they are, and what Spark makes of doubtful values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from catchment.query.sql.connectors import KAFKA_METADATA
from catchment.vectorised.parts import TopicPart

_VALUES = pa.schema([("value", pa.string()), *KAFKA_METADATA.items()])


@dataclass(frozen=True)
class TopicSource:
    """A topic as one stream reads it: `parse` makes records with `_raw` and `_problem` of what it has.

    The options are those of `catchment.records.topic_reader`. Values have no header.
    """

    spark: SparkSession
    parse: Callable[[DataFrame], DataFrame]
    options: Mapping[str, str]
    checkpoint: Path
    header: tuple[str, ...] = ()

    def pieces(self, number: int) -> tuple[TopicPart, ...] | None:
        """Return where the records of a batch are; None where that is not known."""
        from catchment.spark.sources.kafka_reread import offsets_of_batch

        found = offsets_of_batch(self.checkpoint, number)
        if found is None:
            return None
        ranges = [(partition, start, end) for partition, start, end in json.loads(found.place) if end > start]
        return tuple(TopicPart(at, *each) for at, each in enumerate(ranges))

    def judge(self, values: Sequence[str]) -> DataFrame:
        """Return the records that some values are; nothing of them is known but the values."""
        columns = [pa.array(values, pa.string()), *(pa.nulls(len(values), type_) for type_ in KAFKA_METADATA.values())]
        return self.parse(self.spark.createDataFrame(pa.table(columns, schema=_VALUES)))
