"""Devices that play the recorded streams of a project, in the process of a cloud and without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from catchment.feeds.cloud.broker_queue import SendDown
from catchment.feeds.device.device import DeviceConfig, boot_number
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.language.template import CLOUD_FEED
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.runs.local_run import TICK_US
from catchment.feeds.runs.workload import Recording
from catchment.timeline import Clock, ManualClock

FINISH_US = 30_000_000  # after the last record of a recording that is played once: what is under way arrives


class RecordedDevices:
    """The devices of a recording, and their links to a durable cloud; a later start is a later life of them."""

    def __init__(
        self, workload: Recording, clock: Clock, publish_at_cloud: Callable[[DeviceRecord], None] | None = None
    ) -> None:
        self.publish_at_cloud = publish_at_cloud or (lambda record: None)
        self.workload = workload
        self.clock = clock
        now_us = clock.now_us()
        self.boot = boot_number(now_us)
        self.bus = Bus(first_number=self.boot)
        limits = workload.retention.device
        configs = [DeviceConfig(name, self.boot, limits=limits) for name in workload.rates]
        self.fleet = Fleet(configs, self.bus, workload.program.functions)
        self.records: Iterator[DeviceRecord] = workload.records(now_us)
        self.upcoming = next(self.records, None)
        self.next_tick_us = now_us
        self.next_number = 0
        for name in self.fleet.devices:
            self.fleet.connect(name, now_us)

    # ---- the links, as a cloud sees them

    def reach(self) -> None:
        """Do nothing: the devices are here."""

    def take(self) -> list[tuple[str, bytes]]:
        """Take what devices have sent."""
        taken = []
        for name in list(self.bus.busy_up):
            waiting = self.bus.sessions[name].up
            taken += [(name, data) for data in waiting]
            waiting.clear()
        self.bus.busy_up.clear()
        return taken

    def acknowledge(self) -> None:
        """Do nothing: what was taken is not sent again."""

    def publish(self, messages: Iterable[SendDown]) -> None:
        """Hand messages to their devices."""
        for message in messages:
            self.next_number = message.number + 1
            session = self.bus.sessions.get(message.device)
            if session is not None:
                session.down.append(message.data)
                self.bus.busy_down[message.device] = None

    @property
    def taken_before(self) -> int:
        """Every message below this number is with its device."""
        return self.next_number

    def poll(self, timeout_s: float = 0.0) -> None:
        """Let devices do what is due: record, receive, and note that time has passed."""
        now_us = self.clock.now_us()
        self.produce_until(now_us)
        self.receive(now_us)
        self.tick(now_us)
        if not self.bus.busy_up:
            time.sleep(timeout_s)

    def tick(self, now_us: int) -> None:
        """Tell devices once per second that time has passed."""
        if now_us >= self.next_tick_us:
            self.fleet.tick(now_us)
            self.next_tick_us = now_us + TICK_US

    def produce_until(self, now_us: int) -> None:
        """Record what is due."""
        while self.upcoming is not None and self.upcoming.at_us <= now_us:
            if self.upcoming.device == CLOUD_FEED:
                self.publish_at_cloud(self.upcoming)
            else:
                self.fleet.produce(self.upcoming)
            self.upcoming = next(self.records, None)

    def receive(self, now_us: int) -> None:
        """Let devices take what was sent to them."""
        while self.bus.busy_down:
            for name in list(self.bus.busy_down):
                self.fleet.receive(name, now_us)

    def let_go(self) -> None:
        """Let devices take what was sent last."""
        self.receive(self.clock.now_us())

    def close(self) -> None:
        """Do nothing: nothing is open."""


def recorded_instants(workload: Recording, clock: ManualClock) -> Iterator[int]:
    """Move a clock through a recording and a little further, and yield the instants at which something is due."""
    began_us = clock.now_us()
    times = {began_us + record.at_us for record in workload.recorded}
    last_us = max(times) + FINISH_US
    for at_us in sorted(times | set(range(began_us, last_us, TICK_US))):
        clock.at_us = max(clock.at_us, at_us)
        yield clock.at_us
