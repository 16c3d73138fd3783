"""The last step of a query: the SELECT list, HAVING, and ORDER BY with LIMIT, over the lowered aggregates.

Where columns are only renamed, Arrow does it; otherwise one small Spark job does, so that expressions have the
semantics of Spark. Under ANSI they can fail on a row; then each row is tried alone, if that is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from catchment.center.results.top_rows import beyond_limit, order_codes
from catchment.center.results.write import REVISION_ROWS, UNFINISHED, Finish, UnfinishedRowsError
from catchment.query.plan import QueryPlan
from catchment.spark.evaluation.failures import (
    fails_on,
    guard,
    is_data_error,
    reason_of_data_error,
    without_elimination,
)
from catchment.spark.evaluation.project_functions import expression

_ROW = "_row"
_SORT = "_sort_{}"
RETRACTED = "retracted"


def make_finish(spark: SparkSession, plan: QueryPlan) -> Finish:
    """Return the function that turns the lowered rows of a query into its columns."""
    if plan.trivial:
        return partial(rename, plan)

    def finish(rows: pa.Table) -> pa.Table:
        try:
            return _compute(spark, plan, rows, partial(expression, spark))
        except Exception as failure:  # what is no row's fault is raised
            if not is_data_error(failure):
                raise
            raise UnfinishedRowsError(reason_of_data_error(failure)) from failure

    return finish


def make_finish_each(spark: SparkSession, plan: QueryPlan) -> Finish:
    """Return the function that does the same row by row: columns that fail are null, and the row is `unfinished`."""

    def finish_each(rows: pa.Table) -> pa.Table:
        keys = plan.top.keys if plan.top is not None else ()
        expressions = [*(c.sql for c in plan.columns), *(k.sql for k in keys), *([plan.having] if plan.having else [])]
        with without_elimination(spark):
            fails = reduce(or_, (fails_on(spark, sql) for sql in expressions))
            return _compute(
                spark, plan, rows, lambda sql: guard(spark, expression(spark, sql)), [fails.alias(UNFINISHED)]
            )

    return finish_each


def rename(plan: QueryPlan, rows: pa.Table) -> pa.Table:
    """Return the columns of a query that computes nothing after its aggregates, and `retracted`."""
    columns = {c.name: rows[c.source] for c in plan.columns if c.source is not None}
    keys = plan.top.keys if plan.top is not None else ()
    order = [rows[key.source] for key in keys if key.source is not None]
    kept = pa.array([True] * rows.num_rows, pa.bool_())
    return pa.table({**columns, RETRACTED: _retracted(plan, rows, kept, order)})


def _compute(
    spark: SparkSession,
    plan: QueryPlan,
    rows: pa.Table,
    evaluate: Callable[[str], Column],
    more: Sequence[Column] = (),
) -> pa.Table:
    """Return the columns of a query, `retracted`, and more columns if any, in the order of the rows."""
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    kept = F.coalesce(evaluate(plan.having), F.lit(False)) if plan.having else F.lit(True)
    columns = [evaluate(c.sql).alias(c.name) for c in plan.columns]
    keys = plan.top.keys if plan.top is not None else ()
    order = [evaluate(key.sql).alias(_SORT.format(n)) for n, key in enumerate(keys)]
    done = spark.createDataFrame(numbered).select(*columns, kept.alias(RETRACTED), *order, *more, _ROW).toArrow()
    done = done.take(pc.sort_indices(done[_ROW]))
    retracted = _retracted(plan, rows, done[RETRACTED], [done[_SORT.format(n)] for n in range(len(keys))])
    schema = pa.schema([*(pa.field(c.name, c.type) for c in plan.columns), pa.field(RETRACTED, pa.bool_())])
    finished = done.select([c.name for c in plan.columns]).append_column(RETRACTED, retracted).cast(schema)
    return finished.append_column(UNFINISHED, done[UNFINISHED]) if more else finished


def _retracted(plan: QueryPlan, rows: pa.Table, kept: pa.Array, order: list[pa.ChunkedArray]) -> pa.Array:
    """Return which rows are left out: by HAVING, or because they are not among the first of their window."""
    if plan.top is None:
        return pc.invert(kept)
    codes = [order_codes(column, key) for column, key in zip(order, plan.top.keys, strict=True)]
    codes += [order_codes(rows[key.name]) for key in plan.answer.keys]
    mask = kept.to_numpy(zero_copy_only=False) if isinstance(kept, pa.Array) else kept.to_numpy()
    return pa.array(beyond_limit(np.asarray(rows[REVISION_ROWS]), np.asarray(mask, dtype=bool), codes, plan.top.limit))
