"""Slack controllers live: three sites on Spark, a stream that is out of order, one view a controller.

All controllers run in one deployment, each as a view of its own over the same records, so that noise meets all alike.
The streams: real departures, reported at landing (their time runs `FLIGHT_SPEED` times as fast), spread over three
sites by carrier; and a stream generated after Table 1 of Yang et al. (HPM), its sensors spread over three sites, its
time slowed down so that its stalls are long against a micro-batch. Latency is on the wall clock, from the moment at
which the last site's replay reaches a window's end to the publishing of its first answer. It has micro-batches in it,
which no controller can save: `fixed:0`, which waits for nothing, shows how much that is. Violations are judged against
a recomputation from the raw records, which the final answers must equal. The cost of repair is the processor time of
the center's thread that repairs, over that of everything that ran.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from catchment.sim.disorder import LIKE, generate
from catchment.sim.order_measured import measured
from catchment.sim.order_trace import Trace
from catchment.timeline import SECOND_US

DESCRIPTION = "slack controllers live on three sites: latency, violations, revisions (real flights, generated disorder)"
CONTROLLERS = ("adaptive", "mp-k-slack", "fixed:0")
MAX_ERROR = 0.05
SITES = ("a", "b", "c")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
SEED = 400
FLIGHT_DAYS, FLIGHT_SPEED = 9, 2_160.0  # nine days in six minutes
GAME_TUPLES, GAME_SPEED = 100_000, 0.25  # a minute and a half of the stream in six
LONGEST_RUN_S = 420


@dataclass(frozen=True)
class Workload:
    """A trace and how it is asked: window and slide in seconds of event time, and the speed of the replay."""

    name: str
    trace: Trace
    window_s: float
    slide_s: float
    speed: float


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Every workload, all controllers at once."""
    from catchment.config import SparkConfig
    from catchment.spark.session import make_session

    spark = make_session("bench order", SparkConfig(master="local[2]", memory="3g"))
    try:
        cells = [cell for work in workloads(quick) for cell in measure(spark, work, report)]
    finally:
        spark.stop()
    return {
        "compared": "one view a controller, side by side on the same three sites; SUM, contract 0.05 at 0.95",
        "data": "departures from New York, January 2013, by landing; a stream after Table 1 of Yang et al.",
        "cells": cells,
    }


def workloads(quick: bool) -> list[Workload]:
    """The generated stream; and, unless quick, the flights."""
    tuples = 23_000 if quick else GAME_TUPLES
    game = Workload("game1", generate(LIKE["game1"].shortened(tuples), SEED), 2.0, 1.0, GAME_SPEED)
    if quick:
        return [game]
    flights = measured("flights", Path(os.environ.get("CATCHMENT_DATA", "data")))
    first = flights.event_us < flights.event_us.min() + FLIGHT_DAYS * 86_400 * SECOND_US
    month = Trace(flights.event_us[first], flights.arrival_us[first], flights.value[first], flights.source[first],
                  flights.sources, name="flights")  # fmt: skip
    return [Workload("flights", month, 6 * 3600.0, 3600.0, FLIGHT_SPEED), game]


