"""A fleet that grows while its cloud runs, without a recording: devices register, report their rates, and views follow.

In virtual time, over the in-process bus. At each size the traffic that the cloud predicts from what devices have
reported is compared with what crosses the links, and notices with the naive recomputation. How long redeployments take
is a distribution over views: from the decision until the new host is the only one, in the time of the devices.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.feeds.clients import PROJECT
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Deliver, Router
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.messages import Upward
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.measured_run import BOOT, EPOCH_US, compare
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.feeds.runs.traffic import Totals, message_sizes, predict_traffic, relative_gap
from catchment.feeds.runs.workload import Workload, WorldChoice
from catchment.sim.nearby_world import open_world
from catchment.units import SECOND_US

SIZES = (10, 50, 100, 250, 500)
SETTLE_S = 60  # in which new devices register, report their rates, and views move
PHASE_S = 120
REPORT_EVERY_S = 10
LOOK_EVERY_US = 100_000  # how exactly the length of a move is known
REVIEW_EVERY_S = 5


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Grow a fleet step by step."""
    sizes = (5, 20) if quick else SIZES
    world = open_world(PROJECT, WorldChoice(users=sizes[-1], rate_unit=1.0))
    with tempfile.TemporaryDirectory(prefix="feeds-growth-") as folder:
        growth = _Growth(world, Path(folder))
        phases = []
        for size in sizes:
            report(f"{size} devices")
            phases.append(growth.grow_to(size))
        return {"data": world.source, "phases": phases, "redeployments": growth.redeployments(), **growth.notices()}


class _Growth:
    """A cloud that knows no device, and devices that connect one after the other."""

    def __init__(self, world: Workload, folder: Path) -> None:
        self.world = world
        program = world.program
        bus = Bus(first_number=BOOT)
        configs = [DeviceConfig(name, BOOT, REPORT_EVERY_S * SECOND_US) for name in world.rates]
        self.fleet = Fleet(configs, bus, program.functions)
        self.cloud = Cloud(ViewGraph(program, {}, {}), Router(compile_feeds(program)), {}, ReoptimizeRule(world.costs))
        gate = DeviceGate(program, AdmissionRule())
        self.registrar = Registrar(self.cloud, gate, MadeReference(world.read_reference()), folder)
        self.bus = bus
        self.run = LocalRun(self.cloud, self.fleet, bus)
        self.run.answer = self._answer
        self.run.now_us = EPOCH_US
        self.run.produced = []
        self.run.every(SECOND_US, lambda run: run.send(self.registrar.follow(run.now_us)))
        self.run.every(LOOK_EVERY_US, self._look_at_moves)
        self.under_way: dict[str, tuple[bool, int]] = {}  # whether the view was elsewhere before, and since when
        self.took_s: dict[str, list[float]] = {"opened": [], "moved": []}
        self.run.every(REVIEW_EVERY_S * SECOND_US, lambda run: run.send(self.cloud.review(REVIEW_EVERY_S)))
        self.records = world.records(EPOCH_US)
        self.joined = 0

    def _answer(self, device: str, message: Upward) -> list[Deliver]:
        told = self.registrar.refuse(device, message, self.run.now_us)
        return list(self.cloud.receive(device, message) if told is None else told)

    def _look_at_moves(self, run: LocalRun) -> None:
        """Note which moves have begun, and how long those took that have ended."""
        moving = self.cloud.controller.moving
        for name in [name for name in self.under_way if name not in moving]:
            was_elsewhere, since_us = self.under_way.pop(name)
            self.took_s["moved" if was_elsewhere else "opened"].append((run.now_us - since_us) / SECOND_US)
        for name, move in moving.items():
            self.under_way.setdefault(name, (move.old is not None, run.now_us - LOOK_EVERY_US))

    def redeployments(self) -> dict[str, Any]:
        """Return how long it took to open views and to move them, in seconds, as a distribution."""
        return {kind: distribution(seconds) for kind, seconds in self.took_s.items()}

    def grow_to(self, size: int) -> dict[str, Any]:
        """Let devices connect, wait until rates are known and views stand still, and measure."""
        for name in list(self.world.rates)[self.joined : size]:
            self.fleet.connect(name, self.run.now_us)
        self.joined = size
        began_us = self.run.now_us
        self._play(SETTLE_S)
        while self.cloud.controller.moving and self.run.now_us < began_us + 10 * SETTLE_S * SECOND_US:
            self._play(REVIEW_EVERY_S)
        settled_us = self.run.now_us
        graph = self.cloud.graph
        hosts = self.cloud.controller.current_hosts()
        sizes = message_sizes(graph, self.world, EPOCH_US, BOOT)
        moves = self.cloud.redeployed
        before = Totals.of(self.bus.traffic().values(), self.run.now_us)
        self._play(PHASE_S)
        after = Totals.of(self.bus.traffic().values(), self.run.now_us)
        measured = after.per_second_since(before)
        # What devices report of one period is rough; the mean of what they have is what the world makes.
        rates = {feed: rate for feed, rate in self.world.feed_rates.items() if feed in graph.feeds}
        predicted = predict_traffic(graph, hosts, rates, sizes)
        reported = predict_traffic(graph, hosts, self.cloud.controller.rates, sizes)
        return {
            "devices": len(self.registrar.registered),
            "views": len(graph.views),
            "settled_s": (settled_us - began_us) // SECOND_US,
            "measured": measured,
            "predicted": predicted,
            "off": relative_gap(measured, predicted),
            "predicted_from_last_reports": reported,
            "off_from_last_reports": relative_gap(measured, reported),
            "redeployed_meanwhile": self.cloud.redeployed - moves,
        }

    def _play(self, seconds: int) -> None:
        self.run.run(self.records, self.run.now_us + seconds * SECOND_US)

    def notices(self) -> dict[str, Any]:
        """Return the notices against the naive recomputation, after everything has arrived."""
        self.run.ahead = None
        self.run.run(iter(()), self.run.now_us + 60 * SECOND_US)
        found = {notice.identity for notice in self.fleet.notices}
        since_us = self.cloud.controller.active_since_us
        counts = compare(self.cloud.graph, self.run.produced or [], found, since_us)
        return {"notices": len(found), "doubled": len(self.fleet.notices) - len(found), **counts}


def distribution(seconds: Sequence[float]) -> dict[str, float]:
    """Return how many there are, and what share of them took at most so long."""
    if not seconds:
        return {"views": 0}
    ordered = sorted(seconds)
    points = {f"p{share}": ordered[min(len(ordered) - 1, share * len(ordered) // 100)] for share in (10, 50, 90, 99)}
    return {"views": len(ordered), **points, "longest": ordered[-1]}


def render(result: Mapping[str, Any]) -> RenderableType:
    """A row per size."""
    moved = result["redeployments"]["moved"]
    took = f"{moved['views']:,} views moved, half within {moved['p50']:.1f} s" if moved["views"] else "no view moved"
    table = Table(title=f"a fleet that grows ({result['data']}); {result['lost']} notices lost; {took}")
    for head in ("devices", "views", "settled after s", "bytes/s up", "predicted", "off", "by last reports"):
        table.add_column(head, justify="right")
    for phase in result["phases"]:
        table.add_row(
            str(phase["devices"]),
            f"{phase['views']:,}",
            str(phase["settled_s"]),
            f"{phase['measured']['bytes_up']:,.0f}",
            f"{phase['predicted']['bytes_up']:,.0f}",
            f"{max(phase['off'].values()):.1%}",
            f"{max(phase['off_from_last_reports'].values()):.1%}",
        )
    return table
