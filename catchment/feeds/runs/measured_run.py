"""A measured run of feeds: predicted against measured traffic, notices against the naive recomputation.

Devices, bus and cloud are the real cores; time is virtual unless the run is paced. The run has phases: *before* and,
when rates change in mid-run, *after*, which begins when views have settled again. In each phase what crossed the
wire is compared with what the placement predicts (see `feeds/runs/traffic.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import STRATEGIES
from catchment.feeds.cloud.cloud import FeedCloud
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import DeviceConfig, boot_number
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.device.spool import spool_for
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.channel import NOTICE
from catchment.feeds.protocol.messages import Upward
from catchment.feeds.protocol.mqtt import MqttBus
from catchment.feeds.runs.board import Board
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.traffic import Totals, message_sizes, predict_traffic, relative_gap
from catchment.feeds.runs.wall_clock import carry_over_mqtt, pace
from catchment.feeds.runs.workload import Workload
from catchment.units import SECOND_US

EPOCH_US = 1_700_000_000 * SECOND_US  # where virtual time begins: instants have as many digits as real ones
BOOT = boot_number(EPOCH_US)
WARM_UP_S = 5  # views are deployed and first events are out before a phase is measured
LONGEST_WARM_UP_S = 60  # after which the first phase begins, even if the cloud is not ready
FINISH_S = 60  # after the last record, in which moves end
QUIET_S = 6  # after the last record in any case, for messages that are under way


@dataclass(frozen=True)
class RunOptions:
    """What to run; `change_at_s` changes the rates in mid-run and lets the cloud move views."""

    seconds: int = 60
    strategy: str = "ours"
    change_at_s: int | None = None
    review_every_s: int = 5
    take_every_s: float = 1.0
    check: bool = True
    report_every_s: int = 5

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise FeedError(f"unknown strategy {self.strategy!r}", hint=f"possible: {', '.join(STRATEGIES)}")
        if self.seconds <= WARM_UP_S:
            raise FeedError(f"a run of {self.seconds} s is too short; it warms up for {WARM_UP_S} s")
        if self.change_at_s is not None and not WARM_UP_S < self.change_at_s < self.seconds:
            raise FeedError(f"rates cannot change at second {self.change_at_s} of a run of {self.seconds} s")


class FeedRun:
    """One strategy over one world."""

    def __init__(
        self, graph: ViewGraph, world: Workload, cloud: FeedCloud, options: RunOptions, bus: Bus | MqttBus | None = None
    ) -> None:
        self.graph = graph
        self.world = world
        self.cloud = cloud
        self.options = options
        self.bus = bus or Bus(first_number=BOOT)
        limits = world.retention.device
        configs = [DeviceConfig(d, BOOT, options.report_every_s * SECOND_US, limits=limits) for d in world.rates]
        self.fleet = Fleet(configs, self.bus, graph.program.functions, make_spool=lambda name: spool_for(limits))
        self.cpu_s = 0.0  # processor time of the cloud, if it runs in this thread
        self.run = LocalRun(cloud, self.fleet, self.bus)
        self.run.answer = self._answer_timed
        self.run.now_us = EPOCH_US
        self.phases: list[dict[str, Any]] = []
        self.sizes = message_sizes(graph, world, EPOCH_US, BOOT)
        self.board = Board(options.strategy, cloud.controller, self.bus.traffic, world.costs, self.sizes)

    def _answer_timed(self, device: str, message: Upward) -> list[Deliver]:
        began_s = time.thread_time()
        answers = list(self.cloud.receive(device, message))
        self.cpu_s += time.thread_time() - began_s
        return answers

    def deploy(self) -> None:
        """Connect the devices and bring the views to their first hosts."""
        options = self.options
        self.cloud.controller.rates.update(self.world.feed_rates)
        if isinstance(self.bus, MqttBus):
            self.run.carry = carry_over_mqtt(self.bus)
            self.bus.open(self.fleet.devices, boot=self.bus.cloud.boot)
            self.run.carry(self.run)
        else:
            self.run.connect_all()
        hosts = STRATEGIES[options.strategy](self.graph, self.world.feed_rates, self.world.costs)
        self.run.send(self.cloud.deploy(hosts))
        self.run.carry(self.run)
        self.run.every(int(options.take_every_s * SECOND_US), lambda run: run.send(self.cloud.take()))
        if options.strategy == "ours":
            every = options.review_every_s
            self.run.every(every * SECOND_US, lambda run: run.send(self.cloud.review(every)))
        if options.check:
            self.run.produced = []

    def play(self) -> None:
        """Run to the end."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[int]:
        """Run through the phases, one second at a time; yield the second."""
        records = self.world.records(EPOCH_US)
        change_at = self.options.change_at_s
        end = self.options.seconds
        yield from self._until(records, WARM_UP_S)
        yield from self._settle(records, min(change_at or end, LONGEST_WARM_UP_S))
        yield from self._phase("before", records, change_at or end)
        if change_at is not None:
            self.world.change_rates()
            yield from self._until(records, change_at + (end - change_at) // 2)
            yield from self._settle(records, end - 1)
            yield from self._phase("after", records, end)
        self.finish()

    @property
    def second(self) -> int:
        """How far the run is."""
        return (self.run.now_us - EPOCH_US) // SECOND_US

    def _until(self, records: Iterator[DeviceRecord], until_s: int) -> Iterator[int]:
        while (now_s := self.second) < until_s:
            self.run.run(records, EPOCH_US + (now_s + 1) * SECOND_US)
            self.board.sample(self.run.now_us, self.cloud.redeployed)
            yield now_s + 1

    def _settle(self, records: Iterator[DeviceRecord], latest_s: int) -> Iterator[int]:
        """Continue until all moves have ended."""
        while self.cloud.controller.moving and self.second < latest_s:
            yield from self._until(records, self.second + 1)

    def _phase(self, name: str, records: Iterator[DeviceRecord], until_s: int) -> Iterator[int]:
        if self.second >= until_s:
            return
        before = self.totals()
        hosts = self.cloud.controller.current_hosts()
        rates = self.world.feed_rates
        redeployed = self.cloud.redeployed
        yield from self._until(records, until_s)
        measured = self.totals().per_second_since(before)
        predicted = predict_traffic(self.graph, hosts, {**self.cloud.controller.rates, **rates}, self.sizes)
        self.phases.append(
            {
                "phase": name,
                "seconds": (self.run.now_us - before.at_us) / 1e6,
                "predicted": predicted,
                "measured": measured,
                "off": relative_gap(measured, predicted),
                "views_at_cloud": sum(h == CLOUD for h in hosts.values()),
                "redeployed": self.cloud.redeployed - redeployed,
            }
        )

    def finish(self) -> None:
        """Deliver what is under way, and let moves end."""
        self.run.ahead = None
        since_us = self.run.now_us
        while self.run.now_us < since_us + FINISH_S * SECOND_US:
            self.run.run(iter(()), self.run.now_us + 2 * SECOND_US)
            self.run.send(self.cloud.drain())
            self.run.carry(self.run)
            if not self.cloud.controller.moving and self.run.now_us >= since_us + QUIET_S * SECOND_US:
                break

    def totals(self) -> Totals:
        """Return the traffic so far."""
        return Totals.of(self.bus.traffic().values(), self.run.now_us)

    def report(self) -> dict[str, Any]:
        """Return everything that was measured."""
        controller = self.cloud.controller
        links = list(self.bus.traffic().values())
        hosts = controller.current_hosts()
        return {
            "data": self.world.source,
            "devices": len(self.world.rates),
            "views": len(self.graph.views),
            "strategy": self.options.strategy,
            "seconds": self.options.seconds,
            "views_at_cloud": sum(h == CLOUD for h in hosts.values()),
            "views_on_devices": sum(h != CLOUD for h in hosts.values()),
            "devices_that_compute": len({h for h in hosts.values() if h != CLOUD}),
            "phases": self.phases,
            "redeployments": self.cloud.redeployed,
            "views_moved": controller.counters.moves_done - len(self.graph.views),
            "moves_unfinished": len(controller.moving),
            "instructions": controller.counters.instructions,
            "notices_on_the_wire": sum(link.up.messages[NOTICE] + link.down.messages[NOTICE] for link in links),
            "forgotten": self.cloud.forgotten + self.fleet.forgotten,
            "cloud_cpu_s": round(self.cpu_s, 3),
            **self.notices(),
        }

    def notices(self) -> dict[str, Any]:
        """Return what devices notified, against the naive recomputation where every record was kept for it."""
        found = {n.identity for n in self.fleet.notices}
        counts: dict[str, Any] = {"notices": len(found), "doubled": len(self.fleet.notices) - len(found)}
        if self.run.produced is not None:
            counts |= compare(self.graph, self.run.produced, found, self.cloud.controller.active_since_us)
        return counts


def compare(
    graph: ViewGraph, records: list[DeviceRecord], found: set[Any], since_us: Mapping[str, int]
) -> dict[str, int]:
    """Return how many notices were expected, lost and invented.

    Lost: due from when its view was active, and not found. Invented: found, and never due.
    """
    windowed = {t.name for t in graph.program.templates.values() if t.window is not None}
    found = {identity for identity in found if identity[0] not in windowed}
    every = naive_notices(graph, records)
    first_us = min((r.at_us for r in records), default=0)
    late = any(since >= first_us for since in since_us.values())
    due = naive_notices(graph, records, since_us) if late else every
    known = {identity for identity in due if identity[0] in since_us}
    return {"expected": len(known), "lost": len(known - found), "invented": len(found - every)}


def play_side_by_side(runs: list[FeedRun], paced: bool) -> Iterator[None]:
    """Play runs second by second, so that strategies that are compared are at the same instant."""
    for run in runs:
        run.deploy()
        if paced:
            pace(run.run)
    steps = [run.steps() for run in runs]
    while steps:
        steps = [s for s in steps if next(s, None) is not None]
        yield
