"""The records of a micro-batch: which have plausible event times, statistics of them, and which are good or bad."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from catchment.site.plausible import PlausibleTimes
from catchment.spark.sources.streams import MARKER, PROBLEM, RAW


@dataclass(frozen=True)
class BatchStats:
    """How many records of a micro-batch were read, how many are bad, and the event times that the good ones span.

    `markers` state the progress of a source, and are no records.
    """

    rows: int
    bad: int
    low_us: int | None
    high_us: int | None
    markers: int = 0


def is_marker() -> Column:
    """Return the condition that a record is a marker of progress."""
    return F.equal_null(F.col(PROBLEM), F.lit(MARKER))


def is_bad() -> Column:
    """Return the condition that a record cannot be used."""
    return F.col(PROBLEM).isNotNull() & ~is_marker()


def mark_implausible(records: DataFrame, event_time: str, limits: PlausibleTimes | None) -> DataFrame:
    """Return the records, those with an event time beyond the limits marked as bad."""
    if limits is None:
        return records
    plausible = limits.sql(f"unix_micros(`{event_time}`)")
    problem = f"CASE WHEN {plausible} THEN NULL ELSE 'the event time is far from the stream' END"
    return records.withColumn(PROBLEM, F.coalesce(F.col(PROBLEM), F.expr(problem)))


def observe_good_records(records: DataFrame, event_time: str) -> tuple[Observation, DataFrame]:
    """Return the good records, and an observation of all of them that is complete after the first action on them."""
    observation = Observation()
    good_us = F.when(F.col(PROBLEM).isNull(), F.expr(f"unix_micros(`{event_time}`)"))
    observed = records.observe(
        observation,
        F.count_if(~is_marker()).alias("rows"),
        F.count_if(is_bad()).alias("bad"),
        F.count_if(is_marker()).alias("markers"),
        F.min(good_us).alias("low"),
        F.max(good_us).alias("high"),
    )
    return observation, observed.where(F.col(PROBLEM).isNull()).drop(RAW, PROBLEM)


def good_records(records: DataFrame, *, with_raw: bool = False) -> DataFrame:
    """Return the good records, with their raw text if that is wanted."""
    good = records.where(F.col(PROBLEM).isNull()).drop(PROBLEM)
    return good if with_raw else good.drop(RAW)


def stats_of(observation: Observation) -> BatchStats:
    """Return the observed statistics, once an action has run over the records."""
    found = observation.get
    return BatchStats(found["rows"], found["bad"], found["low"], found["high"], found["markers"])


def bad_records(records: DataFrame, site: str) -> DataFrame:
    """Return the bad records as they came, with the site and the time of quarantine."""
    columns = [c for c in records.columns if c not in (RAW, PROBLEM)]
    raw = F.coalesce(F.col(RAW), F.to_json(F.struct(*columns)))
    return (
        records.where(is_bad())
        .withColumn(RAW, raw)
        .withColumn("site", F.lit(site))
        .withColumn("quarantined_at", F.current_timestamp())
    )
