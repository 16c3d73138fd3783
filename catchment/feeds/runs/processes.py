"""The two halves of a live deployment over MQTT, each a loop in its own process: the cloud, and a fleet of devices.

The loops carry messages between a transport and the pure cores and keep to the wall clock; they end when `goes_on`
says so. A fleet writes what its devices recorded and notified to a log, one line each, so that a run can be checked
afterwards and what was written outlives a kill.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from catchment.errors import FeedError
from catchment.feeds.cloud.cloud import FeedCloud
from catchment.feeds.cloud.core import SendDown
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.protocol.messages import Notice
from catchment.feeds.protocol.mqtt import MqttCloud, MqttDevices, let_go, reach_broker
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.local_run import TICK_US
from catchment.feeds.runs.registrar import Registrar
from catchment.timeline import Clock

POLL_S = 0.02  # how long a poll waits for messages
TAKE_EVERY_S = 1.0  # how often waiting answers are taken; a cloud on Spark writes a file each time


class Every:
    """A timer that says when a period has passed."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.last_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Return the seconds since the last period ended, or 0 while this period is not over."""
        now_s = time.monotonic()
        if now_s - self.last_s < self.period_s:
            return 0.0
        passed = now_s - self.last_s
        self.last_s = now_s
        return passed


def serve_cloud(
    cloud: FeedCloud,
    links: MqttCloud,
    registrar: Registrar,
    first: Iterable[Deliver],
    goes_on: Callable[[], bool],
    *,
    each_second: Callable[[], None],
    review_every_s: float | None = 5.0,
) -> None:
    """Answer devices until told to end; `first` is sent once the cloud can be heard."""
    reach_broker(links)
    send_all(links, first)
    take = Every(TAKE_EVERY_S)
    second = Every(1.0)
    review = Every(review_every_s or 1e9)
    while goes_on():
        links.poll(POLL_S)
        receive_all(cloud, links, registrar)
        if take.elapsed_s():
            send_all(links, cloud.take())
        if second.elapsed_s():
            each_second()
            send_all(links, registrar.follow(time.time_ns() // 1000))
        if period_s := review.elapsed_s():
            send_all(links, cloud.review(period_s))
    receive_all(cloud, links, registrar)
    send_all(links, cloud.drain())
    let_go(links)


class CloudLinks(Protocol):
    """The links of a durable cloud to its devices: over a broker, or in this process."""

    @property
    def taken_before(self) -> int: ...

    def reach(self) -> None:
        """Wait until devices can hear the cloud."""

    def poll(self, timeout_s: float = 0.0) -> None: ...

    def take(self) -> list[tuple[str, bytes]]: ...

    def publish(self, messages: Iterable[SendDown]) -> None: ...

    def acknowledge(self) -> None: ...

    def let_go(self) -> None:
        """Give devices, or the broker, time to take what was sent last."""

    def close(self) -> None: ...


def serve_durable_cloud(
    cloud: DurableCloud,
    links: CloudLinks,
    registrar: Registrar,
    first: Iterable[Deliver],
    goes_on: Callable[[], bool],
    *,
    each_second: Callable[[], None],
    review_every_s: float | None = 5.0,
) -> None:
    """Answer devices until told to end; what the broker lacks of an earlier life is sent first.

    A cloud that begins anew asks the devices in `first` for a hello; one that goes on tells devices nothing anew.
    """
    links.reach()
    if cloud.is_new:
        cloud.ask_for_hellos(first)
    second = Every(1.0)
    review = Every(review_every_s or 1e9)
    exchange(cloud, links, registrar)
    while goes_on():
        links.poll(POLL_S)
        exchange(cloud, links, registrar)
        if second.elapsed_s():
            each_second()
            registrar.follow(time.time_ns() // 1000)
            cloud.take_answers()
        if period_s := review.elapsed_s():
            cloud.review(period_s)
    exchange(cloud, links, registrar)
    links.let_go()
    exchange(cloud, links, registrar)


def exchange(cloud: DurableCloud, links: CloudLinks, registrar: Registrar) -> None:
    """Make what has arrived durable, hand over what follows, and only then acknowledge it.

    While the tables of notices have no room, messages wait at the broker.
    """
    if cloud.tables.has_room:
        cloud.take_published()
    arrived = links.take() if cloud.tables.has_room else []
    cloud.receive_all(arrived, registrar, links.taken_before)
    links.publish(cloud.outgoing)
    cloud.outgoing = []
    links.acknowledge()


def receive_all(cloud: FeedCloud, links: MqttCloud, registrar: Registrar) -> None:
    """Hand over what has arrived of devices that are taken."""
    now_us = time.time_ns() // 1000
    for name in list(links.busy_up):
        message = links.next_up(name)
        if message is not None:
            told = registrar.refuse(name, message, now_us)
            send_all(links, cloud.receive(name, message) if told is None else told)


def send_all(links: MqttCloud, deliveries: Iterable[Deliver]) -> None:
    for delivery in deliveries:
        links.send_down(delivery.device, delivery.message)


class FleetLog:
    """A log of what the devices of a fleet recorded and notified: one JSON line each, flushed at once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1, encoding="utf-8")

    def record(self, record: DeviceRecord) -> None:
        self._write("record", [record.at_us, record.device, record.stream, list(record.row), record.boot])

    def notice(self, device: str, notice: Notice) -> None:
        self._write("notice", [notice.view, notice.notified, list(notice.key), notice.at_us, list(notice.values)])

    def _write(self, kind: str, fields: list[Any]) -> None:
        self.file.write(json.dumps([kind, *fields], separators=(",", ":")) + "\n")

    def close(self) -> None:
        self.file.close()


def read_fleet_log(path: Path) -> tuple[list[DeviceRecord], list[Notice]]:
    """Return the records and notices of a log; a last line that a kill cut short is left out."""
    records: list[DeviceRecord] = []
    notices: list[Notice] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        kind, *fields = json.loads(line)
        if kind == "record":
            at_us, device, stream, row, boot = fields
            records.append(DeviceRecord(at_us, device, stream, tuple(row), boot))
        elif kind == "notice":
            view, notified, key, at_us, values = fields
            notices.append(Notice(view, notified, tuple(key), at_us, tuple(values)))
        else:
            raise FeedError(f"found {kind!r} in a log of a fleet", where=f"{path}, line {number}")
    return records, notices


def serve_fleet(
    fleet: Fleet,
    links: MqttDevices,
    records: Iterator[DeviceRecord],
    clock: Clock,
    goes_on: Callable[[], bool],
    recorded: Callable[[DeviceRecord], None] | None = None,
) -> None:
    """Run devices over MQTT: records are produced when their time has come.

    A device that nobody has told its program yet records nothing; `recorded` sees what was recorded.
    """
    for name in fleet.devices:
        links.connect(name)
    upcoming = next(records, None)
    next_tick_us = clock.now_us()
    while goes_on():
        now_us = clock.now_us()
        while upcoming is not None and upcoming.at_us <= now_us:
            if recorded is not None and fleet.devices[upcoming.device].publisher is not None:
                recorded(upcoming)
            fleet.produce(upcoming)
            upcoming = next(records, None)
        if now_us >= next_tick_us:
            fleet.tick(now_us)
            next_tick_us = now_us + TICK_US
        _receive(fleet, links, now_us)


def _receive(fleet: Fleet, links: MqttDevices, now_us: int) -> None:
    links.poll(POLL_S)
    for name, up in list(links.changes()):
        fleet.link_changed(name, up, now_us)
    for name in list(links.busy_down):
        fleet.receive(name, now_us)
