"""Rows per second of one site pipeline against plain Spark Structured Streaming doing the same windowed aggregate.

Same Parquet files, same session, same run, one after the other, best of `REPEATS`: plain Spark with its own stateful
operator (update mode, no output); a catchment site, which also journals, caches, encodes and delivers its partials
over a local inbox, without and with raw history; and, as the limit of the machine, a bare pyarrow group-by.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import RenderableType
from rich.table import Table

DESCRIPTION = "rows/s of one site pipeline against plain Spark Structured Streaming, at 10k and 200k keys"
KEYS = (10_000, 200_000)
WINDOW_S = 10
REPEATS = 2

PROJECT = """
[project]
name = "throughput"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
"""
SQL = """
CREATE STREAM events (ts TIMESTAMP, key BIGINT, value DOUBLE)
  WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data', format = 'parquet', history = {history});
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, key, count(*) AS n, sum(value) AS total FROM events GROUP BY window(ts, '10 seconds'), key;
"""


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure every variant at every number of keys."""
    from catchment.project.config import SparkConfig
    from catchment.spark.session import make_session

    files, rows = (3, 200_000) if quick else (8, 1_000_000)
    spark = make_session("bench throughput", SparkConfig(master="local[2]", memory="4g"))
    cells = []
    try:
        for keys in KEYS:
            with tempfile.TemporaryDirectory() as scratch:
                data = make_data(Path(scratch) / "data", keys, files, rows)
                cells.append(measure(spark, Path(scratch), data, keys, files * rows, report, 1 if quick else REPEATS))
    finally:
        spark.stop()
    return {
        "compared": "one site pipeline, plain Spark Structured Streaming, bare pyarrow; count and sum per 10 s and key",
        "data": f"generated: {files} Parquet files of {rows:,} rows, keys Zipf-like, two files a micro-batch",
        "cells": cells,
    }


def measure(
    spark: Any, scratch: Path, data: Path, keys: int, rows: int, report: Callable[[str], None], repeats: int
) -> dict[str, Any]:
    """Rows per second of each variant, best of the repeats, taking turns so that noise affects all alike."""
    variants: dict[str, Callable[[], float]] = {
        "plain_spark": lambda: plain_spark(spark, data, scratch),
        "site": lambda: site_pipeline(spark, data, scratch, history=False),
        "site_with_history": lambda: site_pipeline(spark, data, scratch, history=True),
        "pyarrow": lambda: bare_pyarrow(data),
    }
    best: dict[str, float] = {}
    for turn in range(repeats + 1):  # the first turn warms the JVM and is not counted
        for name, variant in variants.items():
            seconds = variant()
            if turn:
                best[name] = max(best.get(name, 0.0), rows / seconds)
                report(f"{keys:,} keys, {name}: {rows / seconds / 1e6:.2f} M rows/s")
    return {
        "keys": keys,
        "rows_per_s": best,
        "site_over_plain_spark": best["site"] / best["plain_spark"],
        "site_over_pyarrow": best["site"] / best["pyarrow"],
    }


def make_data(folder: Path, keys: int, files: int, rows: int) -> Path:
    """Parquet files in order of event time; each spans a few windows."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(7)
    for number in range(files):
        start = (1_700_000_000 + number * 20) * 1_000_000
        times = np.sort(start + chance.integers(0, 20_000_000, rows))
        ranks = np.minimum(keys * chance.random(rows) ** 2, keys - 1).astype(np.int64)
        table = pa.table(
            {
                "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
                "key": ranks,
                "value": chance.lognormal(3, 1, rows),
            }
        )
        pq.write_table(table, folder / f"part{number:03d}.parquet")
    return folder


def plain_spark(spark: Any, data: Path, scratch: Path) -> float:
    """Spark's own stateful streaming aggregate, output thrown away."""
    from pyspark.sql import functions as F

    state = scratch / "plain"
    events = spark.readStream.schema("ts TIMESTAMP, key BIGINT, value DOUBLE").option("maxFilesPerTrigger", 2)
    totals = (
        events.parquet(str(data))
        .withWatermark("ts", "0 seconds")
        .groupBy(F.window("ts", f"{WINDOW_S} seconds"), "key")
        .agg(F.count(F.lit(1)).alias("n"), F.sum("value").alias("total"))
    )
    writer = totals.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(state))
    began = time.perf_counter()
    writer.trigger(availableNow=True).start().awaitTermination()
    seconds = time.perf_counter() - began
    shutil.rmtree(state)
    return seconds


def site_pipeline(spark: Any, data: Path, scratch: Path, *, history: bool) -> float:
    """A whole site: Spark, journal, core, outbox, and delivery to an inbox."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.evaluation.evaluator import SparkEvaluator
    from catchment.spark.pipelines.site import SitePipeline
    from catchment.spark.sources import streams as sources
    from catchment.timeline import SystemClock
    from catchment.wire.inbox import Inbox, LocalUplink
    from catchment.wire.sender import Sender

    folder = scratch / "project"
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(PROJECT)
    (folder / "queries" / "q.sql").write_text(SQL.replace("{history}", str(history).lower()))
    (folder / "data").symlink_to(data)
    deployment = Deployment.load(folder)
    inbox = Inbox(folder / "inbox")
    bound, sources.MAX_FILES_PER_BATCH = sources.MAX_FILES_PER_BATCH, 2
    pipeline = SitePipeline(
        spark,
        deployment.project,
        "edge",
        deployment.streams_at("edge"),
        deployment.fragments_at("edge"),
        SparkEvaluator({}),
        lambda outbox: Sender(outbox, lambda: LocalUplink(inbox)),
        SystemClock(),
    )
    began = time.perf_counter()
    try:
        pipeline.start(once=True)
        while not pipeline.finished:
            time.sleep(0.02)
            pipeline.tick()
        return time.perf_counter() - began
    finally:
        pipeline.stop()
        sources.MAX_FILES_PER_BATCH = bound
        shutil.rmtree(folder)


def bare_pyarrow(data: Path) -> float:
    """The same group-by, file by file, in Arrow's own engine, and a merge."""
    began = time.perf_counter()
    parts = []
    for path in sorted(data.glob("*.parquet")):
        table = pq.read_table(path)
        slices = pc.floor_temporal(table["ts"], WINDOW_S, "second")
        grouped = table.append_column("slice", slices).group_by(["slice", "key"])
        parts.append(grouped.aggregate([("value", "count"), ("value", "sum")]))
    merged = pa.concat_tables(parts).group_by(["slice", "key"])
    merged.aggregate([("value_count", "sum"), ("value_sum", "sum")])
    return time.perf_counter() - began


def render(result: Mapping[str, Any]) -> RenderableType:
    """Millions of rows per second, and the ratios."""
    table = Table(
        "keys",
        "plain Spark",
        "site",
        "site + history",
        "pyarrow",
        "site / plain",
        "site / pyarrow",
        title=f"M rows/s; {result['data']}",
        title_justify="left",
    )
    for cell in result["cells"]:
        rates = [f"{cell['rows_per_s'][n] / 1e6:.2f}" for n in ("plain_spark", "site", "site_with_history", "pyarrow")]
        table.add_row(
            f"{cell['keys']:,}", *rates, f"{cell['site_over_plain_spark']:.2f}", f"{cell['site_over_pyarrow']:.2f}"
        )
    return table
