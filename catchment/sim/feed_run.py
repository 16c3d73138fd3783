"""A measured run of feeds: predicted against measured traffic, notices against the naive recomputation.

Devices, bus and cloud are the real cores; time is virtual unless the run is paced. The run has phases: *before* and,
when rates change in mid-run, *after*, which begins when views have settled again. In each phase what crossed the
wire is compared with what the placement predicts: messages from shares and rates, bytes from the size of a feed's
own messages. Control messages and notices are counted on their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from catchment.errors import SimulationError
from catchment.feeds.bus import Bus
from catchment.feeds.channel import DATA, NOTICE
from catchment.feeds.choose_hosts import STRATEGIES, LinkCosts
from catchment.feeds.codec import encode
from catchment.feeds.controller import Controller
from catchment.feeds.device import DeviceConfig
from catchment.feeds.fleet import Fleet, Record
from catchment.feeds.local_run import LocalRun
from catchment.feeds.messages import FeedEvent, Upward
from catchment.feeds.oracle import naive_notices
from catchment.feeds.router import Deliver
from catchment.feeds.routes import CLOUD, Hosts, all_routes
from catchment.feeds.view_graph import ViewGraph

SECOND_US = 1_000_000
EPOCH_US = 1_700_000_000 * SECOND_US  # where virtual time begins: instants have as many digits as real ones
WARM_UP_S = 5  # views are deployed and first events are out before a phase is measured


class RunWorld(Protocol):
    """Where records and their rates come from."""

    source: str
    rates: dict[str, float]

    @property
    def feed_rates(self) -> dict[str, float]: ...

    def records(self, from_us: int = 0) -> Iterator[Record]: ...

    def change_rates(self) -> None: ...


class RunCloud(Protocol):
    """A cloud that a run can drive: in the process, or on Spark."""

    @property
    def redeployed(self) -> int: ...

    @property
    def controller(self) -> Controller: ...

    def deploy(self, hosts: Hosts) -> list[Deliver]: ...

    def receive(self, device: str, message: Upward) -> Iterable[Deliver]: ...

    def review(self, period_s: float) -> list[Deliver]: ...

    def take(self) -> Iterable[Deliver]: ...


@dataclass(frozen=True)
class RunOptions:
    """What to run; `change_at_s` changes the rates in mid-run and lets the cloud place views anew."""

    seconds: int = 60
    strategy: str = "ours"
    costs: LinkCosts = field(default_factory=LinkCosts)
    change_at_s: int | None = None
    review_every_s: int = 5
    take_every_s: float = 1.0
    check: bool = True
    report_every_s: int = 5

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise SimulationError(f"unknown strategy {self.strategy!r}", hint=f"possible: {', '.join(STRATEGIES)}")
        if self.seconds <= WARM_UP_S or (self.change_at_s or self.seconds) > self.seconds:
            raise SimulationError(f"a run of {self.seconds} s is too short; it warms up for {WARM_UP_S} s")


@dataclass(frozen=True)
class Totals:
    """Data messages and bytes that crossed all links, each way, up to an instant."""

    at_us: int
    messages_up: float = 0.0
    messages_down: float = 0.0
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def per_second_since(self, earlier: Totals) -> dict[str, float]:
        seconds = (self.at_us - earlier.at_us) / 1e6
        names = ("messages_up", "messages_down", "bytes_up", "bytes_down")
        return {name: (getattr(self, name) - getattr(earlier, name)) / seconds for name in names}


class FeedRun:
    """One strategy over one world."""

    def __init__(self, graph: ViewGraph, world: RunWorld, cloud: RunCloud, options: RunOptions) -> None:
        self.graph = graph
        self.world = world
        self.cloud = cloud
        self.options = options
        self.bus = Bus()
        configs = [DeviceConfig(d, report_every_us=options.report_every_s * SECOND_US) for d in world.rates]
        self.fleet = Fleet(configs, self.bus, graph.program.functions)
        self.cpu_s = 0.0  # of the cloud alone, when it runs in this thread
        self.run = LocalRun(_Timed(self), self.fleet, self.bus)
        self.run.now_us = EPOCH_US
        self.phases: list[dict[str, Any]] = []
        self.sizes = _message_sizes(graph, world)

    def deploy(self) -> None:
        """Connect the devices and bring the views to their first hosts."""
        options = self.options
        self.cloud.controller.rates.update(self.world.feed_rates)
        self.run.connect_all()
        hosts = STRATEGIES[options.strategy](self.graph, self.world.feed_rates, options.costs)
        self.run.send(self.cloud.deploy(hosts))
        self.run.carry(self.run)
        self.run.every(int(options.take_every_s * SECOND_US), lambda run: run.send(self.cloud.take()))
        if options.strategy == "ours":
            every = options.review_every_s
            self.run.every(every * SECOND_US, lambda run: run.send(self.cloud.review(every)))
        if options.check:
            self.run.produced = []

    def play(self, records: Iterator[Record]) -> None:
        """Run through the phases."""
        change_at, end = self.options.change_at_s, self.options.seconds
        self.run.run(records, EPOCH_US + WARM_UP_S * SECOND_US)
        self._phase("before", records, change_at or end)
        if change_at is not None:
            self.world.change_rates()
            self._settle(records, change_at + (end - change_at) // 2)
            self._phase("after", records, end)

    def _phase(self, name: str, records: Iterator[Record], until_s: int) -> None:
        before, hosts = self.totals(), self.cloud.controller.settled()
        rates, redeployed = self.world.feed_rates, self.cloud.redeployed
        self.run.run(records, EPOCH_US + until_s * SECOND_US)
        measured = self.totals().per_second_since(before)
        predicted = self.predicted(hosts, rates)
        self.phases.append(
            {
                "phase": name,
                "seconds": (self.run.now_us - before.at_us) / 1e6,
                "predicted": predicted,
                "measured": measured,
                "off": {k: _off(measured[k], predicted[k]) for k in predicted},
                "views_at_cloud": sum(h == CLOUD for h in hosts.values()),
                "redeployed": self.cloud.redeployed - redeployed,
            }
        )

    def _settle(self, records: Iterator[Record], not_before_s: int) -> None:
        """Go on until the cloud has placed views anew and all moves have ended."""
        self.run.run(records, EPOCH_US + not_before_s * SECOND_US)
        while self.cloud.controller.moves and self.run.now_us < EPOCH_US + self.options.seconds * SECOND_US:
            self.run.run(records, self.run.now_us + SECOND_US)

    def finish(self) -> None:
        """Deliver what is under way, and let moves end."""
        self.run.ahead = None
        for _ in range(5):
            self.run.run(iter(()), self.run.now_us + 2 * SECOND_US)
            self.run.send(self.cloud.take())
            self.run.carry(self.run)

    def totals(self) -> Totals:
        """What has crossed the wire so far."""
        links = self.bus.traffic().values()
        return Totals(
            self.run.now_us,
            sum(link.up.messages[DATA] for link in links),
            sum(link.down.messages[DATA] for link in links),
            sum(link.up.bytes[DATA] for link in links),
            sum(link.down.bytes[DATA] for link in links),
        )

    def predicted(self, hosts: Hosts, rates: Mapping[str, float]) -> dict[str, float]:
        """Messages and bytes per second of a placement."""
        found = dict.fromkeys(("messages_up", "messages_down", "bytes_up", "bytes_down"), 0.0)
        for feed, routes in all_routes(self.graph, hosts):
            size = self.sizes.get(feed, 0.0)
            for way, shares in (("up", routes.uploads.values()), ("down", routes.downloads.values())):
                found[f"messages_{way}"] += rates.get(feed, 0.0) * sum(shares)
                found[f"bytes_{way}"] += rates.get(feed, 0.0) * sum(shares) * size
        return found

    def report(self) -> dict[str, Any]:
        """All that was measured."""
        controller, links = self.cloud.controller, list(self.bus.traffic().values())
        hosts = controller.settled()
        return {
            "data": self.world.source,
            "devices": len(self.world.rates),
            "views": len(self.graph.views),
            "strategy": self.options.strategy,
            "seconds": self.options.seconds,
            "views_at_cloud": sum(h == CLOUD for h in hosts.values()),
            "views_on_devices": sum(h != CLOUD for h in hosts.values()),
            "phases": self.phases,
            "redeployments": self.cloud.redeployed,
            "views_moved": controller.counters.moves_done - len(self.graph.views),
            "moves_unfinished": len(controller.moves),
            "instructions": controller.counters.instructions,
            "notices_on_the_wire": sum(link.up.messages[NOTICE] + link.down.messages[NOTICE] for link in links),
            "cloud_cpu_s": self.cpu_s,
            **self.notices(),
        }

    def notices(self) -> dict[str, Any]:
        """What devices notified, against the naive recomputation where every record was kept for it."""
        found = {n.identity for n in self.fleet.notices}
        counts: dict[str, Any] = {"notices": len(found), "doubled": len(self.fleet.notices) - len(found)}
        if self.run.produced is not None:
            expected = naive_notices(self.graph, self.run.produced)
            counts |= {"expected": len(expected), "lost": len(expected - found), "invented": len(found - expected)}
        return counts


class _Timed:
    """The cloud as the run sees it, with its processor time counted."""

    def __init__(self, owner: FeedRun) -> None:
        self.owner = owner

    def receive(self, device: str, message: Upward) -> list[Deliver]:
        began = time.thread_time()
        answers = list(self.owner.cloud.receive(device, message))
        self.owner.cpu_s += time.thread_time() - began
        return answers


def _message_sizes(graph: ViewGraph, world: RunWorld) -> dict[str, float]:
    """Bytes of a message of each feed: an event of it, encoded, with numbers of a usual length."""
    sizes: dict[str, float] = {}
    waiting = set(graph.feeds)
    for record in world.records(EPOCH_US):
        feed = f"{record.stream}@{record.device}"
        if feed in waiting:
            waiting.discard(feed)
            sizes[feed] = float(len(encode(100, FeedEvent(feed, (100,), record.at_us, record.row[1:]))))
        if not waiting:
            break
    return sizes


def _off(measured: float, predicted: float) -> float:
    """How far a measurement is from its prediction, as a share of it."""
    return abs(measured - predicted) / predicted if predicted else float(measured > 0)
