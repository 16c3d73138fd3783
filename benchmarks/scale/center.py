"""Partials per second that a center merges and publishes on a Spark standalone cluster, with its rows in shards.

All segments have landed before the clock runs. Measured is what follows: reading them, merging, journalling, closing
and publishing one window of so many groups. The plain center, whose driver does all of it, is measured beside.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.console import RenderableType
from rich.table import Table

from benchmarks.scale.spark_cluster import EXECUTOR, WORKERS, SparkCluster
from catchment.aggregates import make_aggregate, partials
from catchment.center.open_state import measure as measure_open_state
from catchment.center.pipeline import CenterPipeline
from catchment.center.query import CenterQuery
from catchment.center.results.read import read_windows
from catchment.center.results.write import ResultTables
from catchment.center.shards.consumer import ShardedCenter
from catchment.center.shards.folder import PartFolder
from catchment.center.shards.tables import ShardedTables
from catchment.project.config import Project
from catchment.project.sections import Site
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key
from catchment.timeline import SECOND_US, ManualClock, WindowSpec
from catchment.wire.frames.codec import encode_segment
from catchment.wire.frames.limits import WireLimits
from catchment.wire.messages import Message, Progress, Segment, Updates
from catchment.wire.receiving.inbox import Inbox

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION = "partials/s of a center with shards on a Spark cluster: one worker of one core against two"
SHARDS = 8
REPEATS = 3
CENTERS = ("center_plain", "center_shards")
SITES = ("a", "b", "c", "d")
WINDOW = WindowSpec.tumbling(10 * SECOND_US)
FRAGMENT = Fragment(
    "q",
    "s",
    "ts",
    (Key("k", "k", pa.int64()),),
    (make_aggregate("count", None, None, name="n"), make_aggregate("sum", "v", pa.int64(), name="total")),
    (WINDOW,),
)


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure the center on clusters of one and of two workers, with the same segments."""
    with tempfile.TemporaryDirectory() as scratch:
        measured = {workers: _measure(Path(scratch), workers, report, quick) for workers in WORKERS}
    one, two = (measured[workers] for workers in WORKERS)
    ratio = {name: two[name]["partials_per_s"] / one[name]["partials_per_s"] for name in CENTERS}
    return {
        "compared": "one window of count and sum per key, from landed segments to the committed result table",
        "turns": f"median of {1 if quick else REPEATS}, after one that warms up",
        "workers": measured,
        "two_over_one": ratio,
    }


def render(result: Mapping[str, Any]) -> RenderableType:
    """Thousands of partials per second, what the second worker adds, and what the driver holds."""
    columns = ("center", "groups", "one worker", "two workers", "two over one", "bytes in the driver, window open")
    title = f"thousand partials/s; {result['compared']}; {result['turns']}"
    table = Table(*columns, title=title, title_justify="left")
    found: Mapping[Any, Any] = result["workers"]  # a kept result has texts for numbers as keys
    one, two = (found.get(workers) or found[str(workers)] for workers in WORKERS)
    for name in CENTERS:
        rates = [f"{of[name]['partials_per_s'] / 1e3:,.0f}" for of in (one, two)]
        ratio = f"{result['two_over_one'][name]:.2f}"
        table.add_row(name, f"{two[name]['groups']:,}", *rates, ratio, f"{two[name]['driver_bytes']:,}")
    return table


def _measure(scratch: Path, workers: int, report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    groups, segments, rows = (50_000, 16, 10_000) if quick else (1_000_000, 64, 50_000)
    landed = make_segments(groups, segments, rows)
    with SparkCluster(scratch / f"center-cluster-{workers}", workers) as cluster:
        spark = make_session("bench scale", SparkConfig(master=cluster.master, memory="2g", settings=EXECUTOR))
        try:
            found: dict[str, Any] = {}
            for shards in (0, SHARDS):
                name = "center_shards" if shards else "center_plain"
                turns = [
                    _turn(scratch / f"{name}-{workers}-{turn}", landed, spark, shards)
                    for turn in range(1 + (1 if quick else REPEATS))
                ]
                rates = [segments * rows / turn["seconds"] for turn in turns[1:]]  # the first warms up
                found[name] = {
                    "partials_per_s": statistics.median(rates),
                    "driver_bytes": turns[-1]["driver_bytes"],
                    "groups": turns[-1]["groups"],
                }
                report(f"{workers} workers: {name}: {found[name]['partials_per_s']:,.0f} partials/s")
            return found
        finally:
            spark.stop()


def make_segments(groups: int, segments: int, rows: int) -> list[bytes]:
    """Segments of partials of one window, then what lets it close."""
    chance = np.random.default_rng(7)
    sent: dict[str, list[list[Message]]] = {site: [] for site in SITES}
    for number in range(segments):
        keys = chance.choice(groups, rows, replace=False)
        raw = pa.table(
            {
                SLICE_COLUMN: pa.array(np.zeros(rows, dtype=np.int64)),
                "k": pa.array(keys, pa.int64()),
                "v": pa.array(chance.integers(0, 100, rows), pa.int64()),
            }
        )
        table = partials.lift(raw, [SLICE_COLUMN, "k"], FRAGMENT.aggregates).cast(FRAGMENT.schema)
        sent[SITES[number % len(SITES)]].append([Updates("q", table, ((0, rows),))])
    for messages in sent.values():
        messages.append([Progress("q", 10 * SECOND_US, rows * len(messages))])
    queues = [
        [encode_segment(Segment(site, "life", n, tuple(m))).data for n, m in enumerate(messages)]
        for site, messages in sent.items()
    ]
    return [segment for row in zip(*queues, strict=True) for segment in row]


def _turn(folder: Path, landed: list[bytes], spark: SparkSession, shards: int) -> dict[str, Any]:
    """Let a new center take everything; return how long it took, and what its driver held before the window closed."""
    from catchment.spark.evaluation.merge import make_merge
    from catchment.spark.evaluation.shard_tasks import SparkTasks

    project = Project("p", folder, "center", {"center": Site("center")}, {})
    inbox = Inbox(folder / "inbox", WireLimits(origin_bytes=2**33, inbox_bytes=2**34))
    tables: ResultTables = ResultTables(project.state_folder, "q", FRAGMENT, _finish)
    spread = None
    if shards:
        spread = ShardedCenter(shards, SparkTasks(spark), PartFolder(folder / "parts"))
        tables = ShardedTables(project.state_folder, "q", FRAGMENT, _finish, spread=spread, rename=_finish)
    query = CenterQuery("q", FRAGMENT, WINDOW, SITES, 3600 * SECOND_US)
    center = CenterPipeline(
        project, inbox, [query], {"q": FRAGMENT}, {}, {"q": tables}, ManualClock(0), make_merge(spark), spread=spread
    )
    for segment in landed[: -len(SITES)]:
        inbox.accept(segment)
    began_s = time.perf_counter()
    while center.consume():
        pass
    seconds = time.perf_counter() - began_s
    driver_bytes = measure_open_state(center.core)
    for segment in landed[-len(SITES) :]:
        inbox.accept(segment)
    began_s = time.perf_counter()
    while center.consume():
        pass
    seconds += time.perf_counter() - began_s
    center.stop()
    (published,) = read_windows(project.state_folder, "q").to_pylist()
    groups = published["rows_changed"]
    return {"seconds": seconds, "driver_bytes": driver_bytes, "groups": groups}


def _finish(rows: pa.Table) -> pa.Table:
    left_out = pa.array(np.zeros(rows.num_rows, dtype=bool))
    return rows.select(["k", "n", "total"]).append_column("retracted", left_out)
