"""The `generator` source: synthetic records on Spark's rate source, the same for the same seed and site."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.query.sql.connectors import GeneratorConnector
from catchment.query.sql.statements import Column as Declared
from catchment.query.sql.statements import Stream
from catchment.query.types import sql_type
from catchment.timeline import SECOND_US


def generate(spark: SparkSession, stream: Stream, generator: GeneratorConnector, site: str) -> DataFrame:
    """Return rows at a constant rate; each column is a function of the row's number, the seed and the site."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", _rate(generator)).load()
    total = _total_rows(generator)
    if total is not None:
        rate = rate.where(F.col("value") < total)
    return rate.select(*[_column(c, stream, generator, site).alias(c.name) for c in stream.columns])


def has_generated(generator: GeneratorConnector, offset: int) -> bool:
    """Return whether a generator has no more rows after this offset of the rate source, in seconds since it began."""
    total = _total_rows(generator)
    return total is not None and offset * _rate(generator) >= total


def _rate(generator: GeneratorConnector) -> int:
    return max(1, round(generator.rows_per_s))


def _total_rows(generator: GeneratorConnector) -> int | None:
    """Return how many rows there will ever be; None: no end."""
    duration = generator.duration_us
    return None if duration is None else round(_rate(generator) * duration / SECOND_US)


def _column(column: Declared, stream: Stream, generator: GeneratorConnector, site: str) -> Column:
    if column.name == stream.event_time:
        return F.col("timestamp")
    chance = F.xxhash64(F.col("value"), F.lit(f"{generator.seed}/{site}/{column.name}"))
    key = F.pmod(chance, F.lit(generator.keys))
    if pa.types.is_string(column.type):
        return F.concat(F.lit("k"), key.cast("string"))
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return (F.pmod(chance, F.lit(1_000_000)) / 10_000).cast(sql_type(column.type))
    if pa.types.is_boolean(column.type):
        return F.pmod(chance, F.lit(2)) == 0
    if pa.types.is_timestamp(column.type):
        return F.col("timestamp")
    return key.cast(sql_type(column.type))
