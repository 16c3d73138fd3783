"""The records of a micro-batch: which are believed, what is seen of them on the way, and where each has its place."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from catchment.site.plausible import PlausibleTimes
from catchment.spark.sources.reread import ROW
from catchment.spark.sources.streams import PROBLEM, RAW

# Where a record lies in its history: in which file, and where in it. Files are told apart by their sizes; only where
# two have the same, by their numbers in the batch (part-00012-...), and rows as Spark counts them, which costs far
# more.
_BY_SIZE = f"_metadata.file_size, monotonically_increasing_id() & {2**33 - 1}L"
_BY_NUMBER = "substr(_metadata.file_name, 6, 5), _metadata.row_index"
_ANY_SIZE = str(2**50)


@dataclass(frozen=True)
class Seen:
    """What a micro-batch turned out to hold."""

    rows: int
    bad: int
    low_us: int | None
    high_us: int | None


def judged(records: DataFrame, event_time: str, limits: PlausibleTimes | None) -> DataFrame:
    """The records, those with an event time beyond belief marked as bad."""
    if limits is None:
        return records
    believed = limits.sql(f"unix_micros(`{event_time}`)")
    far = f"CASE WHEN {believed} THEN NULL ELSE 'the event time is far from the stream' END"
    return records.withColumn(PROBLEM, F.coalesce(F.col(PROBLEM), F.expr(far)))


def watch_records(records: DataFrame, event_time: str) -> tuple[Observation, DataFrame]:
    """The records, counted and measured as they pass."""
    watch = Observation()
    usable = F.when(F.col(PROBLEM).isNull(), F.expr(f"unix_micros(`{event_time}`)"))
    watched = records.observe(
        watch, F.count(F.lit(1)).alias("rows"), F.count(PROBLEM).alias("bad"),
        F.min(usable).alias("low"), F.max(usable).alias("high"),
    )  # fmt: skip
    return watch, watched


def seen_by(watch: Observation) -> Seen:
    """What was seen, once the records have passed."""
    found = watch.get
    return Seen(found["rows"], found["bad"], found["low"], found["high"])


def good_records(records: DataFrame, event_time: str) -> tuple[Observation, DataFrame]:
    """The records that can be used, and what is seen of all of them on the way."""
    watch, watched = watch_records(records, event_time)
    return watch, watched.where(F.col(PROBLEM).isNull()).drop(RAW, PROBLEM)


def bad_rows(records: DataFrame, site: str) -> DataFrame:
    """Those that cannot be used, as they came, where and when."""
    whole = F.coalesce(F.col(RAW), F.to_json(F.struct(*[c for c in records.columns if c not in (RAW, PROBLEM)])))
    bad = records.where(F.col(PROBLEM).isNotNull())
    return (
        bad.withColumn(RAW, whole).withColumn("site", F.lit(site)).withColumn("quarantined_at", F.current_timestamp())
    )


def file_by_file(spark: SparkSession) -> SparkSession:
    """A session that reads every file in a task of its own, whatever its size and the number of cores: the place of a
    record in its task, which costs nothing to know, is then its place in the file, in this life and the next."""
    session = spark.newSession()
    limits = {f"spark.sql.files.{limit}": _ANY_SIZE for limit in ("maxPartitionBytes", "openCostInBytes")}
    limits["spark.sql.files.maxPartitionNum"] = str(2**31 - 1)
    for key, value in (spark.conf.getAll | limits).items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def placed(history: DataFrame, batch: int, by_size: bool) -> DataFrame:
    """The records of a batch in history, read `file_by_file`, each with a place of its own."""
    place = _BY_SIZE if by_size else _BY_NUMBER
    return history.select("*", F.expr(f"xxhash64({batch}L, {place})").alias(ROW))
