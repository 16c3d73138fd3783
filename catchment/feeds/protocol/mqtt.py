"""MQTT transport: devices and cloud as clients of a broker, with persistent sessions and QoS 1.

A device publishes on `<app>/up/<device>` and listens on `<app>/down/<device>`; the cloud listens on `<app>/up/+`. The
broker keeps what a client misses while it is away, up to the broker's own bound (mosquitto: `max_queued_messages`);
what it drops shows as a gap in the numbers and is counted. QoS 1 may deliver twice: receivers drop by number. A
client that reconnects first repeats what was not acknowledged and only then sends what is new, so the order of first
sendings holds, which the numbers rely on. Devices that were there before the cloud first subscribed are found by
`FeedController.restart`, which tells them to say hello again.

One thread serves many clients through a selector: `poll` reads and writes what is ready. Nothing here starts a
thread. The broker should ask for TLS and passwords and let a device write only its own topic, e.g. mosquitto's
`pattern write catchment/up/%u` and `pattern read catchment/down/%u` with the device's name as user name.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from catchment.errors import FeedError
from catchment.feeds.protocol.channel import (
    ChannelReceiver,
    ChannelSender,
    LinkTraffic,
    WireCounter,
    at_cloud,
    at_device,
)
from catchment.feeds.protocol.messages import Downward, Upward
from catchment.feeds.protocol.mqtt_config import MqttConfig, check_topic_name

QOS = 1
RETRY_S = 1.0  # between two attempts to reach the broker
PATIENCE_S = 15.0  # how long a start waits for the broker
MAX_IN_FLIGHT = 200  # messages of a client that the broker has not acknowledged
MAX_PACKETS = 200  # read from one client before the next one has its turn


class MqttClient:
    """One client with a persistent session, which works only while it is called."""

    def __init__(
        self,
        config: MqttConfig,
        name: str,
        user: str,
        listen: str,
        arrived: Callable[[str, bytes], None],
        published: Callable[[int], None] | None = None,
    ) -> None:
        self.config = config
        self.listen = listen
        self.arrived = arrived
        self.connected = False
        self.connections = 0  # how often the broker was reached
        self.subscribed = False  # before its first subscription a client's messages are kept by nobody
        self.wanted = False
        self.tried_s = float("-inf")
        self.last_error = ""  # why the broker could not be reached
        self.client = paho.Client(CallbackAPIVersion.VERSION2, f"{config.app}-{name}", clean_session=False)
        self.client.max_queued_messages_set(config.max_unsent)
        self.client.max_inflight_messages_set(MAX_IN_FLIGHT)
        self.client.connect_timeout = 5.0
        login = config.login_of(user)
        if login is not None:
            self.client.username_pw_set(*login)
        if config.tls:
            self.client.tls_set(ca_certs=None if config.ca_certs is None else str(config.ca_certs))
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        if published is not None:
            self.client.on_publish = lambda client, data, packet, *_: published(packet)
        self.client.on_message = lambda client, data, message: self.arrived(message.topic, message.payload)

    def _on_connect(self, client: paho.Client, data: object, flags: object, reason: object, more: object) -> None:
        if getattr(reason, "is_failure", False):
            hint = "compare user name, password file and authority with those of the broker"
            raise FeedError(f"the broker refused a client: {reason}", where=self.config.address, hint=hint)
        client.subscribe(self.listen, qos=QOS)
        self.connected = True
        self.connections += 1

    def _on_subscribe(self, client: paho.Client, data: object, *_: object) -> None:
        self.subscribed = True

    def _on_disconnect(self, client: paho.Client, data: object, *_: object) -> None:
        self.connected = False

    def connect(self, now_s: float) -> None:
        """Reach the broker, or try again at a later `service`."""
        self.wanted = True
        self.tried_s = now_s
        try:
            self.client.connect(self.config.host, self.config.port, self.config.keepalive_s)
        except OSError as error:  # `service` tries again
            self.last_error = str(error)

    def disconnect(self) -> None:
        """Disconnect without ending the session."""
        self.wanted = False
        self.client.disconnect()
        self.connected = False

    def publish(self, topic: str, data: bytes) -> int:
        """Hand a message to the broker, now or when it can be reached; return the number of its packet."""
        sent = self.client.publish(topic, data, qos=QOS)
        if sent.rc == paho.MQTT_ERR_QUEUE_SIZE:
            raise FeedError(f"{self.config.max_unsent} messages wait for the broker and no more are taken", where=topic)
        return int(sent.mid)

    def service(self, now_s: float) -> None:
        """Keep the link alive; reconnect when it was lost."""
        self.client.loop_misc()
        if self.wanted and self.client.socket() is None and now_s - self.tried_s >= RETRY_S:
            self.connect(now_s)

    @property
    def socket(self) -> socket.socket | None:
        found = self.client.socket()
        return found if isinstance(found, socket.socket) else None


class MqttPoller:
    """Reads and writes for many clients; housekeeping once per second."""

    def __init__(self) -> None:
        self.clients: list[MqttClient] = []
        self.selector = selectors.DefaultSelector()
        self.registered: dict[MqttClient, tuple[socket.socket, int]] = {}
        self.serviced_s = float("-inf")

    def poll(self, timeout_s: float) -> None:
        now_s = time.monotonic()
        if now_s - self.serviced_s >= RETRY_S:
            self.serviced_s = now_s
            for client in self.clients:
                client.service(now_s)
        for client in self.clients:
            self._register(client)
        for key, ready in self.selector.select(timeout_s) if self.registered else ():
            client = key.data
            if ready & selectors.EVENT_READ:
                client.client.loop_read(MAX_PACKETS)
            if ready & selectors.EVENT_WRITE:
                client.client.loop_write()

    def _register(self, client: MqttClient) -> None:
        """Register sockets, which change when a client reconnects, for what each client now waits for."""
        sock = client.socket
        known = self.registered.get(client)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.client.want_write() else 0)
        wanted = None if sock is None else (sock, events)
        if wanted == known:
            return
        if known is not None:
            self.selector.unregister(known[0])
            del self.registered[client]
        if wanted is not None:
            self.selector.register(wanted[0], wanted[1], client)
            self.registered[client] = wanted

    def close(self) -> None:
        for client in self.clients:
            if client.wanted:
                client.disconnect()
        self.selector.close()


class MqttDevices:
    """The device side: one client per device."""

    def __init__(self, config: MqttConfig) -> None:
        self.config = config
        self.poller = MqttPoller()
        self.clients: dict[str, MqttClient] = {}
        self.senders: dict[str, ChannelSender] = {}
        self.receivers: dict[str, ChannelReceiver[Downward]] = {}
        self.waiting: dict[str, deque[bytes]] = {}
        self.busy_down: dict[str, None] = {}
        self.told: dict[str, bool] = {}  # link state as last reported by `changes`

    def add(self, device: str, boot: int) -> None:
        """Add a device with its session; `boot` numbers its messages, so it must grow from life to life."""
        check_topic_name(device, "a device")
        self.waiting[device] = deque()
        self.senders[device] = ChannelSender(boot)
        self.receivers[device] = at_device()
        listen = self.config.down(device)
        client = MqttClient(self.config, f"device-{device}", device, listen, lambda _, d: self._take(device, d))
        self.clients[device] = client
        self.told[device] = False
        self.poller.clients.append(client)

    def _take(self, device: str, data: bytes) -> None:
        self.waiting[device].append(data)
        self.busy_down[device] = None

    def connect(self, device: str) -> None:
        self.clients[device].connect(time.monotonic())

    def disconnect(self, device: str) -> None:
        self.clients[device].disconnect()

    def changes(self) -> Iterator[tuple[str, bool]]:
        """Yield devices whose link came up or went down since the last call."""
        for device, client in self.clients.items():
            if client.connected != self.told[device]:
                self.told[device] = client.connected
                yield device, client.connected

    def send_up(self, device: str, message: Upward) -> None:
        self.clients[device].publish(self.config.up(device), self.senders[device].wrap(message))

    def next_down(self, device: str) -> Downward | None:
        data = self.waiting[device].popleft()
        if not self.waiting[device]:
            del self.busy_down[device]
        return self.receivers[device].accept(data)

    def poll(self, timeout_s: float = 0.0) -> None:
        self.poller.poll(timeout_s)

    def close(self) -> None:
        self.poller.close()


class MqttCloud:
    """The cloud side: one client for all devices."""

    def __init__(self, config: MqttConfig, boot: int) -> None:
        self.config = config
        self.boot = boot
        self.poller = MqttPoller()
        self.senders: dict[str, ChannelSender] = {}
        self.receivers: dict[str, ChannelReceiver[Upward]] = {}
        self.waiting: dict[str, deque[bytes]] = {}
        self.busy_up: dict[str, None] = {}
        self.client = MqttClient(config, "cloud", "cloud", config.up("+"), self._take)
        self.poller.clients.append(self.client)
        self.client.connect(time.monotonic())

    def _take(self, topic: str, data: bytes) -> None:
        device = topic.rsplit("/", 1)[1]
        self.waiting.setdefault(device, deque()).append(data)
        self.busy_up[device] = None

    def send_down(self, device: str, message: Downward) -> None:
        sender = self.senders.setdefault(device, ChannelSender(self.boot))
        self.client.publish(self.config.down(device), sender.wrap(message))

    def next_up(self, device: str) -> Upward | None:
        data = self.waiting[device].popleft()
        if not self.waiting[device]:
            del self.busy_up[device]
        return self.receivers.setdefault(device, at_cloud()).accept(data)

    def traffic(self) -> dict[str, LinkTraffic]:
        """Return what crossed each device's link, as the cloud saw it."""
        nothing = WireCounter()
        up = self.receivers
        down = self.senders
        return {
            name: LinkTraffic(
                up[name].received if name in up else nothing, down[name].sent if name in down else nothing
            )
            for name in {**up, **down}
        }

    def poll(self, timeout_s: float = 0.0) -> None:
        self.poller.poll(timeout_s)

    def close(self) -> None:
        self.poller.close()


