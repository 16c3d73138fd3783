"""Rows per second of one site pipeline against plain Spark Structured Streaming doing the same windowed aggregate.

Same files (Parquet, JSON lines, CSV), same session, same run, the variants taking turns: plain Spark with its own
stateful operator (update mode, no output); a catchment site, which also journals, caches, encodes and delivers its
partials to a local inbox, evaluated by Arrow and, with a condition that only Spark SQL can evaluate, by Spark SQL, each
with and without raw history (of Arrow also with a history that refers to the files); and, as the limit of the machine,
DuckDB on the same files. The condition holds for every record, and plain Spark and DuckDB are spared it. The figure of
a variant is the median of its turns. No time is believed before the answers of all variants are equal.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import RenderableType
from rich.table import Table

from benchmarks.throughput.site_run import run_site

DESCRIPTION = "rows/s of one site pipeline against plain Spark Structured Streaming: Parquet, JSON lines, CSV"
CELLS = (("parquet", 10_000), ("parquet", 200_000), ("parquet", 1_000_000), ("json", 10_000), ("csv", 10_000))
PARTS = tuple(f"{format}-{keys}" for format, keys in CELLS)
LEFT_KEYS = 10_000  # with more keys what is left to Spark SQL, which is slow there, is not measured
WINDOW_S = 10
REPEATS = 3
FILES_PER_BATCH = 2

SQL = """
CREATE STREAM events (ts TIMESTAMP, key BIGINT, value DOUBLE)
  WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data', format = '{format}',
        history = {history});
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, key, count(*) AS n, sum(value) AS total FROM events {where}
  GROUP BY window(ts, '10 seconds'), key;
"""
LEFT_TO_SPARK = "WHERE bit_count(key) >= 0"  # true, and nothing that Arrow evaluates
# What the columns of the table are called, by the names of the variants in a result.
TITLES = {
    "plain_spark": "plain Spark",
    "site": "site",
    "native": "native",
    "site_with_history": "site + history",
    "native_history": "native + history",
    "left": "left to Spark SQL",
    "left_history": "left to Spark SQL + history",
    "vectorised": "vectorised",
    "vectorised_reference": "vectorised + reference",
    "vectorised_history": "vectorised + history (default)",
    "pyarrow": "pyarrow",
    "duckdb": "DuckDB",
}


@dataclass(frozen=True)
class Run:
    """One timed run of a variant, and how to get its answers once the clock has stopped."""

    seconds: float
    answers: Callable[[], pa.Table]


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure every variant in some cells."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    sizes = {"parquet": (3, 200_000) if quick else (8, 1_000_000)}
    spark = make_session("bench throughput", SparkConfig(master="local[2]", memory="4g"))
    cells = []
    try:
        for format, keys in (cell for cell, part in zip(CELLS, PARTS, strict=True) if part in parts):
            files, rows = sizes.get(format, (3, 100_000) if quick else (8, 250_000))
            with tempfile.TemporaryDirectory() as scratch:
                data = make_data(Path(scratch) / "data", format, keys, files, rows)
                bench = Bench(spark, Path(scratch), data, format)
                if keys > LEFT_KEYS:
                    bench.variants = {n: v for n, v in bench.variants.items() if not n.startswith("left")}
                cells.append(measure(bench, keys, files * rows, report, 1 if quick else REPEATS))
    finally:
        spark.stop()
    return {
        "compared": "one site pipeline, plain Spark Structured Streaming, DuckDB; count and sum per 10 s and key",
        "data": "generated: 8 files of 1,000,000 rows (Parquet) or 250,000 (text), keys Zipf-like, two per micro-batch",
        "turns": f"median of {1 if quick else REPEATS}, after one turn that warms up and compares the answers",
        "cells": cells,
    }


def join_parts(earlier: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the cells that an earlier run of the same commit has measured."""
    cells = {(cell["format"], cell["keys"]): cell for cell in [*earlier["cells"], *result["cells"]]}
    return {**result, "cells": [cells[cell] for cell in CELLS if cell in cells]}


