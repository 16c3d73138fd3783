"""Messages of a real broker: each is in the files of the site once, through kills of the site and of the broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trustme
from paho.mqtt.enums import CallbackAPIVersion

from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream
from catchment.receivers.mqtt import MqttSettings
from catchment.receivers.site_receivers import SiteReceivers
from tests.worlds.feeds_broker import MOSQUITTO, needs_broker
from tests.worlds.mqtt_process import make_receiver
from tests.worlds.waiting import free_port, wait_until

TOPIC = "sensors/+/temperature"


class _Broker:
    """A broker that keeps sessions and messages on disk, and can be killed."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port = free_port()
        folder.mkdir()
        self._config = folder / "mosquitto.conf"
        settings = (
            f"listener {self.port} 127.0.0.1",
            *(lines or ("allow_anonymous true",)),
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_on_changes true",
            "autosave_interval 1",
            "max_queued_messages 0",
            "user root",
        )
        self._config.write_text("\n".join(settings) + "\n")
        self.start()

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen([MOSQUITTO, "-c", str(self._config)], stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        self._process.terminate()  # it saves what it has
        self._process.wait()


@contextmanager
def _publisher(port: int, ca_file: str | None = None) -> Iterator[paho.Client]:
    client = paho.Client(CallbackAPIVersion.VERSION2, "publisher", clean_session=False)
    if ca_file is not None:
        client.tls_set(ca_file)
    client.max_queued_messages_set(0)
    client.reconnect_delay_set(1, 1)
    client.connect_async("127.0.0.1", port)
    client.loop_start()
    wait_until(client.is_connected, "the publisher is connected")
    yield client
    client.disconnect()
    client.loop_stop()


def _numbers(folder: Path) -> Counter[int]:
    visible = (path for path in folder.glob("*.json") if not path.name.startswith("."))
    return Counter(json.loads(line)["n"] for path in visible for line in path.read_text().splitlines())


def _publish(client: paho.Client, numbers: range) -> None:
    for number in numbers:
        client.publish(f"sensors/{number % 3}/temperature", json.dumps({"n": number}, indent=1), qos=1)


@needs_broker
def test_every_message_lands_once_through_kills_of_the_site_and_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = _Broker(tmp_path / "broker")
    folder = tmp_path / "landing"
    command = [sys.executable, "-m", "tests.worlds.mqtt_process", str(broker.port), str(folder), TOPIC]
    with _publisher(broker.port) as client:
        for step in range(4):
            process = subprocess.Popen(command)
            if step == 0:  # before its first subscription nobody keeps anything for it
                _wait_for_subscription(client, folder)
            before = sum(_numbers(folder).values())
            _publish(client, range(step * 500, step * 500 + 500))
            wait_until(lambda before=before: sum(_numbers(folder).values()) > before, "some messages have landed")  # type: ignore[misc]
            process.kill()
            process.wait()
            if step == 1:
                broker.stop()
                broker.start()
        process = subprocess.Popen(command)
        wait_until(
            lambda: len(_numbers(folder)) == 2001, "all messages have landed", state=lambda: len(_numbers(folder))
        )
        _publish(client, range(5000, 5001))  # behind everything that might come twice
        wait_until(lambda: 5000 in _numbers(folder), "the last message has landed")
        process.kill()
        process.wait()
    broker.stop()
    landed = _numbers(folder)
    del landed[-1]
    assert landed == Counter({**dict.fromkeys(range(2000), 1), 5000: 1})


def _wait_for_subscription(client: paho.Client, folder: Path) -> None:
    """Publish one number until it lands: then the session is there."""

    def publish() -> None:
        client.publish("sensors/0/temperature", '{"n": -1}', qos=1)

    wait_until(lambda: -1 in _numbers(folder), "the site has subscribed", act=publish, pause_s=0.5)


@needs_broker
def test_a_broker_that_refuses_or_is_away_is_told_and_tried_again(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "edge", "secret"], check=True)
    broker = _Broker(tmp_path / "broker", "allow_anonymous false", f"password_file {passwords}")
    wrong, wrong_writer = make_receiver(broker.port, tmp_path / "a", TOPIC, MqttSettings("edge", "wrong"))
    wrong_writer.start()
    wrong.start()
    wait_until(lambda: wrong.problem is not None and "refuses" in wrong.problem, "the refusal is told")
    wrong.stop()
    wrong_writer.stop()
    assert "wrong" not in str(wrong.status())
    right, writer = make_receiver(broker.port, tmp_path / "b", TOPIC, MqttSettings("edge", "secret"))
    writer.start()
    right.start()
    wait_until(lambda: right.is_connected, "the broker is connected")
    broker.stop()
    wait_until(lambda: right.problem is not None, "its absence is told")
    broker.start()
    wait_until(lambda: right.is_connected and right.problem is None, "it is connected again")
    right.stop()
    writer.stop()
    broker.stop()


