"""kill -9 of a real cloud process, again and again, and a broker that is restarted: no notice is lost or doubled.

The oracle is the naive recomputation over what the fleet wrote down, cut at an instant that many later notices have
passed. The fleet's processes live on: what a device loses when it is killed itself is not the claim here.
"""

from __future__ import annotations

import os
import random
import signal
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
from tests.e2e.test_feeds_live import Deployment, wait_for_notices, write_project
from tests.worlds.feeds_broker import PersistentBroker, needs_broker
from tests.worlds.waiting import wait_until

FLEET = ("1/1",)


@pytest.fixture
def cloud_words() -> tuple[str, ...]:
    """How the cloud is started."""
    return ()


@pytest.fixture
def story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud_words: tuple[str, ...]
) -> Iterator[tuple[Deployment, PersistentBroker]]:
    write_project(tmp_path)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    broker = PersistentBroker(tmp_path)
    broker.start()
    with ExitStack() as stack:
        stack.callback(broker.stop)
        yield Deployment(tmp_path, broker.port, stack, *cloud_words), broker


def kill_cloud(deployment: Deployment) -> None:
    """Kill the cloud and start it again from its folder."""
    deployment.cloud.send_signal(signal.SIGKILL)
    deployment.cloud.wait()
    deployment.cloud = deployment.start_cloud()


def check(deployment: Deployment, broker: PersistentBroker, kills: int, rng: random.Random) -> None:
    fleet = deployment.fleet("1/1")
    graph = generate_views((world := open_recording(open_project(deployment.folder))).program, world.read_reference())
    wait_until(
        lambda: deployment.settled() and set(deployment.cloud_lines("hosts")[-1][2]) == set(graph.views),
        "views to be deployed",
        state=deployment.state,
        pause_s=0.2,
    )
    wait_for_notices(deployment, "1/1", 10)
    for number in range(kills):
        kill_cloud(deployment)
        if number == kills // 2:
            broker.stop()
            time.sleep(0.5)
            broker.start()
        wait_for_notices(deployment, "1/1", rng.randrange(5, 40))
    end_us = max(r.at_us for r in deployment.all_written(FLEET)[0])
    wait_until(
        lambda: not deployment.missing(graph, FLEET, end_us),
        "every notice that was due when the last cloud had started",
        state=lambda: (deployment.state(), sorted(deployment.missing(graph, FLEET, end_us))[:5]),
        pause_s=1.0,
    )
    deployment.end(fleet)

    records, notices = deployment.all_written(FLEET)
    found = Counter(n.identity for n in notices)
    due = deployment.due(graph, FLEET, end_us)
    assert len(due) > 50
    assert {identity[0] for identity in due} == set(graph.views)
    assert due <= set(found), "a notice was lost"
    assert set(found) <= naive_notices(graph, records), "a notice was invented"
    assert set(found.values()) == {1}, "a notice was doubled"


@needs_broker
@pytest.mark.e2e
def test_a_cloud_that_is_killed_goes_on_where_it_was_and_so_it_does_over_a_restarted_broker(
    story: tuple[Deployment, PersistentBroker],
) -> None:
    check(*story, kills=1, rng=random.Random(1))


@needs_broker
@pytest.mark.e2e
@pytest.mark.parametrize("cloud_words", [("--cloud", "spark", "--strategy", "cloud")])
def test_a_cloud_on_spark_that_is_killed_goes_on_where_it_was(story: tuple[Deployment, PersistentBroker]) -> None:
    check(*story, kills=2, rng=random.Random(3))
    deployment, _ = story
    kept = list((deployment.folder / "state" / "cloud" / "events").iterdir())
    assert 0 < len(kept) < 2_000, "the files of events are bounded"


@needs_broker
@pytest.mark.e2e
@pytest.mark.soak
def test_a_cloud_that_is_killed_ten_times_loses_and_doubles_nothing(
    story: tuple[Deployment, PersistentBroker],
) -> None:
    check(*story, kills=10, rng=random.Random(2))
