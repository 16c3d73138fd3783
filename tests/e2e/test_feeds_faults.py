"""The faults of a feed deployment in one story: kills of cloud and devices, a broker that restarts, links that are cut.

Cloud and devices are processes, the broker is a real one, and each device has a link of its own that can be cut. The
oracle is the naive recomputation over everything that the applications of the devices recorded; lifetimes are an hour,
so that the instants of records do not matter. `make soak` runs ten faults of each kind; the table is printed with -s.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import generate_views
from catchment.feeds.project import open_project
from tests.e2e.test_feeds_live import Deployment
from tests.worlds.feeds_broker import PersistentBroker, needs_broker
from tests.worlds.feeds_live import LONG, DeviceProgram, expected_notices
from tests.worlds.waiting import wait_until

DEVICES = ("0", "1", "2", "3")
FRIENDS = [(0, 1, 1.0, 1.0), (1, 0, 1.0, 0.5), (1, 2, 0.5, 1.0), (2, 3, 1.0, 1.0), (3, 0, 1.0, 0.25)]


class Link:
    """A link of one device to the broker, which can be cut: connections end, and new ones are refused."""

    def __init__(self, broker_port: int) -> None:
        self.broker_port = broker_port
        self.is_cut = False
        self.ended = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.ended:
            with suppress(OSError):
                near, _ = self.listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.broker_port), timeout=5)
                except OSError:
                    near.close()
                    continue
                self.sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with selectors.DefaultSelector() as ready, suppress(OSError, ValueError):
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select(1.0):
                    taken = key.fileobj.recv(65_536)  # type: ignore[union-attr]
                    if not taken:
                        raise OSError("the other end has closed")
                    key.data.sendall(taken)
        near.close()
        far.close()

    def cut(self) -> None:
        self.is_cut = True
        for end in self.sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.sockets = []

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.ended = True
        self.cut()
        self.listener.close()


class Story:
    """A cloud, devices with logs, their links, and a broker that keeps its sessions."""

    def __init__(self, folder: Path, stack: ExitStack, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        (folder / "feeds.sql").write_text(LONG)
        rows = [",".join(map(str, (*row, 1200.0))) for row in FRIENDS]
        (folder / "friends.csv").write_text("\n".join(["user,friend,share,friend_share,radius", *rows, ""]))
        self.broker = PersistentBroker(folder)
        self.broker.start()
        stack.callback(self.broker.stop)
        self.deployment = Deployment(folder, self.broker.port, stack)
        self.links = {name: Link(self.broker.port) for name in DEVICES}
        self.devices = {name: self._device(name) for name in DEVICES}
        for name in DEVICES:
            stack.callback(self.links[name].close)
            stack.callback(self.devices[name].stop)
        data = ReferenceData({"friends": [(*row, 1200.0) for row in FRIENDS]})
        self.graph = generate_views(open_project(folder).program, data)
        self.faults: Counter[str] = Counter()

    def _device(self, name: str) -> DeviceProgram:
        words = ("device", name, "--mqtt", f"127.0.0.1:{self.links[name].port}", "--json")
        state = ("--state", str(self.folder / f"device-{name}"))
        return DeviceProgram(name, [sys.executable, "-m", "catchment.cli", *words, *state], self.folder)

    def take(self) -> None:
        for device in self.devices.values():
            device.take()

    def begin(self) -> None:
        """Wait until every view is at its host."""

        def is_ready() -> bool:
            self.take()
            active = self.deployment.cloud_lines("active")
            return bool(active) and set(active[-1][2]) == set(self.graph.views) and self.deployment.settled()

        wait_until(is_ready, "views to be deployed", state=self.deployment.state, pause_s=0.1)

    def record(self, count: int) -> None:
        for _ in range(count):
            for device in self.devices.values():
                at = [48 + self.rng.random() / 50, 2 + self.rng.random() / 50]
                device.record([int(device.name), *(round(value, 5) for value in at), 1.0])
                device.take()
            time.sleep(0.05)

    def kill_cloud(self) -> None:
        cloud = self.deployment.cloud
        cloud.send_signal(signal.SIGKILL)
        cloud.wait()
        self.record(2)
        self.deployment.cloud = self.deployment.start_cloud()

    def kill_device(self) -> None:
        device = self.devices[self.rng.choice(DEVICES)]
        device.kill()
        wait_until(lambda: device.began, "a device to begin again", act=device.take, pause_s=0.05)

    def restart_broker(self) -> None:
        self.broker.stop()
        self.record(2)
        self.broker.start()

    def cut_link(self) -> None:
        link = self.links[self.rng.choice(DEVICES)]
        link.cut()
        self.record(3)
        link.mend()

    def suffer(self, each: int) -> None:
        """Let so many faults of each kind happen, in any order, while devices record on."""
        kinds = ["cloud killed", "device killed", "broker restarted", "link cut"]
        acts = dict(zip(kinds, (self.kill_cloud, self.kill_device, self.restart_broker, self.cut_link), strict=True))
        faults = kinds * each
        self.rng.shuffle(faults)
        for kind in faults:
            self.record(self.rng.randrange(1, 4))
            acts[kind]()
            self.faults[kind] += 1

    def end(self) -> dict[str, int]:
        """Wait for every notice that is due; what was found, against what was due."""
        self.record(2)

        def found() -> Counter[tuple[object, ...]]:
            self.take()
            return Counter(n for device in self.devices.values() for n in device.notices)

        wait_until(
            lambda: not set(expected_notices(self.graph, [*self.devices.values()])) - set(found()), "all notices"
        )
        time.sleep(1.0)
        given, due = found(), expected_notices(self.graph, [*self.devices.values()])
        return {
            **self.faults,
            "records": sum(len(device.rows) for device in self.devices.values()),
            "due": len(due),
            "lost": len(due - set(given)),
            "doubled": sum(count - 1 for count in given.values()),
            "invented": len(set(given) - due),
        }


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    with ExitStack() as stack:
        yield Story(tmp_path, stack, random.Random(7))


def check(story: Story, each: int) -> None:
    story.begin()
    story.suffer(each)
    table = story.end()
    print(json.dumps(table))
    assert table["due"] > 20
    assert (table["lost"], table["doubled"], table["invented"]) == (0, 0, 0)


@needs_broker
@pytest.mark.e2e
def test_kills_restarts_and_cuts_lose_double_and_invent_no_notice(story: Story) -> None:
    check(story, 1)


@needs_broker
@pytest.mark.e2e
@pytest.mark.soak
def test_ten_faults_of_each_kind_lose_double_and_invent_no_notice(story: Story) -> None:
    check(story, 10)
