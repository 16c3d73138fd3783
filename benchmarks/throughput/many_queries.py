"""Sliding windows and many queries on one stream: one site pipeline against plain Spark Structured Streaming.

Same files, same texts of queries, one session, the variants taking turns. Plain Spark runs a streaming query per view,
all at once, without output; a site runs all views in one pass with journal, history and delivery. Before any time is
believed, what the site has delivered is compared, fragment by fragment, with what the native evaluator, Spark SQL,
makes of the same files. Two more runs of the site tell what the hundredth view of one kind costs.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.throughput.site_run import SiteRun, run_site
from benchmarks.throughput.throughput import make_data

DESCRIPTION = "sliding windows, twelve queries and the hundredth query of one site against plain Spark"
REPEATS = 3
FILES_PER_BATCH = 2
KEYS = 1_000

STREAM = """
CREATE STREAM events (ts TIMESTAMP, key BIGINT, value DOUBLE)
  WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data', format = 'parquet');
"""
_BY_KEY = "SELECT window.start, key, {values} FROM events {where} GROUP BY window(ts, {window}), key"
_SUMS = "count(*) AS n, sum(value) AS total"


def _by_key(values: str = _SUMS, window: str = "'10 seconds'", where: str = "") -> str:
    return _BY_KEY.format(values=values, window=window, where=where)


SLIDING = {
    1: (_by_key(window="'60 seconds'"),),
    6: (_by_key(window="'60 seconds', '10 seconds'"),),
    60: (_by_key(window="'60 seconds', '1 second'"),),
}
TWELVE = (
    _by_key(),
    _by_key("avg(value) AS mean", "'20 seconds'"),
    _by_key("min(value) AS low, max(value) AS high"),
    _by_key("count(*) AS n", where="WHERE value > 20"),
    _by_key("sum(value * value) AS squares", where="WHERE key < 500"),
    _by_key("max(value) AS high", "'30 seconds'", "WHERE key < 100"),
    _by_key("stddev(value) AS spread", "'60 seconds'"),
    _by_key("sum(value) AS total", "'60 seconds', '20 seconds'"),
    "SELECT window.start, key % 100 AS shard, sum(value) AS total FROM events "
    "GROUP BY window(ts, '10 seconds'), key % 100",
    "SELECT window.start, key % 10 AS shard, count(*) AS n FROM events GROUP BY window(ts, '30 seconds'), key % 10",
    "SELECT window.start, count(*) AS n, avg(value) AS mean FROM events WHERE value < 10 "
    "GROUP BY window(ts, '10 seconds')",
    "SELECT window.start, max(key) AS largest, min(key) AS least FROM events GROUP BY window(ts, '10 seconds')",
)
HUNDRED = tuple(_by_key(where=f"WHERE key = {key}") for key in range(100))


@dataclass
class Bench:
    """The variants over one set of files."""

    spark: Any
    scratch: Path
    data: Path

    def site(self, queries: Sequence[str], evaluator: str = "vectorised") -> SiteRun:
        """Run a site with these queries as views."""
        views = (f"CREATE MATERIALIZED VIEW v{number} AS {query};\n" for number, query in enumerate(queries))
        folder = self.scratch / "project"
        shutil.rmtree(folder, ignore_errors=True)
        return run_site(self.spark, folder, self.data, STREAM + "".join(views), evaluator, FILES_PER_BATCH)

    def plain_spark(self, queries: Sequence[str]) -> float:
        """Run a streaming query per view, all at once; return the seconds until all have ended."""
        state = self.scratch / "plain"
        shutil.rmtree(state, ignore_errors=True)
        events = self.spark.readStream.schema("ts TIMESTAMP, key BIGINT, value DOUBLE")
        events = events.option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(self.data))
        events.withWatermark("ts", "0 seconds").createOrReplaceTempView("events")
        began = time.perf_counter()
        running = []
        for number, query in enumerate(queries):
            writer = self.spark.sql(query).writeStream.outputMode("update").format("noop")
            writer = writer.option("checkpointLocation", str(state / str(number)))
            running.append(writer.trigger(availableNow=True).start())
        for query in running:
            query.awaitTermination()
        return time.perf_counter() - began


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure every scenario."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    files, rows = (2, 50_000) if quick else (4, 500_000)
    repeats = 1 if quick else REPEATS
    spark = make_session("bench many_queries", SparkConfig(master="local[2]", memory="4g"))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            data = make_data(Path(scratch) / "data", "parquet", KEYS, files, rows)
            bench = Bench(spark, Path(scratch), data)
            sliding = {
                slides: measure(bench, queries, f"{slides} slides", report, repeats)
                for slides, queries in SLIDING.items()
            }
            twelve = measure(bench, TWELVE, "twelve queries", report, repeats)
            hundredth = measure_hundredth(bench, report, repeats)
    finally:
        spark.stop()
    return {
        "compared": "one site pipeline with journal, history and delivery, plain Spark Structured Streaming",
        "data": f"generated: {files} files of {rows:,} rows, {KEYS:,} keys, two files per micro-batch",
        "turns": f"median of {repeats}, after one turn that warms up and compares the answers",
        "rows": files * rows,
        "sliding": sliding,
        "twelve": twelve,
        "hundredth": hundredth,
    }


def measure(
    bench: Bench, queries: Sequence[str], name: str, report: Callable[[str], None], repeats: int
) -> dict[str, Any]:
    """Return the seconds of both variants, taking turns, once their answers are known to be right."""
    compare_partials(bench.site(queries).answers(), bench.site(queries, "native").answers(), name)
    bench.plain_spark(queries)
    times: dict[str, list[float]] = {"plain_spark": [], "site": []}
    for _ in range(repeats):
        times["plain_spark"].append(bench.plain_spark(queries))
        times["site"].append(bench.site(queries).seconds)
        report(f"{name}: plain Spark {times['plain_spark'][-1]:.2f} s, site {times['site'][-1]:.2f} s")
    medians = {variant: statistics.median(seconds) for variant, seconds in times.items()}
    return {"seconds": times, "median_s": medians, "times_plain_spark": medians["plain_spark"] / medians["site"]}


def measure_hundredth(bench: Bench, report: Callable[[str], None], repeats: int) -> dict[str, Any]:
    """Return what a site takes for one query, and for a hundred that differ in the key they choose."""
    bench.site(HUNDRED)
    times: dict[int, list[float]] = {1: [], 100: []}
    for _ in range(repeats):
        for count, seconds in times.items():
            seconds.append(bench.site(HUNDRED[:count]).seconds)
        report(f"one query {times[1][-1]:.2f} s, a hundred {times[100][-1]:.2f} s")
    one, hundred = (statistics.median(times[count]) for count in (1, 100))
    return {"seconds": times, "one_s": one, "hundred_s": hundred, "each_further_over_first": (hundred - one) / 99 / one}


def compare_partials(found: Mapping[str, pa.Table], expected: Mapping[str, pa.Table], name: str) -> None:
    """Refuse partials that are not those of Spark SQL; doubles may differ in their last bits."""
    for fragment, theirs in expected.items():
        for column in theirs.column_names:
            one, other = (np.asarray(table[column].cast(pa.float64())) for table in (found[fragment], theirs))
            if one.shape != other.shape or not np.allclose(one, other, rtol=1e-9, atol=0.0, equal_nan=True):
                raise AssertionError(f"{name}: {fragment} gives other answers in {column}")


def render(result: Mapping[str, Any]) -> RenderableType:
    """Seconds of both variants, and what each further query costs."""
    head = ("scenario", "plain Spark, s", "site, s", "times plain Spark")
    table = Table(*head, title=f"{result['data']}; {result['turns']}", title_justify="left")
    named = {f"windows of 60 s, {n} slides": cell for n, cell in result["sliding"].items()}
    for name, cell in {**named, "twelve queries": result["twelve"]}.items():
        seconds = (f"{cell['median_s'][variant]:.2f}" for variant in ("plain_spark", "site"))
        table.add_row(name, *seconds, f"{cell['times_plain_spark']:.1f}")
    hundredth = result["hundredth"]
    told = (
        f"A site with one query takes {hundredth['one_s']:.2f} s, with a hundred that choose one key each "
        f"{hundredth['hundred_s']:.2f} s: a further one costs {hundredth['each_further_over_first']:.1%} of the first."
    )
    return Group(table, told)
