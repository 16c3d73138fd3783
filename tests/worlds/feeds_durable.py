"""Durable devices that are killed at any write of their logs, as a fleet that a run on the in-process bus can drive."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from catchment.feeds.device.device import Device, DeviceConfig
from catchment.feeds.device.device_log import DeviceLog, Entry
from catchment.feeds.device.durable_device import DurableDevice
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.send_queue import SendLimits
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.channel import ChannelReceiver
from catchment.feeds.protocol.messages import DOWNWARD, Notice

SEND_LIMITS = SendLimits(send_per_s=1e9, max_in_flight=7)
HOST_LIMITS = HostLimits(memory_events=10, disk_bytes=10**8)  # most events are on disk


class KilledError(BaseException):
    """The process of a device ends here."""


class MortalLog(DeviceLog):
    """A log whose process may be killed at a write: before it, in the middle of it, or behind it."""

    def __init__(self, folder: Path, rng: random.Random, kill_share: float) -> None:
        self.rng = rng
        self.kill_share = kill_share
        super().__init__(folder)

    def append(self, entry: Entry, durable: bool = True) -> None:
        if self.rng.random() >= self.kill_share:
            super().append(entry, durable=False)  # a kill takes nothing from what the kernel has
            return
        size = self.size_bytes
        where = self.rng.choice(("before", "within", "behind"))
        if where != "before":
            super().append(entry, durable=False)
        if where == "within":
            with self.path.open("r+b") as file:
                file.truncate(self.rng.randrange(size, self.size_bytes))
        raise KilledError(where)

    @property
    def is_due(self) -> bool:
        return self.size_bytes > 20_000 and self.rng.random() < 0.1


@dataclass
class Application:
    """What uses a device: it remembers, by itself, the last notice that it dealt with and what it recorded."""

    recorded: int = 0
    last_notice: int = -1
    notices: list[Notice] = field(default_factory=list)


class DurableFleet:
    """Durable devices by name, each with its application, which outlives it."""

    def __init__(self, names: list[str], bus: Bus, folder: Path, rng: random.Random, kill_share: float) -> None:
        self.bus = bus
        self.folder = folder
        self.rng = rng
        self.kill_share = kill_share
        self.kills: Counter[str] = Counter()
        self.up: set[str] = set()
        self.applications = {name: Application() for name in names}
        self.alive = {name: self._begin(name, 0) for name in names}

    def _begin(self, name: str, now_us: int) -> DurableDevice:
        log = MortalLog(self.folder / name, self.rng, self.kill_share)
        config = DeviceConfig(name, report_every_us=2_000_000, limits=HOST_LIMITS)
        return DurableDevice(log, config, now_us, limits=SEND_LIMITS)

    @property
    def devices(self) -> dict[str, Device]:
        return {name: device.core for name, device in self.alive.items()}

    @property
    def notices(self) -> list[Notice]:
        return [n for application in self.applications.values() for n in application.notices]

    def _attempt(self, name: str, act: Callable[[DurableDevice], None], now_us: int) -> bool:
        """Let a device do something; if it is killed, start it again. Return whether it lived."""
        try:
            act(self.alive[name])
            return True
        except KilledError as killed:
            self.kills[str(killed)] += 1
            self.alive[name].log.close()
            self.alive[name] = self._begin(name, now_us)
            sessions = self.bus.sessions.get(name)
            if sessions is not None:
                last = self.alive[name].received_number
                sessions.device_receives = ChannelReceiver(DOWNWARD, last)
            if name in self.up:
                self.link_changed(name, True, now_us)
            return False

    def _insist(self, name: str, act: Callable[[DurableDevice], None], now_us: int) -> None:
        while not self._attempt(name, act, now_us):
            pass

    # ---- what a run calls

    def connect(self, name: str, now_us: int) -> None:
        self.bus.connect(name)
        self.up.add(name)
        self.link_changed(name, True, now_us)

    def disconnect(self, name: str, now_us: int) -> None:
        self.bus.disconnect(name)
        self.up.discard(name)
        self.link_changed(name, False, now_us)

    def link_changed(self, name: str, up: bool, now_us: int) -> None:
        if self._attempt(name, lambda d: d.link_changed(up, now_us), now_us):
            self._pump(name, now_us)

    def produce(self, record: DeviceRecord) -> None:
        application = self.applications[record.device]

        def record_once(device: DurableDevice) -> None:
            if device.recorded == application.recorded:
                assert device.record([(record.stream, record.row)], record.at_us) == {}

        self._insist(record.device, record_once, record.at_us)
        application.recorded += 1
        self._pump(record.device, record.at_us)

    def receive(self, name: str, now_us: int) -> None:
        """Hand over the next message; the session keeps it until it was handled."""
        session = self.bus.sessions[name]
        data = session.down[0]

        def take(device: DurableDevice) -> None:
            message = session.device_receives.accept(data)
            if message is not None:
                assert session.device_receives.last_number is not None
                device.receive(session.device_receives.last_number, message, now_us)

        self._insist(name, take, now_us)
        session.down.popleft()
        if not session.down:
            self.bus.busy_down.pop(name, None)
        self._pump(name, now_us)

    def tick(self, now_us: int) -> None:
        for name in self.alive:
            self._insist(name, lambda d: d.tick(now_us), now_us)
            self._pump(name, now_us)

    def _pump(self, name: str, now_us: int) -> None:
        """Send what is due, let the broker acknowledge it, and hand notices to the application."""

        def work(device: DurableDevice) -> None:
            sent = True
            while sent and name in self.up:
                sent = False
                for number, message in device.take_to_send(now_us):
                    self.bus.send_up(name, message)
                    if number is not None:
                        sent = True
                        device.acknowledged([number])
            self._hand_over(name, device)

        self._insist(name, work, now_us)

    def _hand_over(self, name: str, device: DurableDevice) -> None:
        application = self.applications[name]
        for numbered in list(device.unhandled):
            if numbered.number > application.last_notice:
                application.last_notice = numbered.number
                application.notices.append(numbered.notice)
            device.handled(numbered.number)
