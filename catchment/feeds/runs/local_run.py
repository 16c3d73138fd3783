"""A run of a fleet against a cloud in one thread, on a virtual or a paced clock.

The driver merges the records of the workload with what is scheduled (a link that goes down, rates that
change, a placement that moves), hands them over in order of time, and carries messages until the bus is
quiet. With a `Carrier` of its own a test decides in which order links deliver.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from catchment.feeds.cloud.cloud import FeedCloud
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.language.template import CLOUD_FEED
from catchment.feeds.protocol.channel import LinkTraffic
from catchment.feeds.protocol.messages import Downward, Upward

TICK_US = 1_000_000  # how often devices are told that time has passed


class LocalTransport(Protocol):
    """Both sides of a transport, as a run in one process sees them."""

    @property
    def busy_up(self) -> Collection[str]: ...

    @property
    def busy_down(self) -> Collection[str]: ...

    def next_up(self, device: str) -> Upward | None: ...

    def send_down(self, device: str, message: Downward) -> None: ...

    def traffic(self) -> dict[str, LinkTraffic]: ...


Carrier = Callable[["LocalRun"], None]


def carry_until_quiet(run: LocalRun) -> None:
    """Deliver everything that is under way, link after link."""
    while run.bus.busy_up or run.bus.busy_down:
        for name in list(run.bus.busy_up):
            run.carry_up(name)
        for name in list(run.bus.busy_down):
            run.fleet.receive(name, run.now_us)


@dataclass(order=True)
class _Scheduled:
    at_us: int
    number: int
    act: Callable[[LocalRun], None] = field(compare=False)


class LocalRun:
    """One cloud and one fleet on one bus."""

    def __init__(self, cloud: FeedCloud, fleet: Fleet, bus: LocalTransport, carry: Carrier = carry_until_quiet) -> None:
        self.cloud = cloud
        self.fleet = fleet
        self.bus = bus
        self.carry = carry
        self.answer = cloud.receive  # a measured run counts its processor time
        self.now_us = 0
        self.produced: list[DeviceRecord] | None = None  # set to [] to keep every record for an oracle
        self.scheduled: list[_Scheduled] = []
        self.numbers = itertools.count()  # actions at one instant run in the order in which they were scheduled
        self.ahead: DeviceRecord | None = None  # read from the workload, not yet due
        self.before_step: Callable[[int], None] | None = None  # a paced run sleeps here

    def at(self, at_us: int, act: Callable[[LocalRun], None]) -> None:
        """Schedule an action at an instant of the run."""
        heapq.heappush(self.scheduled, _Scheduled(at_us, next(self.numbers), act))

    def every(self, period_us: int, act: Callable[[LocalRun], None]) -> None:
        """Schedule an action once per period, the first after one period."""

        def again(run: LocalRun) -> None:
            act(run)
            run.at(run.now_us + period_us, again)

        self.at(self.now_us + period_us, again)

    def send(self, deliveries: Iterable[Deliver]) -> None:
        """Hand messages of the cloud to the bus."""
        for delivery in map(self.cloud.controller.tree.addressed, deliveries):
            self.bus.send_down(delivery.device, delivery.message)

    def carry_up(self, name: str) -> None:
        """Hand the cloud the next message of a device, and send its answers."""
        message = self.bus.next_up(name)
        if message is not None:
            self.send(self.answer(name, message))

    def connect_all(self) -> None:
        for name in self.fleet.devices:
            self.fleet.connect(name, self.now_us)
        self.carry(self)

    def run(self, records: Iterator[DeviceRecord], until_us: int) -> None:
        """Continue until an instant; a later call continues with the same records."""
        next_tick = self.now_us + TICK_US
        record = self.ahead or next(records, None)
        while True:
            soonest = min(next_tick, record.at_us if record else until_us, self._next_scheduled(until_us))
            if soonest >= until_us:
                break
            self._advance_to(soonest)
            if record is not None and record.at_us <= self.now_us:
                self._produce(record)
                record = next(records, None)
            elif self.now_us >= next_tick:
                self.fleet.tick(self.now_us)
                next_tick += TICK_US
            self.carry(self)
        self.ahead = record
        self._advance_to(until_us)
        self.fleet.tick(self.now_us)
        self.carry(self)

    def _next_scheduled(self, otherwise_us: int) -> int:
        return self.scheduled[0].at_us if self.scheduled else otherwise_us

    def _advance_to(self, instant_us: int) -> None:
        if self.before_step is not None:
            self.before_step(instant_us)
        self.now_us = max(self.now_us, instant_us)
        while self.scheduled and self.scheduled[0].at_us <= self.now_us:
            heapq.heappop(self.scheduled).act(self)

    def _produce(self, record: DeviceRecord) -> None:
        if record.device == CLOUD_FEED:
            if self.produced is not None:
                self.produced.append(record)
            self.send(self.cloud.publish(record.stream, record.row, record.at_us))
            return
        device = self.fleet.devices[record.device]
        if self.produced is not None and device.publisher is not None:  # without a program it records nothing
            self.produced.append(replace(record, boot=device.config.boot))
        self.fleet.produce(record)
