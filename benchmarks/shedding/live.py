"""One site and a center, run live in this process while a burst arrives; what the site can take, and what it costs."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.shedding.judge import Clock, judge, worst_error
from benchmarks.shedding.monitors import Batch, Never, Planned
from benchmarks.shedding.world import (
    AFTER_S,
    BEFORE_S,
    START_S,
    VIEWS,
    Log,
    Truth,
    phases_of,
    truth_of,
    write_log,
    write_project,
)

BURST_S = 10.0
REPAIR_S = 150.0  # for repairs after the calm
MOST_ROWS, MOST_ROWS_QUICK = 30_000_000, 6_000_000  # of a burst: beyond it, the burst is shorter
# Small and large batches in turn, so that what a row costs shows above what a batch costs.
CALIBRATION = ((20_000.0, 4.0), (300_000.0, 4.0)) * 3
COLD_BATCHES = 2
PASSES_ALL = 1.0 - 2.0**-53  # the highest rate at which a sampler still looks at every record


@dataclass
class Watched:
    """What was seen of a run, twice a second: the wall clock, rows that were taken, rows that wait."""

    course: list[tuple[float, int, int]] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)


def run_project(spark: Any, folder: Path, monitor: Callable[..., Planned], seconds: float) -> Watched:
    """Run until everything is answered and repaired, or the time is over; watch it meanwhile."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    deployment, seen = Deployment.load(folder), Watched()
    runner = Runner(deployment, spark, deployment.sites, True, make_monitor=monitor)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            for pipeline in runner.pipelines:
                for state in pipeline.states:
                    if state.shedding is not None:
                        seen.course.append((time.time(), state.rows, state.shedding.backlog_rows))
                        seen.batches.append(state.shedding.timer.lasted_s)

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        runner.start()
        watcher.start()
        runner.run(seconds=seconds)
    finally:
        done.set()
        runner.close()
    return seen


def capacity_of(spark: Any, scratch: Path, log: Log, report: Callable[[str], None]) -> dict[str, float]:
    """Rows per second that the site can take whole: one over the slope of the line through the seconds of whole batches
    by their rows. A first run of the same kind warms the JVM up: what it takes says nothing."""
    made: list[Planned] = []
    write_log(scratch / "calibrate.parquet", log, CALIBRATION)
    for turn in ("warm", "calibrate"):
        folder = write_project(scratch / turn, scratch / "calibrate.parquet", True)
        run_project(spark, folder, lambda *given: _noted(made, Never(*given)), 90)
        shutil.rmtree(folder, ignore_errors=True)
    batches = made[-1].batches[COLD_BATCHES:]
    rows, seconds = np.array([b.rows for b in batches]), np.array([b.work_s for b in batches])
    slope, fixed = np.polyfit(rows, seconds, 1) if len(batches) > 2 else (0.0, 0.0)
    if slope <= 0:
        raise RuntimeError("the site was too slow to show what a row costs: run this on a machine that is not as busy")
    error = float(np.std(seconds - slope * rows - fixed) / (np.std(rows) * np.sqrt(len(rows))))
    found = {
        "capacity_rows_per_s": float(1.0 / slope),
        "seconds_per_row": float(slope),
        "standard_error": error,
        "batch_s": float(fixed),
        "batches": len(batches),
        "rows_largest": int(rows.max()),
        "believed_by_the_monitor": 1.0 / max(made[-1].costs.whole_row_s, 1e-12),
    }
    report(f"capacity: {found}")
    return found


def _noted(made: list[Planned], monitor: Planned) -> Planned:
    made.append(monitor)
    return monitor


def overhead(spark: Any, scratch: Path, log: Log, rows: int, repeats: int) -> dict[str, float]:
    """Seconds of one micro-batch of so many rows: without shedding, able to shed (and looking at the moments of values
    too), and with a sampler that lets all pass. The variants take turns, so that noise meets all alike; medians, and of
    each variant the median of what it adds to the one without shedding in the same turn."""
    from catchment.deploy.deployment import Deployment
    from catchment.shedding.places import ROW, history_rule
    from catchment.shedding.sampler import Sampler, Selection
    from catchment.spark.evaluation.evaluator import SparkEvaluator
    from catchment.spark.evaluation.one_pass import Take
    from catchment.spark.sources.history import BatchFolder, number_rows
    from catchment.spark.sources.streams import ddl

    write_log(scratch / "cost.parquet", log, [(float(rows), 1.0)])
    projects = {shed: write_project(scratch / f"cost_{shed}", scratch / "cost.parquet", shed) for shed in (False, True)}
    deployed = {shed: Deployment.load(folder) for shed, folder in projects.items()}
    columns = ddl(deployed[True].catalog.streams["hits"])
    evaluator, history = SparkEvaluator({}), BatchFolder(scratch / "history")
    raw, rule = spark.read.parquet(str(scratch / "cost.parquet")), history_rule("hits", 0)
    fragments = {shed: [p.fragment for p in deployed[shed].fragments_at("edge")] for shed in projects}

    def batch(shed: bool, rate: float, looks: bool) -> float:
        began = time.perf_counter()
        history.write(number_rows(raw), 0)
        kept = history.batch(spark, 0, columns)
        kept = history.batch(spark, 0, f"{columns}, `{ROW}` BIGINT") if rate < 1.0 else kept
        evaluator.reduce_all(kept, [Take(f, Selection(Sampler(rate)), looks) for f in fragments[shed]], rows, rule)
        return time.perf_counter() - began

    variants = {
        "off": (False, 1.0, False),
        "on": (True, 1.0, False),
        "looking": (True, 1.0, True),
        "sampling": (True, PASSES_ALL, False),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):  # the first warms the JVM
        for name, variant in variants.items():
            seconds = batch(*variant)
            times[name] += [seconds] if turn else []
    added = {name: np.array(found) / np.array(times["off"]) - 1.0 for name, found in times.items() if name != "off"}
    return {name: float(np.median(found)) for name, found in times.items()} | {
        f"added_{name}": float(np.median(found)) for name, found in added.items()
    }


