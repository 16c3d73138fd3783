"""Flink SQL in streaming mode, two tasks, mini-batch and object reuse on; timed into a sink that throws rows away.

Its tasks take files in any order, and what is behind the watermark is dropped: so that lies an hour back, which is more
than all files span, and windows end with the input. A topic is read from its first offset to those that are the last
when a turn begins.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyflink.table import EnvironmentSettings, TableEnvironment

from benchmarks.peers.programs.turns import serve

folder, format, window_s, slide_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
BROKERS = "CATCHMENT_BENCH_BROKERS"  # as in `filled_topic`, whose imports this environment does not have
TIMES = "TIMESTAMP(6)" if format == "parquet" else "TIMESTAMP_LTZ(6)"
FORMATS = {
    "parquet": "'format' = 'parquet', 'parquet.utc-timezone' = 'true'",
    "json": "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'",
    "csv": "'format' = 'csv', 'csv.ignore-parse-errors' = 'true'",
}
JSON = FORMATS["json"]
SOURCE = (
    f"'connector' = 'kafka', 'topic' = 'events', 'properties.bootstrap.servers' = '{os.environ.get(BROKERS)}', "
    f"'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', {JSON}"
    if format == "kafka"
    else f"'connector' = 'filesystem', 'path' = 'file://{folder}', {FORMATS[format]}"
)
ENDS = "window_start, window_end"
TABLE_FUNCTION = (
    f"TUMBLE(TABLE events, DESCRIPTOR(`at`), INTERVAL '{window_s}' SECOND)"
    if slide_s == window_s
    else f"HOP(TABLE events, DESCRIPTOR(`at`), INTERVAL '{slide_s}' SECOND, INTERVAL '{window_s}' SECOND)"
)
SELECT = f"""
SELECT {ENDS.split(",")[0]}, `key`, COUNT(*) AS n, SUM(`value`) AS total
FROM TABLE({TABLE_FUNCTION}) GROUP BY {ENDS}, `key`
"""


def open_environment() -> TableEnvironment:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    jars = ";".join(f"file://{jar}" for jar in sorted((Path(sys.prefix) / "jars").glob("*.jar")))
    settings = {
        "pipeline.jars": jars,
        "parallelism.default": "2",
        "pipeline.object-reuse": "true",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "table.local-time-zone": "UTC",
        "taskmanager.memory.process.size": "4g",
    }
    for key, value in settings.items():
        tables.get_config().set(key, value)
    tables.execute_sql(
        f"CREATE TABLE events (ts {TIMES}, `key` BIGINT, `value` DOUBLE, "
        f"`at` AS CAST(ts AS {TIMES.replace('6', '3')}), WATERMARK FOR `at` AS `at` - INTERVAL '1' HOUR) "
        f"WITH ({SOURCE})"
    )
    tables.execute_sql(
        "CREATE TABLE nowhere (w TIMESTAMP(3), k BIGINT, n BIGINT, total DOUBLE) WITH ('connector' = 'blackhole')"
    )
    return tables


tables = open_environment()


def run() -> float:
    began = time.perf_counter()
    tables.execute_sql(f"INSERT INTO nowhere {SELECT}").wait()
    return time.perf_counter() - began


def write_answers(path: str) -> None:
    """Let Flink write the answers itself: to collect millions of rows in Python takes minutes."""
    folder = f"{path}.parts"
    writing = open_environment()
    checkpoints = {
        "execution.checkpointing.interval": "10 s",  # a stream of files is whole at a checkpoint
        "execution.checkpointing.storage": "filesystem",  # in memory it takes 5 MB; with more, the job starts over
        "execution.checkpointing.dir": f"file://{path}.checkpoints",
    }
    for key, value in checkpoints.items():
        writing.get_config().set(key, value)
    writing.execute_sql(
        "CREATE TABLE answers (w TIMESTAMP(3), k BIGINT, n BIGINT, total DOUBLE) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', {FORMATS['parquet']})"
    )
    writing.execute_sql(f"INSERT INTO answers {SELECT}").wait()
    parts = [pq.read_table(file) for file in sorted(Path(folder).iterdir()) if not file.name.startswith(".")]
    found = pa.concat_tables(parts)
    slices = found["w"].cast(pa.timestamp("us")).cast(pa.int64())
    pq.write_table(pa.table([slices, found["k"], found["n"], found["total"]], ["slice_us", "key", "n", "total"]), path)


serve(version("apache-flink"), run, write_answers)
