"""A real burst, shed live: the busiest hours of a web log, replayed so that many times what a site can take arrives.

The log is a 1% sample of what the server saw, so each record is written `COPIES` times, a hundredth of a second
apart. One site and a center run in this process; seven views share the stream, with selectivities from 1% to 100% and
windows of two to ten seconds. First the site's capacity is measured, from what its micro-batches cost per row
while it is not overloaded. Then the burst is replayed at 2 to 20 times that: shed as planned, with one rate for all
(uniform at the source) for the same load, and at 10 times also not at all. What dropping the newest or the oldest
records of each batch would have answered is computed from the raw log and the batches of the uniform run. The truth is
a recomputation from the raw log by numpy, not by catchment.

Freshness is from the end of a window to its first answer; "usual" is that of the windows before the burst, and a
window belongs to the burst if it ends within it. Errors are those of the windows of the burst.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from _shed_judge import MAIN_CODES, Clock, judge
from rich.console import Group, RenderableType
from rich.table import Table

from catchment.site.overload import LEAST_RATE, TARGET, Arrivals, Decision, LoadMonitor

DESCRIPTION = "a burst of 2 to 20 times the capacity: planned shedding against none, uniform and dropping"
TIMES = (2, 5, 10, 20)
BURST_HOURS = (14, 15)  # of the busiest of the day, by the log's own counts
COPIES = 100
START_S = 1_700_000_100
CALM_SHARE = 0.35  # of the capacity, before and after the burst
CALM_S, BURST_S = 12.0, 10.0
REPAIR_S = 150.0  # for repairs after the calm
MOST_ROWS = 12_000_000  # of a burst: beyond it, the burst is shorter
TOML = """
[project]
name = "burst"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
[defaults]
repair_horizon = "1 hour"
sharing = "none"
"""
STREAM = """
CREATE STREAM hits (arrived TIMESTAMP, ts TIMESTAMP, code INT, size BIGINT, crawler BOOLEAN, ip STRING)
  WITH (event_time = 'ts', sites = 'edge', connector = 'replay', path = '{path}', format = 'parquet',
        arrival = 'arrived', speed = 1, shed = {shed});
"""
PRIVATE = "ip LIKE '1%' AND ip RLIKE '^[0-9]+[.][0-9]+[.][0-9]*[02468][.]'"
VIEWS = {
    "everything": ("count(*) AS n, sum(size) AS bytes", "", 2, ""),
    "by_code": ("code, count(*) AS n", "", 2, ", code"),
    "served": ("count(*) AS n, sum(size) AS bytes", "WHERE code = 200", 4, ""),
    "errors": ("count(*) AS n", "WHERE code >= 400", 4, ""),
    "missing": ("count(*) AS n", "WHERE code = 404", 10, ""),
    "crawlers": ("count(*) AS n, avg(size) AS mean", "WHERE crawler", 5, ""),
    "subnets": ("count(*) AS n", f"WHERE {PRIVATE}", 4, ""),
}
CODES = 1_000
PASSES_ALL = 1.0 - 2.0**-53  # the highest rate at which a sampler still looks at every record


class Uniform(LoadMonitor):
    """One rate for every view: what a sampler at the source can do. It notes what it took of each batch."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.taken: list[tuple[int, float]] = []

    def decide(self, arrivals: Arrivals) -> Decision:
        decision = super().decide(arrivals)
        self.taken.append((arrivals.rows, decision.highest))
        return decision

    def _plan(self, rows_per_s: float) -> Decision:
        planned = super()._plan(rows_per_s)
        costs = self._cost("prepare") + math.fsum(self._cost(f.name) for f in self.fragments)
        rate = min(1.0, max(LEAST_RATE, TARGET / max(rows_per_s * costs, 1e-9)))
        return Decision({f.name: rate for f in self.fragments}, planned.load, {}, "uniform")


class Never(LoadMonitor):
    """Takes everything whole, however late."""

    def decide(self, arrivals: Arrivals) -> Decision:
        self.load = arrivals.rows_per_s * self._seconds_per_row()
        return Decision({}, self.load, {}, "")


