"""Feeds, live: devices over a real broker against one cloud on Spark; rates change in mid-run."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.feeds import processes as live
from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import all_at_cloud, least_traffic
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import boot_number
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.traffic import Totals, message_sizes, predict_traffic, relative_gap
from catchment.feeds.runs.workload import Workload, WorldChoice
from catchment.sim.nearby_world import open_world

DESCRIPTION = "500 devices over MQTT against a cloud on Spark: traffic against its prediction, notices, CPU, memory."
PROJECT = Path(__file__).parents[2] / "examples" / "nearby_friends"
CUT_US = 15_000_000  # notices of the last seconds may be under way when the processes end


@dataclass(frozen=True)
class Plan:
    """How much is run, and for how long."""

    users: int
    rate_unit: float
    fleets: int
    connect_s: float  # for devices to join and views to be deployed, before the first record
    warm_up_s: float
    phase_s: float
    wait_s: float  # for the rule to place views anew after the rates have changed


FULL = Plan(users=500, rate_unit=1.0, fleets=4, connect_s=40, warm_up_s=10, phase_s=90, wait_s=450)
QUICK = Plan(users=40, rate_unit=2.0, fleets=2, connect_s=15, warm_up_s=5, phase_s=20, wait_s=20)


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """One deployment from start to end."""
    if live.find_broker() is None:
        raise FeedError("this benchmark needs the mosquitto broker", hint="apt-get install mosquitto")
    plan = QUICK if quick else FULL
    world = open_world(PROJECT, WorldChoice(users=plan.users, rate_unit=plan.rate_unit))
    graph = generate_views(world.program, world.read_reference())
    with tempfile.TemporaryDirectory(prefix="feeds-bench-") as folder, ExitStack() as stack:
        words = ["--users", str(plan.users), "--rate-unit", str(plan.rate_unit)]
        deployment = live.Deployment(PROJECT, words, Path(folder), stack)
        return _Bench(plan, world, graph, deployment, report).run()


class _Bench:
    """One run, measured from the log of the cloud."""

    def __init__(
        self,
        plan: Plan,
        world: Workload,
        graph: ViewGraph,
        deployment: live.Deployment,
        report: Callable[[str], None],
    ) -> None:
        self.plan, self.world, self.graph = plan, world, graph
        self.deployment, self.report = deployment, report
        now_us = time.time_ns() // 1000
        self.sizes = message_sizes(graph, world, now_us, boot_number(now_us))
        self.phases: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        plan, deployment, log = self.plan, self.deployment, self.deployment.log
        self.report(f"starting Spark; then {plan.users} devices in {plan.fleets} processes")
        if not deployment.until(lambda: bool(log.traffic), live.STARTS_S):
            raise FeedError(f"the cloud was not up after {live.STARTS_S:g} s")
        begin_s = time.time() + plan.connect_s
        change_at_s = plan.warm_up_s + plan.phase_s
        deployment.start_fleets(plan.fleets, begin_s, change_at_s)
        ready = deployment.until(lambda: log.moving == 0 and bool(log.hosts), plan.connect_s + 60)
        self.report(f"{len(self.graph.views)} views deployed" if ready else "views are still being deployed")
        self._sleep_until(begin_s + plan.warm_up_s)
        self._phase("before", begin_s + change_at_s)
        self.world.change_rates()
        self.report("rates have changed; waiting for views to be placed anew")
        replaced = deployment.until(lambda: log.redeployed > 0 and log.moving == 0, plan.wait_s)
        reacted_s = time.time() - begin_s - change_at_s
        self._phase("after", time.time() + plan.phase_s)
        cloud, fleets = deployment.end()
        return {
            **self._about(),
            **self._outcome(cloud, fleets),
            "reaction_s": round(reacted_s, 1) if replaced else None,
        }

    def _sleep_until(self, instant_s: float) -> None:
        self.deployment.until(lambda: time.time() >= instant_s, max(0.0, instant_s - time.time()) + 1)

    def _phase(self, name: str, until_s: float) -> None:
        """Measure from now on; a placement that changes on the way makes a new start, twice at most."""
        self.report(f"measuring: {name}")
        for _ in range(3):
            began_us, hosts = time.time_ns() // 1000, self.deployment.log.hosts[-1][1]
            self._sleep_until(until_s)
            if self.deployment.log.hosts[-1][1] == hosts or name == "before":
                break
            until_s = time.time() + self.plan.phase_s
        self.phases.append(self._measured(name, began_us, int(until_s * 1e6), hosts))

    def _measured(self, name: str, began_us: int, ended_us: int, hosts: Mapping[str, str]) -> dict[str, Any]:
        log, rates = self.deployment.log, self.world.feed_rates
        first, last = (Totals(*log.at(log.traffic, at)[:5]) for at in (began_us, ended_us))
        used = [log.at(log.usage, at) for at in (began_us, ended_us)]
        measured = last.per_second_since(first)
        predicted = predict_traffic(self.graph, hosts, rates, self.sizes)
        flat = all_at_cloud(self.graph, rates, self.world.costs)
        best = least_traffic(self.graph, rates, self.world.costs)
        return {
            "phase": name,
            "seconds": round((last.at_us - first.at_us) / 1e6, 1),
            "measured": measured,
            "predicted": predicted,
            "off": relative_gap(measured, predicted),
            "all_at_cloud": predict_traffic(self.graph, flat, rates, self.sizes),
            "best_for_these_rates": predict_traffic(self.graph, best, rates, self.sizes),
            "views_at_cloud": Counter(hosts.values())[CLOUD],
            "views_on_devices": len(hosts) - Counter(hosts.values())[CLOUD],
            "cloud_cores": round((used[1][1] - used[0][1]) / max(1e-6, (used[1][0] - used[0][0]) / 1e6), 3),
        }

    def _about(self) -> dict[str, Any]:
        return {
            "compared": "traffic at the cloud with what the placement predicts; notices of all devices with a naive "
            "recomputation over every record",
            "data": self.world.source,
            "transport": "MQTT, mosquitto, QoS 1, persistent sessions",
            "devices": len(self.world.rates),
            "device_processes": self.plan.fleets,
            "views": len(self.graph.views),
            "phases": self.phases,
        }

    def _outcome(self, cloud: Mapping[str, Any], fleets: list[dict[str, Any]]) -> dict[str, Any]:
        self.report("comparing with the naive recomputation")
        records, notices = self.deployment.written()
        since = self.deployment.log.active[-1][1]
        end_us = max(r.at_us for r in records) - CUT_US
        due = naive_notices(self.graph, [r for r in records if r.at_us <= end_us], since)
        found = {n.identity for n in notices}
        return {
            "redeployments": cloud["redeployments"],
            "views_moved": cloud["moved"] - len(self.graph.views),
            "records": len(records),
            "notices": len(found),
            "expected": len(due),
            "lost": len(due - found),
            "invented": len(found - naive_notices(self.graph, records)),
            "doubled": len(notices) - len(found),
            "messages_missing": cloud["missing"] + sum(f["missing"] for f in fleets),
            "cloud_cpu_s": cloud["usage"]["cpu_s"],
            "cloud_peak_memory_mb": cloud["usage"]["peak_memory_mb"],
            "devices_cpu_s": round(sum(f["usage"]["cpu_s"] for f in fleets), 1),
            "devices_peak_memory_mb": sum(f["usage"]["peak_memory_mb"] for f in fleets),
        }


def render(result: Mapping[str, Any]) -> RenderableType:
    """Traffic of each phase, then the rest in words."""
    table = Table(title=f"{result['devices']} devices, {result['views']} views, {result['transport']}")
    for head in ("phase", "a second", "predicted", "measured", "off", "all at cloud"):
        table.add_column(head, justify="left" if head in ("phase", "a second") else "right")
    for phase in result["phases"]:
        for way in phase["measured"]:
            cells = (phase[part][way] for part in ("predicted", "measured", "all_at_cloud"))
            predicted, measured, flat = (f"{value:,.1f}" for value in cells)
            table.add_row(phase["phase"], way.replace("_", " "), predicted, measured, f"{phase['off'][way]:.1%}", flat)
    cores = ", ".join(f"{p['cloud_cores']:.2f} {p['phase']}" for p in result["phases"])
    return Group(
        table,
        f"redeployments {result['redeployments']} (settled after {result['reaction_s']} s), "
        f"views moved {result['views_moved']}",
        f"notices {result['notices']}, naive recomputation {result['expected']}, lost {result['lost']}, "
        f"invented {result['invented']}, doubled {result['doubled']}",
        f"cloud: {cores} cores, {result['cloud_peak_memory_mb']} MB with the JVM",
    )
