"""Views over three and four inputs: chains of views over two.

The oracle is plain loops over all combinations of raw records and reference rows, with the definition of a match as
it is documented: every event lives at the time of the latest. It shares nothing with chains, views or hosts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_world import SECOND, carry_at_random, finish, identities, random_hosts, start
from tests.worlds.tiers import examples

DECLARED = """
CREATE STREAM place (user BIGINT, n BIGINT, x DOUBLE) WITH (device = 'user');
CREATE STREAM mood (user BIGINT, n BIGINT, level DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT);
"""
SELECT = "SELECT a.user, a.n AS an, b.n AS bn, c.n AS cn"
FRIEND_OF_A = "JOIN friends f ON a.user = f.user"
THREE = f"""CREATE FEED VIEW three WITH (lifetime = 'a: 6 seconds, b: 2 seconds, c: 4 seconds') AS {SELECT}
FROM place a {FRIEND_OF_A} JOIN place b ON f.friend = b.user JOIN mood c ON c.user = b.user
WHERE abs(a.x - b.x) < 3 AND c.level > 2 AND a.x + b.x > c.level"""
FRIENDS_OF_FRIENDS = f"""CREATE FEED VIEW three WITH (lifetime = 'a: 6 seconds, b: 2 seconds, c: 4 seconds') AS {SELECT}
FROM place a {FRIEND_OF_A} JOIN place b ON f.friend = b.user JOIN friends g ON g.user = b.user
JOIN mood c ON c.user = g.friend WHERE abs(a.x - b.x) < 3 AND c.level > 2 AND a.x + b.x > c.level"""
FOUR = f"""CREATE FEED VIEW four WITH (lifetime = '3 seconds') AS {SELECT}, d.n AS dn
FROM place a {FRIEND_OF_A} JOIN place b ON f.friend = b.user JOIN mood c ON c.user = b.user
JOIN mood d ON d.user = a.user WHERE abs(a.x - b.x) < 2 AND c.level < d.level AND a.x < d.level"""

Row = tuple[int, int]
Users = Callable[[list[Row]], Iterator[tuple[int, ...]]]  # whose events meet, for each joined reference row
Predicate = Callable[..., bool]
seeds = st.integers(0, 10_000)


def pairs(friends: list[Row]) -> Iterator[tuple[int, ...]]:
    return ((user, friend, friend) for user, friend in friends)


def pairs_and_self(friends: list[Row]) -> Iterator[tuple[int, ...]]:
    return ((user, friend, friend, user) for user, friend in friends)


def steps(friends: list[Row]) -> Iterator[tuple[int, ...]]:
    return ((user, friend, other) for user, friend in friends for again, other in friends if again == friend)


def near_and_well(a: float, b: float, c: float) -> bool:
    return abs(a - b) < 3 and c > 2 and a + b > c


def near_and_compared(a: float, b: float, c: float, d: float) -> bool:
    return abs(a - b) < 2 and c < d and a < d


def due(
    records: list[DeviceRecord],
    friends: list[Row],
    users: Users,
    streams: tuple[str, ...],
    lives_s: tuple[int, ...],
    holds: Predicate,
) -> set[tuple[int, ...]]:
    """The rows of the view, by plain loops over all combinations of records."""
    by_source: dict[tuple[str, str], list[DeviceRecord]] = {}
    for record in records:
        by_source.setdefault((record.stream, record.device), []).append(record)
    found: set[tuple[int, ...]] = set()
    for who in set(users(friends)):
        chosen = [by_source.get((s, str(u)), []) for s, u in zip(streams, who, strict=True)]
        for met in itertools.product(*chosen):
            latest_us = max(r.at_us for r in met)
            alive = all(latest_us - r.at_us <= life * SECOND for r, life in zip(met, lives_s, strict=True))
            if alive and holds(*(r.row[2] for r in met)):
                found.add((who[0], *(r.row[1] for r in met)))
    return found


def some_records(rng: random.Random, devices: int, seconds: int) -> list[DeviceRecord]:
    times = sorted(rng.randrange(1, seconds * SECOND) for _ in range(devices * seconds))
    names = [str(rng.randrange(devices)) for _ in times]
    streams = [rng.choice(("place", "mood")) for _ in times]
    rows = [(int(name), n, float(rng.randrange(8))) for n, name in enumerate(names)]
    return [DeviceRecord(*fields) for fields in zip(times, names, streams, rows, strict=True)]


def graph_of(view: str, friends: list[Row]) -> ViewGraph:
    return generate_views(read_program(DECLARED + view), ReferenceData({"friends": friends}))


def play(rng: random.Random, graph: ViewGraph, devices: int, records: list[DeviceRecord]) -> LocalRun:
    """A run in which links are slow, and views move twice."""
    run = start(graph, random_hosts(rng, graph), devices, carry_at_random(rng))
    for _ in range(2):
        run.at(rng.randrange(12 * SECOND), lambda r: r.send(r.cloud.deploy(random_hosts(rng, graph))))
    run.run(iter(records), 13 * SECOND)
    finish(run)
    return run


@settings(max_examples=examples(10))
@given(
    seeds,
    st.sampled_from(
        [
            (THREE, pairs, ("place", "place", "mood"), (6, 2, 4), near_and_well),
            (FRIENDS_OF_FRIENDS, steps, ("place", "place", "mood"), (6, 2, 4), near_and_well),
            (FOUR, pairs_and_self, ("place", "place", "mood", "mood"), (3, 3, 3, 3), near_and_compared),
        ]
    ),
)
def test_a_view_over_many_inputs_is_what_plain_loops_find_wherever_its_parts_are_and_move(
    seed: int, case: tuple[str, Users, tuple[str, ...], tuple[int, ...], Predicate]
) -> None:
    text, users, streams, lives_s, holds = case
    rng = random.Random(seed)
    friends = sorted({(i, (i + rng.randrange(1, 4)) % 4) for i in rng.choices(range(4), k=5)})
    records = some_records(rng, 4, 12)
    graph = graph_of(text, friends)
    run = play(rng, graph, 4, records)
    found = [n.values for n in run.fleet.notices]
    assert set(found) == due(records, friends, users, streams, lives_s, holds)
    assert len(found) == len(set(found))
    assert identities(run) == naive_notices(graph, run.produced or [])


@pytest.mark.parametrize(("late_us", "meet"), [(0, True), (1, False)])
@pytest.mark.parametrize("first", ["a", "b", "c"])
def test_each_event_lives_for_its_own_lifetime_to_the_microsecond(first: str, late_us: int, meet: bool) -> None:
    lives_s = {"a": 6, "b": 2, "c": 4}
    streams = {"a": ("0", "place"), "b": ("1", "place"), "c": ("1", "mood")}
    begin = 5 * SECOND
    end = begin + lives_s[first] * SECOND + late_us
    times = {alias: begin if alias == first else end for alias in streams}
    records = sorted(
        (DeviceRecord(times[alias], *streams[alias], (int(streams[alias][0]), 0, 2.5)) for alias in streams),
        key=lambda r: r.at_us,
    )
    graph = graph_of(THREE, [(0, 1)])
    run = start(graph, dict.fromkeys(graph.views, "1"), 2)
    run.run(iter(records), 20 * SECOND)
    assert bool(run.fleet.notices) is meet


def test_the_order_of_from_does_not_change_the_matches() -> None:
    rng = random.Random(4)
    other_way = f"""CREATE FEED VIEW three WITH (lifetime = 'a: 6 seconds, b: 2 seconds, c: 4 seconds') AS {SELECT}
    FROM place a {FRIEND_OF_A} JOIN mood c ON c.user = f.friend JOIN place b ON f.friend = b.user
    WHERE abs(a.x - b.x) < 3 AND c.level > 2 AND a.x + b.x > c.level"""
    friends = [(0, 1), (1, 2), (2, 0), (1, 0)]
    records = some_records(rng, 3, 12)
    runs = [play(rng, graph_of(view, friends), 3, records) for view in (THREE, other_way)]
    found = [{n.values for n in run.fleet.notices} for run in runs]
    assert found[0] == found[1] != set()


def test_a_chain_passes_on_only_what_later_parts_read() -> None:
    program = read_program(DECLARED + THREE)
    assert list(program.templates) == ["three__1", "three"]
    assert program.consumed == {"three__1"}
    first, last = program.templates.values()
    assert set(first.output_names) == {"a__user", "a__n", "a__x", "b__user", "b__n", "b__x", "a____at_us", "b____at_us"}
    assert first.match == "ABS(a.x - b.x) < 3"
    assert last.inputs[1].where == "level > 2"
    assert [i.lifetime_us for i in last.inputs] == [2 * SECOND, 4 * SECOND]


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (THREE.replace("'a: 6 seconds, ", "'"), "expected one for each input: a, b, c"),
        (THREE.replace("JOIN mood", "LEFT JOIN mood"), "LEFT JOIN"),
        (THREE.replace("c.level > 2", "c.leve > 2"), "'c.leve'"),
        (THREE + " GROUP BY a.user", "found GROUP"),
        (f"{THREE}; CREATE FEED VIEW three__1 AS SELECT a.user FROM place a", "'three__1' is needed for a part"),
    ],
)
def test_a_mistake_in_a_view_over_many_inputs_is_named(view: str, found: str) -> None:
    with pytest.raises(FeedError) as caught:
        read_program(DECLARED + view, file="here.sql")
    assert found in str(caught.value)
    assert "here.sql:" in str(caught.value)