@dataclass
class Watched:
    """What was seen of a run, twice a second: rows that wait, rows that were read, ..."""

    backlog: list[tuple[float, int]] = field(default_factory=list)
    rows: list[tuple[float, int]] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    rates: list[Mapping[str, float]] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


def data_folder() -> Path:
    return Path(os.environ.get("CATCHMENT_DATA", "data"))


def read_log() -> dict[str, np.ndarray]:
    """The busiest hours as columns, in order."""
    path = data_folder() / "web-log-edgar" / "edgar_20170101_1pct.csv.zst"
    text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(path.open("rb")), encoding="utf-8")
    rows = [r for r in csv.DictReader(text) if int(r["time"][:2]) in BURST_HOURS]
    return {
        "code": np.array([int(float(r["code"])) for r in rows], dtype=np.int32),
        "size": np.array([int(float(r["size"] or 0)) for r in rows], dtype=np.int64),
        "crawler": np.array([float(r["crawler"] or 0) > 0 for r in rows]),
        "ip": np.array([r["ip"] for r in rows]),
    }


def make_log(path: Path, log: Mapping[str, np.ndarray], phases: list[tuple[float, float]], start_s: int) -> pa.Table:
    """Records in the log's order, arriving in phases of (rows a second, seconds); event time is arrival time."""
    arrivals, at = [], float(start_s)
    for rate, seconds in phases:
        count = int(rate * seconds)
        arrivals.append(at + np.arange(count) / rate)
        at += seconds
    times = np.concatenate(arrivals)
    origin = np.repeat(np.arange(len(log["code"])), COPIES)
    place = origin[np.arange(len(times)) % len(origin)]
    micros = pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC"))
    columns = {c: pa.array(log[c]).take(pa.array(place)) for c in log}
    table = pa.table({"arrived": micros, "ts": micros, **columns})
    pq.write_table(table, path, compression="zstd", row_group_size=500_000)
    return table


def truth_of(table: pa.Table) -> dict[str, dict[tuple[int, Any], dict[str, float]]]:
    """Every window of every view, recomputed from the raw records."""
    micros = np.asarray(table["ts"].cast(pa.int64()))
    code, size = np.asarray(table["code"]), np.asarray(table["size"], dtype=np.float64)
    crawler = np.asarray(table["crawler"])
    ips = table["ip"].combine_chunks().dictionary_encode()
    fits = np.array(
        [re.match(r"^1[0-9]*[.][0-9]+[.][0-9]*[02468][.]", ip) is not None for ip in ips.dictionary.to_pylist()]
    )
    masks = {"everything": None, "by_code": None, "served": code == 200, "errors": code >= 400, "missing": code == 404,
             "crawlers": crawler, "subnets": fits[np.asarray(ips.indices)]}  # fmt: skip
    answers = {}
    for view, (_, _, seconds, _) in VIEWS.items():
        chosen = slice(None) if masks[view] is None else masks[view]
        starts = micros[chosen] // (seconds * 1_000_000) * (seconds * 1_000_000)
        keys = code[chosen] if view == "by_code" else np.zeros(len(starts), dtype=np.int32)
        groups = (starts - starts[0]) // (seconds * 1_000_000) * CODES + keys  # in order of time: the first is least
        n, total = np.bincount(groups), np.bincount(groups, weights=size[chosen])
        answers[view] = {
            (int(starts[0]) + int(g) // CODES * seconds * 1_000_000, int(g) % CODES): {
                "n": float(n[g]), "bytes": float(total[g]), "mean": float(total[g] / n[g])
            }
            for g in np.flatnonzero(n)
        }  # fmt: skip
    return answers


def write_project(folder: Path, log: Path, shed: bool) -> Path:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    views = "".join(
        f"CREATE MATERIALIZED VIEW {name} AS SELECT window.start, {what} FROM hits {where} "
        f"GROUP BY window(ts, '{seconds} seconds'){key};\n"
        for name, (what, where, seconds, key) in VIEWS.items()
    )
    sql = STREAM.replace("{path}", str(log)).replace("{shed}", str(shed).lower())
    (folder / "queries" / "q.sql").write_text(sql + views)
    return folder