def measure(spark: Any, work: Workload, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run one workload and judge what each controller published."""
    from catchment.spark.deploy import Deployment
    from catchment.spark.run import Runner

    with tempfile.TemporaryDirectory() as scratch:
        folder = write_project(Path(scratch) / "project", work)
        deployment = Deployment.load(folder)
        runner = Runner(deployment, spark, deployment.sites, True)
        began, before = time.time(), busy_s()
        try:
            runner.start()
            repairs = timed_repairs(runner.center)
            runner.run(seconds=LONGEST_RUN_S)
            finished, status = runner.finished, runner.status()
        finally:
            runner.close()
        report(f"{work.name}: ran for {time.time() - began:.0f} s" + ("" if finished else ", not finished"))
        ends = reached(folder / "state", work)
        cells = [judge(folder / "state", work, name, finished, ends) for name in CONTROLLERS]
    late = {name: told["late_records"] for name, told in status["center"]["queries"].items()}
    for cell in cells:
        cell["late_share"] = late[view_of(cell["controller"])] / len(work.trace)
        cell["ledger_at_a"] = status["sites"]["a"]["contracts"][view_of(cell["controller"])]["budget_windows"]
        report(f"{work.name}, {cell['controller']}: {cell['mean_latency_s']:.2f} s, {100 * cell['violations']:.1f} %")
    cost = {"repair_s": sum(repairs), "busy_s": busy_s() - before,
            "late_share": sum(late.values()) / len(work.trace) / len(CONTROLLERS)}  # fmt: skip
    report(f"{work.name}: {cost}")
    return [cell | {"cost": cost} for cell in cells]


def timed_repairs(center: Any) -> list[float]:
    """The processor time of looking for repairs that are due and enacting them: a list that grows meanwhile."""
    taken: list[float] = []
    does = center._repair

    def timed(*given: Any, **named: Any) -> None:
        began = time.thread_time()
        does(*given, **named)
        taken.append(time.thread_time() - began)

    center._repair = timed
    return taken


def busy_s() -> float:
    """Processor time of this process and all that it started, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        times[int(stat.parent.name)] = sum(map(int, fields[11:15])) / ticks  # its own, and of its ended children
    found, total = [os.getpid()], 0.0
    while found:
        pid = found.pop()
        total += times.get(pid, 0.0)
        found += children.get(pid, [])
    return total


def write_project(folder: Path, work: Workload) -> Path:
    """The records by site as logs in order of arrival, and one view a controller."""
    (folder / "queries").mkdir(parents=True)
    (folder / "data").mkdir()
    sites = "".join(f"[sites.{s}]\n" for s in (*SITES, "center"))
    links = "".join(f'[[links]]\nfrom = "{s}"\nto = "center"\n' for s in SITES)
    (folder / "catchment.toml").write_text(
        f'[project]\nname = "order"\ncenter = "center"\n{sites}{links}'
        '[defaults]\ntrigger = "1 s"\nhistory = false\nfreshness = "none"\nrepair_horizon = "30 days"\n'
        'max_jump = "60 days"\n'
    )
    (folder / "queries" / "order.sql").write_text(queries(work))
    for number, site in enumerate(SITES):
        (folder / "data" / f"{site}.jsonl").write_text("".join(lines(work.trace, number)))
    return folder


def queries(work: Workload) -> str:
    """The stream, and its sum under each controller."""
    stream = f"""CREATE STREAM readings (ts TIMESTAMP, arrived TIMESTAMP, source STRING, value DOUBLE)
  WITH (event_time = 'ts', sites = '{",".join(SITES)}', source = 'source', connector = 'replay',
        path = 'data/{{site}}.jsonl', arrival = 'arrived', speed = {work.speed});\n"""
    every = "" if work.slide_s == work.window_s else f", '{work.slide_s:g} seconds'"
    return stream + "".join(
        f"CREATE MATERIALIZED VIEW {view_of(name)} WITH (max_error = {MAX_ERROR}, slack = '{name}') AS\n"
        "  SELECT window.start, sum(value) AS total FROM readings\n"
        f"  GROUP BY window(ts, '{work.window_s:g} seconds'{every});\n"
        for name in CONTROLLERS
    )


def view_of(controller: str) -> str:
    return "by_" + controller.replace("-", "_").replace(":", "_")


def lines(trace: Trace, site: int) -> list[str]:
    """The records of the sources that live at a site."""
    mine = np.flatnonzero(trace.source % len(SITES) == site)
    return [
        json.dumps({"ts": _stamp(int(trace.event_us[i])), "arrived": _stamp(int(trace.arrival_us[i])),
                    "source": trace.sources[trace.source[i]], "value": float(trace.value[i])}) + "\n"
        for i in mine.tolist()
    ]  # fmt: skip


def judge(
    state: Path, work: Workload, controller: str, finished: bool, ends: Callable[[datetime], datetime]
) -> dict[str, Any]:
    """On-time answers against the truth; when they came; whether the last ones are exact."""
    from catchment.center.results import read_results, read_windows

    view = view_of(controller)
    truth = totals(work)
    rows = read_results(state, view, revisions="all").to_pylist()
    log = read_windows(state, view).to_pylist()
    first = {r["window_start"]: r for r in reversed(rows)}
    last = {r["window_start"]: r["total"] for r in rows}
    judged = [s for s in sorted(first) if s in truth and s + timedelta(seconds=work.window_s) <= _newest(work)]
    off = [abs(first[s]["total"] - truth[s]) / abs(truth[s]) if truth[s] else 0.0 for s in judged]
    late = [(first[s]["published_at"] - ends(s + timedelta(seconds=work.window_s))).total_seconds() for s in judged]
    exact = finished and last.keys() == truth.keys()
    exact = exact and all(abs(last[s] - t) <= 1e-12 * abs(t) for s, t in truth.items())
    return {
        "workload": work.name, "controller": controller, "windows": len(judged),
        "mean_latency_s": float(np.mean(late)), "p95_latency_s": float(np.quantile(late, 0.95)),
        "second_half_latency_s": float(np.mean(late[len(late) // 2 :])),
        "violations": float(np.mean(np.array(off) >= MAX_ERROR)), "mean_error": float(np.mean(np.minimum(off, 1.0))),
        "revisions": sum(w["reason"].startswith("late: ") for w in log), "final_exact": bool(exact),
        "named_sources": sum(bool(w["missing_sources"]) for w in log),
    }  # fmt: skip


def totals(work: Workload) -> dict[datetime, float]:
    """The sums of all windows, from the records."""
    size, slide = round(work.window_s * SECOND_US), round(work.slide_s * SECOND_US)
    origin = int(EPOCH.timestamp()) * SECOND_US
    found: dict[int, float] = {}
    for at, value in zip((work.trace.event_us + origin).tolist(), work.trace.value.tolist(), strict=True):
        start = at // slide * slide
        while start > at - size:
            found[start] = found.get(start, 0.0) + value
            start -= slide
    return {EPOCH + timedelta(microseconds=start - origin): total for start, total in found.items()}


def reached(state: Path, work: Workload) -> Callable[[datetime], datetime]:
    """When, by the wall clock, the last site's replay reached an instant of event time."""
    from catchment.spark.spool import read_beginning

    begins = [b for spool in state.rglob("*.began") if (b := read_beginning(spool.with_suffix(""))) is not None]
    assert len(begins) == len(SITES), f"{len(begins)} replays have begun"

    def at(instant: datetime) -> datetime:
        log_us = round(instant.timestamp() * SECOND_US)
        wall_us = max(wall + (log_us - log) / work.speed for wall, log in begins)
        return datetime.fromtimestamp(wall_us / SECOND_US, UTC)

    return at


def _newest(work: Workload) -> datetime:
    return EPOCH + timedelta(microseconds=int(work.trace.event_us.max()))


def _stamp(at_us: int) -> str:
    return (EPOCH + timedelta(microseconds=at_us)).isoformat()


def render(result: Mapping[str, Any]) -> RenderableType:
    """One row a workload and controller."""
    heads = ("stream", "controller", "windows", "mean s", "2nd half s", "p95 s", "violations", "late", "revisions",
             "exact")  # fmt: skip
    table = Table(*heads, title=result["compared"], title_justify="left")
    for c in result["cells"]:
        table.add_row(c["workload"], c["controller"], str(c["windows"]), f"{c['mean_latency_s']:.2f}",
                      f"{c['second_half_latency_s']:.2f}", f"{c['p95_latency_s']:.2f}",
                      f"{100 * c['violations']:.1f} %", f"{100 * c['late_share']:.2f} %", str(c["revisions"]),
                      str(c["final_exact"]))  # fmt: skip
    costs = {c["workload"]: c["cost"] for c in result["cells"]}
    return Group(table, *(f"{name}: {_cost(cost)}" for name, cost in costs.items()))


def _cost(cost: Mapping[str, Any]) -> str:
    return (
        f"{100 * cost['late_share']:.2f} % of the records were late; repairs took {cost['repair_s']:.1f} s, "
        f"{100 * cost['repair_s'] / cost['busy_s']:.2f} % of {cost['busy_s']:.0f} s of processor time"
    )
