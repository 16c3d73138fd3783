"""Rows per second of a site pipeline, and partials per second of a center, on a Spark standalone cluster.

Compared are one worker of one core and two.

The driver, the master and the workers share this machine, so the figure says what a second worker adds here; the
driver's own work (journal, cache, outbox) is not spread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.scale import center
from benchmarks.scale.spark_cluster import EXECUTOR, WORKERS, SparkCluster
from benchmarks.throughput.throughput import TITLES, Bench, make_data, measure

DESCRIPTION = "rows/s of a site and partials/s of a center on a Spark cluster: one worker of one core against two"
PARTS = ("site", "center")
CELLS = (("parquet", 10_000), ("json", 10_000))
VARIANTS = ("plain_spark", "left_history", "vectorised_history")
REPEATS = 3


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure site and center on clusters of one and of two workers, each with the same data."""
    found = _run_sites(report, quick) if "site" in parts else {}
    return found | ({"center": center.run(report, quick)} if "center" in parts else {})


def _run_sites(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
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
    title = f"M rows/s; {result['data']}; {result['turns']}" if "cells" in result else ""
    columns = ("files", "variant", "one worker", "two workers", "two over one")
    table = Table(*columns, title=title, title_justify="left")
    for cell in result.get("cells", ()):
        one, two = (_rates(cell, workers) for workers in WORKERS)
        for name in (n for n in TITLES if n in one):
            ratio = f"{cell['two_over_one'][name]:.2f}"
            table.add_row(cell["format"], name, f"{one[name] / 1e6:.2f}", f"{two[name] / 1e6:.2f}", ratio)
    if "center" not in result:
        return table
    return Group(table, center.render(result["center"])) if "cells" in result else center.render(result["center"])


def _rates(cell: Mapping[str, Any], workers: int) -> Mapping[str, float]:
    """Return the rates with this many workers; a kept result has texts for numbers as keys."""
    found: Mapping[Any, Any] = cell["workers"]
    rates: Mapping[str, float] = (found.get(workers) or found[str(workers)])["rows_per_s"]
    return rates
