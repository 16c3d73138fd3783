"""A cloud, two edge clouds and their fleets as processes, over three brokers: all are killed, brokers restarted.

The oracle is the naive recomputation over what the fleets wrote down, cut at an instant that later notices have passed.
The fleets live on: what a device without a log loses when it is killed is not the claim here.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from catchment.feeds.language.view_graph import generate_views
from catchment.feeds.project import open_project
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.workload import open_recording
from tests.e2e.test_feeds_live import PARTS, Deployment, wait_for_notices, write_project
from tests.worlds.feeds_broker import PersistentBroker, needs_broker
from tests.worlds.waiting import PATIENCE_S, wait_until

EDGES = {"1/2": "north", "2/2": "south"}  # the devices with even names are in the north


class EdgeDeployment(Deployment):
    """A cloud with its broker, and two edge clouds with theirs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.brokers = {name: self._broker(folder / name, stack) for name in ("cloud", *EDGES.values())}
        super().__init__(folder, self.brokers["cloud"].port, stack)
        self.edges = {name: self.start_edge(name) for name in EDGES.values()}

    def _broker(self, folder: Path, stack: ExitStack) -> PersistentBroker:
        folder.mkdir()
        made = PersistentBroker(folder)
        made.start()
        stack.callback(made.stop)
        return made

    def start_edge(self, name: str) -> subprocess.Popen[str]:
        brokers = ("--mqtt", self.address(name), "--cloud-mqtt", self.address("cloud"))
        return self._run("edge", name, "-p", str(self.folder), *brokers, "--json")

    def fleet(self, part: str) -> subprocess.Popen[str]:
        words = ("--mqtt", self.address(EDGES[part]), "--part", part, "--log", str(self.log(part)), "--json")
        return self._run("devices", str(self.folder), *words)

    def _run(self, *words: str) -> subprocess.Popen[str]:
        call = [sys.executable, "-m", "catchment.cli", "feeds", *words]
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.brokers[name].port}"

    def kill(self, name: str) -> None:
        """Kill the cloud, or an edge cloud, and start it again from its folder."""
        process = self.cloud if name == "cloud" else self.edges[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        if name == "cloud":
            self.cloud = self.start_cloud()
        else:
            self.edges[name] = self.start_edge(name)

    def restart_broker(self, name: str) -> None:
        self.brokers[name].stop()
        time.sleep(0.5)
        self.brokers[name].start()


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EdgeDeployment]:
    write_project(tmp_path)
    (tmp_path / "feeds.toml").write_text('[edges]\nclouds = ["north", "south"]\ncost = 2.0\n')
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    with ExitStack() as stack:
        yield EdgeDeployment(tmp_path, stack)


def check(story: EdgeDeployment, kills: int, rng: random.Random) -> None:
    fleets = [story.fleet(part) for part in PARTS]
    graph = generate_views((world := open_recording(open_project(story.folder))).program, world.read_reference())
    wait_until(
        lambda: story.settled() and set(story.cloud_lines("hosts")[-1][2]) == set(graph.views),
        "views to be deployed",
        state=story.state,
        pause_s=0.2,
    )
    wait_for_notices(story, "1/2", 10)
    places = ("cloud", "north", "south")
    for number in range(kills):
        for name in rng.sample(places, 3):
            story.kill(name)
            if number == kills // 2:
                story.restart_broker(name)
            wait_for_notices(story, "1/2", rng.randrange(3, 20))
    end_us = max(r.at_us for r in story.all_written(PARTS)[0])
    wait_until(
        lambda: not story.missing(graph, PARTS, end_us),
        "every notice that was due when the last of them had started",
        state=lambda: (story.state("1/2"), sorted(story.missing(graph, PARTS, end_us))[:5]),
        pause_s=1.0,
    )
    for edge in story.edges.values():
        edge.send_signal(signal.SIGTERM)
    answers = [json.loads(edge.communicate(timeout=PATIENCE_S)[0]) for edge in story.edges.values()]
    answer = story.end(*fleets)

    records, notices = story.all_written(PARTS)
    found = Counter(n.identity for n in notices)
    due = story.due(graph, PARTS, end_us)
    assert len(due) > 50
    assert {identity[0] for identity in due} == set(graph.views)
    assert due <= set(found), "a notice was lost"
    assert set(found) <= naive_notices(graph, records), "a notice was invented"
    assert set(found.values()) == {1}, "a notice was doubled"
    assert [edge["devices"] for edge in answers] == [4, 4]
    assert all(edge["admitted"] and edge["refused"] == edge["dropped"] == 0 for edge in answers)
    assert answer["views_at_edges"] + answer["views_on_devices"] + answer["views_at_cloud"] == len(graph.views)
    assert [edge["devices"] for edge in answer["edges"]] == [4, 4]
    assert answer["missing"] == 0


@needs_broker
@pytest.mark.e2e
def test_edge_clouds_and_their_cloud_go_on_where_they_were_after_a_kill_and_over_restarted_brokers(
    story: EdgeDeployment,
) -> None:
    check(story, kills=1, rng=random.Random(1))


@needs_broker
@pytest.mark.e2e
@pytest.mark.soak
def test_edge_clouds_and_their_cloud_are_killed_ten_times_each_and_nothing_is_lost(story: EdgeDeployment) -> None:
    check(story, kills=10, rng=random.Random(2))
