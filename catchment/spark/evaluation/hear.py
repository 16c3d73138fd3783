"""Which sources a micro-batch has heard, and what they state of their progress: one native group-by over the source."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.query.sql.statements import Stream
from catchment.site.stated_progress import HEARD_SCHEMA, UNNAMED, Statements
from catchment.spark.sources.streams import PROBLEM

_OF_SOURCE = "_before_us"  # what the source of a record has stated before


def hear_sources(records: DataFrame, stream: Stream, statements: Statements) -> pa.Table:
    """Return a row per source of some records and markers (`HEARD_SCHEMA`); those of history are all records."""
    assert stream.progress_column is not None
    source = F.lit(None).cast("string") if stream.source is None else F.col(f"`{stream.source}`").cast("string")
    is_record = F.col(PROBLEM).isNull() if PROBLEM in records.columns else F.lit(True)
    micros = F.expr(f"unix_micros(`{stream.event_time}`)")
    named = records.withColumns({"_source": source, "_is_record": is_record})
    if statements.by_source:
        known = pa.table(
            {"_known": list(statements.by_source), _OF_SOURCE: pa.array(statements.by_source.values(), pa.int64())}
        )
        before = records.sparkSession.createDataFrame(known)
        is_known = F.coalesce(F.col("_source"), F.lit(UNNAMED)) == F.col("_known")
        named = named.join(F.broadcast(before), is_known, "left")
        before_us = F.greatest(F.coalesce(F.col(_OF_SOURCE), F.lit(statements.whole_us)), F.lit(statements.whole_us))
    else:
        before_us = F.lit(statements.whole_us)
    return (
        named.groupBy(F.col("_source").alias("source"))
        .agg(
            F.count_if(F.col("_is_record")).alias("records"),
            F.count_if(F.col("_is_record") & (micros < before_us)).alias("late"),
            F.expr(f"max(unix_micros(`{stream.progress_column}`))").alias("stated_us"),
        )
        .toArrow()
        .cast(HEARD_SCHEMA)
    )
