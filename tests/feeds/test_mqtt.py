"""Feeds over a real broker: mosquitto on a free port of the loopback, for the time of a test."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.errors import FeedError
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.language.program_form import compile_program
from catchment.feeds.protocol.messages import Confirmed, FeedEvent
from catchment.feeds.protocol.mqtt import MqttBus, MqttCloud, MqttDevices
from catchment.feeds.protocol.mqtt_config import MqttConfig
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.wall_clock import carry_over_mqtt, pace
from tests.worlds.feeds_broker import broker, needs_broker, until
from tests.worlds.feeds_world import (
    DECLARED,
    NEARBY,
    SECOND,
    Walkers,
    graph_of,
    identities,
    random_friends,
    random_hosts,
)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[MqttConfig]:
    with broker(tmp_path) as port:
        yield MqttConfig(port=port, app="test")


@needs_broker
def test_a_fleet_over_mqtt_notifies_like_the_naive_recomputation(config: MqttConfig) -> None:
    """One device loses its connection and comes back while views move; the broker keeps what it misses."""
    rng = random.Random(31)
    devices = 5
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, devices, 8))
    bus = MqttBus(config, boot=1000)
    fleet = Fleet([DeviceConfig(str(i), boot=0, report_every_us=SECOND) for i in range(devices)], bus)
    cloud = Cloud(graph, Router(compile_program(graph.program.text, BUILT_IN)))
    run = LocalRun(cloud, fleet, bus, carry_over_mqtt(bus))
    run.produced = []
    until(lambda: bus.cloud.client.subscribed, bus.poll)
    for name in fleet.devices:
        bus.devices.add(name, boot=1000)
        bus.connect(name)
    until(lambda: len(cloud.controller.registered) == devices, lambda: run.carry(run))
    run.send(cloud.deploy(random_hosts(rng, graph)))
    until(lambda: not cloud.controller.moving, lambda: run.carry(run))
    pace(run, speed=4.0)
    run.at(4 * SECOND, lambda r: r.send(cloud.deploy(random_hosts(rng, graph))))
    run.at(5 * SECOND, lambda r: bus.disconnect("1"))
    run.at(8 * SECOND, lambda r: bus.connect("1"))
    run.run(Walkers(rng, devices, rate=dict.fromkeys(range(devices), 4.0)).records(), 12 * SECOND)
    run.ahead = None
    expected = naive_notices(graph, run.produced)

    def drained() -> bool:
        return identities(run) >= expected and not cloud.controller.moving

    until(drained, lambda: run.run(iter(()), run.now_us + SECOND))
    bus.close()
    assert identities(run) == expected
    assert not any(r.missing for r in bus.cloud.receivers.values())
    assert not any(r.missing for r in bus.devices.receivers.values())


@needs_broker
def test_a_broken_connection_loses_nothing_and_doubles_nothing(config: MqttConfig) -> None:
    """The socket is cut under the client, so that unacknowledged messages are sent again."""
    bus = MqttBus(config, boot=0)
    bus.devices.add("1", boot=0)
    bus.connect("1")
    until(lambda: bus.devices.clients["1"].connected and bus.cloud.client.subscribed, bus.poll)
    taken: list[object] = []

    def take() -> None:
        bus.poll(0.01)
        taken.extend(m for _ in range(len(bus.cloud.waiting.get("1", ()))) if (m := bus.next_up("1")) is not None)

    for n in range(200):
        bus.send_up("1", Confirmed((n,), 0))
        if n % 50 == 25:
            wire = bus.devices.clients["1"].socket
            assert wire is not None
            wire.shutdown(socket.SHUT_RDWR)
            until(lambda: not bus.devices.clients["1"].connected, take)
            until(lambda: bus.devices.clients["1"].connected, take)
    until(lambda: len(taken) >= 200, take)
    bus.close()
    assert [m.tokens for m in taken if isinstance(m, Confirmed)] == [(n,) for n in range(200)]
    assert bus.cloud.receivers["1"].missing == 0


@needs_broker
def test_a_cloud_that_comes_late_or_again_finds_the_devices(config: MqttConfig) -> None:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
    devices = MqttDevices(config)
    fleet = Fleet([DeviceConfig("0"), DeviceConfig("1")], devices)
    for name in fleet.devices:
        devices.add(name, boot=0)
        devices.connect(name)
    until(lambda: all(c.subscribed for c in devices.clients.values()), lambda: devices.poll(0.05))
    for name, up in list(devices.changes()):
        fleet.link_changed(name, up, 0)  # their hellos reach nobody
    for boot in (1000, 2000):
        cloud, links = Cloud(graph, Router(compile_program(graph.program.text, BUILT_IN))), MqttCloud(config, boot)
        until(lambda links=links: links.client.subscribed, lambda links=links: links.poll(0.05))
        for delivery in [*cloud.controller.restart(), *cloud.deploy(dict.fromkeys(graph.views, "0"))]:
            links.send_down(delivery.device, delivery.message)

        def carry(cloud: Cloud = cloud, links: MqttCloud = links) -> None:
            devices.poll(0.02)
            links.poll(0.0)
            for name in list(devices.busy_down):
                fleet.receive(name, 0)
            for name in list(links.busy_up):
                message = links.next_up(name)
                for delivery in cloud.receive(name, message) if message is not None else ():
                    links.send_down(delivery.device, delivery.message)

        until(lambda cloud=cloud: bool(cloud.controller.current_hosts()) and not cloud.controller.moving, carry)
        assert fleet.devices["1"].uploads == {"location@1": 1.0}
        links.close()
    devices.close()


@needs_broker
def test_the_broker_keeps_what_a_device_misses_while_it_is_away(config: MqttConfig) -> None:
    bus = MqttBus(config, boot=0)
    bus.devices.add("7", boot=0)
    bus.connect("7")
    until(lambda: bus.devices.clients["7"].subscribed and bus.cloud.client.subscribed, lambda: bus.poll(0.05))
    bus.disconnect("7")
    for n in range(300):
        bus.send_down("7", FeedEvent("location@1", (n,), n, (48.0, 2.0)))
        bus.poll(0.0)
    bus.connect("7")
    until(lambda: len(bus.devices.waiting["7"]) >= 300, lambda: bus.poll(0.05))
    got = [bus.next_down("7") for _ in range(300)]
    bus.close()
    assert [e.key for e in got if isinstance(e, FeedEvent)] == [(n,) for n in range(300)]


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#", "x" * 65])
def test_a_device_name_that_is_no_topic_level_is_refused(name: str) -> None:
    with pytest.raises(FeedError, match="cannot be called"):
        MqttDevices(MqttConfig()).add(name, 0)


def test_a_broker_that_is_not_there_is_tried_again_and_nothing_fails() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    devices = MqttDevices(MqttConfig(port=port))
    devices.add("1", 0)
    devices.connect("1")
    devices.poll()
    assert list(devices.changes()) == []
    devices.close()


def test_a_wrong_configuration_is_refused() -> None:
    with pytest.raises(FeedError, match="an app cannot be called"):
        MqttConfig(app="a/b")
