"""Placement on Spark from a file to a file, for `catchment feeds place --engine spark`.

The file of decisions is one file, as on one machine; Spark's parts are copied into it one after the other, so the
driver never holds more than one batch of rows. It appears whole or not at all.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.errors import FeedError
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.pair_views.demand_file import is_parquet, measure_of
from catchment.project.sections import SparkConfig
from catchment.spark.feeds.place import SparkPlacement, place_edges
from catchment.spark.session import make_session

PARTITION_BYTES = 16 * 2**20  # input per partition: more input makes more partitions, not larger ones
COPY_BYTES = 8 * 2**20  # buffer for copying the parts of a CSV file


def place_file(
    rates: Path,
    costs: DeviceCosts,
    out: Path | None,
    *,
    budget: Path | None = None,
    time_limit_s: float = 60.0,
    session: SparkSession | None = None,
) -> SparkPlacement:
    """Place the demands of a file (or of a folder of Parquet files) and write the decisions.

    Afterwards the decisions are read from `out`: the scratch folder is gone.
    """
    spark = (session or make_session("place", SparkConfig())).newSession()
    edges = _read(spark, rates, "rates")
    measure = measure_of(edges.columns, rates)
    edges = edges.withColumnRenamed(measure, "rate")
    limits = None if budget is None else _budgets(spark, budget, edges)
    _size_partitions(spark, rates)
    beside = None if out is None else out.parent
    with tempfile.TemporaryDirectory(prefix=".placement-", dir=beside) as scratch:
        placed = place_edges(spark, edges, costs, scratch, budget=limits, time_limit_s=time_limit_s)
        if out is not None:
            _write(placed.decisions, out, Path(scratch, "decisions"))
    return placed


def _read(spark: SparkSession, path: Path, what: str) -> DataFrame:
    if not path.exists():
        raise FeedError(f"there is no such file; expected {what}", where=str(path))
    if path.is_dir() or is_parquet(path):
        return spark.read.parquet(str(path.absolute()))
    return spark.read.csv(str(path.absolute()), header=True, inferSchema=True)


def _budgets(spark: SparkSession, path: Path, edges: DataFrame) -> DataFrame:
    budgets = _read(spark, path, "budgets")
    if not {"device", "budget"} <= set(budgets.columns):
        raise FeedError("the columns are not device,budget", where=str(path))
    given = F.col("budget").cast("double")
    wrong = budgets.where(given.isNull() | F.isnan(given) | (given < 0)).limit(1).collect()
    if wrong:
        raise FeedError(
            f"the budget of device {wrong[0]['device']} is {wrong[0]['budget']}; expected a number, 0 or more",
            where=str(path),
        )
    strange = budgets.join(edges, budgets["device"] == edges["src"], "left_anti").limit(1).collect()
    if strange:
        raise FeedError(
            f"no demand names the device {strange[0]['device']}",
            where=str(path),
            hint="correct the name or drop the row",
        )
    return budgets


def _size_partitions(spark: SparkSession, path: Path) -> None:
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    spark.conf.set("spark.sql.shuffle.partitions", str(max(2, math.ceil(size / PARTITION_BYTES))))
    spark.conf.set("spark.sql.adaptive.enabled", "true")  # a batch job: hubs make skewed joins, which it splits
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")


def _write(decisions: DataFrame, out: Path, parts: Path) -> None:
    part = out.with_name(f".{out.name}.part")
    try:
        if is_parquet(out):
            decisions.write.parquet(str(parts))
            _join_parquet(sorted(parts.glob("*.parquet")), part)
        else:
            decisions.write.csv(str(parts))
            _join_csv(sorted(parts.glob("*.csv")), part)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _join_parquet(parts: list[Path], whole: Path) -> None:
    with parquet.ParquetWriter(whole, parquet.read_schema(parts[0])) as writer:
        for part in parts:
            for batch in parquet.ParquetFile(part).iter_batches():
                writer.write_batch(batch)


def _join_csv(parts: list[Path], whole: Path) -> None:
    with whole.open("wb") as target:
        target.write(b"src,dst,decision\n")
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target, COPY_BYTES)
