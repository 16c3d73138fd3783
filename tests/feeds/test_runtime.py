"""Devices, cloud and moves together, against the naive recomputation over all raw records.

The oracle catches a match that is lost or invented by sampling, routing, placement, moving or catching up. It
cannot catch a wrong view graph, nor wrong ranks: those have their own tests.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catchment.feeds.cloud.routes import CLOUD, predict
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_world import (
    DECLARED,
    FILTERED,
    HOURLY,
    LAYERED,
    NEARBY,
    SECOND,
    Walkers,
    carry_at_random,
    finish,
    graph_of,
    identities,
    random_friends,
    random_hosts,
    start,
)
from tests.worlds.tiers import examples

DEVICES = 6
seeds = st.integers(0, 10_000)


@settings(max_examples=examples(12))
@given(seeds, st.sampled_from([NEARBY, HOURLY, FILTERED, LAYERED]))
def test_notifications_are_those_of_the_naive_recomputation_wherever_views_are_placed(seed: int, view: str) -> None:
    rng = random.Random(seed)
    graph = graph_of(DECLARED + view, random_friends(rng, DEVICES, 9))
    run = start(graph, random_hosts(rng, graph), DEVICES, carry_at_random(rng))
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 15 * SECOND)
    finish(run)
    assert identities(run) == naive_notices(graph, run.produced or [])


@settings(max_examples=examples(15))
@given(seeds, st.sampled_from([NEARBY, HOURLY, LAYERED]))
@example(1682, LAYERED)  # the last matches of a view that has moved are still under way to the view that reads it
def test_no_notification_is_lost_or_doubled_while_views_move_and_devices_come_and_go(seed: int, view: str) -> None:
    rng = random.Random(seed)
    graph = graph_of(DECLARED + view, random_friends(rng, DEVICES, 9))
    run = start(graph, random_hosts(rng, graph), DEVICES, carry_at_random(rng))
    for _ in range(4):
        run.at(rng.randrange(30 * SECOND), lambda r: r.send(r.cloud.deploy(random_hosts(rng, graph))))
    for _ in range(3):
        name, gone = str(rng.randrange(DEVICES)), rng.randrange(25 * SECOND)
        run.at(gone, lambda r, n=name: r.fleet.disconnect(n, r.now_us))
        run.at(gone + rng.randrange(10 * SECOND), lambda r, n=name: r.fleet.connect(n, r.now_us))
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 32 * SECOND)
    finish(run)
    found = Counter(n.identity for n in run.fleet.notices)
    assert set(found) == naive_notices(graph, run.produced or [])
    assert set(found.values()) <= {1}
    assert run.cloud.controller.current_hosts() == {v: run.cloud.controller.hosts_of(v)[0] for v in graph.views}


def friends_line(shares: tuple[float, float] = (1.0, 1.0)) -> list[tuple[int, int, float, float, float]]:
    """0 - 1 - 2 - 3, each pair near enough to meet all the time."""
    return [(i, i + 1, *shares, 1e9) for i in range(3)]


def at_cloud(run: LocalRun) -> dict[str, str]:
    return dict.fromkeys(run.cloud.controller.graph.views, CLOUD)


def test_a_device_that_is_away_logs_its_feed_and_catches_up() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 4)
    run.at(5 * SECOND, lambda r: r.fleet.disconnect("1", r.now_us))
    run.at(20 * SECOND, lambda r: r.fleet.connect("1", r.now_us))
    run.run(Walkers(random.Random(5), 4).records(), 30 * SECOND)
    finish(run)
    assert identities(run) == naive_notices(graph, run.produced or [])


def test_a_dead_device_affects_only_its_own_views() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    hosts = {v: sorted(graph.origins(v))[0] for v in graph.views}
    run = start(graph, hosts, 4)
    run.at(5 * SECOND, lambda r: r.fleet.disconnect("0", r.now_us))
    run.run(Walkers(random.Random(6), 4).records(), 20 * SECOND)
    expected = naive_notices(graph, run.produced or [])
    mine = "nearby(location@0,location@1)"
    others = {n for n in expected if n[0] != mine}
    assert others
    assert {n for n in identities(run) if n[0] != mine} == others


def test_an_outbox_at_its_bound_drops_the_oldest_events_and_counts_them() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 4, max_outbox=3)
    run.fleet.disconnect("1", 0)
    walkers = Walkers(random.Random(7), 4, rate=dict.fromkeys(range(4), 1.0))
    run.run(walkers.records(), 10 * SECOND)
    device = run.fleet.devices["1"]
    assert len(device.outbox) == 3
    assert device.dropped == 7
    kept = [m.key for m in device.outbox if hasattr(m, "key")]
    assert kept == [(7,), (8,), (9,)]


def test_a_full_downlink_queue_drops_data_counts_it_and_the_device_sees_the_gap() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, {v: max(graph.origins(v)) for v in graph.views}, 4)
    run.bus.max_queued = 2
    walkers = Walkers(random.Random(8), 4, rate=dict.fromkeys(range(4), 1.0))
    records = walkers.records()
    run.fleet.disconnect("3", 0)
    run.run(records, 10 * SECOND)
    session = run.bus.sessions["3"]
    assert session.dropped == 8
    run.fleet.connect("3", run.now_us)
    run.run(records, 15 * SECOND)
    assert session.device_receives.missing == 8


def test_a_restarted_device_is_told_again_what_holds_for_it() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, {v: max(graph.origins(v)) for v in graph.views}, 4)
    records = Walkers(random.Random(9), 4).records()
    run.run(records, 5 * SECOND)
    before = dict(run.fleet.devices["2"].uploads)
    run.bus.restart("2")
    run.fleet.restart("2", run.now_us)
    run.run(records, 30 * SECOND)
    device = run.fleet.devices["2"]
    assert device.uploads == before
    assert device.publisher is not None
    assert set(device.publisher.host.installed) == {"nearby(location@1,location@2)"}
    expected = naive_notices(graph, run.produced or [])
    other = "nearby(location@0,location@1)"
    assert {n for n in identities(run) if n[0] == other} == {n for n in expected if n[0] == other}
    late = [n for n in run.fleet.notices if n.view == "nearby(location@1,location@2)" and n.at_us > 10 * SECOND]
    assert late


def test_traffic_on_the_wire_is_what_was_predicted() -> None:
    rng = random.Random(10)
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, 12, 20))
    hosts = random_hosts(rng, graph)
    run = start(graph, hosts, 12)
    walkers = Walkers(rng, 12, rate={i: rng.choice((1.0, 2.0, 5.0)) for i in range(12)})
    run.run(walkers.records(), 60 * SECOND)
    rates = {feed.name: walkers.rate[int(feed.device)] for feed in graph.feeds.values()}
    predicted = predict(graph, hosts, rates)
    for name, session in run.bus.sessions.items():
        up = session.device_sends.sent.messages["data"] / 60
        down = session.device_receives.received.messages["data"] / 60
        assert up == pytest.approx(predicted.up.get(name, 0.0), abs=0.1)
        assert down == pytest.approx(predicted.down.get(name, 0.0), rel=0.03, abs=0.1)


def test_only_the_changed_views_are_redeployed() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 4)
    before = run.cloud.controller.counters.moves_begun
    moved = "nearby(location@2,location@3)"
    run.send(run.cloud.deploy({**at_cloud(run), moved: "3"}))
    assert run.cloud.controller.counters.moves_begun == before + 1
    run.run(Walkers(random.Random(11), 4).records(), 10 * SECOND)
    finish(run)
    assert run.cloud.controller.current_hosts() == {**at_cloud(run), moved: "3"}


def test_the_old_host_is_kept_until_both_devices_confirm() -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 4)
    records = Walkers(random.Random(12), 4).records()
    run.run(records, 3 * SECOND)
    run.fleet.disconnect("0", run.now_us)
    moved = "nearby(location@0,location@1)"
    run.send(run.cloud.deploy({moved: "1"}))
    run.run(records, 20 * SECOND)
    assert run.cloud.controller.hosts_of(moved) == [CLOUD, "1"]
    run.fleet.connect("0", run.now_us)
    run.run(records, 30 * SECOND)
    assert run.cloud.controller.hosts_of(moved) == ["1"]
    finish(run)
    assert identities(run) == naive_notices(graph, run.produced or [])


def test_friends_come_and_go_while_the_rest_goes_on() -> None:
    rng = random.Random(13)
    before = random_friends(rng, DEVICES, 8)
    after = [
        *before[2:],
        *[f for f in random_friends(rng, DEVICES, 5) if f[:2] not in {b[:2] for b in before}],
    ]
    old, new = graph_of(DECLARED + NEARBY, before), graph_of(DECLARED + NEARBY, after)
    run = start(old, random_hosts(rng, old), DEVICES)
    added = {v.name: CLOUD for v in old.delta_to(new).added}
    run.at(10 * SECOND, lambda r: r.send(r.cloud.controller.update(new, added)))
    run.run(Walkers(rng, DEVICES).records(), 30 * SECOND)
    finish(run)
    since = dict(run.cloud.controller.active_since_us)
    must = naive_notices(new, run.produced or [], since)
    stayed = {v for v in new.views if v in old.views and old.views[v] == new.views[v]}
    found = {n for n in identities(run) if n[0] in new.views}
    assert must <= found
    assert {n for n in found if n[0] in stayed} == {n for n in must if n[0] in stayed}
    assert all(since[v] >= 9 * SECOND for v in added)
    gone = {feed for feed in old.feeds if feed not in new.feeds}
    assert not any(feed in run.cloud.controller.moves.table.uploads for feed in gone)


@pytest.mark.parametrize(
    ("device", "feed", "values", "admitted"),
    [
        ("1", "location@1", (48.0, 2.0), True),
        ("1", "location@1", (48, None), True),
        ("2", "location@1", (48.0, 2.0), False),
        ("1", "location@1", (48.0,), False),
        ("1", "location@1", (48.0, "2.0"), False),
        ("1", "location@1", (48.0, True), False),
        ("1", "nearby(location@0,location@1)", (0, 1, 5.0), False),
        ("1", "places@1", (), False),
    ],
)
def test_a_device_speaks_only_for_itself_and_in_the_declared_types(
    device: str, feed: str, values: tuple[object, ...], admitted: bool
) -> None:
    graph = graph_of(DECLARED + NEARBY, friends_line())
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 4)
    assert run.cloud.controller.admits(device, FeedEvent(feed, (0,), 1, values)) is admitted
    assert run.cloud.controller.counters.refused == (not admitted)
