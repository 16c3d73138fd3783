"""Placement on Spark: demand graphs of growing size in a heap that does not grow."""

from __future__ import annotations

import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

DESCRIPTION = "Placement of 10M and 50M demand edges on Spark: seconds, and memory per task, in one heap."
HEAP = "1g"
FRIENDS = 100  # of each user
SIZES = (10_000_000, 50_000_000)  # demand edges, one direction each
QUICK_SIZES = (200_000, 1_000_000)


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Place each graph in the same session; partitions grow in number, not in size."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    folder = Path(tempfile.mkdtemp(prefix="place-spark-"))
    log = {"enabled": "true", "dir": (folder / "log").as_uri(), "compress": "false", "rolling.enabled": "false"}
    (folder / "log").mkdir()
    settings = {f"spark.eventLog.{key}": value for key, value in log.items()}
    session = make_session("bench", SparkConfig(memory=HEAP, settings=settings))
    try:
        rows = [_measure(session, folder, size, report) for size in (QUICK_SIZES if quick else SIZES)]
    finally:
        session.stop()
    for row in rows:
        row.update(_largest_task(folder / "log", row.pop("began"), row.pop("ended")))
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "compared": f"the same placement at growing sizes, in a heap of {HEAP}",
        "graph": f"each user has {FRIENDS} friends; rates by Pareto's law with exponent 1 over three decades",
        "placements": rows,
    }


def _measure(session: Any, folder: Path, edges: int, report: Callable[[str], None]) -> dict[str, Any]:
    from catchment.feeds.placement.costs import DeviceCosts
    from catchment.spark.feeds.place_file import place_file

    rates = folder / f"rates-{edges}.parquet"
    report(f"generating {edges:,} demand edges")
    _generate(session, rates, edges)
    report("placing them")
    began = time.time()
    placed = place_file(rates, DeviceCosts(1.0, 1.0), folder / f"decisions-{edges}.parquet", session=session)
    ended = time.time()
    size = sum(part.stat().st_size for part in rates.glob("*.parquet"))
    shutil.rmtree(rates)
    told = {key: value for key, value in placed.summary().items() if key != "seconds"}
    return {
        "demand_edges": edges,
        "seconds": round(ended - began, 1),
        "input_mb": size // 2**20,
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        **told,
        "began": began,
        "ended": ended,
    }


def _generate(session: Any, path: Path, edges: int) -> None:
    """Users in a ring, each a friend of the next FRIENDS / 2; numbers are scattered, rates hashed."""
    users = edges // FRIENDS
    pairs = session.range(edges // 2).selectExpr(
        f"pmod(7919 * pmod(id, {users}), {users}) AS a",
        f"pmod(7919 * pmod(id + 1 + id div {users}, {users}), {users}) AS b",
    )
    both = pairs.selectExpr("inline(array(struct(a AS src, b AS dst), struct(b AS src, a AS dst)))")
    chance = "((pmod(xxhash64(src, dst), 1000000) + 1) / 1000000.0D)"
    both.selectExpr("src", "dst", f"least(1.0D, 0.001D / {chance}) AS rate").write.parquet(str(path))


def _largest_task(folder: Path, began: float, ended: float) -> dict[str, float]:
    """From Spark's event log: the most execution memory that one task held at once, and what all spilled."""
    peak, spilled, tasks = 0, 0, 0
    for line in (line for file in folder.iterdir() for line in file.open(encoding="utf-8")):
        event = json.loads(line)
        if event["Event"] != "SparkListenerTaskEnd" or "Task Metrics" not in event:
            continue
        if began <= event["Task Info"]["Launch Time"] / 1000 <= ended:
            metrics = event["Task Metrics"]
            peak, tasks = max(peak, metrics["Peak Execution Memory"]), tasks + 1
            spilled += metrics["Disk Bytes Spilled"]
    return {"tasks": tasks, "largest_task_peak_mb": round(peak / 2**20, 1), "spilled_mb": round(spilled / 2**20, 1)}


def render(result: Mapping[str, Any]) -> RenderableType:
    """One row a size."""
    table = Table(title=f"placement on Spark, heap {HEAP}")
    keys = ("demand_edges", "seconds", "tasks", "largest_task_peak_mb", "driver_peak_mb", "improvement", "optimal")
    for key in keys:
        table.add_column(key.replace("_", " "), justify="right")
    for row in result["placements"]:
        table.add_row(*(f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in keys))
    return table
