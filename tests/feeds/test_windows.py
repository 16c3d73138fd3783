"""Views with a window: aggregates of matches per window and user, wherever the matches were found.

Two oracles: plain loops over raw records, and SQLite (`naive_windows`), which also knows of samples. The last notice of
a window is compared; earlier ones are of windows that a late match changed.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import least_traffic
from catchment.feeds.cloud.routes import CLOUD, check_hosts
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.functions import distance
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.runs.local_run import LocalRun, carry_until_quiet
from catchment.feeds.runs.oracle import naive_windows
from tests.worlds.feeds_world import (
    DECLARED,
    SECOND,
    Friend,
    Walkers,
    carry_at_random,
    finish,
    graph_of,
    random_friends,
    random_hosts,
    start,
)
from tests.worlds.tiers import examples

NEAR = "distance(a.lat, a.lon, b.lat, b.lon)"
PAIR = "FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user"
MEETINGS = f"""CREATE FEED VIEW meetings WITH (lifetime = '3 seconds', window = '5 seconds') AS
SELECT a.user, count(*) AS n, min({NEAR}) AS nearest, max(b.speed) AS fastest, sum(b.speed) AS total,
  avg(b.speed) AS mean
{PAIR} WHERE {NEAR} < f.radius AND sample(a, f.share) AND sample(b, f.friend_share) GROUP BY a.user;"""
WITH_STATUS = f"""CREATE FEED VIEW meetings WITH (lifetime = '2 seconds', window = '4 seconds') AS
SELECT count(*) AS n, sum(b.speed) AS total
{PAIR} JOIN status s ON s.user = b.user WHERE {NEAR} < f.radius AND s.free;"""
OWN = """CREATE FEED VIEW steps WITH (window = '5 seconds') AS
SELECT l.user, count(*) AS n, max(l.speed) AS fastest FROM location l JOIN friends f ON f.user = l.user;"""
DEVICES = 5
Answers = dict[tuple[str, str, int], tuple[Any, ...]]
seeds = st.integers(0, 10_000)


def hosts_for(rng: random.Random, graph: ViewGraph) -> dict[str, str]:
    """Any placement; views with a window are at the cloud."""
    windows = [v.name for v in graph.views.values() if graph.program.templates[v.template].window is not None]
    return {**random_hosts(rng, graph), **dict.fromkeys(windows, CLOUD)}


def close_windows(run: LocalRun, friends: list[Friend]) -> None:
    """Let all devices record once more, much later, so that event time passes the end of every window."""
    run.now_us += 60 * SECOND
    for name in sorted({str(user) for pair in friends for user in pair[:2]}):
        run.fleet.produce(DeviceRecord(run.now_us, name, "location", (int(name), 48.0, 2.0, 0.0)))
        run.fleet.produce(DeviceRecord(run.now_us, name, "status", (int(name), True)))
    carry_until_quiet(run)


def last_answers(run: LocalRun, before_us: int, window_us: int) -> Answers:
    """The last notice of each window that began before an instant."""
    found: dict[tuple[str, str, int], tuple[int, tuple[Any, ...]]] = {}
    for notice in run.fleet.notices:
        number, matches = notice.key
        group = (notice.view, notice.notified, number)
        if number * window_us < before_us and matches >= found.get(group, (0, ()))[0]:
            found[group] = (matches, notice.values)
    return {group: values for group, (_, values) in found.items()}


def same_answers(found: Answers, expected: Answers) -> bool:
    return found.keys() == expected.keys() and all(
        all(x == y or math.isclose(x, y, rel_tol=1e-12) for x, y in zip(found[group], expected[group], strict=True))
        for group in found
    )


@settings(max_examples=examples(10))
@given(seeds, st.sampled_from([(MEETINGS, 5), (WITH_STATUS, 4), (OWN, 5)]))
def test_the_last_notice_of_a_window_has_all_its_matches_once_wherever_they_were_found(
    seed: int, case: tuple[str, int]
) -> None:
    view, window_s = case
    rng = random.Random(seed)
    friends = random_friends(rng, DEVICES, 7)
    graph = graph_of(DECLARED + view, friends)
    run = start(graph, hosts_for(rng, graph), DEVICES, carry_at_random(rng))
    for _ in range(3):
        run.at(rng.randrange(20 * SECOND), lambda r: r.send(r.cloud.deploy(hosts_for(rng, graph))))
    name = str(rng.randrange(DEVICES))
    run.at(8 * SECOND, lambda r: r.fleet.disconnect(name, r.now_us))
    run.at(14 * SECOND, lambda r: r.fleet.connect(name, r.now_us))
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 22 * SECOND)
    finish(run)
    close_windows(run, friends)
    expected = naive_windows(graph, run.produced or [])
    assert same_answers(last_answers(run, 22 * SECOND, window_s * SECOND), expected)
    assert len({n.identity for n in run.fleet.notices}) == len(run.fleet.notices)


def test_windows_are_what_plain_loops_find() -> None:
    rng = random.Random(3)
    friends = [(0, 1, 1.0, 1.0, 900.0), (1, 0, 1.0, 1.0, 500.0), (0, 2, 1.0, 1.0, 1500.0)]
    graph = graph_of(DECLARED + MEETINGS, friends)
    run = start(graph, hosts_for(rng, graph), 3)
    run.run(Walkers(rng, 3).records(), 20 * SECOND)
    close_windows(run, friends)
    matches: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    records = run.produced or []
    for user, friend, _, _, radius in friends:
        for a in [r for r in records if r.device == str(user)]:
            for b in [r for r in records if r.device == str(friend)]:
                metres = distance(a.row[1], a.row[2], b.row[1], b.row[2])
                if abs(a.at_us - b.at_us) <= 3 * SECOND and metres < radius:
                    window = max(a.at_us, b.at_us) // (5 * SECOND)
                    matches.setdefault(("meetings", str(user), window), []).append((metres, b.row[3]))
    expected = {
        (view, user, window): (
            int(user),
            len(found),
            min(m for m, _ in found),
            max(s for _, s in found),
            math.fsum(s for _, s in found),
            math.fsum(s for _, s in found) / len(found),
        )
        for (view, user, window), found in matches.items()
    }
    assert len(expected) > 6
    assert same_answers(last_answers(run, 20 * SECOND, 5 * SECOND), expected)


def test_a_window_is_notified_once_where_nothing_is_late() -> None:
    friends = [(0, 1, 1.0, 1.0, 1e9)]
    graph = graph_of(DECLARED + MEETINGS, friends)
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 2)
    run.run(Walkers(random.Random(1), 2).records(), 30 * SECOND)
    windows = [n.key[0] for n in run.fleet.notices]
    assert windows == list(range(5)), "windows 0 to 4 ended two seconds ago or more, each has one notice"
    assert [n.at_us for n in run.fleet.notices] == [(w + 1) * 5 * SECOND for w in windows]


def test_a_window_in_which_nothing_is_known_has_null() -> None:
    view = MEETINGS.replace("sum(b.speed)", "sum(CASE WHEN b.speed > 100 THEN 1 END)")
    graph = graph_of(DECLARED + view, [(0, 1, 1.0, 1.0, 1e9)])
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 2)
    run.run(Walkers(random.Random(1), 2).records(), 10 * SECOND)
    assert run.fleet.notices[0].values[4] is None


def test_views_with_a_window_are_placed_at_the_cloud_and_nowhere_else() -> None:
    graph = graph_of(DECLARED + MEETINGS, random_friends(random.Random(2), DEVICES, 7))
    rates = {feed: 1.0 + n for n, feed in enumerate(graph.feeds)}
    hosts = least_traffic(graph, rates, LinkCosts())
    check_hosts(graph, hosts)
    windowed = {name: host for name, host in hosts.items() if graph.views[name].template == "meetings"}
    assert set(windowed.values()) == {CLOUD}
    with pytest.raises(FeedError, match="possible: cloud"):
        check_hosts(graph, {**hosts, next(iter(windowed)): "0"})


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (MEETINGS.replace(", window = '5 seconds'", ""), "without a window"),
        (MEETINGS.replace("window = '5 seconds'", "window = '5 seconds', notify_every = '1 s'"), "no notify_every"),
        (MEETINGS.replace("SELECT a.user", "SELECT b.user"), "found 'b.user' in SELECT; possible: a.user, count(*)"),
        (MEETINGS.replace("GROUP BY a.user", "GROUP BY b.user"), "in GROUP BY; possible: a.user"),
        (MEETINGS.replace("count(*)", "count(DISTINCT b.lat)"), "one plain expression"),
        (MEETINGS.replace("count(*) AS n", "count(*) / 2 AS n"), "in SELECT; possible"),
        (MEETINGS + "CREATE FEED VIEW v AS SELECT m.n FROM meetings m", "which has a window"),
        (f"CREATE FEED VIEW v WITH (window = '1 s') AS SELECT a.lat {PAIR}", "needs an aggregate"),
    ],
)
def test_a_mistake_in_a_view_with_a_window_is_named(view: str, found: str) -> None:
    with pytest.raises(FeedError) as caught:
        read_program(DECLARED + view, file="here.sql")
    assert found in str(caught.value)
    assert "here.sql:" in str(caught.value)
