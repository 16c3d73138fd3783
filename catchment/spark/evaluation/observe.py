"""What slack controllers observe of a micro-batch: one native group-by over (source, slice)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.spark.evaluation.evaluator import Evaluator, qualify
from catchment.spark.evaluation.project_functions import spark_sql
from catchment.vectorised.fragments import LARGEST_WATCHED, NULL_SOURCE, ONE_SOURCE


def observe_sources(
    evaluator: Evaluator, records: DataFrame, fragment: Fragment, source: str | None, values: Sequence[str]
) -> pa.Table:
    """Return rows (source, slice_us, newest_us, oldest_us, count, total_N, square_N) of what a fragment takes.

    A value that is null, NaN or beyond `LARGEST_WATCHED` counts as 0: nothing can be learned of what may still come.
    """
    micros = f"unix_micros({qualify(fragment, fragment.event_time)})"
    name = (
        F.coalesce(F.expr(qualify(fragment, source)).cast("string"), F.lit(NULL_SOURCE))
        if source
        else F.lit(ONE_SOURCE)
    )
    sums = []
    for index, value in enumerate(spark_sql(records.sparkSession, value) for value in values):
        number = f"CASE WHEN abs({value}) < {LARGEST_WATCHED}D THEN {value} ELSE 0.0D END"
        sums += [F.expr(f"sum({number})").alias(f"total_{index}")]
        sums += [F.expr(f"sum({number} * {number})").alias(f"square_{index}")]
    return (
        evaluator.rows(records, fragment)
        .groupBy(name.alias("source"), F.expr(fragment.slicing.sql(micros)).alias(SLICE_COLUMN))
        .agg(
            F.expr(f"max({micros})").alias("newest_us"),
            F.expr(f"min({micros})").alias("oldest_us"),
            F.count(F.lit(1)).alias("count"),
            *sums,
        )
        .toArrow()
    )