def run_project(spark: Any, folder: Path, monitor: Callable[..., LoadMonitor], seconds: float) -> Watched:
    """Run until everything is answered and repaired, or the time is over; watch it meanwhile."""
    from catchment.spark.deploy import Deployment
    from catchment.spark.run import Runner

    deployment, seen = Deployment.load(folder), Watched()
    runner = Runner(deployment, spark, deployment.sites, True, make_monitor=monitor)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            for pipeline in runner.pipelines:
                for state in pipeline.states:
                    if state.shedding is not None:
                        seen.rows.append((time.time(), state.rows))
                        _look(seen, state.shedding)

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        runner.start()
        watcher.start()
        runner.run(seconds=seconds)
    finally:
        done.set()
        runner.close()
    return seen


def _look(seen: Watched, shedding: Any) -> None:
    status = shedding.status(0)
    seen.backlog.append((time.time(), status["backlog_rows"]))
    seen.batches.append(status["micro_batch_s"])
    if status["rates"]:
        seen.rates.append(status["rates"])
        seen.errors.append(max(status["expected_errors"].values(), default=0.0))


def capacity_of(spark: Any, scratch: Path, log: Mapping[str, np.ndarray], report: Callable[[str], None]) -> float:
    """Rows a second that the site can take whole: one over what a row costs it, learned at two paces. The first run
    only warms the JVM up: what it takes says nothing."""
    made: list[LoadMonitor] = []
    phases = [(10_000.0, 5.0), (40_000.0, 12.0)]
    make_log(scratch / "calibrate.parquet", log, phases, START_S)
    for turn in ("warm", "calibrate"):
        folder = write_project(scratch / turn, scratch / "calibrate.parquet", True)
        run_project(spark, folder, lambda *given: _noted(made, Never(*given)), 60)
    seconds_per_row = made[-1]._seconds_per_row()
    if seconds_per_row <= 0:
        raise RuntimeError("the site was too slow to show what a row costs: run this on a machine that is not as busy")
    rows_per_s = 1.0 / seconds_per_row
    report(f"capacity: {rows_per_s:,.0f} rows/s")
    return rows_per_s


def _noted(made: list[LoadMonitor], monitor: LoadMonitor) -> LoadMonitor:
    made.append(monitor)
    return monitor


