"""The last step of a query: the SELECT list and HAVING over the lowered aggregates.

Where they only rename columns, Arrow does it; otherwise one small Spark job does, so that expressions have the
semantics of Spark.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from catchment.center.results.write import Finish
from catchment.query.plan import QueryPlan

_ROW = "_row"
RETRACTED = "retracted"


def make_finish(spark: SparkSession, plan: QueryPlan) -> Finish:
    """Return the function that turns the lowered rows of a query into its columns."""
    if plan.trivial:
        return lambda rows: _rename(plan, rows)
    return lambda rows: _compute(spark, plan, rows)


def _rename(plan: QueryPlan, rows: pa.Table) -> pa.Table:
    columns = {c.name: rows[c.source] for c in plan.columns if c.source is not None}
    return pa.table({**columns, RETRACTED: pa.array([False] * rows.num_rows, pa.bool_())})


def _compute(spark: SparkSession, plan: QueryPlan, rows: pa.Table) -> pa.Table:
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    kept = F.coalesce(F.expr(plan.having), F.lit(False)) if plan.having else F.lit(True)
    columns = [F.expr(c.sql).alias(c.name) for c in plan.columns]
    done = spark.createDataFrame(numbered).select(*columns, (~kept).alias(RETRACTED), _ROW).toArrow()
    done = done.take(pc.sort_indices(done[_ROW])).drop_columns([_ROW])
    schema = pa.schema([*(pa.field(c.name, c.type) for c in plan.columns), pa.field(RETRACTED, pa.bool_())])
    return done.cast(schema)