@dataclass(frozen=True)
class Burst:
    """A burst of `times` the capacity, and how it is met."""

    times: int
    how: str
    kind: type[Planned]
    capacity: float
    most_rows: int = MOST_ROWS
    repairs: bool = False  # wait until everything is exact
    drops: bool = False  # also tell what dropping the newest or oldest would have answered

    @property
    def rows_per_s(self) -> float:
        return self.times * self.capacity

    @property
    def seconds(self) -> float:
        return min(BURST_S, self.most_rows / self.rows_per_s)

    @property
    def place(self) -> tuple[int, int]:
        """The rows of the log that are the burst."""
        before = sum(int(rate * s) for rate, s in phases_of(self.capacity, self.times, self.seconds)[:3])
        return before, before + int(self.rows_per_s * self.seconds)


def measure(spark: Any, scratch: Path, log: Log, burst: Burst) -> list[dict[str, Any]]:
    """Calm, then the burst, then calm again, and, if it is asked for, until everything is repaired."""
    table = write_log(scratch / "burst.parquet", log, phases_of(burst.capacity, burst.times, burst.seconds))
    folder, made = write_project(scratch / "burst", scratch / "burst.parquet", True), list[Planned]()
    limit_s = BEFORE_S + burst.seconds + AFTER_S + (REPAIR_S if burst.repairs else 10.0)
    try:
        seen = run_project(spark, folder, lambda *given: _noted(made, burst.kind(*given)), limit_s)
        truth, clock = truth_of(table), burst_clock(folder, burst.seconds)
        judged = judge(folder, truth, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    cell = {
        "times": burst.times,
        "how": burst.how,
        "rows": table.num_rows,
        "burst_s": burst.seconds,
        **judged,
        "windows_in_all": sum(len(found) for found in truth.values()),
        "arriving_rows_per_s": burst.rows_per_s,
        **site_figures(burst, made[0].batches, seen, clock),
    }
    return [cell, *(dropped(table, truth, made[0].batches, burst.times, clock) if burst.drops else ())]


def burst_clock(folder: Path, burst_s: float) -> Clock:
    """When the burst was."""
    began = (folder / "state" / "sites" / "edge" / "spool" / "hits.began").read_text().split()
    return Clock(START_S + BEFORE_S, START_S + BEFORE_S + burst_s, int(began[0]) / 1e6 - int(began[1]) / 1e6)


def site_figures(burst: Burst, batches: Sequence[Batch], seen: Watched, clock: Clock) -> dict[str, Any]:
    """What the site did: the batches that took the burst, what waited, and when it had all of it. Rows are taken as
    fast as batches go that begin during the burst and hold nothing else (all of its batches, where there is none):
    while it worked, and with the pauses between batches."""
    first, end = burst.place
    ends = np.cumsum([b.rows for b in batches])
    mine = [b for b, until in zip(batches, ends, strict=True) if until > first and until - b.rows < end]
    worst = max((backlog for _, _, backlog in seen.course), default=0)
    start_s = clock.burst_start_s + clock.ahead_s
    rows = sum(b.rows for b in mine)
    full = [
        b
        for b, until in zip(batches, ends, strict=True)
        if until - b.rows >= first and until <= end and b.began_s < start_s + burst.seconds
    ] or mine
    full_rows, full_s = sum(b.rows for b in full), sum(b.ended_s - b.began_s for b in full)
    return {
        "burst_batches": [asdict(b) | {"began_s": b.began_s - start_s, "ended_s": b.ended_s - start_s} for b in mine],
        "read_share": sum(b.read for b in mine) / rows if rows else None,
        "taken_rows_per_s": full_rows / full_s if full_s else None,
        "taken_with_pauses_rows_per_s": full_rows / (full[-1].ended_s - full[0].began_s) if full_s else None,
        "all_taken_after_s": mine[-1].ended_s - start_s - burst.seconds if mine and ends[-1] >= end else None,
        "lowest_rate": min((b.rate for b in mine), default=None),
        "predicted_error": max((b.predicted for b in mine if b.predicted is not None), default=None),
        "backlog_worst_rows": worst,
        "backlog_worst_s": worst / burst.rows_per_s,
        "micro_batch_worst_s": max(seen.batches, default=0.0),
        "micro_batch_median_s": float(np.median(seen.batches)) if seen.batches else 0.0,
        "course": [(at - start_s, rows, backlog) for at, rows, backlog in seen.course],
    }


def dropped(
    table: pa.Table, truth: Truth, batches: Sequence[Batch], times: int, clock: Clock
) -> Iterator[dict[str, Any]]:
    """What the views would have said had each batch of the uniform run kept as many, but its oldest or newest."""
    ends = np.cumsum([b.rows for b in batches])
    for name in ("drop newest", "drop oldest"):
        keep = np.ones(table.num_rows, dtype=bool)
        for end, batch in zip(ends, batches, strict=True):
            lost = batch.rows - round(batch.rows * batch.rate)
            start = end - batch.rows
            keep[slice(end - lost, end) if name == "drop newest" else slice(start, start + lost)] = False
        answers = truth_of(table.filter(pa.array(keep)))
        errors = {view: worst_error(view, truth[view], answers[view], clock) for view in VIEWS}
        yield {"times": times, "how": f"{name} (computed)", "error": max(errors.values()), "errors": errors}