def measure(bench: Bench, keys: int, rows: int, report: Callable[[str], None], repeats: int) -> dict[str, Any]:
    """Return the rows per second of each variant, taking turns so that noise affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in bench.variants}
    expected = bench.duckdb().answers()
    for turn in range(repeats + 1):  # the first turn warms the JVM and is not counted
        for name, variant in bench.variants.items():
            done = variant()
            if turn == 0:
                compare_answers(done.answers(), expected, name)
            else:
                times[name].append(done.seconds)
                report(f"{bench.format}, {keys:,} keys, {name}: {rows / done.seconds / 1e6:.2f} M rows/s")
            bench.clear()
    rates = {name: rows / statistics.median(seconds) for name, seconds in times.items()}
    return {
        "format": bench.format,
        "keys": keys,
        "groups": expected.num_rows,
        "rows_per_s": rates,
        "seconds": times,
        "over_plain_spark": {name: rate / rates["plain_spark"] for name, rate in rates.items()},
    }


def make_data(folder: Path, format: str, keys: int, files: int, rows: int) -> Path:
    """Make files in order of event time; each spans a few windows."""
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
        write_file(table, folder / f"part{number:03d}.{format}", format)
    return folder


def write_file(table: pa.Table, path: Path, format: str) -> None:
    """Write the records as logs have them: instants as text with a zone."""
    if format == "parquet":
        pq.write_table(table, path)
        return
    texts = pc.strftime(table["ts"], "%Y-%m-%dT%H:%M:%SZ").to_pylist()  # with six digits of a second
    rows = zip(texts, table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    if format == "csv":
        lines = ["ts,key,value\n", *(f"{ts},{key},{value!r}\n" for ts, key, value in rows)]
    else:
        lines = [f'{{"ts":"{ts}","key":{key},"value":{value!r}}}\n' for ts, key, value in rows]
    path.write_text("".join(lines))


@dataclass
class Bench:
    """The variants, over one set of files."""

    spark: Any
    scratch: Path
    data: Path
    format: str
    variants: Mapping[str, Callable[[], Run]] = field(init=False)

    def __post_init__(self) -> None:
        self.variants = {
            "plain_spark": self.plain_spark,
            "left": lambda: self.site(history="false", where=LEFT_TO_SPARK),
            "left_history": lambda: self.site(history="'copy'", where=LEFT_TO_SPARK),
            "vectorised": lambda: self.site(history="false"),
            "vectorised_reference": lambda: self.site(history="'reference'"),
            "vectorised_history": lambda: self.site(history="'copy'"),
            "duckdb": self.duckdb,
        }

    def clear(self) -> None:
        """Remove what a run has left."""
        for folder in ("plain", "project"):
            shutil.rmtree(self.scratch / folder, ignore_errors=True)

    def plain_spark(self) -> Run:
        """Run Spark's own stateful streaming aggregate, its output thrown away."""
        from pyspark.sql import functions as F

        state = self.scratch / "plain"
        schema = "ts TIMESTAMP, key BIGINT, value DOUBLE"
        header = str(self.format == "csv").lower()
        window = F.window("ts", f"{WINDOW_S} seconds")
        sums = (F.count(F.lit(1)).alias("n"), F.sum("value").alias("total"))
        events = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH)
        events = events.option("header", header).format(self.format)
        totals = (
            events.load(str(self.data)).withWatermark("ts", "0 seconds").groupBy(window.alias("w"), "key").agg(*sums)
        )
        writer = totals.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(state))
        began = time.perf_counter()
        writer.trigger(availableNow=True).start().awaitTermination()
        seconds = time.perf_counter() - began

        def answers() -> pa.Table:
            """Return what the same aggregate gives as a batch: a stream without output has none to compare."""
            read = self.spark.read.schema(schema).option("header", header).format(self.format).load(str(self.data))
            grouped = read.groupBy(window.alias("w"), "key").agg(*sums)
            return grouped.selectExpr("unix_micros(w.start) AS slice_us", "key", "n", "total").toArrow()

        return Run(seconds, answers)

    def site(self, *, history: str, where: str = "") -> Run:
        """Run a whole site: Spark, journal, core, outbox, and delivery to an inbox."""
        sql = SQL.format(history=history, format=self.format, where=where)
        done = run_site(self.spark, self.scratch / "project", self.data, sql, "vectorised", FILES_PER_BATCH)

        def answers() -> pa.Table:
            (found,) = done.answers().values()
            return found.rename_columns(["slice_us", "key", "n", "total"])

        return Run(done.seconds, answers)

    def duckdb(self) -> Run:
        """Run the same group-by in DuckDB, on all cores."""
        import duckdb

        files = self.data / f"*.{self.format}"
        source = {
            "parquet": f"'{files}'",
            "json": f"read_json('{files}', columns={{ts: 'TIMESTAMPTZ', key: 'BIGINT', value: 'DOUBLE'}})",
            "csv": f"read_csv('{files}', columns={{ts: 'TIMESTAMPTZ', key: 'BIGINT', value: 'DOUBLE'}})",
        }[self.format]
        slices = f"epoch_us(ts) // {WINDOW_S * 1_000_000} * {WINDOW_S * 1_000_000}"
        began = time.perf_counter()
        with duckdb.connect() as connection:
            found = connection.sql(
                f"SELECT {slices} AS slice_us, key, count(*) AS n, sum(value) AS total FROM {source} GROUP BY ALL"
            ).to_arrow_table()
        return Run(time.perf_counter() - began, lambda: found)


def compare_answers(found: pa.Table, expected: pa.Table, name: str) -> None:
    """Refuse a variant whose answers are not those that are expected; sums may differ in their last bits."""
    order = [("slice_us", "ascending"), ("key", "ascending")]
    mine, theirs = (table.select(["slice_us", "key", "n", "total"]).sort_by(order) for table in (found, expected))
    for column in ("slice_us", "key", "n"):
        if not np.array_equal(np.asarray(mine[column]), np.asarray(theirs[column])):
            raise AssertionError(f"{name} gives other answers: {column} differs, {mine.num_rows} rows")
    if not np.allclose(np.asarray(mine["total"]), np.asarray(theirs["total"]), rtol=1e-12, atol=0.0):
        raise AssertionError(f"{name} gives other answers: sums differ")


def render(result: Mapping[str, Any]) -> RenderableType:
    """Millions of rows per second, and how many times plain Spark that is."""
    variants = [name for name in TITLES if name in result["cells"][0]["rows_per_s"]]
    table = Table("files", "keys", *(TITLES[name] for name in variants), title=_title(result), title_justify="left")
    for cell in result["cells"]:
        rates = cell["rows_per_s"]
        table.add_row(cell.get("format", "parquet"), f"{cell['keys']:,}", *_cells(rates, variants))
    return table


def _title(result: Mapping[str, Any]) -> str:
    turns = f"; {result['turns']}" if "turns" in result else ""
    return f"M rows/s (times plain Spark); {result['data']}{turns}"


def _cells(rates: Mapping[str, float], variants: Sequence[str]) -> list[str]:
    plain = rates["plain_spark"]
    return [_cell(rates[n], plain, n) if n in rates else "" for n in variants]


def _cell(rate: float, plain: float, variant: str) -> str:
    return f"{rate / 1e6:.2f}" + ("" if variant == "plain_spark" else f" ({rate / plain:.2f})")
