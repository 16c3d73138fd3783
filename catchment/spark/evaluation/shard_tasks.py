"""The tasks of a center with shards on Spark: what they do is in `catchment.center.shards`, and needs no Spark.

Tasks are elements of an RDD, one per partition: they read and write files of their own, and hand back little. The last
step of a view that computes something is one job over the files that they wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.window import Window as RowWindow

from catchment.center.results.store import DataFile
from catchment.center.results.write import UNFINISHED, UnfinishedRowsError
from catchment.center.shards.answers import IS_LOWERED, LOWERED, write_data_file
from catchment.center.shards.runner import Found, Task
from catchment.center.shards.tables import FinishedFiles, FinishFiles
from catchment.functions.installed import FunctionsFile, install, installed_files
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import SortKey
from catchment.spark.evaluation.failures import (
    fails_on,
    guard,
    is_data_error,
    reason_of_data_error,
    without_elimination,
)
from catchment.spark.evaluation.finish import RETRACTED
from catchment.spark.evaluation.project_functions import expression
from catchment.timeline import Window

_OTHER = "_other"  # the columns of a row that are not the view's own
_WRITTEN = "name string, size_bytes long, stats string, failed map<string, long>"


class SparkTasks:
    """Runs tasks on the executors of a session, one per partition."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        return int(self._context.defaultParallelism)

    def run(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """Return what the function makes of each task, in their order."""
        given = self._context.parallelize(list(tasks), len(tasks))
        found: list[Found] = given.map(partial(_run_task, function, installed_files())).collect()
        return found


def _run_task(function: Callable[[Task], Found], functions: Sequence[FunctionsFile], task: Task) -> Found:
    """Run one task where the code of the project's own aggregates is known."""
    for file in functions:
        install(file)
    return function(task)


def make_finish_files(spark: SparkSession, plan: QueryPlan) -> FinishFiles:
    """Return the function that computes the columns of a view in files with lowered values."""

    def finish_files(
        given: FinishedFiles, source: Path, target: Path, *, each: bool, keeps_nulls: bool
    ) -> FinishedFiles:
        names = [str(source / file.name) for file in given.files]
        rows = spark.read.schema(_spark_schema(spark, given.schema)).parquet(*names)
        schema = _finished_schema(plan, given.schema)
        try:
            with without_elimination(spark):
                return _write(_finish(spark, plan, rows, each, keeps_nulls), target, schema)
        except Exception as failure:  # what is no row's fault is raised
            if each or not is_data_error(failure):
                raise
            raise UnfinishedRowsError(reason_of_data_error(failure)) from failure

    return finish_files


def _spark_schema(spark: SparkSession, schema: pa.Schema) -> StructType:
    """Return the schema of files as Spark has it: the files of some shards may lack columns."""
    return spark.createDataFrame(schema.empty_table()).schema


def _finished_schema(plan: QueryPlan, given: pa.Schema) -> pa.Schema:
    """Return the columns of a result table: those of the view behind the window, as the center writes them."""
    own = [pa.field(c.name, c.type) for c in plan.columns if c.name not in ("window_start", "window_end")]
    lowered = LOWERED.format("")
    others = [f for f in given if not f.name.startswith(lowered) and f.name != IS_LOWERED]
    return pa.schema([*others[:2], *own, *others[2:]])


def _finish(spark: SparkSession, plan: QueryPlan, rows: DataFrame, each: bool, keeps_nulls: bool) -> DataFrame:
    """Return the rows with the columns of the view; with `each`, columns that fail are null and their rows left out."""
    lowered = [name for name in rows.columns if name.startswith(LOWERED.format(""))]
    others = [name for name in rows.columns if name not in (*lowered, IS_LOWERED)]
    plain = [F.col(f"`{name}`").alias(name.removeprefix(LOWERED.format(""))) for name in lowered]
    given = rows.select(*plain, F.col(IS_LOWERED), F.struct(*(F.col(f"`{n}`") for n in others)).alias(_OTHER))
    is_lowered = F.coalesce(F.col(IS_LOWERED), F.lit(False))

    def evaluate(sql: str) -> Column:
        computed = expression(spark, sql)
        return F.when(is_lowered, guard(spark, computed) if each else computed)

    keys = plan.top.keys if plan.top is not None else ()
    kept = is_lowered & (F.coalesce(evaluate(plan.having), F.lit(False)) if plan.having else F.lit(True))
    fails = F.lit(False)
    if each:
        expressions = [*(c.sql for c in plan.columns), *(k.sql for k in keys), *([plan.having] if plan.having else [])]
        fails = is_lowered & reduce(or_, (fails_on(spark, sql) for sql in expressions))
    columns = [evaluate(c.sql).alias(c.name) for c in plan.columns]
    order = [evaluate(key.sql).alias(f"_sort_{n}") for n, key in enumerate(keys)]
    groups = [F.col(f"`{key.name}`").alias(f"_group_{n}") for n, key in enumerate(plan.answer.keys)]
    done = given.select(*columns, kept.alias("_kept"), fails.alias(UNFINISHED), *order, *groups, F.col(_OTHER))
    retracted = ~F.col("_kept")
    if plan.top is not None:
        retracted = retracted | (_place(plan.top.keys, len(groups)) > plan.top.limit)
    if each and not keeps_nulls:
        retracted = retracted | F.col(UNFINISHED)
    own = [F.col(f"`{c.name}`") for c in plan.columns if c.name not in ("window_start", "window_end")]
    rest = [F.col(f"{_OTHER}.`{name}`") for name in others if name != RETRACTED]
    return done.select(*rest[:2], *own, *rest[2:], retracted.alias(RETRACTED), F.col(UNFINISHED))


def _place(keys: Sequence[SortKey], groups: int) -> Column:
    """Return the place of a row among those of its revision, as `catchment.center.results.top_rows` orders them."""
    order = [F.col("_kept").desc()]
    for number, key in enumerate(keys):
        column = F.col(f"_sort_{number}")
        if key.descending:
            order.append(column.desc_nulls_first() if key.nulls_first else column.desc_nulls_last())
        else:
            order.append(column.asc_nulls_first() if key.nulls_first else column.asc_nulls_last())
    order += [F.col(f"_group_{number}").asc_nulls_first() for number in range(groups)]
    revision = RowWindow.partitionBy(F.col(f"{_OTHER}.window_start"), F.col(f"{_OTHER}.revision"))
    return F.row_number().over(revision.orderBy(*order))


def _write(finished: DataFrame, folder: Path, schema: pa.Schema) -> FinishedFiles:
    written = finished.mapInArrow(partial(_write_partition, folder, schema), _WRITTEN).toArrow().to_pylist()
    failed: Counter[Window] = Counter()
    for row in written:
        for place, number in dict(row["failed"] or {}).items():
            start_us, end_us = map(int, place.split())
            failed[Window(start_us, end_us)] += number
    files = tuple(DataFile(row["name"], row["size_bytes"], row["stats"]) for row in written)
    return FinishedFiles(files, schema, failed)


def _write_partition(folder: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one partition into one file."""
    given = list(batches)
    rows = pa.Table.from_batches(given) if given else None
    if rows is None or not rows.num_rows:
        return
    bad = rows.filter(rows[UNFINISHED])
    places = zip(*(bad[name].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist() for name in _WINDOW), strict=True)
    failed = Counter(f"{start_us} {end_us}" for start_us, end_us in places)
    file = write_data_file(folder, _fit(rows, schema))
    types = pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("size_bytes", pa.int64()),
            pa.field("stats", pa.string()),
            pa.field("failed", pa.map_(pa.string(), pa.int64())),
        ]
    )
    told = [{"name": file.name, "size_bytes": file.size_bytes, "stats": file.stats, "failed": list(failed.items())}]
    yield pa.RecordBatch.from_pylist(told, types)


_WINDOW = ("window_start", "window_end")


def _fit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns and types that the center writes: Spark names a time zone of its own."""
    columns = []
    for field in schema:
        column = rows[field.name]
        if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(field.type)
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)
