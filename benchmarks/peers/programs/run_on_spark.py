"""Plain Spark Structured Streaming, or a catchment site with its defaults (journal, history, delivery).

No connector of Kafka for Spark 4.3 is published. Plain Spark reads a topic with jars of earlier releases that
`tools/peers.sh` puts into the folder of environments; their versions stand beside that of Spark.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.peers.filled_topic import BROKERS, TOPIC
from benchmarks.peers.peers import ENVIRONMENTS
from benchmarks.peers.programs.turns import serve
from benchmarks.throughput import throughput, topic
from benchmarks.throughput.throughput import Run
from catchment.project.sections import SparkConfig
from catchment.spark.session import make_session
from catchment.version import VERSION

engine, folder, format, window_s, slide_s = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
assert window_s == slide_s == 10, "the windows of the throughput benchmark"
brokers = os.environ.get(BROKERS, "")
jars = sorted((ENVIRONMENTS / "spark" / "jars").glob("*.jar")) if (engine, format) == ("spark", "kafka") else []
settings = {"spark.jars": ",".join(map(str, jars))} if jars else {}
spark = make_session(f"bench {engine}", SparkConfig(master="local[2]", memory="4g", settings=settings))
scratch = tempfile.TemporaryDirectory()


def read_topic(reader: Any) -> DataFrame:
    """Return windows and sums over the JSON values of the topic, as a stream or as a batch."""
    options = {"kafka.bootstrap.servers": brokers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    values = reader.format("kafka").options(**options).load().select(F.col("value").cast("string"))
    events = values.select(F.from_json("value", "ts TIMESTAMP, key BIGINT, value DOUBLE").alias("e")).select("e.*")
    if events.isStreaming:
        events = events.withWatermark("ts", "0 seconds")
    sums = (F.count(F.lit(1)).alias("n"), F.sum("value").alias("total"))
    return events.groupBy(F.window("ts", f"{window_s} seconds").alias("w"), "key").agg(*sums)


def run_plain_topic() -> Run:
    """Run Spark's own connector and stateful aggregate, its output thrown away; its answers are those of a batch."""
    state = str(Path(scratch.name) / "plain")
    writer = read_topic(spark.readStream).writeStream.outputMode("update").format("noop")
    began = time.perf_counter()
    writer.option("checkpointLocation", state).trigger(availableNow=True).start().awaitTermination()
    seconds = time.perf_counter() - began
    columns = ("unix_micros(w.start) AS slice_us", "key", "n", "total")
    return Run(seconds, lambda: read_topic(spark.read).selectExpr(*columns).toArrow())


bench: topic.Bench | throughput.Bench
if format == "kafka":
    bench = on_topic = topic.Bench(spark, Path(scratch.name), brokers)
    variants: dict[str, Callable[[], Run]] = {
        "spark": run_plain_topic,
        "catchment": lambda: on_topic.site("vectorised", history=True),
        "catchment-no-history": lambda: on_topic.site("vectorised", history=False),
    }
else:
    bench = on_files = throughput.Bench(spark, Path(scratch.name), Path(folder), format)
    variants = {
        "spark": on_files.variants["plain_spark"],
        "catchment": on_files.variants["vectorised_history"],
        "catchment-no-history": on_files.variants["vectorised"],
    }
variant = variants[engine]


def run() -> float:
    bench.clear()
    return variant().seconds


def write_answers(path: str) -> None:
    bench.clear()
    pq.write_table(variant().answers(), path)


def tell_version() -> str:
    if engine != "spark":
        return VERSION
    connector = [jar.stem for jar in jars if jar.stem.startswith("spark-")]
    return version("pyspark") + (f" with {' and '.join(connector)}" if connector else "")


serve(tell_version(), run, write_answers)