def overhead(spark: Any, scratch: Path, log: Mapping[str, np.ndarray], rows: int, repeats: int) -> dict[str, float]:
    """Seconds of one micro-batch of so many rows: without shedding, able to shed, and with a sampler that lets all
    pass. The variants take turns, so that noise meets all alike; medians."""
    from catchment.sampling import SamplingRule
    from catchment.spark.batch_folder import BatchFolder
    from catchment.spark.deploy import Deployment
    from catchment.spark.evaluate import NativeEvaluator
    from catchment.spark.one_pass import Take
    from catchment.spark.records import placed
    from catchment.spark.replay import ROW
    from catchment.spark.sources import ddl

    make_log(scratch / "cost.parquet", log, [(float(rows), 1.0)], START_S)
    projects = {shed: write_project(scratch / f"cost_{shed}", scratch / "cost.parquet", shed) for shed in (False, True)}
    deployed = {shed: Deployment.load(folder) for shed, folder in projects.items()}
    columns = ddl(deployed[True].catalog.streams["hits"])
    evaluator, history = NativeEvaluator({}), BatchFolder(scratch / "history")
    raw, rule = spark.read.parquet(str(scratch / "cost.parquet")), SamplingRule("hits", (ROW,))
    fragments = {shed: [p.fragment for p in deployed[shed].fragments_at("edge")] for shed in projects}

    def batch(shed: bool, rate: float) -> float:
        began = time.perf_counter()
        history.write(raw, 0)
        kept = history.batch(spark, 0, columns)
        kept = placed(kept, 0) if rate < 1.0 else kept
        evaluator.reduce_all(kept, [Take(f, rate) for f in fragments[shed]], rows, rule)
        return time.perf_counter() - began

    variants = {"off": (False, 1.0), "on": (True, 1.0), "sampling": (True, PASSES_ALL)}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):  # the first warms the JVM
        for name, variant in variants.items():
            seconds = batch(*variant)
            times[name] += [seconds] if turn else []
    return {name: float(np.median(found)) for name, found in times.items()}


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure every cell."""
    from catchment.config import SparkConfig
    from catchment.spark.session import make_session

    spark = make_session("bench shed", SparkConfig(master="local[2]", memory="3g"))
    log, cells = read_log(), []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            costs = overhead(spark, Path(scratch), log, *((200_000, 3) if quick else (1_000_000, 7)))
            report(f"seconds of one batch: {costs}")
            capacity = capacity_of(spark, Path(scratch), log, report)
            for times in (10,) if quick else TIMES:
                cells += burst(spark, Path(scratch), log, capacity, times, report)
    finally:
        spark.stop()
    return {
        "compared": "planned shedding, one rate at the source, none; seven views over one stream at one site",
        "data": f"EDGAR web log, hours {BURST_HOURS}, each record {COPIES} times; bursts of at most {BURST_S:g} s",
        "capacity_rows_per_s": capacity,
        "batch_s": costs,
        "cells": cells,
    }


def burst(
    spark: Any, scratch: Path, log: Mapping[str, np.ndarray], capacity: float, times: int,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One factor of overload, every way to meet it."""
    monitors = {"planned": LoadMonitor, "uniform": Uniform} | ({"none": Never} if times == 10 else {})
    cells = []
    for name, kind in monitors.items():
        cells += measure(spark, scratch, log, capacity, times, name, kind)
        report(f"{times} times, {name}: {cells[-1]}")
    return cells


