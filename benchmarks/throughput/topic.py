"""Rows per second of one site on a topic of Kafka, read by the pass of Arrow, against Spark SQL over the same reader.

A real broker on this machine, JSON values, one topic, one session, the variants taking turns. Plain Spark is Structured
Streaming with `from_json` and its own stateful operator over catchment's reader of offsets: this version of Spark comes
without a connector to compare with. No time is believed before the answers of all variants are equal.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import RenderableType

from benchmarks.throughput import throughput
from benchmarks.throughput.site_run import run_site
from benchmarks.throughput.throughput import Run, compare_answers, make_data
from catchment.errors import ConfigError

DESCRIPTION = "rows/s of one site on a topic of Kafka, against Spark SQL over the same reader"
KEYS = 10_000
PARTITIONS = 4
REPEATS = 3
SQL = """
CREATE STREAM events (ts TIMESTAMP, key BIGINT, value DOUBLE)
  WITH (event_time = 'ts', sites = 'edge', connector = 'kafka', brokers = '{brokers}', topic = 'events',
        history = {history});
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, key, count(*) AS n, sum(value) AS total FROM events GROUP BY window(ts, '10 seconds'), key;
"""


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure every variant over one topic."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session
    from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker

    if not has_broker():
        raise ConfigError("there is no broker to start", hint=MISSING)
    files, rows = (2, 50_000) if quick else (8, 250_000)
    repeats = 1 if quick else REPEATS
    spark = make_session("bench topic", SparkConfig(master="local[2]", memory="4g"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        broker = KafkaBroker(folder / "broker").start()
        try:
            data = make_data(folder / "data", "json", KEYS, files, rows)
            broker.make_topic("events", PARTITIONS, {"retention.ms": "-1"})
            lines = (line for file in sorted(data.glob("*.json")) for line in file.read_bytes().splitlines())
            for batch in _in_batches(lines, 50_000):
                broker.produce("events", ({"value": v, "partition": n % PARTITIONS} for n, v in enumerate(batch)))
            cell = _measure(Bench(spark, folder, broker.address), data, files * rows, report, repeats)
        finally:
            broker.kill()
            spark.stop()
    return {
        "compared": "one site, Spark Structured Streaming over the same reader; count and sum per 10 s and key",
        "data": f"generated: {files * rows:,} JSON values in {PARTITIONS} partitions of a broker on this machine",
        "turns": f"median of {repeats}, after one turn that warms up and compares the answers",
        "cells": [cell],
    }


def _in_batches(lines: Any, size: int) -> Any:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _measure(bench: Bench, data: Path, rows: int, report: Callable[[str], None], repeats: int) -> dict[str, Any]:
    expected = throughput.Bench(bench.spark, bench.scratch, data, "json").duckdb().answers()
    variants: Mapping[str, Callable[[], Run]] = {
        "plain_spark": bench.plain_spark,
        "native_history": lambda: bench.site("native", history=True),
        "vectorised": lambda: bench.site("vectorised", history=False),
        "vectorised_history": lambda: bench.site("vectorised", history=True),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, variant in variants.items():
            done = variant()
            if turn == 0:
                compare_answers(done.answers(), expected, name)
            else:
                times[name].append(done.seconds)
                report(f"{name}: {rows / done.seconds / 1e6:.2f} M rows/s")
            bench.clear()
    rates = {name: rows / statistics.median(seconds) for name, seconds in times.items()}
    over = {name: rate / rates["plain_spark"] for name, rate in rates.items()}
    return {"format": "kafka", "keys": KEYS, "rows_per_s": rates, "seconds": times, "over_plain_spark": over}


@dataclass
class Bench:
    """The variants, over one topic."""

    spark: Any
    scratch: Path
    brokers: str

    def clear(self) -> None:
        """Remove what a run has left."""
        for folder in ("plain", "project"):
            shutil.rmtree(self.scratch / folder, ignore_errors=True)

    def plain_spark(self) -> Run:
        """Run Spark's own stateful streaming aggregate over the reader of offsets; its answers are collected."""
        from pyspark.sql import functions as F

        from catchment.spark.sources.kafka import SPARK_SCHEMA, KafkaSource

        self.spark.dataSource.register(KafkaSource)
        state = self.scratch / "plain"
        options = {"brokers": self.brokers, "topic": "events", "start": "earliest", "client_config": ""}
        options |= {"format": "json", "checkpoint": str(state)}
        values = self.spark.readStream.format(KafkaSource.name()).options(**options).schema(SPARK_SCHEMA).load()
        events = values.select(F.from_json("value", "ts TIMESTAMP, key BIGINT, value DOUBLE").alias("e")).select("e.*")
        totals = (
            events.withWatermark("ts", "0 seconds")
            .groupBy(F.window("ts", "10 seconds").alias("w"), "key")
            .agg(F.count(F.lit(1)).alias("n"), F.sum("value").alias("total"))
            .selectExpr("unix_micros(w.start) AS slice_us", "key", "n", "total")
        )
        found: list[pa.Table] = []
        writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(state))
        writer = writer.foreachBatch(lambda batch, _: found.append(batch.toArrow()))
        began = time.perf_counter()
        writer.trigger(availableNow=True).start().awaitTermination()
        seconds = time.perf_counter() - began
        return Run(seconds, lambda: _newest(found))

    def site(self, evaluator: str, *, history: bool) -> Run:
        """Run a whole site: Spark, journal, core, outbox, and delivery to an inbox."""
        sql = SQL.format(brokers=self.brokers, history=str(history).lower())
        done = run_site(self.spark, self.scratch / "project", self.scratch / "data", sql, evaluator, 1)

        def answers() -> pa.Table:
            (found,) = done.answers().values()
            return found.rename_columns(["slice_us", "key", "n", "total"])

        return Run(done.seconds, answers)


def _newest(tables: list[pa.Table]) -> pa.Table:
    """Return the last row of each window and key: an update replaces the one before."""
    rows = {(row["slice_us"], row["key"]): row for table in tables for row in table.to_pylist()}
    return pa.Table.from_pylist(list(rows.values()), tables[0].schema)


def render(result: Mapping[str, Any]) -> RenderableType:
    """Millions of rows per second, and how many times plain Spark that is."""
    return throughput.render(result)
