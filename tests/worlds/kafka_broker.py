"""A real Apache Kafka broker in KRaft mode, on a free port of loopback, from jars that `tools/kafka.sh` fetched."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import trustme

from tests.worlds.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
JARS = ROOT / ".kafka" / "jars"
MISSING = "needs a Kafka broker: sh tools/kafka.sh .kafka (with Maven)"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"

SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},USERS://127.0.0.1:{users},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.users.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_site="secret";
listener.name.tls.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_site="secret";
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={keystore}
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
"""


def has_broker() -> bool:
    """Return whether a broker can be started here."""
    return JARS.is_dir() and shutil.which("java") is not None


class KafkaBroker:
    """One broker, which can be killed and started again with what it has stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._users_port, self._tls_port, controller = (free_port() for _ in range(4))
        self._settings = folder / "server.properties"
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = folder / "authority.pem"
        write_certificate(folder / "broker.pem", self.authority)
        ports = {"port": self.port, "users": self._users_port, "tls": self._tls_port, "controller": controller}
        paths = {"data": folder / "data", "keystore": folder / "broker.pem"}
        self._settings.write_text(SETTINGS.format(**ports, **paths))
        self._java("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, "-c", self._settings).wait()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address_for_users(self) -> str:
        """Where only the user `site` is let in, with the password `secret`."""
        return f"127.0.0.1:{self._users_port}"

    @property
    def address_with_tls(self) -> str:
        """Where the same user is let in over TLS only; `authority` has issued the certificate of the broker."""
        return f"127.0.0.1:{self._tls_port}"

    def start(self) -> KafkaBroker:
        self._process = self._java("kafka.Kafka", self._settings)
        wait_until(self._answers, "the broker answers")
        return self

    def kill(self) -> None:
        """Kill the broker as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def make_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient(self.client)  # the answer comes only while it lives
        admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result(60)

    def produce(self, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records (value, and key, partition, timestamp, headers as wanted); return when all are stored."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "enable.idempotence": True})
        for record in records:
            producer.produce(topic, **record)
        assert producer.flush(120) == 0

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.address, "log_level": 0}

    def _java(self, *words: object) -> subprocess.Popen[bytes]:
        command = ["java", "-Xmx256m", "-cp", f"{JARS}/*", *map(str, words)]
        log = (self.folder / "broker.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process is None or self._process.poll() is None, (self.folder / "broker.log").read_text()[-2000:]
        try:
            return bool(AdminClient(self.client).list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def write_certificate(path: Path, authority_path: Path) -> None:
    """Write a key and a certificate for loopback as brokers read them, and the certificate of who has issued it."""
    from cryptography.hazmat.primitives import serialization

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(encoded + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(str(authority_path))


def read_topic(broker: KafkaBroker, topic: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Every committed message of a topic, key and value."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**broker.client, "group.id": "reader", "isolation.level": "read_committed"})
    found = []
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                value = message.value()
                found.append((json.loads(message.key() or b""), None if value is None else json.loads(value)))
    finally:
        consumer.close()
    return found