def measure(
    spark: Any, scratch: Path, log: Mapping[str, np.ndarray], capacity: float, times: int, name: str,
    kind: Callable[..., LoadMonitor],
) -> list[dict[str, Any]]:  # fmt: skip
    """One burst: calm, then `times` the capacity, then calm again, and until everything is repaired."""
    phases = [(CALM_SHARE * capacity * s, CALM_S / 3) for s in (0.3, 1.0, 0.6)]
    burst_s = min(BURST_S, MOST_ROWS / (times * capacity))
    phases += [(times * capacity, burst_s), (CALM_SHARE * capacity, CALM_S)]
    table = make_log(scratch / "burst.parquet", log, phases, START_S)
    folder, made = write_project(scratch / "burst", scratch / "burst.parquet", True), list[LoadMonitor]()
    try:
        limit_s = CALM_S * 2 + burst_s + (REPAIR_S if name == "planned" else 10.0)
        seen = run_project(spark, folder, lambda *given: _noted(made, kind(*given)), limit_s)
        truth = truth_of(table)
        clock = burst_clock(folder, burst_s)
        judged = judge(folder, truth, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    worst = max((b for _, b in seen.backlog), default=0)
    lowest = {v: min(r[v] for r in seen.rates) for v in seen.rates[0]} if seen.rates else {}
    cell = {
        "times": times, "how": name, "rows": table.num_rows, "burst_s": burst_s, **judged,
        "windows_in_all": sum(len(found) for found in truth.values()),
        "predicted_error": max(seen.errors, default=None), "lowest_rates": lowest,
        "arriving_rows_per_s": times * capacity, "taken_rows_per_s": taken_per_s(seen, clock),
        "backlog_worst_rows": worst, "backlog_worst_s": worst / (times * capacity),
        "micro_batch_worst_s": max(seen.batches, default=0.0),
        "micro_batch_median_s": float(np.median(seen.batches)) if seen.batches else 0.0,
    }  # fmt: skip
    return [cell, *(dropped(table, truth, made[0], times, clock) if isinstance(made[0], Uniform) else ())]


def burst_clock(folder: Path, burst_s: float) -> Clock:
    """When the burst was."""
    began = (folder / "state" / "sites" / "edge" / "spool" / "hits.began").read_text().split()
    return Clock(START_S + CALM_S, START_S + CALM_S + burst_s, int(began[0]) / 1e6 - int(began[1]) / 1e6)


def taken_per_s(seen: Watched, clock: Clock) -> float | None:
    """Rows a second that the site took, whole or sampled, from the first batch of the burst to the last."""
    start_s = clock.burst_start_s + clock.ahead_s
    during = [(at, rows) for at, rows in seen.rows if start_s <= at <= start_s + 3 * BURST_S]
    grown = [during[i] for i in range(1, len(during)) if during[i][1] > during[i - 1][1]]
    peak = [(at, rows) for at, rows in grown if at <= clock.burst_end_s + clock.ahead_s + 1.0]
    return (peak[-1][1] - peak[0][1]) / (peak[-1][0] - peak[0][0]) if len(peak) > 1 else None


def dropped(
    table: pa.Table, truth: Mapping[str, Mapping[Any, Mapping[str, float]]], uniform: Uniform, times: int, clock: Clock
) -> Iterator[dict[str, Any]]:
    """What the views would have said had each batch of the uniform run kept as many, but its oldest or newest."""
    rows = np.array([n for n, _ in uniform.taken], dtype=np.int64)
    ends = table.num_rows - np.concatenate([np.cumsum(rows[::-1])[::-1][1:], [0]]) if len(rows) else rows
    for name in ("drop newest", "drop oldest"):
        keep = np.ones(table.num_rows, dtype=bool)
        for end, (n, rate) in zip(ends, uniform.taken, strict=True):
            lost = n - round(n * rate)
            keep[(slice(end - lost, end) if name == "drop newest" else slice(end - n, end - n + lost))] = False
        answers = truth_of(table.filter(pa.array(keep)))
        errors = {view: _worst(view, truth[view], answers[view], clock) for view in VIEWS}
        yield {"times": times, "how": f"{name} (computed)", "error": max(errors.values()), "errors": errors}


def _worst(
    view: str, truth: Mapping[Any, Mapping[str, float]], found: Mapping[Any, Mapping[str, float]], clock: Clock
) -> float:
    columns = [c for c in ("n", "bytes", "mean") if f" AS {c}" in VIEWS[view][0]]
    nothing = dict.fromkeys(columns, 0.0)
    errors = (
        abs(found.get(place, nothing)[c] - wanted[c]) / wanted[c]
        for place, wanted in truth.items()
        if clock.in_burst(place[0] / 1e6 + VIEWS[view][2]) and (view != "by_code" or place[1] in MAIN_CODES)
        for c in columns
        if wanted[c]
    )
    return max(errors, default=0.0)


def render(result: Mapping[str, Any]) -> RenderableType:
    """One line a cell."""
    title = f"capacity {result['capacity_rows_per_s']:,.0f} rows/s; {result['data']}"
    heads = ("times", "how", "usual", "freshness", "worst", "batch", "backlog", "rows/s taken", "predicted", "achieved",
             "bounds missed", "exact")  # fmt: skip
    table = Table(*heads, title=title, title_justify="left")
    for c in result["cells"]:
        behind = f"{c['backlog_worst_s']:.1f} s" if "backlog_worst_s" in c else "-"
        missed = f"{c['missed']} of {c['bounds']}" if c.get("bounds") else "-"
        taken = f"{c['taken_rows_per_s']:,.0f}" if c.get("taken_rows_per_s") else "-"
        table.add_row(
            str(c["times"]), c["how"], _seconds(c.get("usual_freshness_s")), _seconds(c.get("freshness_median_s")),
            _seconds(c.get("freshness_worst_s")), _seconds(c.get("micro_batch_median_s")), behind, taken,
            _percent(c.get("predicted_error")), _percent(c["error"]), missed,
            f"{c['rows_exact']} of {c['rows_answered']}" if "rows_exact" in c else "-",
        )  # fmt: skip
    costs = result["batch_s"]
    able, samples = (100 * (costs[name] / costs["off"] - 1) for name in ("on", "sampling"))
    return Group(table, f"the same batch: able to shed {able:+.1f} %, with a sampler {samples:+.1f} %")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
