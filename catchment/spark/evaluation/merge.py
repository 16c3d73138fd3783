"""Merging partials at the center: small tables in the driver, large ones on the executors, with equal answers."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from catchment.progress.consumer import Merge, merge_here
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.spark.evaluation.evaluator import merge_columns

MERGE_ON_EXECUTORS_ABOVE_ROWS = 50_000  # below, scheduling a job takes longer than merging here


def make_merge(spark: SparkSession) -> Merge:
    """Return a function that merges where it is faster."""

    def merge(fragment: Fragment, table: pa.Table) -> pa.Table:
        is_small = table.num_rows < MERGE_ON_EXECUTORS_ABOVE_ROWS
        if is_small or not all(a.merges_in_spark for a in fragment.aggregates):
            return merge_here(fragment, table)
        return merge_on_executors(spark, fragment, table)

    return merge


def merge_on_executors(spark: SparkSession, fragment: Fragment, table: pa.Table) -> pa.Table:
    """Merge partials natively: one group-by with the merge expressions of the aggregates."""
    keys = [F.col(f"`{name}`") for name in (SLICE_COLUMN, *fragment.key_names)]
    merged = spark.createDataFrame(table).groupBy(*keys).agg(*merge_columns(fragment.aggregates)).toArrow()
    return merged.select(fragment.schema.names).cast(fragment.schema)
