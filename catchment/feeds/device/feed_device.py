"""One device as a library: it registers with a cloud over MQTT, computes its views, records and is notified.

    with FeedDevice("7", MqttConfig.parse("127.0.0.1:1883"), Path("device-7")) as device:
        while True:
            device.poll(0.5)
            if device.is_told:
                device.record("location", {"lat": 48.1, "lon": 2.3, "speed": 1.0})
            for numbered in device.notices():
                print(numbered.number, device.named_values(numbered.notice))
                device.handled(numbered.number)

Nothing here starts a thread: the device works while `poll` is called. Everything that matters is in its folder before
anyone relies on it (`durable_device.py`); a process that is killed begins again where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.device.device import DeviceConfig, boot_number
from catchment.feeds.device.device_log import DeviceLog
from catchment.feeds.device.durable_device import DurableDevice, NumberedNotice
from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.send_queue import SendLimits
from catchment.feeds.forms.program import StreamForm
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.protocol.channel import ChannelReceiver, ChannelSender
from catchment.feeds.protocol.messages import DOWNWARD, Downward, Notice
from catchment.feeds.protocol.mqtt import MqttClient, MqttPoller
from catchment.feeds.protocol.mqtt_config import MqttConfig, check_topic_name
from catchment.timeline import Clock, SystemClock

TICK_US = 1_000_000

Row = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class DeviceStatus:
    """How a device is doing."""

    connected: bool
    refusal: str | None  # why the cloud does not take it
    told: bool  # whether the cloud has said what to record
    views: int  # that it computes
    recorded: int
    waiting: int  # messages that the broker has not acknowledged
    dropped: int  # events that made room in a full log
    missing: int  # messages of the cloud that a full queue has dropped
    last_error: str  # why the broker was not reached, or a message not followed


class FeedDevice:
    """A device with its folder and its link."""

    def __init__(
        self,
        name: str,
        broker: MqttConfig,
        folder: Path,
        *,
        token: str | None = None,
        functions: Functions = BUILT_IN,
        host_limits: HostLimits | None = None,
        send_limits: SendLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_topic_name(name, "a device")
        self.name = name
        self.clock = clock or SystemClock()
        config = DeviceConfig(name, token=token, limits=host_limits or HostLimits())
        now_us = self.clock.now_us()
        self.durable = DurableDevice(DeviceLog(folder), config, now_us, functions, send_limits)
        self._topic = broker.up(name)
        self._sender = ChannelSender(boot_number(now_us))
        self._receiver: ChannelReceiver[Downward] = ChannelReceiver(DOWNWARD, self.durable.received_number)
        self._client = MqttClient(
            broker, f"device-{name}", name, broker.down(name), self._arrived, published=self._published
        )
        self._in_flight: dict[int, int] = {}  # packet of MQTT -> number in the queue
        self._acknowledged: list[int] = []
        self._was_connected = False
        self._next_tick_us = now_us
        self._last_error = ""
        self._poller = MqttPoller()
        self._poller.clients.append(self._client)
        self._client.connect(time.monotonic())

    def poll(self, timeout_s: float = 0.0) -> None:
        """Read and write what is ready, waiting at most so long for something to read."""
        self._poller.poll(timeout_s)
        now_us = self.clock.now_us()
        if self._client.connected != self._was_connected:
            self._was_connected = self._client.connected
            self.durable.link_changed(self._client.connected, now_us)
        if now_us >= self._next_tick_us:
            self.durable.tick(now_us)
            self._next_tick_us = now_us + TICK_US
        self._send(now_us)

    def _send(self, now_us: int) -> None:
        if self._acknowledged:
            self.durable.acknowledged(self._acknowledged)
            self._acknowledged = []
        for number, message in self.durable.take_to_send(now_us):
            packet = self._client.publish(self._topic, self._sender.wrap(message))
            if number is not None:
                self._in_flight[packet] = number

    def _published(self, packet: int) -> None:
        number = self._in_flight.pop(packet, None)
        if number is not None:
            self._acknowledged.append(number)

    def _arrived(self, topic: str, data: bytes) -> None:
        """Take a message; the broker is told that it was taken when this returns."""
        message = self._receiver.accept(data)
        if message is None:
            return
        assert self._receiver.last_number is not None
        try:
            self.durable.receive(self._receiver.last_number, message, self.clock.now_us())
        except FeedError as error:  # the cloud asks for what this device cannot do
            self._last_error = str(error)

    # ---- the application's side

    @property
    def is_told(self) -> bool:
        """Whether the cloud has said what to record; before that a record is refused."""
        return self.durable.is_told

    def record(self, stream: str, row: Row) -> None:
        """Record one row: all columns in order, or by name, where the device's own column may be left out."""
        for error in self.record_all([(stream, row)]).values():
            raise error

    def record_all(self, rows: Iterable[tuple[str, Row]]) -> dict[int, FeedError]:
        """Record rows, which are safe when this returns; return why rows were refused, by their position."""
        if not self.is_told:
            raise FeedError("the cloud has not yet said what to record", hint="poll until `is_told`")
        refused: dict[int, FeedError] = {}
        whole: dict[int, tuple[str, tuple[Any, ...]]] = {}
        for place, (stream, row) in enumerate(rows):
            try:
                whole[place] = (stream, self._whole_row(stream, row))
            except FeedError as error:
                refused[place] = error
        places = list(whole)
        late = self.durable.record(whole.values(), self.clock.now_us())
        self._send(self.clock.now_us())
        return {**refused, **{places[at]: error for at, error in late.items()}}

    def _whole_row(self, stream: str, row: Row) -> tuple[Any, ...]:
        if not isinstance(row, Mapping):
            return tuple(row)
        assert self.durable.core.publisher is not None
        form = self.durable.core.publisher.program.streams.get(stream)
        if form is None:
            return ()  # `record` says which streams there are
        unknown = sorted(set(row) - {name for name, _ in form.columns})
        if unknown:
            raise FeedError(f"a record of {stream!r} has {unknown[0]!r}; possible: {', '.join(dict(form.columns))}")
        own = {form.columns[form.device][0]: _typed_name(self.name, form)}
        return tuple({**own, **row}.get(name) for name, _ in form.columns)

    def notices(self) -> list[NumberedNotice]:
        """Return the notices that the application has not dealt with, oldest first."""
        return list(self.durable.unhandled)

    def handled(self, number: int) -> None:
        """Note that the application has dealt with all notices up to a number; they are not given again."""
        self.durable.handled(number)

    def named_values(self, notice: Notice) -> dict[str, Any]:
        """Return the values of a notice by column; without names where the program is not known."""
        form = self.durable.core.program
        template = notice.view.partition("(")[0]
        found = next((v for v in form.views if v.name == template), None) if form is not None else None
        names = [name for name, _ in found.outputs] if found else [str(n) for n in range(len(notice.values))]
        return dict(zip(names, notice.values, strict=False))

    @property
    def status(self) -> DeviceStatus:
        core = self.durable.core
        return DeviceStatus(
            connected=self._client.connected,
            refusal=core.refusal,
            told=self.is_told,
            views=0 if core.publisher is None else len(core.publisher.host.installed),
            recorded=self.durable.recorded,
            waiting=len(self.durable.queue.waiting),
            dropped=self.durable.queue.dropped,
            missing=self._receiver.missing,
            last_error=self._last_error or self._client.last_error,
        )

    def close(self) -> None:
        """Leave; the session at the broker and the log remain."""
        self._poller.close()
        self.durable.acknowledged(self._acknowledged)
        self.durable.close()

    def __enter__(self) -> FeedDevice:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _typed_name(name: str, form: StreamForm) -> Any:
    """Return the name of the device as the type of its column."""
    kind = form.columns[form.device][1]
    try:
        return name if kind == "STRING" else int(name)
    except ValueError:
        raise FeedError(f"{form.name!r} names devices by {kind}, which {name!r} is not") from None
