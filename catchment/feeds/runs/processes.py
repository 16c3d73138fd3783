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
from catchment.feeds.cloud.broker_queue import SendDown
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.protocol.messages import Notice
from catchment.feeds.protocol.mqtt import MqttDevices
from catchment.feeds.runs.batch_runner import BatchRunner
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.local_run import TICK_US
from catchment.feeds.runs.registrar import Registrar
from catchment.timeline import Clock

POLL_S = 0.02  # how long a poll waits for messages


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
    batches: BatchRunner | None = None,
) -> None:
    """Answer devices until told to end; what the broker lacks of an earlier life is sent first.

    A cloud that begins anew asks the devices in `first` for a hello; one that goes on tells devices nothing anew. One
    that works in batches has them run beside this loop.
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
        if batches is not None:
            batches.step()
        if second.elapsed_s():
            each_second()
            registrar.follow(time.time_ns() // 1000)
            cloud.take_answers()
        if period_s := review.elapsed_s():
            cloud.review(period_s)
    exchange(cloud, links, registrar)
    if batches is not None:
        batches.finish()
        exchange(cloud, links, registrar)
    links.let_go()
    exchange(cloud, links, registrar)


def exchange(cloud: DurableCloud, links: CloudLinks, registrar: Registrar) -> None:
    """Make what has arrived durable, hand over what follows, and only then acknowledge it.

    While the tables of notices, or what waits for a batch, have no room, messages wait at the broker.
    """
    if cloud.has_room:
        cloud.take_published()
    arrived = links.take() if cloud.has_room else []
    cloud.receive_all(arrived, registrar, links.taken_before)
    links.publish(cloud.outgoing)
    cloud.outgoing = []
    links.acknowledge()


class FleetLog:
    """A log of what the devices of a fleet recorded and notified: one JSON line each, flushed at once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1, encoding="utf-8")

    def record(self, record: DeviceRecord) -> None:
        self._write("record", [record.at_us, record.device, record.stream, list(record.row), record.boot])

    def notice(self, device: str, notice: Notice) -> None:
        came_us = time.time_ns() // 1000
        fields = [notice.view, notice.notified, list(notice.key), notice.at_us, list(notice.values), came_us]
        self._write("notice", fields)

    def _write(self, kind: str, fields: list[Any]) -> None:
        self.file.write(json.dumps([kind, *fields], separators=(",", ":")) + "\n")

    def close(self) -> None:
        self.file.close()


def read_fleet_log(path: Path) -> tuple[list[DeviceRecord], list[Notice]]:
    """Return the records and notices of a log; a last line that a kill cut short is left out."""
    records: list[DeviceRecord] = []
    notices: list[Notice] = []
    for number, (kind, *fields) in enumerate(_read_lines(path), start=1):
        if kind == "record":
            at_us, device, stream, row, boot = fields
            records.append(DeviceRecord(at_us, device, stream, tuple(row), boot))
        elif kind == "notice":
            view, notified, key, at_us, values, *_ = fields
            notices.append(Notice(view, notified, tuple(key), at_us, tuple(values)))
        else:
            raise FeedError(f"found {kind!r} in a log of a fleet", where=f"{path}, line {number}")
    return records, notices


def read_delays_us(path: Path) -> list[tuple[int, int]]:
    """Return, per notice of a log, the time of its match and how long after it the device was notified."""
    return [(at_us, came_us - at_us) for kind, *_, at_us, _, came_us in _read_lines(path) if kind == "notice"]


def _read_lines(path: Path) -> Iterator[list[Any]]:
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        yield json.loads(line)


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