@needs_broker
def test_two_sites_share_a_topic_over_tls_and_an_unknown_authority_is_told(tmp_path: Path) -> None:
    """Each message of a shared subscription goes to one of its sites: together they have all, none twice."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    paths = {name: tmp_path / name for name in ("ca.pem", "other.pem", "cert.pem", "key.pem")}
    authority.cert_pem.write_to_path(str(paths["ca.pem"]))
    trustme.CA().cert_pem.write_to_path(str(paths["other.pem"]))
    own.private_key_pem.write_to_path(str(paths["key.pem"]))
    own.cert_chain_pems[0].write_to_path(str(paths["cert.pem"]))
    files = f"certfile {paths['cert.pem']}", f"keyfile {paths['key.pem']}"
    broker = _Broker(tmp_path / "broker", "allow_anonymous true", *files)
    stranger, stranger_writer = make_receiver(
        broker.port, tmp_path / "s", TOPIC, MqttSettings(tls=True, ca_file=str(paths["other.pem"])), "stranger"
    )
    stranger_writer.start()
    stranger.start()
    wait_until(lambda: stranger.problem is not None, "the certificate is refused")
    assert not stranger.is_connected
    stranger.stop()
    stranger_writer.stop()
    settings = MqttSettings(tls=True, ca_file=str(paths["ca.pem"]))
    started = [
        make_receiver(broker.port, tmp_path / site, f"$share/catchment/{TOPIC}", settings, site) for site in "ab"
    ]
    for receiver, writer in started:
        writer.start()
        receiver.start()
    wait_until(lambda: all(receiver.is_connected for receiver, _ in started), "both sites are connected")

    def landed() -> Counter[int]:
        return _numbers(tmp_path / "a") + _numbers(tmp_path / "b")

    with _publisher(broker.port, str(paths["ca.pem"])) as client:
        wait_until(
            lambda: all(-1 in _numbers(tmp_path / site) for site in "ab"),
            "both have subscribed",
            act=lambda: _announce(client),
        )
        _publish(client, range(200))
        wait_until(lambda: len(landed()) >= 201, "every message has landed", state=lambda: len(landed()))
    for receiver, writer in started:
        receiver.stop()
        writer.stop()
    broker.stop()
    counts = landed()
    assert {number: counts[number] for number in range(200)} == dict.fromkeys(range(200), 1)
    assert all(set(_numbers(tmp_path / site)) & set(range(200)) for site in "ab"), "each site had a share"


@needs_broker
def test_while_a_broker_is_away_its_streams_were_heard_when_it_was_last_there(tmp_path: Path) -> None:
    """From this a reader that finds nothing is `stalled` after a while, and not taken for one that has nothing."""
    broker = _Broker(tmp_path / "broker")
    toml = '[project]\nname = "p"\ncenter = "c"\n[sites.c]\n[sites.a]\n[[links]]\nfrom = "a"\nto = "c"\n'
    (tmp_path / "catchment.toml").write_text(toml)
    (declared,) = parse_sql(
        "CREATE STREAM hits (ts TIMESTAMP) WITH (event_time = 'ts', connector = 'mqtt', "
        f"broker = '127.0.0.1:{broker.port}', topic = '{TOPIC}')",
        "q.sql",
    )
    assert isinstance(declared, Stream)
    receivers = SiteReceivers(Project.load(tmp_path), "a")
    assert receivers.heard_us("hits", 1) is None, "nothing is received"
    receivers.follow([declared])
    try:
        wait_until(lambda: bool(receivers.status()["hits"]["connected"]), "the broker is connected")
        assert receivers.heard_us("hits", 10) == 10
        broker.stop()
        wait_until(lambda: not receivers.status()["hits"]["connected"], "its absence is noticed")
        assert receivers.heard_us("hits", 99) == 10
    finally:
        receivers.stop()


def _announce(client: paho.Client) -> None:
    client.publish("sensors/0/temperature", '{"n": -1}', qos=1)


def test_settings_of_the_client_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("username = edge\npassword = a = b\nca_file = ca.pem\n")
    assert MqttSettings.read(path) == MqttSettings("edge", "a = b", True, "ca.pem")
    assert MqttSettings.read(None) == MqttSettings()
    path.write_text("user = edge\n")
    with pytest.raises(ConfigError, match="'user'"):
        MqttSettings.read(path)
