"""Rows per second of one site pipeline on a Spark standalone cluster: one worker of one core against two.

The driver, the master and the workers share this machine, so the figure says what a second worker adds here; the
driver's own work (journal, cache, outbox) is not spread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.scale.spark_cluster import SparkCluster
from benchmarks.throughput.throughput import Bench, make_data, measure

DESCRIPTION = "rows/s of one site pipeline on a Spark standalone cluster: one worker of one core against two"
CELLS = (("parquet", 10_000), ("json", 10_000))
WORKERS = (1, 2)
VARIANTS = ("plain_spark", "native_history", "vectorised_history")
REPEATS = 3
EXECUTOR = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1"}


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure the variants on clusters of one and of two workers, with the same files."""
    cells = []
    for format, keys in CELLS:
        files, rows = (4, 100_000) if quick else (8, 1_000_000 if format == "parquet" else 250_000)
        with tempfile.TemporaryDirectory() as scratch:
            data = make_data(Path(scratch) / "data", format, keys, files, rows)
            measured = {
                workers: _measure(Path(scratch), data, format, keys, files * rows, workers, report, quick)
                for workers in WORKERS
            }
        one, two = (measured[workers]["rows_per_s"] for workers in WORKERS)
        ratio = {name: two[name] / one[name] for name in VARIANTS}
        cells.append({"format": format, "keys": keys, "workers": measured, "two_over_one": ratio})
    return {
        "compared": "one worker of one core, and two; count and sum per 10 s and key, with history",
        "data": "generated: 8 files of 1,000,000 rows (Parquet) or 250,000 (JSON), two per micro-batch",
        "turns": f"median of {1 if quick else REPEATS}, after one turn that warms up and compares the answers",
        "cells": cells,
    }


def _measure(
    scratch: Path,
    data: Path,
    format: str,
    keys: int,
    rows: int,
    workers: int,
    report: Callable[[str], None],
    quick: bool,
) -> dict[str, Any]:
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    def tell(line: str) -> None:
        report(f"{workers} workers: {line}")

    with SparkCluster(scratch / f"cluster-{workers}", workers) as cluster:
        spark = make_session("bench scale", SparkConfig(master=cluster.master, memory="2g", settings=EXECUTOR))
        try:
            bench = Bench(spark, scratch, data, format)
            bench.variants = {name: bench.variants[name] for name in VARIANTS}
            return measure(bench, keys, rows, tell, 1 if quick else REPEATS)
        finally:
            spark.stop()


def render(result: Mapping[str, Any]) -> RenderableType:
    """Millions of rows per second, and what the second worker adds."""
    columns = ("files", "variant", "one worker", "two workers", "two over one")
    table = Table(*columns, title=f"M rows/s; {result['data']}; {result['turns']}", title_justify="left")
    for cell in result["cells"]:
        one, two = (_rates(cell, workers) for workers in WORKERS)
        for name in VARIANTS:
            ratio = f"{cell['two_over_one'][name]:.2f}"
            table.add_row(cell["format"], name, f"{one[name] / 1e6:.2f}", f"{two[name] / 1e6:.2f}", ratio)
    return table


def _rates(cell: Mapping[str, Any], workers: int) -> Mapping[str, float]:
    """Return the rates with this many workers; a kept result has texts for numbers as keys."""
    found: Mapping[Any, Any] = cell["workers"]
    rates: Mapping[str, float] = (found.get(workers) or found[str(workers)])["rows_per_s"]
    return rates
