"""Views that only filter another view, and views above those: each user is told of his own matches, and nobody else.

The oracle is plain loops over raw records and reference rows. It shares nothing with views, rows or hosts.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.feeds.cloud.choose_hosts import least_traffic
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices, naive_windows
from tests.worlds.feeds_world import SECOND, carry_at_random, finish, identities, random_hosts, start
from tests.worlds.tiers import examples

Row = tuple[int, int]
Told = tuple[str, str, int, int]  # view, notified user, numbers of the records that met

LIFE_S = 3
DECLARED = """
CREATE STREAM place (user BIGINT, n BIGINT, x DOUBLE) WITH (device = 'user');
CREATE STREAM mood (user BIGINT, n BIGINT, level DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT);
"""
NEAR = f"""CREATE FEED VIEW near WITH (lifetime = '{LIFE_S} seconds') AS
SELECT a.user, b.user AS friend, a.n AS an, b.n AS bn, abs(a.x - b.x) AS apart
FROM place a JOIN friends f ON a.user = f.user JOIN place b ON f.friend = b.user WHERE abs(a.x - b.x) < 4;"""
ANONYMOUS = NEAR.replace("a.user, b.user AS friend, ", "")  # no column says whom a match is for
LIVES = f"WITH (lifetime = '{LIFE_S} seconds')"
TOUCH = f"CREATE FEED VIEW touch {LIVES} AS SELECT n.an, n.bn, n.apart FROM near n WHERE n.apart < 2;"
ABOVE = f"{TOUCH} CREATE FEED VIEW exact {LIVES} AS SELECT t.an, t.bn FROM touch t WHERE t.apart < 1;"
seeds = st.integers(0, 10_000)


def some_records(rng: random.Random, devices: int, seconds: int) -> list[DeviceRecord]:
    times = sorted(rng.randrange(1, seconds * SECOND) for _ in range(devices * seconds))
    names = [str(rng.randrange(devices)) for _ in times]
    rows = [(int(name), n, float(rng.randrange(8))) for n, name in enumerate(names)]
    return [DeviceRecord(at, name, "place", row) for at, name, row in zip(times, names, rows, strict=True)]


def due(records: list[DeviceRecord], friends: list[Row], view: str, nearer_than: float) -> set[Told]:
    """What users are told, by plain loops over all pairs of records."""
    return {
        (view, str(user), a.row[1], b.row[1])
        for user, friend in friends
        for a in records
        for b in records
        if a.device == str(user) and b.device == str(friend)
        if abs(a.at_us - b.at_us) <= LIFE_S * SECOND and abs(a.row[2] - b.row[2]) < nearer_than
    }


def told(run: LocalRun) -> list[Told]:
    return [(n.view.split("(")[0], n.notified, n.values[0], n.values[1]) for n in run.fleet.notices]


def graph_of(text: str, friends: list[Row]) -> ViewGraph:
    return generate_views(read_program(DECLARED + text), ReferenceData({"friends": friends}))


def play(rng: random.Random, graph: ViewGraph, records: list[DeviceRecord]) -> LocalRun:
    """A run in which links are slow, and views move once."""
    run = start(graph, random_hosts(rng, graph), 4, carry_at_random(rng))
    run.at(rng.randrange(10 * SECOND), lambda r: r.send(r.cloud.deploy(random_hosts(rng, graph))))
    run.run(iter(records), 13 * SECOND)
    finish(run)
    return run


@settings(max_examples=examples(10))
@given(seeds, st.sampled_from([NEAR, ANONYMOUS]), st.sampled_from([(TOUCH, "touch", 2), (ABOVE, "exact", 1)]))
def test_a_view_that_only_filters_another_tells_each_user_of_his_own_matches(
    seed: int, lower: str, upper: tuple[str, str, float]
) -> None:
    text, view, nearer_than = upper
    rng = random.Random(seed)
    friends = sorted({(i, (i + rng.randrange(1, 4)) % 4) for i in rng.choices(range(4), k=6)} | {(0, 1), (1, 0)})
    records = some_records(rng, 4, 12)
    graph = graph_of(lower + text, friends)
    run = play(rng, graph, records)
    assert set(told(run)) == due(records, friends, view, nearer_than)
    assert len(told(run)) == len(set(told(run)))
    assert identities(run) == naive_notices(graph, run.produced or [])


def test_a_view_over_a_view_that_no_condition_ties_to_a_direction_tells_the_first_user_only() -> None:
    """A friend's mood is tied to the table, not to a column of the lower view that tells its directions apart."""
    upper = """CREATE TABLE watched (who BIGINT);
    CREATE FEED VIEW cheered WITH (lifetime = '3 seconds') AS SELECT n.an, n.bn
    FROM near n CROSS JOIN watched w JOIN mood m ON m.user = w.who WHERE m.level > 2;"""
    data = ReferenceData({"friends": [(0, 1), (1, 0)], "watched": [(2,)]})
    graph = generate_views(read_program(DECLARED + ANONYMOUS + upper), data)
    run = start(graph, random_hosts(random.Random(1), graph), 3)
    records = [
        DeviceRecord(1 * SECOND, "0", "place", (0, 10, 1.0)),
        DeviceRecord(2 * SECOND, "1", "place", (1, 11, 1.0)),
        DeviceRecord(3 * SECOND, "2", "mood", (2, 12, 5.0)),
    ]
    run.run(iter(records), 5 * SECOND)
    finish(run)
    assert sorted(told(run)) == [("cheered", "0", 10, 11), ("cheered", "1", 11, 10)]


def test_a_windowed_view_counts_the_matches_of_a_filtered_view_once() -> None:
    rng = random.Random(3)
    friends = [(0, 1), (1, 0), (2, 0)]
    text = """CREATE FEED VIEW often WITH (lifetime = '3 seconds', window = '5 seconds') AS SELECT a.user, count(*) AS n
    FROM place a JOIN friends f ON a.user = f.user JOIN place b ON f.friend = b.user WHERE abs(a.x - b.x) < 4;"""
    records = some_records(rng, 3, 12)
    graph = graph_of(text, friends)
    windows = naive_windows(graph, records)
    matches = due(records, friends, "often", 4)
    assert sum(values[0] if len(values) == 1 else values[1] for values in windows.values()) == len(matches)


@pytest.mark.parametrize("lower", [NEAR, ANONYMOUS])
def test_views_that_filter_views_are_placed(lower: str) -> None:
    graph = graph_of(lower + TOUCH, [(0, 1), (1, 0), (1, 2)])
    rates = {"place@0": 5.0, "place@1": 0.1, "place@2": 1.0}
    hosts = least_traffic(graph, rates, LinkCosts())
    assert set(hosts) == set(graph.views)
    run = start(graph, hosts, 3)
    assert run.cloud.controller.current_hosts() == hosts
