"""Plain Spark Structured Streaming, or a catchment site with its defaults (journal, history, delivery)."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.peers.programs.turns import serve
from benchmarks.throughput.throughput import Bench
from catchment.project.sections import SparkConfig
from catchment.spark.session import make_session
from catchment.version import VERSION

engine, folder, format, window_s, slide_s = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
assert window_s == slide_s == 10, "the windows of the throughput benchmark"
spark = make_session(f"bench {engine}", SparkConfig(master="local[2]", memory="4g"))
scratch = tempfile.TemporaryDirectory()
bench = Bench(spark, Path(scratch.name), Path(folder), format)
VARIANTS = {"spark": "plain_spark", "catchment": "vectorised_history", "catchment-no-history": "vectorised"}
variant = bench.variants[VARIANTS[engine]]


def run() -> float:
    bench.clear()
    return variant().seconds


def write_answers(path: str) -> None:
    bench.clear()
    pq.write_table(variant().answers(), path)


serve(version("pyspark") if engine == "spark" else VERSION, run, write_answers)
