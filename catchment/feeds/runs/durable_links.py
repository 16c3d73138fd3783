"""A cloud's client of an MQTT broker that acknowledges a message only when the cloud says so.

Upward: messages wait, unacknowledged, until `acknowledge`; after a crash the broker delivers them again. The broker
gives out as many at a time as its own bound says (mosquitto: `max_inflight_messages`, 20 by default). Downward:
messages are published in the order of their numbers, at most `WINDOW` at a time, until the broker has them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import paho.mqtt.client as paho

from catchment.feeds.cloud.broker_queue import BrokerQueue, SendDown
from catchment.feeds.cloud.device_channels import DeviceChannels
from catchment.feeds.protocol.channel import ChannelReceiver, LinkTraffic
from catchment.feeds.protocol.messages import Upward
from catchment.feeds.protocol.mqtt import QOS, MqttClient, MqttPoller, let_go, reach_broker
from catchment.feeds.protocol.mqtt_config import MqttConfig, check_topic_name

WINDOW = 500  # messages that the broker has not confirmed

Delivery = tuple[int, int]  # the connection that a message came over, and the broker's number of it there


class LinkedCore(Protocol):
    """A core with links to devices."""

    @property
    def sending(self) -> BrokerQueue: ...

    @property
    def links(self) -> DeviceChannels: ...


class DurableClient:
    """One client of a broker, whose messages come from an outbox and go to one of the ways of its links."""

    def __init__(
        self, config: MqttConfig, outbox: BrokerQueue, name: str, user: str, listen: str, topic: Callable[[str], str]
    ) -> None:
        self.config = config
        self.topic = topic
        self.poller = MqttPoller()
        self.client = MqttClient(config, name, user, listen, lambda topic, data: None)
        self.client.client.manual_ack_set(True)
        self.client.client.on_message = self._on_message
        self.client.client.on_publish = self._on_publish
        self.waiting: deque[tuple[str, bytes, Delivery]] = deque()  # device, data, and what to acknowledge
        self.unacknowledged: list[Delivery] = []
        self.queued: deque[SendDown] = deque()
        self.under_way: dict[int, int] = {}  # the client's number of a message -> ours; in order of publishing
        self.next_number = outbox.first_number
        self.poller.clients.append(self.client)
        self.client.connect(time.monotonic())

    # ---- up

    def _on_message(self, client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        delivery = (self.client.connections, message.mid)
        self.waiting.append((message.topic.rsplit("/", 1)[1], message.payload, delivery))

    def take(self) -> list[tuple[str, bytes]]:
        """Take what has arrived; it is to be acknowledged when it is safe."""
        taken = [(device, data) for device, data, _ in self.waiting]
        self.unacknowledged += [delivery for _, _, delivery in self.waiting]
        self.waiting.clear()
        return taken

    def acknowledge(self) -> None:
        """Tell the broker that everything taken is safe.

        What came over an earlier connection is delivered again over this one, under a number that may be another's.
        """
        for connection, number in self.unacknowledged:
            if connection == self.client.connections:
                self.client.client.ack(number, QOS)
        self.unacknowledged.clear()

    # ---- down

    def publish(self, messages: Iterable[SendDown]) -> None:
        """Send messages, which have consecutive numbers, as fast as the broker takes them."""
        self.queued.extend(messages)
        while self.queued and len(self.under_way) < WINDOW:
            message = self.queued.popleft()
            sent = self.client.client.publish(self.topic(message.device), message.data, qos=QOS)
            self.under_way[sent.mid] = message.number
            self.next_number = message.number + 1

    def _on_publish(self, client: paho.Client, data: object, number: int, *_: object) -> None:
        self.under_way.pop(number, None)

    @property
    def taken_before(self) -> int:
        """Every message below this number is with the broker."""
        return next(iter(self.under_way.values()), self.next_number)

    def reach(self) -> None:
        """Wait until the cloud can be heard by devices."""
        reach_broker(self)

    def let_go(self) -> None:
        """Give the broker time to take what was sent last."""
        let_go(self)

    def poll(self, timeout_s: float = 0.0) -> None:
        self.poller.poll(timeout_s)

    def close(self) -> None:
        self.poller.close()


def uplink_of(config: MqttConfig, edge: str, outbox: BrokerQueue) -> DurableClient:
    """Return the link of an edge cloud to the cloud, which is that of a device."""
    check_topic_name(edge, "an edge cloud")
    return DurableClient(config, outbox, f"device-{edge}", edge, config.down(edge), lambda _: config.up(edge))


class DurableLinks(DurableClient):
    """The links of a durable cloud, or edge cloud, to all its devices, through one client."""

    def __init__(self, config: MqttConfig, core: LinkedCore) -> None:
        super().__init__(config, core.sending, "cloud", "cloud", config.up("+"), config.down)
        self.core = core

    # ---- for those who watch

    @property
    def boot(self) -> int:
        """The number of the next message to a device, about."""
        return self.core.links.boot

    @property
    def receivers(self) -> dict[str, ChannelReceiver[Upward]]:
        """What the cloud accepts of each device."""
        return self.core.links.receivers

    def traffic(self) -> dict[str, LinkTraffic]:
        """Return what crossed each device's link, as the cloud saw it."""
        return self.core.links.traffic()
