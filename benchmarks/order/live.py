"""Slack controllers live: three sites on Spark, a stream that is out of order, one view per controller.

All controllers run in one deployment, each as a view of its own over the same records, so that noise affects all
alike. The streams: real departures, reported at landing (their time runs `FLIGHT_SPEED` times as fast), spread over
three sites by carrier; and a stream generated after Table 1 of Yang et al. (HPM), its sensors spread over three sites,
its time slowed down so that its stalls are long against a micro-batch. Latency is on the wall clock, from the moment
at which the last site's replay reaches a window's end to the publishing of its first answer. It includes
micro-batches, which no controller can avoid: `fixed:0`, which waits for nothing, shows how much that is. Violations
are judged against a recomputation from the raw records, which the final answers must equal; and so is, for each
controller, in which share of the windows the first answer was further off than its stated bound. The part `repair` is
about the cost of repair alone: a stream that is in order except for one record in a thousand (`repair.py`).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.data import data_file
from benchmarks.sharing.star import star
from catchment.sim.order.generated_traces import LIKE, generate
from catchment.sim.order.recorded_traces import read_recorded_trace
from catchment.sim.order.trace import ArrivalTrace
from catchment.timeline import SECOND_US

DESCRIPTION = "slack controllers live on three sites: latency, violations, revisions (real flights, generated disorder)"
CONTROLLERS = ("adaptive", "mp-k-slack", "fixed:0")
MAX_ERROR = 0.05
SITES = ("a", "b", "c")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
SEED = 400
FLIGHT_DAYS, FLIGHT_SPEED = 9, 2_880.0  # nine days in four and a half minutes
GAME_TUPLES, GAME_SPEED = 77_000, 0.25  # a minute and an eighth of the stream in four and a half
LONGEST_RUN_S = 400
PARTS = ("flights", "game1", "game2", "repair")  # each ends within six minutes
QUICK = ("game1", "repair")


@dataclass(frozen=True)
class Workload:
    """A trace and how it is asked: window and slide in seconds of event time, and the speed of the replay."""

    name: str
    trace: ArrivalTrace
    window_s: float
    slide_s: float
    speed: float


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """The chosen parts; in each all controllers at once."""
    from benchmarks.order.repair import cost_of_repair
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    chosen = parts or (QUICK if quick else PARTS)
    spark = make_session("bench order", SparkConfig(master="local[2]", memory="3g"))
    try:
        streams = [workload(part, quick) for part in chosen if part != "repair"]
        cells = [cell for work in streams for cell in measure(spark, work, report)]
        repair = cost_of_repair(spark, report, quick) if "repair" in chosen else None
    finally:
        spark.stop()
    return {
        "compared": "one view a controller, side by side on the same three sites; SUM, contract 0.05 at 0.95",
        "data": "departures from New York, January 2013, by landing; streams after Table 1 of Yang et al.",
        "cells": cells,
        "repair": repair,
    }


def workload(part: str, quick: bool) -> Workload:
    """The stream of a part."""
    if part != "flights":
        return Workload(
            part, generate(LIKE[part].shorten(23_000 if quick else GAME_TUPLES), SEED), 2.0, 1.0, GAME_SPEED
        )
    flights = read_recorded_trace("flights", data_file("flights").parents[1])
    first = flights.event_us < flights.event_us.min() + FLIGHT_DAYS * 86_400 * SECOND_US
    days = ArrivalTrace(
        flights.event_us[first],
        flights.arrival_us[first],
        flights.value[first],
        flights.source[first],
        flights.sources,
        name="flights",
    )
    return Workload("flights", days, 6 * 3600.0, 3600.0, FLIGHT_SPEED)


def measure(spark: Any, work: Workload, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run one workload and judge what each controller published."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    with tempfile.TemporaryDirectory() as scratch:
        folder = write_project(Path(scratch) / "project", work)
        deployment = Deployment.load(folder)
        runner = Runner(deployment, spark, deployment.sites, True)
        began = time.time()
        try:
            runner.start()
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
        report(
            f"{work.name}, {cell['controller']}: {cell['mean_latency_s']:.2f} s, {100 * cell['violations']:.1f} % off, "
            f"{100 * cell['bound_missed']:.1f} % of {cell['bounded']} beyond their bound"
        )
    return cells


def write_project(folder: Path, work: Workload) -> Path:
    """The records by site as logs in order of arrival, and one view a controller."""
    (folder / "queries").mkdir(parents=True)
    (folder / "data").mkdir()
    settings = 'repair_horizon = "30 days"\nmax_jump = "60 days"\n'
    (folder / "catchment.toml").write_text(star("order", SITES) + settings)
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


def lines(trace: ArrivalTrace, site: int) -> list[str]:
    """The records of the sources that live at a site."""
    mine = np.flatnonzero(trace.source % len(SITES) == site)
    return [
        json.dumps(
            {
                "ts": _stamp(int(trace.event_us[i])),
                "arrived": _stamp(int(trace.arrival_us[i])),
                "source": trace.sources[trace.source[i]],
                "value": float(trace.value[i]),
            }
        )
        + "\n"
        for i in mine.tolist()
    ]


def judge(
    state: Path, work: Workload, controller: str, finished: bool, ends: Callable[[datetime], datetime]
) -> dict[str, Any]:
    """On-time answers against the truth; when they came; whether the last ones are exact."""
    from catchment.center.results.read import read_results, read_windows

    view = view_of(controller)
    truth = totals(work)
    rows = read_results(state, view, revisions="all").to_pylist()
    log = read_windows(state, view).to_pylist()
    first = {r["window_start"]: r for r in reversed(rows)}
    last = {r["window_start"]: r["total"] for r in rows}
    judged = [s for s in sorted(first) if s in truth and s + timedelta(seconds=work.window_s) <= _newest(work)]
    off = [abs(first[s]["total"] - truth[s]) / abs(truth[s]) if truth[s] else 0.0 for s in judged]
    bounds = [first[s]["bound"]["total"] for s in judged]
    beyond = [e > bound * (1.0 + 1e-9) + 1e-12 for e, bound in zip(off, bounds, strict=True) if bound is not None]
    late = [(first[s]["published_at"] - ends(s + timedelta(seconds=work.window_s))).total_seconds() for s in judged]
    exact = finished and last.keys() == truth.keys()
    exact = exact and all(abs(last[s] - t) <= 1e-12 * abs(t) for s, t in truth.items())
    return {
        "workload": work.name,
        "controller": controller,
        "windows": len(judged),
        "mean_latency_s": float(np.mean(late)),
        "p95_latency_s": float(np.quantile(late, 0.95)),
        "second_half_latency_s": float(np.mean(late[len(late) // 2 :])),
        "violations": float(np.mean(np.array(off) >= MAX_ERROR)),
        "mean_error": float(np.mean(np.minimum(off, 1.0))),
        "revisions": sum(w["reason"].startswith("late: ") for w in log),
        "final_exact": bool(exact),
        "bounded": len(beyond),
        "bound_missed": float(np.mean(beyond)) if beyond else 0.0,
        "mean_bound": float(np.mean([min(b, 1.0) for b in bounds if b is not None])) if beyond else 0.0,
        "named_sources": sum(bool(w["missing_sources"]) for w in log),
    }


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
    from catchment.replay.spool import read_beginning

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
    """One row a stream and controller; and what repair costs."""
    from benchmarks.order.repair import told

    heads = (
        "stream",
        "controller",
        "windows",
        "mean s",
        "2nd half s",
        "p95 s",
        "violations",
        "bound missed",
        "late",
        "revisions",
        "exact",
    )
    table = Table(*heads, title=result["compared"], title_justify="left")
    for c in result["cells"]:
        table.add_row(
            c["workload"],
            c["controller"],
            str(c["windows"]),
            f"{c['mean_latency_s']:.2f}",
            f"{c['second_half_latency_s']:.2f}",
            f"{c['p95_latency_s']:.2f}",
            f"{100 * c['violations']:.1f} %",
            f"{100 * c['bound_missed']:.1f} % of {c['bounded']}",
            f"{100 * c['late_share']:.2f} %",
            str(c["revisions"]),
            str(c["final_exact"]),
        )
    return Group(*([table] if result["cells"] else []), *([told(result["repair"])] if result["repair"] else []))
