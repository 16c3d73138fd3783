"""The last step of a query: the SELECT list and HAVING over the lowered aggregates.

Where they only rename columns, Arrow does it; otherwise one small Spark job does, so that expressions have the
semantics of Spark.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from catchment.center.results.tables import Finish
from catchment.query.plan import QueryPlan

_ROW = "_row"
RETRACTED = "retracted"


def make_finish(spark: SparkSession, plan: QueryPlan) -> Finish:
    """Return the function that turns the lowered rows of a query into its columns."""
    if plan.trivial:
        return lambda rows: _rename(plan, rows)
    return lambda rows: _compute(spark, plan, rows)


def own_errors(plan: QueryPlan) -> tuple[tuple[str, float | None], ...]:
    """Return, per column that aggregates, the error of its sketch on all the data; None where it is unknown."""
    errors = {a.name: 0.0 if a.exact else a.relative_error for a in plan.answer.aggregates}
    copied = {k.name for k in plan.answer.keys} | {"window_start", "window_end"}
    all_exact = all(e == 0.0 for e in errors.values())
    computed = 0.0 if all_exact else None
    return tuple((c.name, errors.get(c.source or "", computed)) for c in plan.columns if c.source not in copied)


def sources_of(plan: QueryPlan) -> tuple[tuple[str, str], ...]:
    """Return the columns that are a plain aggregate, each with that aggregate."""
    aggregates = {a.name for a in plan.answer.aggregates}
    return tuple((c.name, c.source) for c in plan.columns if c.source in aggregates and c.source is not None)


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
