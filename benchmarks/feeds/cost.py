"""What a live cloud costs at the rates of the example, and how soon devices are notified: in one process, and on Spark.

Each cloud serves the same devices over a real broker. Processor time and memory are those of the cloud's process with
Spark's JVM, without devices and broker; a notice is timed from its match, the later of two records, until the device
has it, on one clock. Goals: 95% of notices within a second; on Spark, under half a core and 1 GB.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.feeds import processes as live
from catchment.errors import FeedError
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.workload import WorldChoice
from catchment.sim.nearby_world import open_world

PROJECT = Path(__file__).parents[2] / "examples" / "nearby_friends"
CUT_US = 15_000_000  # notices of the last seconds may be under way when the processes end
CLOUDS = ("local", "spark")
STRATEGIES = ("ours", "cloud")
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Plan:
    """How much is run, and for how long."""

    users: int
    rate_unit: float
    fleets: int
    connect_s: float  # for devices to join and views to be deployed, before the first record
    warm_up_s: float  # in which the JVM compiles what every batch runs
    measured_s: float


FULL = Plan(users=500, rate_unit=1.0, fleets=4, connect_s=40, warm_up_s=90, measured_s=180)
QUICK = Plan(users=40, rate_unit=2.0, fleets=1, connect_s=10, warm_up_s=10, measured_s=25)


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """One deployment per kind of cloud and strategy, one after the other; a quick run has all views at the cloud."""
    if live.find_broker() is None:
        raise FeedError("this benchmark needs the mosquitto broker", hint="apt-get install mosquitto")
    plan = QUICK if quick else FULL
    world = open_world(PROJECT, WorldChoice(users=plan.users, rate_unit=plan.rate_unit))
    graph = generate_views(world.program, world.read_reference())
    found = []
    for strategy in STRATEGIES[1:] if quick else STRATEGIES:
        for kind in CLOUDS:
            report(f"{plan.users} devices, cloud {kind}, views: {strategy}")
            found.append({"cloud": kind, "strategy": strategy, **_measure(plan, graph, kind, strategy)})
    return {"data": world.source, "devices": plan.users, "views": len(graph.views), "clouds": found}


def _measure(plan: Plan, graph: ViewGraph, kind: str, strategy: str) -> dict[str, Any]:
    """Run one deployment from start to end."""
    words = ["--users", str(plan.users), "--rate-unit", str(plan.rate_unit)]
    with tempfile.TemporaryDirectory(prefix="feeds-cost-") as folder, ExitStack() as stack:
        how = ("--cloud", kind, "--strategy", strategy)
        deployment = live.Deployment(PROJECT, words, Path(folder), stack, *how)
        if not deployment.until(lambda: bool(deployment.log.traffic), live.STARTS_S):
            raise FeedError(f"the cloud was not up after {live.STARTS_S:g} s")
        begin_s = time.time() + plan.connect_s
        deployment.start_fleets(plan.fleets, begin_s)
        first_s = begin_s + plan.warm_up_s
        last_s = first_s + plan.measured_s
        deployment.until(lambda: time.time() >= last_s, last_s - time.time() + 1)
        cloud, _ = deployment.end()
        return {**_cost(deployment, first_s, last_s, cloud), **_notices(graph, deployment)}


def _cost(deployment: live.Deployment, first_s: float, last_s: float, cloud: Mapping[str, Any]) -> dict[str, Any]:
    log = deployment.log
    first, last = (log.at(log.usage, int(at_s * 1e6)) for at_s in (first_s, last_s))
    delays = sorted(deployment.delays_us(int(first_s * 1e6)))
    return {
        "cores": round((last[1] - first[1]) / max(1e-6, (last[0] - first[0]) / 1e6), 3),
        "peak_memory_mb": cloud["usage"]["peak_memory_mb"],
        "timed_notices": len(delays),
        "delays_s": [round(delays[int(q * (len(delays) - 1))] / 1e6, 3) if delays else None for q in QUANTILES],
    }


def _notices(graph: ViewGraph, deployment: live.Deployment) -> dict[str, int]:
    records, notices = deployment.written()
    end_us = max(r.at_us for r in records) - CUT_US
    due = naive_notices(graph, [r for r in records if r.at_us <= end_us], deployment.log.active[-1][1])
    found = {n.identity for n in notices}
    return {"expected": len(due), "lost": len(due - found), "doubled": len(notices) - len(found)}


def render(result: Mapping[str, Any]) -> RenderableType:
    """A row per cloud and strategy."""
    table = Table(title=f"{result['devices']} devices, {result['views']} views ({result['data']})")
    heads = ("cloud", "views are", "cores", "MB", "notices", "50% within s", "95%", "99%", "due", "lost", "doubled")
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right")
    for row in result["clouds"]:
        delays = ("-" if delay is None else f"{delay:.2f}" for delay in row["delays_s"])
        where = "ours" if row["strategy"] == "ours" else "all at the cloud"
        counts = (str(row[name]) for name in ("expected", "lost", "doubled"))
        cost = (f"{row['cores']:.2f}", f"{row['peak_memory_mb']:,}", str(row["timed_notices"]))
        table.add_row(row["cloud"], where, *cost, *delays, *counts)
    return table
