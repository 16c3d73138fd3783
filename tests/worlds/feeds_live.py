"""A live deployment of feeds for tests: a cloud in this process, devices in processes of their own, a real broker."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.mqtt import MqttCloud
from catchment.feeds.protocol.mqtt_config import MqttConfig
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_broker import until
from tests.worlds.feeds_world import Friend, graph_of

LONG = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT, share DOUBLE, friend_share DOUBLE, radius DOUBLE);
CREATE FEED VIEW nearby WITH (lifetime = '1 hour') AS
SELECT a.user, b.user AS friend, distance(a.lat, a.lon, b.lat, b.lon) AS metres
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < f.radius AND sample(a, f.share) AND sample(b, f.friend_share);
"""
Identity = tuple[str, str, tuple[int, ...]]


class LiveCloud:
    """The cloud of a live test; it works while `serve` is called."""

    def __init__(self, graph: ViewGraph, config: MqttConfig) -> None:
        self.graph = graph
        self.cloud = Cloud(graph, Router(compile_feeds(graph.program)))
        self.links = MqttCloud(config, 1000)
        until(lambda: self.links.client.subscribed, lambda: self.links.poll(0.02))

    def serve(self) -> None:
        self.links.poll(0.02)
        for name in list(self.links.busy_up):
            message = self.links.next_up(name)
            for delivery in self.cloud.receive(name, message) if message is not None else ():
                self.links.send_down(delivery.device, delivery.message)

    def deploy(self, hosts: dict[str, str]) -> None:
        """Bring views to hosts, and wait until they are there."""
        for delivery in self.cloud.deploy(hosts):
            self.links.send_down(delivery.device, delivery.message)
        until(lambda: not self.cloud.controller.moving, self.serve)


class DeviceProgram:
    """A device in a process of its own, and the application that uses it: JSON lines in, JSON lines out."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self.command = command
        self.folder = folder
        self.rows: list[list[Any]] = []  # everything that the application has recorded, or will
        self.written = 0
        self.boot: int | None = None
        self.told = False
        self.last_notice = -1
        self.notices: list[Identity] = []
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.start()

    def start(self) -> None:
        """Start the process, or start it again."""
        self.told = False
        self.began = False
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.folder
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True)
        self.reader.start()

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[dict[str, Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                lines.put(json.loads(line))

    def kill(self) -> None:
        """Kill the process at once, and start it again; its application goes on where the log ends."""
        self.process.kill()
        self.process.wait()
        self.reader.join()  # it has now read everything that the process had said
        self.take()
        self.start()

    def record(self, row: list[Any]) -> None:
        self.rows.append(row)

    def take(self) -> None:
        """Take what the process has said, and give it what it has not yet been given."""
        while not self.lines.empty():
            said = self.lines.get()
            if said["event"] == "begin":
                assert self.boot in (None, said["boot"]), "a device keeps its boot"
                self.boot = said["boot"]
                self.written = said["recorded"]
                self.began = True
            elif said["event"] == "notice" and said["number"] > self.last_notice:
                self.last_notice = said["number"]
                self.notices.append((said["view"], self.name, tuple(said["key"])))
            elif said["event"] == "state":
                self.told = said["told"]
            assert said["event"] != "refused", said
        if self.began and self.process.poll() is None:
            self._write()

    def _write(self) -> None:
        assert self.process.stdin is not None
        for row in self.rows[self.written :]:
            self.process.stdin.write(json.dumps({"stream": "location", "row": row}) + "\n")
        self.process.stdin.flush()
        self.written = len(self.rows)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def python_device(name: str, port: int, folder: Path) -> DeviceProgram:
    """`catchment device` in a process of its own."""
    command = [sys.executable, "-m", "catchment.cli", "device", name, "--mqtt", f"127.0.0.1:{port}", "--app", "test"]
    return DeviceProgram(name, [*command, "--state", str(folder / f"device-{name}"), "--json"], folder)


def expected_notices(graph: ViewGraph, devices: list[DeviceProgram]) -> set[Identity]:
    """Return what the naive recomputation finds over all records of devices."""
    return expected_notices_of(graph, {d.name: (d.boot or 0, d.rows) for d in devices})


def expected_notices_of(graph: ViewGraph, recorded: dict[str, tuple[int, list[list[Any]]]]) -> set[Identity]:
    """Return what the naive recomputation finds, given the boot and the rows of each device.

    Lifetimes are long, so that the instants of records do not matter.
    """
    records = [
        DeviceRecord(1 + n, name, "location", tuple(row), boot)
        for name, (boot, rows) in recorded.items()
        for n, row in enumerate(rows)
    ]
    return naive_notices(graph, records)


def friends_graph(friends: list[Friend]) -> ViewGraph:
    return graph_of(LONG, friends)
