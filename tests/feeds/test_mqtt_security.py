"""Feeds through a broker that asks for TLS and passwords: real mosquitto, one certificate, a password per client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.errors import CatchmentError, ConfigError, FeedError
from catchment.feeds.project import read_broker
from catchment.feeds.protocol.messages import Confirmed
from catchment.feeds.protocol.mqtt import MqttBus, MqttCloud, reach_broker
from catchment.feeds.protocol.mqtt_config import PASSWORD_VARIABLE, MqttConfig
from catchment.keys.key_folder import KeyFolder
from tests.worlds.feeds_broker import MOSQUITTO, needs_broker, until
from tests.worlds.waiting import free_port

PASSWORDS = {"cloud": "cloud-secret", "7": "seven-secret", "8": "eight-secret"}
RULES = "pattern write test/up/%u\npattern read test/down/%u\nuser cloud\ntopic readwrite test/#\n"


@contextmanager
def guarded_broker(folder: Path) -> Iterator[MqttConfig]:
    """A broker that knows three clients and lets each device use only its own topics."""
    keys = KeyFolder(folder / "keys")
    keys.create("test")
    mine = keys.issue("broker").folder
    lines = "".join(f"{name}:{password}\n" for name, password in PASSWORDS.items())
    (folder / "users").write_text(lines)
    (folder / "users").chmod(0o600)
    subprocess.run(["mosquitto_passwd", "-U", str(folder / "users")], check=True, capture_output=True)
    (folder / "rules").write_text(RULES)
    (folder / "rules").chmod(0o600)
    port = free_port()
    (folder / "mosquitto.conf").write_text(
        f"user root\nlistener {port} 127.0.0.1\nallow_anonymous false\npassword_file {folder / 'users'}\n"
        f"acl_file {folder / 'rules'}\ncafile {mine / 'ca.pem'}\ncertfile {mine / 'cert.pem'}\n"
        f"keyfile {mine / 'key.pem'}\npersistence false\n"
    )
    (folder / "secrets").mkdir()
    for name, password in PASSWORDS.items():
        (folder / "secrets" / name).write_text(password + "\n")
        (folder / "secrets" / name).chmod(0o600)
    assert MOSQUITTO is not None
    running = subprocess.Popen([MOSQUITTO, "-c", str(folder / "mosquitto.conf")], stderr=subprocess.DEVNULL)
    try:
        secrets = folder / "secrets" / "{client}"
        yield MqttConfig("127.0.0.1", port, "test", password_file=secrets, tls=True, ca_certs=mine / "ca.pem")
    finally:
        running.terminate()
        running.wait()


@needs_broker
def test_devices_and_cloud_speak_over_tls_each_with_its_own_password(tmp_path: Path) -> None:
    with guarded_broker(tmp_path) as config:
        bus = MqttBus(config, boot=1000)
        bus.open(["7", "8"], boot=1000)
        bus.send_up("7", Confirmed((1,), 5))
        until(lambda: bool(bus.cloud.waiting.get("7")), lambda: bus.poll(0.05))
        assert bus.next_up("7") == Confirmed((1,), 5)
        bus.close()


@needs_broker
def test_wrong_passwords_and_authorities_are_refused_without_telling_secrets(tmp_path: Path) -> None:
    with guarded_broker(tmp_path) as config:
        until(lambda: _reaches(config))
        wrong = replace(config, password="guess-secret", password_file=None)
        with pytest.raises(CatchmentError, match="refused a client") as caught:
            reach_broker(MqttCloud(wrong, boot=1), patience_s=15)
        assert "secret" not in str(caught.value)
        other = KeyFolder(tmp_path / "other")
        other.create("other")
        stranger = replace(config, ca_certs=other.issue("broker").folder / "ca.pem")
        with pytest.raises(FeedError, match="certificate verify failed"):
            reach_broker(MqttCloud(stranger, boot=1), patience_s=0.5)
        with pytest.raises(FeedError, match="no MQTT broker answers"):
            reach_broker(MqttCloud(replace(config, tls=False, ca_certs=None), boot=1), patience_s=0.5)


def _reaches(config: MqttConfig) -> bool:
    cloud = MqttCloud(config, boot=1)
    try:
        reach_broker(cloud, patience_s=2)
    except FeedError:
        return False
    finally:
        cloud.close()
    return True


# ---- configuration, without a broker


def test_a_broker_is_configured_in_the_project_and_overridden_by_what_is_given(tmp_path: Path) -> None:
    (tmp_path / "feeds.toml").write_text(
        '[mqtt]\nbroker = "mqtts://broker.example.org"\nca = "ca.pem"\npassword_file = "secrets/{client}"\n'
    )
    found = read_broker(tmp_path)
    assert found is not None
    assert (found.host, found.port, found.tls) == ("broker.example.org", 8883, True)
    assert found.ca_certs == tmp_path / "ca.pem"
    other = read_broker(tmp_path, broker="mqtts://elsewhere:1", user="feeds", ca="/etc/ca.pem")
    assert other is not None
    assert (other.address, other.username, other.ca_certs) == ("mqtts://elsewhere:1", "feeds", Path("/etc/ca.pem"))
    (tmp_path / "feeds.toml").write_text("")
    assert read_broker(tmp_path) is None


def test_a_password_comes_from_a_private_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "hidden-secret")
    from_environment = MqttConfig.parse("mqtts://broker:8883", username="feeds")
    assert from_environment.login_of("7") == ("feeds", "hidden-secret")
    assert "hidden-secret" not in repr(from_environment)
    (tmp_path / "7").write_text("file-secret\n")
    (tmp_path / "7").chmod(0o600)
    from_file = MqttConfig.parse("mqtts://broker:8883", password_file=tmp_path / "{client}")
    assert from_file.login_of("7") == ("7", "file-secret")
    (tmp_path / "7").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by other users"):
        from_file.login_of("7")
    monkeypatch.delenv(PASSWORD_VARIABLE)
    assert MqttConfig.parse("127.0.0.1:1883").login_of("7") is None


@pytest.mark.parametrize(
    ("broker", "found"),
    [
        ("mqtt://user:secret@broker:1883", "can be seen by other users"),
        ("broker:no", "cannot read"),
        ("http://broker", "cannot read"),
        ("mqtt://broker/topic", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_a_broker_that_cannot_be_used_is_refused_without_telling_secrets(broker: str, found: str) -> None:
    with pytest.raises(FeedError, match=found) as caught:
        MqttConfig.parse(broker)
    assert "secret" not in str(caught.value)


def test_a_password_never_leaves_the_machine_in_plain_text() -> None:
    with pytest.raises(FeedError, match="plain text"):
        MqttConfig("broker.example.org", password="secret")
    assert MqttConfig("127.0.0.1", password="secret").login_of("cloud") == ("cloud", "secret")
