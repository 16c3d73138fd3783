"""The driver of runs in one process: what is scheduled is done in order of time, and in order of asking at one time."""

from __future__ import annotations

import random

from catchment.feeds.runs.local_run import LocalRun
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, graph_of, random_hosts, start


def idle_run() -> LocalRun:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 100.0)])
    return start(graph, random_hosts(random.Random(1), graph), 2)


def test_acts_at_one_instant_are_done_in_the_order_they_were_asked_for() -> None:
    run = idle_run()
    done: list[str] = []
    run.at(10 * SECOND, lambda r: done.append("early"))
    run.at(15 * SECOND, lambda r: r.at(20 * SECOND, lambda _: done.append("second")))
    run.at(20 * SECOND, lambda r: done.append("first"))
    run.run(iter(()), 30 * SECOND)
    assert done == ["early", "first", "second"]


def test_what_is_done_every_period_begins_after_one_and_goes_on() -> None:
    run = idle_run()
    at_s: list[float] = []
    run.every(4 * SECOND, lambda r: at_s.append(r.now_us / SECOND))
    run.run(iter(()), 13 * SECOND)
    run.run(iter(()), 17 * SECOND)
    assert at_s == [4, 8, 12, 16]
