"""The last step of a query: the SELECT list, HAVING, and ORDER BY with LIMIT, over the lowered aggregates.

Where columns are only renamed, Arrow does it; otherwise one small Spark job does, so that expressions have the
semantics of Spark.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from catchment.center.results.top_rows import beyond_limit, order_codes
from catchment.center.results.write import REVISION_ROWS, Finish
from catchment.query.plan import QueryPlan

_ROW = "_row"
_SORT = "_sort_{}"
RETRACTED = "retracted"


def make_finish(spark: SparkSession, plan: QueryPlan) -> Finish:
    """Return the function that turns the lowered rows of a query into its columns."""
    if plan.trivial:
        return lambda rows: _rename(plan, rows)
    return lambda rows: _compute(spark, plan, rows)


def _rename(plan: QueryPlan, rows: pa.Table) -> pa.Table:
    columns = {c.name: rows[c.source] for c in plan.columns if c.source is not None}
    keys = plan.top.keys if plan.top is not None else ()
    order = [rows[key.source] for key in keys if key.source is not None]
    kept = pa.array([True] * rows.num_rows, pa.bool_())
    return pa.table({**columns, RETRACTED: _retracted(plan, rows, kept, order)})


def _compute(spark: SparkSession, plan: QueryPlan, rows: pa.Table) -> pa.Table:
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    kept = F.coalesce(F.expr(plan.having), F.lit(False)) if plan.having else F.lit(True)
    columns = [F.expr(c.sql).alias(c.name) for c in plan.columns]
    keys = plan.top.keys if plan.top is not None else ()
    order = [F.expr(key.sql).alias(_SORT.format(n)) for n, key in enumerate(keys)]
    done = spark.createDataFrame(numbered).select(*columns, kept.alias(RETRACTED), *order, _ROW).toArrow()
    done = done.take(pc.sort_indices(done[_ROW]))
    retracted = _retracted(plan, rows, done[RETRACTED], [done[_SORT.format(n)] for n in range(len(keys))])
    schema = pa.schema([*(pa.field(c.name, c.type) for c in plan.columns), pa.field(RETRACTED, pa.bool_())])
    finished = done.select([c.name for c in plan.columns])
    return finished.append_column(RETRACTED, retracted).cast(schema)


def _retracted(plan: QueryPlan, rows: pa.Table, kept: pa.Array, order: list[pa.ChunkedArray]) -> pa.Array:
    """Return which rows are left out: by HAVING, or because they are not among the first of their window."""
    if plan.top is None:
        return pc.invert(kept)
    codes = [order_codes(column, key) for column, key in zip(order, plan.top.keys, strict=True)]
    codes += [order_codes(rows[key.name]) for key in plan.answer.keys]
    mask = kept.to_numpy(zero_copy_only=False) if isinstance(kept, pa.Array) else kept.to_numpy()
    return pa.array(beyond_limit(np.asarray(rows[REVISION_ROWS]), np.asarray(mask, dtype=bool), codes, plan.top.limit))
