"""Devices in processes of their own, in Python and in JavaScript, with a real broker: killed, and never wrong."""

from __future__ import annotations

import random
from pathlib import Path

from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.protocol.mqtt_config import MqttConfig
from tests.worlds.feeds_broker import PersistentBroker, broker, needs_broker, until
from tests.worlds.feeds_javascript import needs_node, node_device
from tests.worlds.feeds_live import DeviceProgram, LiveCloud, expected_notices, friends_graph, python_device
from tests.worlds.waiting import free_port

KILLS = 10


def place(rng: random.Random, name: str) -> list[object]:
    return [int(name), 48 + rng.random() / 50, 2 + rng.random() / 50, 1.0]


def take_all(devices: list[DeviceProgram]) -> None:
    for device in devices:
        device.take()


def wait_for(cloud: LiveCloud, devices: list[DeviceProgram], expected: set[object]) -> None:
    def work() -> None:
        cloud.serve()
        take_all(devices)

    until(lambda: {n for d in devices for n in d.notices} >= expected, work)


@needs_broker
def test_a_device_that_is_killed_loses_doubles_and_invents_nothing(tmp_path: Path) -> None:
    """Device 0 computes the view; it is killed while it records, while it is told, and while it notifies."""
    rng = random.Random(5)
    graph = friends_graph([(0, 1, 1.0, 1.0, 1200.0), (1, 0, 1.0, 0.5, 1200.0)])
    with broker(tmp_path) as port:
        cloud = LiveCloud(graph, MqttConfig(port=port, app="test"))
        devices = [python_device(name, port, tmp_path) for name in "01"]
        try:
            until(lambda: len(cloud.cloud.controller.registered) == 2, cloud.serve)
            cloud.deploy(dict.fromkeys(graph.views, "0"))
            for n in range(KILLS):
                for _ in range(3):
                    for device in devices:
                        device.record(place(rng, device.name))
                        device.take()
                    cloud.serve()
                devices[n % 2].kill()
            until(lambda: all(d.began for d in devices), lambda: take_all(devices))
            wait_for(cloud, devices, set(expected_notices(graph, devices)))
            wait_for(cloud, devices, set())
        finally:
            for device in devices:
                device.stop()
            cloud.links.close()
    given = [n for device in devices for n in device.notices]
    assert len(given) > 20
    assert sorted(given) == sorted(expected_notices(graph, devices))


@needs_node
@needs_broker
def test_a_broker_that_restarts_costs_no_notice_and_doubles_none(tmp_path: Path) -> None:
    """Devices record on while the broker is away, and one of them is killed; the broker keeps its sessions."""
    rng = random.Random(7)
    graph = friends_graph([(0, 1, 1.0, 1.0, 1200.0), (1, 0, 1.0, 0.5, 1200.0)])
    web_port = free_port()
    server = PersistentBroker(tmp_path)
    with server.settings.open("a") as settings:
        settings.write(f"listener {web_port} 127.0.0.1\nprotocol websockets\n")
    server.start()
    cloud = LiveCloud(graph, MqttConfig(port=server.port, app="test"))
    devices = [python_device("0", server.port, tmp_path), node_device("1", server.port, web_port, tmp_path)]
    try:
        until(lambda: len(cloud.cloud.controller.registered) == 2, cloud.serve)
        until(lambda: all(d.began for d in devices), lambda: take_all(devices))
        cloud.deploy(dict.fromkeys(graph.views, "1"))
        for phase in ("there", "away", "back"):
            if phase == "away":
                server.stop()
                until(lambda: not cloud.links.client.connected, cloud.serve)
            for _ in range(6):
                for device in devices:
                    device.record(place(rng, device.name))
                    device.take()
            if phase == "away":
                devices[0].kill()
                until(lambda: devices[0].began, lambda: take_all(devices))
                server.start()
            if phase != "away":
                wait_for(cloud, devices, set(expected_notices(graph, devices)))
    finally:
        for device in devices:
            device.stop()
        cloud.links.close()
        server.stop()
    given = [n for device in devices for n in device.notices]
    assert sorted(given) == sorted(expected_notices(graph, devices))


@needs_node
@needs_broker
def test_a_device_in_javascript_beside_one_in_python_notifies_like_the_naive_recomputation(tmp_path: Path) -> None:
    """Views are computed by the JavaScript device, by the Python device and at the cloud, and two of them move."""
    rng = random.Random(6)
    pairs = [(0, 1), (1, 0), (0, 2), (1, 2), (2, 1)]
    graph = friends_graph([(a, b, 1.0, 0.5, 1200.0) for a, b in pairs])
    web_port = free_port()
    with broker(tmp_path, web_port) as port:
        cloud = LiveCloud(graph, MqttConfig(port=port, app="test"))
        devices = [
            python_device("0", port, tmp_path),
            node_device("1", port, web_port, tmp_path),
            node_device("2", port, web_port, tmp_path),
        ]
        try:
            until(lambda: len(cloud.cloud.controller.registered) == 3, cloud.serve)
            until(lambda: all(d.began for d in devices), lambda: take_all(devices))
            first, second, third = graph.views
            cloud.deploy({first: "1", second: "2", third: CLOUD})
            for round_ in range(2):
                for _ in range(6):
                    for device in devices:
                        device.record(place(rng, device.name))
                        device.take()
                    cloud.serve()
                wait_for(cloud, devices, set(expected_notices(graph, devices)))
                if round_ == 0:
                    assert cloud.cloud.controller.hosts_of(first) == ["1"]
        finally:
            for device in devices:
                device.stop()
            cloud.links.close()
    given = [n for device in devices for n in device.notices]
    assert sorted(given) == sorted(expected_notices(graph, devices))
    assert {name for _, name, _ in given} == {"0", "1", "2"}
