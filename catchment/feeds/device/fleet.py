"""A fleet: many devices in one process, driven one event at a time.

The driver gives it records, link changes and the time; messages go through a bus, and what devices notify
their users of is collected. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from catchment.feeds.device.device import (
    Device,
    DeviceAction,
    DeviceConfig,
    DeviceEvent,
    LinkDown,
    LinkUp,
    Produced,
    Received,
    SendUp,
    Tick,
)
from catchment.feeds.device.spool import Spool
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.protocol.messages import Downward, Notice, Upward


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device recorded one row of a stream."""

    at_us: int
    device: str
    stream: str
    row: tuple[Any, ...]
    boot: int = 0  # boot of the device when it recorded this, from which its events are numbered


class DeviceTransport(Protocol):
    """The device side of a transport."""

    def connect(self, device: str) -> None: ...

    def disconnect(self, device: str) -> None: ...

    def send_up(self, device: str, message: Upward) -> None: ...

    def next_down(self, device: str) -> Downward | None: ...


class Fleet:
    """Devices by name, each with its session on the bus."""

    def __init__(
        self,
        configs: Iterable[DeviceConfig],
        bus: DeviceTransport,
        functions: Functions = BUILT_IN,
        notify: Callable[[str, Notice], None] | None = None,
        make_spool: Callable[[str], Spool | None] | None = None,
    ) -> None:
        self.bus = bus
        self.functions = functions
        self.notify = notify
        self.make_spool = make_spool  # where a device keeps on disk what does not fit in its memory
        self.devices: dict[str, Device] = {}
        self.notices: list[Notice] = []
        for config in configs:
            self.add(config)

    def add(self, config: DeviceConfig) -> None:
        """Add a device, not yet connected."""
        spool = self.make_spool(config.name) if self.make_spool else None
        self.devices[config.name] = Device(config, self.functions, spool)

    @property
    def forgotten(self) -> int:
        """How many events a bound took on devices while a match was still possible."""
        publishers = [d.publisher for d in self.devices.values() if d.publisher is not None]
        return sum(p.host.forgotten for p in publishers)

    def connect(self, name: str, now_us: int) -> None:
        self.bus.connect(name)
        self.link_changed(name, True, now_us)

    def disconnect(self, name: str, now_us: int) -> None:
        self.bus.disconnect(name)
        self.link_changed(name, False, now_us)

    def link_changed(self, name: str, up: bool, now_us: int) -> None:
        """Tell a device that its link came up or went down."""
        self._handle(name, LinkUp() if up else LinkDown(), now_us)

    def restart(self, name: str, now_us: int) -> None:
        """Restart a device: it loses its memory and comes back under a later boot."""
        self.disconnect(name, now_us)
        old = self.devices[name].config
        self.add(replace(old, boot=old.boot + 1_000_000))
        self.connect(name, now_us)

    def produce(self, record: DeviceRecord) -> None:
        self._handle(record.device, Produced(record.stream, record.row), record.at_us)

    def receive(self, name: str, now_us: int) -> None:
        """Hand a device the next message of its session."""
        message = self.bus.next_down(name)
        if message is not None:
            self._handle(name, Received(message), now_us)

    def tick(self, now_us: int) -> None:
        for name in self.devices:
            self._handle(name, Tick(), now_us)

    def _handle(self, name: str, event: DeviceEvent, now_us: int) -> None:
        for action in self.devices[name].handle(event, now_us):
            self._act(name, action)

    def _act(self, name: str, action: DeviceAction) -> None:
        if isinstance(action, SendUp):
            self.bus.send_up(name, action.message)
        else:
            self.notices.append(action.notice)
            if self.notify is not None:
                self.notify(name, action.notice)
