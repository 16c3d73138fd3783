"""The rows of a view of a view, evaluated by Spark over the rows that the lower view has published."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from catchment.center.composed.tables import Evaluate
from catchment.center.results.write import UnfinishedRowsError
from catchment.query.fragment import Fragment
from catchment.spark.evaluation.evaluator import SparkEvaluator
from catchment.spark.evaluation.failures import is_data_error, reason_of_data_error
from catchment.spark.evaluation.one_pass import Take


def make_evaluate(spark: SparkSession, fragment: Fragment, tables: Mapping[str, DataFrame]) -> Evaluate:
    """Return the function that turns rows of the lower view into the partials of a composed query."""
    evaluator = SparkEvaluator(tables)

    def evaluate(rows: pa.Table) -> pa.Table:
        try:
            (found,) = evaluator.reduce_all(spark.createDataFrame(rows), [Take(fragment)], rows.num_rows)
        except Exception as failure:  # what is no row's fault is raised
            if not is_data_error(failure):
                raise
            raise UnfinishedRowsError(reason_of_data_error(failure)) from failure
        return found.table

    return evaluate
