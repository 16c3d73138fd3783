"""The records of a micro-batch: which have plausible event times, statistics of them, and which are good or bad."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from catchment.site.plausible import PlausibleTimes
from catchment.spark.sources.streams import PROBLEM, RAW


@dataclass(frozen=True)
class BatchStats:
    """How many records of a micro-batch were read, how many are bad, and the event times that the good ones span."""

    rows: int
    bad: int
    low_us: int | None
    high_us: int | None


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
        F.count(F.lit(1)).alias("rows"),
        F.count(PROBLEM).alias("bad"),
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
    return BatchStats(found["rows"], found["bad"], found["low"], found["high"])


def bad_records(records: DataFrame, site: str) -> DataFrame:
    """Return the bad records as they came, with the site and the time of quarantine."""
    columns = [c for c in records.columns if c not in (RAW, PROBLEM)]
    raw = F.coalesce(F.col(RAW), F.to_json(F.struct(*columns)))
    return (
        records.where(F.col(PROBLEM).isNotNull())
        .withColumn(RAW, raw)
        .withColumn("site", F.lit(site))
        .withColumn("quarantined_at", F.current_timestamp())
    )
