"""Records from an MQTT broker: each message is acknowledged when it is safe on disk, and not before.

The session at the broker is persistent: it keeps what arrives while the site is away, as far as the broker is set up
to, and sends again what was not acknowledged. A message that is sent again has the packet number of its first sending
and is marked as a repetition; if both that number and its content are those of a message that has landed, it is
acknowledged and not counted again. Brokers number packets upward, so that a number comes back only after 65,535
others, and only `REMEMBERED` messages are remembered: a new message is never taken for an old one.

The broker sends at most `MAX_IN_FLIGHT` messages that are not acknowledged. While the site cannot take more, nothing
is acknowledged, and the broker waits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from catchment.errors import ConfigError
from catchment.query.sql.connectors import MqttConnector
from catchment.receivers.landing import ReceivedLines
from catchment.receivers.lines import one_line, with_fields
from catchment.receivers.writer import LandingWriter, NoRoomError
from catchment.records.client_config import read_client_config

QOS = 1
MAX_IN_FLIGHT = 1_000
REMEMBERED = 2 * MAX_IN_FLIGHT
SESSION_S = 7 * 86_400  # for which the broker keeps the session of a site that is away
KEEPALIVE_S = 30
FIRST_RETRY_S = 1
LAST_RETRY_S = 60

SETTINGS = ("username", "password", "tls", "ca_file", "cert_file", "key_file")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MqttSettings:
    """Who a site says it is to a broker, and how the connection is encrypted."""

    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def read(cls, path: Path | None) -> MqttSettings:
        """Return the settings of a file of `name = value` lines; the default ones without a file."""
        given = read_client_config("" if path is None else str(path))
        unknown = sorted(given.keys() - set(SETTINGS))
        if unknown:
            raise ConfigError(
                f"the client of MQTT has no setting {unknown[0]!r}",
                where=str(path),
                hint=f"one of {', '.join(SETTINGS)}",
            )
        uses_tls = given.pop("tls", "false").lower() in ("true", "on", "yes", "1")
        return cls(tls=uses_tls or "ca_file" in given or "cert_file" in given, **given)


class MqttReceiver:
    """Receives the records of one stream at one site, by a thread of the client library."""

    def __init__(
        self, connector: MqttConnector, site: str, client_id: str, settings: MqttSettings, writer: LandingWriter
    ) -> None:
        self._connector = connector
        self._writer = writer
        self._topic = connector.topic.replace("{site}", site)
        self._host, self._port = connector.address_at(site)
        self.address = f"{self._host}:{self._port}"
        self.is_connected = False
        self.problem: str | None = None  # why there is no connection
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5, manual_ack=True, reconnect_on_failure=True
        )
        self._client.reconnect_delay_set(FIRST_RETRY_S, LAST_RETRY_S)
        if settings.username is not None:
            self._client.username_pw_set(settings.username, settings.password)
        if settings.tls:
            self._set_tls(settings)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message

    def start(self) -> None:
        """Begin to connect, and to receive; a broker that is away is tried again, less and less often."""
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = SESSION_S
        session.ReceiveMaximum = MAX_IN_FLIGHT
        self._client.connect_async(self._host, self._port, KEEPALIVE_S, clean_start=False, properties=session)
        self._client.loop_start()

    def stop(self) -> None:
        """Disconnect, and leave the session at the broker."""
        self._client.disconnect()
        self._client.loop_stop()
        self.is_connected = False

    def status(self) -> dict[str, Any]:
        """Return whether the broker is connected, as plain JSON."""
        return {
            "broker": self.address,
            "topic": self._topic,
            "connected": self.is_connected,
            "link_problem": self.problem,
        }

    def _set_tls(self, settings: MqttSettings) -> None:
        try:
            self._client.tls_set(settings.ca_file, settings.cert_file, settings.key_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the TLS files of the MQTT client cannot be used: {error}") from error

    def _on_connect(self, client: paho.Client, data: object, flags: object, reason: Any, more: object) -> None:
        if reason.is_failure:
            self._note_problem(f"the broker at {self.address} refuses this site: {reason}")
            return
        self.is_connected = True
        if self.problem is not None:
            _log.info("the broker at %s is connected again", self.address)
        self.problem = None
        client.subscribe(self._topic, qos=QOS)

    def _on_connect_fail(self, client: paho.Client, data: object) -> None:
        self._note_problem(f"the broker at {self.address} cannot be reached")

    def _on_disconnect(self, client: paho.Client, data: object, flags: object, reason: Any, more: object) -> None:
        self.is_connected = False
        if reason.is_failure and self.problem is None:  # a refusal says more
            self._note_problem(f"the broker at {self.address} is not connected: {reason}")

    def _note_problem(self, problem: str) -> None:
        if self.problem is None:
            _log.warning("%s; it is tried again", problem)
        self.problem = problem

    def _on_message(self, client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        """Offer a message to the writer, and acknowledge it when it has landed.

        One that nobody would send again (QoS 0) is dropped, and counted, while there is no room.
        """
        try:
            landed = self._writer.offer(self._deliver(message))
        except NoRoomError:
            return
        if message.qos:
            landed.add_done_callback(lambda result: self._acknowledge(message, result))

    def _deliver(self, message: paho.MQTTMessage) -> ReceivedLines:
        line = one_line(with_fields(message.payload, self._fields(message)))
        if not message.qos:
            return ReceivedLines(line, 1)
        digest = sha256(message.topic.encode() + b"\0" + message.payload).hexdigest()
        return ReceivedLines(line, 1, str(message.mid), digest, may_repeat=bool(message.dup))

    def _fields(self, message: paho.MQTTMessage) -> Mapping[str, str]:
        fields = {}
        if self._connector.topic_column is not None:
            fields[self._connector.topic_column] = message.topic
        if self._connector.received_column is not None:
            fields[self._connector.received_column] = datetime.now(UTC).isoformat(timespec="microseconds")
        return fields

    def _acknowledge(self, message: paho.MQTTMessage, landed: Future[bool]) -> None:
        if landed.exception() is None:
            self._client.ack(message.mid, message.qos)