class BrokerClient(Protocol):
    """The cloud's side of a broker, durable or not."""

    config: MqttConfig
    client: MqttClient

    def poll(self, timeout_s: float = 0.0) -> None: ...


def reach_broker(cloud: BrokerClient, patience_s: float = PATIENCE_S) -> None:
    """Wait until the cloud can be heard by devices."""
    deadline = time.monotonic() + patience_s
    while not cloud.client.subscribed:
        if time.monotonic() > deadline:
            why = f": {cloud.client.last_error}" if cloud.client.last_error else ""
            raise FeedError(
                f"no MQTT broker answers{why}", where=cloud.config.address, hint="start one, such as mosquitto"
            )
        cloud.poll(0.05)


def let_go(cloud: BrokerClient, patience_s: float = 2.0) -> None:
    """Give the broker time to take what was sent last."""
    deadline = time.monotonic() + patience_s
    while cloud.client.client.want_write() and time.monotonic() < deadline:
        cloud.poll(0.02)


class MqttBus:
    """Both sides in one process, through a broker: what `Bus` is without one."""

    def __init__(self, config: MqttConfig, boot: int) -> None:
        self.devices = MqttDevices(config)
        self.cloud = MqttCloud(config, boot)

    def open(self, devices: Iterable[str], boot: int, patience_s: float = PATIENCE_S) -> None:
        """Let devices join and wait until the broker has everybody's subscription."""
        reach_broker(self.cloud, patience_s)
        for device in devices:
            self.devices.add(device, boot)
            self.connect(device)
        deadline = time.monotonic() + patience_s
        while not all(client.subscribed for client in self.devices.clients.values()):
            if time.monotonic() > deadline:
                raise FeedError(f"the broker did not take all devices within {patience_s:g} s")
            self.poll(0.02)

    @property
    def busy_up(self) -> dict[str, None]:
        return self.cloud.busy_up

    @property
    def busy_down(self) -> dict[str, None]:
        return self.devices.busy_down

    def connect(self, device: str) -> None:
        self.devices.connect(device)

    def disconnect(self, device: str) -> None:
        self.devices.disconnect(device)

    def send_up(self, device: str, message: Upward) -> None:
        self.devices.send_up(device, message)

    def next_down(self, device: str) -> Downward | None:
        return self.devices.next_down(device)

    def send_down(self, device: str, message: Downward) -> None:
        self.cloud.send_down(device, message)

    def next_up(self, device: str) -> Upward | None:
        return self.cloud.next_up(device)

    def traffic(self) -> dict[str, LinkTraffic]:
        senders = self.devices.senders
        receivers = self.devices.receivers
        return {name: LinkTraffic(senders[name].sent, receivers[name].received) for name in senders}

    def poll(self, timeout_s: float = 0.0) -> None:
        """Let both sides read and write what is ready."""
        self.devices.poll(timeout_s)
        self.cloud.poll(0.0)

    def close(self) -> None:
        self.devices.close()
        self.cloud.close()
