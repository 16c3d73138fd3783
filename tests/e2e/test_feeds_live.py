"""The cloud and fleets of devices as processes of their own, over a real broker; one is killed, one stands still.

The oracle is the naive recomputation over what the fleets wrote down. Notices of the last records may be under way
when the processes are told to end, so what must be found is cut at an instant that many later notices have passed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.project import open_project
from catchment.feeds.protocol.messages import Notice
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.processes import read_fleet_log
from catchment.feeds.runs.workload import open_recording
from tests.worlds.feeds_broker import broker, needs_broker
from tests.worlds.waiting import PATIENCE_S, wait_until

PROGRAM = """CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT, share DOUBLE);
CREATE FEED VIEW nearby WITH (lifetime = '1 second') AS SELECT a.user, b.user AS friend
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < 100000 AND sample(a, f.share);
"""
USERS = 8
PARTS = ("1/2", "2/2")
FIRST = {str(u) for u in range(0, USERS, 2)}  # the devices of part 1/2; the odd ones are part 2/2


def write_project(folder: Path) -> None:
    rng = random.Random(3)
    (folder / "feeds.sql").write_text(PROGRAM)
    pairs = [(0, 2), (2, 4), (4, 6), (1, 3), (5, 7), (0, 1), (2, 3), (6, 7), (4, 1)]
    write_friends(folder, pairs)
    lines = [
        f"{u * 0.01 + n / (1 + u % 3):.2f},{u},{48 + rng.random() / 10:.4f},2.0"
        for u in range(USERS)
        for n in range(20 * (1 + u % 3))
    ]
    (folder / "location.csv").write_text("\n".join(["at_s,user,lat,lon", *lines, ""]))


def write_friends(folder: Path, pairs: list[tuple[int, int]]) -> None:
    rows = [f"{a},{b},{(0.5, 1.0)[(a + b) % 2]}" for a, b in pairs]
    (folder / "new.csv").write_text("\n".join(["user,friend,share", *rows, ""]))
    (folder / "new.csv").rename(folder / "friends.csv")


class Deployment:
    """Processes around one broker."""

    def __init__(self, folder: Path, port: int, stack: ExitStack, *cloud_words: str) -> None:
        self.folder, self.port, self.stack, self.cloud_words = folder, port, stack, cloud_words
        self.cloud = self.start_cloud()

    def start_cloud(self) -> subprocess.Popen[str]:
        return self.start("cloud", "--log", str(self.folder / "cloud.jsonl"), *self.cloud_words)

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        call = [
            sys.executable,
            "-m",
            "catchment.cli",
            "feeds",
            command,
            str(self.folder),
            "--mqtt",
            f"127.0.0.1:{self.port}",
            *words,
            "--json",
        ]
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def fleet(self, part: str) -> subprocess.Popen[str]:
        return self.start("devices", "--part", part, "--log", str(self.log(part)))

    def log(self, part: str) -> Path:
        return self.folder / f"fleet-{part[0]}.jsonl"

    def written(self, part: str) -> tuple[list[DeviceRecord], list[Notice]]:
        path = self.log(part)
        return read_fleet_log(path) if path.exists() else ([], [])

    def all_written(self, parts: Sequence[str]) -> tuple[list[DeviceRecord], list[Notice]]:
        written = [self.written(part) for part in parts]
        return [r for records, _ in written for r in records], [n for _, notices in written for n in notices]

    def due(self, graph: ViewGraph, parts: Sequence[str], end_us: int) -> set[tuple[Any, ...]]:
        """The notices of what was recorded since the views are active, which the cloud says at its end."""
        records = [r for r in self.all_written(parts)[0] if r.at_us <= end_us]
        return naive_notices(graph, records, self.cloud_lines("active")[-1][2])

    def missing(self, graph: ViewGraph, parts: Sequence[str], end_us: int) -> set[tuple[Any, ...]]:
        """The notices that were due at an instant and have not come yet."""
        return self.due(graph, parts, end_us) - {n.identity for n in self.all_written(parts)[1]}

    def cloud_lines(self, kind: str) -> list[list[Any]]:
        path = self.folder / "cloud.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [found for line in lines if line.endswith("\n") and (found := json.loads(line))[0] == kind]

    def settled(self) -> bool:
        traffic = self.cloud_lines("traffic")
        return bool(self.cloud_lines("hosts")) and bool(traffic) and traffic[-1][6] == 0

    def state(self, part: str = "1/1") -> object:
        """What to print when something does not come about."""
        return {
            "hosts": self.cloud_lines("hosts")[-1:],
            "traffic": self.cloud_lines("traffic")[-1:],
            "notices": len(self.written(part)[1]),
        }

    def end(self, *fleets: subprocess.Popen[str]) -> dict[str, Any]:
        """Tell everybody to end; what the cloud answers."""
        for process in (*fleets, self.cloud):
            process.send_signal(signal.SIGTERM)
        answers = [process.communicate(timeout=PATIENCE_S)[0] for process in (*fleets, self.cloud)]
        assert all(process.returncode == 0 for process in (*fleets, self.cloud))
        answer: dict[str, Any] = json.loads(answers[-1])
        return answer


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    write_project(tmp_path)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    with broker(tmp_path) as port, ExitStack() as stack:
        yield Deployment(tmp_path, port, stack)


def wait_for_notices(deployment: Deployment, part: str, more: int) -> None:
    now = len(deployment.written(part)[1])
    wait_until(
        lambda: len(deployment.written(part)[1]) >= now + more,
        f"{more} more notices of part {part}",
        state=lambda: deployment.state(part),
        pause_s=0.2,
    )


def wait_for_later_notices(deployment: Deployment, parts: Sequence[str], later: int = 100) -> int:
    """An instant of the records so far, when that many notices of later records have come; they come in order."""
    end_us = max(r.at_us for r in deployment.all_written(parts)[0])
    wait_until(
        lambda: sum(n.at_us > end_us for n in deployment.all_written(parts)[1]) >= later,
        f"{later} notices of later records",
        state=deployment.state,
        pause_s=0.2,
    )
    return end_us


@needs_broker
@pytest.mark.e2e
def test_a_fleet_that_is_killed_affects_only_its_own_views_and_one_that_stands_still_catches_up(
    deployment: Deployment,
) -> None:
    first, second = deployment.fleet("1/2"), deployment.fleet("2/2")
    wait_until(deployment.settled, "views to be deployed", state=deployment.state, pause_s=0.2)
    wait_for_notices(deployment, "2/2", 5)
    second.kill()
    died_us = time.time_ns() // 1000
    first.send_signal(signal.SIGSTOP)
    time.sleep(2)
    first.send_signal(signal.SIGCONT)
    wait_for_notices(deployment, "1/2", 20)
    again = deployment.fleet("2/2")
    graph = generate_views((world := open_recording(open_project(deployment.folder))).program, world.read_reference())
    spared = {v for v in graph.views if graph.origins(v) <= FIRST}
    assert len(spared) == 3
    wait_until(
        lambda: {n.view for n in deployment.all_written(PARTS)[1] if n.at_us > died_us} == set(graph.views),
        "every view to come back",
        state=deployment.state,
        pause_s=0.2,
    )
    end_us = wait_for_later_notices(deployment, PARTS)
    answer = deployment.end(first, again)

    records, notices = deployment.all_written(PARTS)
    assert {n.identity for n in notices} <= naive_notices(graph, records), "a notice was invented"
    assert spared <= {n[0] for n in deployment.due(graph, PARTS, end_us)}
    lost = {n for n in deployment.missing(graph, PARTS, end_us) if n[0] in spared}
    assert not lost, "a view of living devices lost a notice"
    assert answer["missing"] == 0


@needs_broker
@pytest.mark.e2e
def test_friendships_that_come_and_go_are_followed_while_the_rest_goes_on(deployment: Deployment) -> None:
    fleet = deployment.fleet("1/1")
    wait_until(deployment.settled, "views to be deployed", state=deployment.state, pause_s=0.2)
    wait_for_notices(deployment, "1/1", 20)
    before = generate_views((world := open_recording(open_project(deployment.folder))).program, world.read_reference())
    write_friends(deployment.folder, [(2, 4), (4, 6), (1, 3), (5, 7), (0, 1), (2, 3), (6, 7), (4, 1), (3, 5), (0, 7)])
    after = generate_views(world.program, world.read_reference())
    gone, come = set(before.views) - set(after.views), set(after.views) - set(before.views)

    def followed() -> bool:
        return set(deployment.cloud_lines("hosts")[-1][2]) == set(after.views) and deployment.settled()

    wait_until(followed, "the cloud to follow the new friendships", state=deployment.state, pause_s=0.2)
    followed_us = time.time_ns() // 1000
    wait_until(
        lambda: {n.view for n in deployment.written("1/1")[1] if n.at_us > followed_us} >= set(after.views),
        "notices of every view, new ones too",
        state=deployment.state,
        pause_s=0.2,
    )
    assert come
    assert len(gone) == 1
    wait_until(
        lambda: not {n.view for n in deployment.written("1/1")[1][-50:]} & gone,
        "the last notice of the view that is gone",
        state=deployment.state,
        pause_s=0.2,
    )
    end_us = wait_for_later_notices(deployment, ["1/1"])
    deployment.end(fleet)
    assert {n[0] for n in deployment.due(after, ["1/1"], end_us)} == set(after.views)
    assert deployment.missing(after, ["1/1"], end_us) == set()
