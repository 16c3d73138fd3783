"""Lifetimes of events: as declared, by input, on both sides of every bound.

Three oracles: plain loops over all pairs of events for one host, SQLite over all raw records for whole runs with moves
(`feeds/runs/oracle.py`), and the count of what a bound took. They cannot catch a lifetime that is read wrongly from the
program; `test_what_is_declared` has that.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import least_traffic
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.retention import EVENT_BYTES, Retention, RetentionWatch
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import DeviceRecord, Fleet
from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.spool import SqliteSpool
from catchment.feeds.device.view_host import ViewHost
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.language.program_form import compile_program
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.project import open_project
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_world import (
    DECLARED,
    LAYERED,
    NEARBY,
    SECOND,
    Friend,
    Walkers,
    carry_at_random,
    finish,
    graph_of,
    identities,
    random_friends,
    random_hosts,
)
from tests.worlds.tiers import examples

DAY = 86_400 * SECOND
FRIENDS = [(0, 1, 1.0, 1.0, 1e9)]
BOTH_WAYS = [*FRIENDS, (1, 0, 1.0, 1.0, 1e9)]
FIRST, SECOND_FEED = "location@0", "location@1"
seeds = st.integers(0, 10_000)


def with_lifetime(lifetime: str, view: str = NEARBY) -> str:
    return DECLARED + view.replace("lifetime = '3 seconds'", f"lifetime = '{lifetime}'")


def host_of(lifetime: str, friends: list[Friend], limits: HostLimits, spool: SqliteSpool | None) -> ViewHost:
    text = with_lifetime(lifetime)
    host = ViewHost(compile_program(text, BUILT_IN), limits, spool)
    for view in graph_of(text, friends).views.values():
        host.install(view)
    return host


def event(feed: str, number: int, at_us: int) -> FeedEvent:
    return FeedEvent(feed, (number,), at_us, (48.0, 2.0))


# ---- what is declared


@pytest.mark.parametrize(
    ("written", "expected_us"),
    [
        ("20 seconds", (20 * SECOND, 20 * SECOND)),
        ("a: 7 days, b: 10 minutes", (7 * DAY, 600 * SECOND)),
        ("B: 0 seconds, A: 1 week", (7 * DAY, 0)),
    ],
)
def test_a_lifetime_is_declared_for_all_inputs_or_for_each(written: str, expected_us: tuple[int, int]) -> None:
    template = read_program(with_lifetime(written)).templates["nearby"]
    assert tuple(i.lifetime_us for i in template.inputs) == expected_us
    assert template.lifetime_us == max(expected_us)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("0 seconds", "a positive duration"),
        ("a: 0 s, b: 0 s", "a positive duration"),
        ("a: 1 s, a: 2 s", "a positive duration"),
        ("a: 1 s, 2 s", "one for each input"),
        ("a: 1 s", "expected one for each input: a, b"),
        ("a: 1 s, c: 2 s", "expected one for each input: a, b"),
    ],
)
def test_a_wrong_lifetime_is_named_with_what_is_possible(written: str, found: str) -> None:
    with pytest.raises(FeedError) as caught:
        read_program(with_lifetime(written), file="here.sql")
    assert "here.sql:6" in str(caught.value)
    assert found in str(caught.value)


# ---- one host, against plain loops


def due(events: list[FeedEvent], lives_us: tuple[int, int], friends: list[Friend]) -> set[tuple[int, ...]]:
    """The keys of the pairs that meet, by plain loops over all pairs."""
    found: set[tuple[int, ...]] = set()
    for a in events:
        for b in events:
            for ordinal, (user, friend, *_) in enumerate(sorted(friends)):
                if (a.feed, b.feed) == (f"location@{user}", f"location@{friend}"):
                    apart_us = b.at_us - a.at_us
                    if apart_us <= lives_us[0] if apart_us >= 0 else -apart_us <= lives_us[1]:
                        found.add((*a.key, *b.key, ordinal))
    return found


def arrivals(rng: random.Random, count: int, span_us: int) -> list[FeedEvent]:
    """Events of two feeds, each in order of time, the two interleaved at random; some come twice."""
    feeds = {
        feed: [event(feed, n, at) for n, at in enumerate(sorted(rng.randrange(span_us) for _ in range(count)))]
        for feed in (FIRST, SECOND_FEED)
    }
    found: list[FeedEvent] = []
    while feeds:
        feed = rng.choice(list(feeds))
        found.append(feeds[feed].pop(0))
        if rng.random() < 0.1:
            found.append(rng.choice(found))
        if not feeds[feed]:
            del feeds[feed]
    return found


@settings(max_examples=examples(20))
@given(
    seeds,
    st.tuples(st.integers(0, 40), st.integers(1, 40)),
    st.sampled_from([FRIENDS, BOTH_WAYS]),
    st.sampled_from([1, 3, 20, 1000]),
)
def test_a_host_finds_every_pair_whatever_is_in_memory_and_what_on_disk(
    seed: int, lives_s: tuple[int, int], friends: list[Friend], memory_events: int
) -> None:
    rng = random.Random(seed)
    limits = HostLimits(away_us=10**12, memory_events=memory_events, disk_bytes=10**9)
    host = host_of(f"a: {lives_s[0]} s, b: {lives_s[1]} s", friends, limits, SqliteSpool())
    events = arrivals(rng, 40, 100 * SECOND)
    found = {m.event.key for e in events for m in host.absorb(e)}  # what was let go and comes again may match again
    lives_us = (lives_s[0] * SECOND, lives_s[1] * SECOND)
    assert found == due(events, lives_us, friends)
    assert host.forgotten == 0
    assert host.retained.in_memory == sum(len(b.events) for b in host.retained.feeds.values()) <= memory_events


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "apart_us", "meet"),
    [
        (FIRST, SECOND_FEED, 7 * DAY, True),
        (FIRST, SECOND_FEED, 7 * DAY + 1, False),
        (SECOND_FEED, FIRST, 600 * SECOND, True),
        (SECOND_FEED, FIRST, 600 * SECOND + 1, False),
    ],
)
def test_an_event_meets_what_comes_within_its_lifetime_and_nothing_later(
    first: str, second: str, apart_us: int, meet: bool, on_disk: bool
) -> None:
    limits = HostLimits(memory_events=1 if on_disk else 100, disk_bytes=10**6)
    host = host_of("a: 7 days, b: 10 minutes", FRIENDS, limits, SqliteSpool())
    assert not list(host.absorb(event(first, 0, 5)))
    if on_disk:
        assert not list(host.absorb(event(first, 1, 6)))  # takes the place in memory
        assert host.retained.feeds[first].spooled == 1
    met = {m.event.key[0 if first == FIRST else 1] for m in host.absorb(event(second, 0, 5 + apart_us))}
    assert (0 in met) is meet
    assert host.forgotten == 0


def test_an_event_that_comes_twice_is_taken_once_although_it_is_on_disk() -> None:
    host = host_of("1 hour", FRIENDS, HostLimits(memory_events=2, disk_bytes=10**6), SqliteSpool())
    for n in range(20):
        list(host.absorb(event(FIRST, n, n * SECOND)))
    for n in range(20):
        list(host.absorb(event(FIRST, n, n * SECOND)))
    assert len(list(host.absorb(event(SECOND_FEED, 0, 20 * SECOND)))) == 20


def test_a_silent_input_is_waited_for_as_long_as_declared_and_what_goes_then_is_counted() -> None:
    limits = HostLimits(away_us=100 * SECOND)
    host = host_of("10 seconds", FRIENDS, limits, None)
    list(host.absorb(event(SECOND_FEED, 0, 0)))
    for n in range(1, 129):  # let go of is looked at every 64 events
        list(host.absorb(event(FIRST, n, n * SECOND)))
    assert host.forgotten == 128 - 110 - 1  # of events 1 to 128 those before 128 - (10 + 100)
    late = [len(list(host.absorb(event(SECOND_FEED, n, n * SECOND)))) for n in (2, 28)]
    assert late == [0, 21]  # of 18 to 38; in time for the second, too late for the first


@pytest.mark.parametrize(("memory_events", "kept"), [(50, 50), (49, 49)])
def test_without_a_disk_the_bound_of_memory_holds_and_what_it_takes_is_counted(memory_events: int, kept: int) -> None:
    host = host_of("1 hour", FRIENDS, HostLimits(memory_events=memory_events), None)
    for n in range(50):
        list(host.absorb(event(FIRST, n, n * SECOND)))
    assert host.retained.in_memory == kept
    assert host.forgotten == 50 - kept
    assert host.retained.forgotten == Counter({FIRST: 50 - kept} if kept < 50 else {})


def test_at_the_bound_of_the_disk_the_oldest_go_and_every_lost_match_is_accounted_for() -> None:
    spool = SqliteSpool()
    host = host_of("1 hour", FRIENDS, HostLimits(memory_events=10, disk_bytes=20_000), spool)
    for n in range(1000):
        list(host.absorb(event(FIRST, n, n * SECOND)))
        assert spool.used_bytes <= 20_000
    forgotten = host.forgotten
    found = {m.event.key[0] for m in host.absorb(event(SECOND_FEED, 0, 1000 * SECOND))}
    assert 0 < forgotten == 1000 - len(found)
    assert found == set(range(forgotten, 1000)), "the oldest go first"
    roomy = host_of("1 hour", FRIENDS, HostLimits(memory_events=10, disk_bytes=1_000_000), SqliteSpool())
    for n in range(1000):
        list(roomy.absorb(event(FIRST, n, n * SECOND)))
    assert len(list(roomy.absorb(event(SECOND_FEED, 0, 1000 * SECOND)))) == 1000


def test_what_nothing_can_meet_any_more_leaves_the_disk_too() -> None:
    spool = SqliteSpool()
    host = host_of("20 seconds", FRIENDS, HostLimits(memory_events=10, disk_bytes=10**9), spool)
    for n in range(400):
        for feed in (FIRST, SECOND_FEED):
            list(host.absorb(event(feed, n, n * SECOND)))
    assert sum(b.spooled + len(b.events) for b in host.retained.feeds.values()) < 2 * (20 + 70)
    host.uninstall(next(iter(host.installed)))
    assert (host.retained.in_memory, spool.used_bytes, host.forgotten) == (0, 0, 0)


# ---- the file


@pytest.mark.parametrize("feeds", [1, 40])
def test_a_spool_takes_no_more_of_the_disk_than_it_says(tmp_path: Path, feeds: int) -> None:
    spool = SqliteSpool(tmp_path)
    highest = 0
    for n in range(0, 10_000, 50):
        feed = f"location@{n // 50 % feeds}"
        spool.append([event(feed, k, k * SECOND) for k in range(n, n + 50)])
        if n > 5_000:
            spool.let_go(feed, (n - 5_000) * SECOND)
        highest = max(highest, spool.used_bytes)
    assert spool.file_bytes <= highest + 65_536
    assert not list(tmp_path.iterdir()), "a process that is killed leaves no file"


def test_a_spool_gives_back_events_as_they_were(tmp_path: Path) -> None:
    spool = SqliteSpool(tmp_path)
    events = [FeedEvent("näh@1", (n, 7), n // 2, (n, 0.1 * n, f"wörd{n}", n % 2 == 0, None)) for n in range(20)]
    spool.append(events)
    assert spool.between("näh@1", 0, 100) == events
    assert [type(v) for v in spool.between("näh@1", 3, 3)[0].values] == [type(v) for v in events[6].values]
    assert spool.contains(events[3])
    assert spool.let_go_oldest("näh@1", 3) == 4  # two are of one instant
    assert spool.between("näh@1", 0, 100) == events[4:]
    assert spool.let_go("other@1", 100) == 0


# ---- whole runs, against SQLite over all raw records


def start_with_disks(text: str, rng: random.Random, devices: int, limits: HostLimits) -> tuple[LocalRun, Router]:
    graph = graph_of(text, random_friends(rng, devices, 9))
    bus = Bus(max_queued=1_000_000)
    configs = [DeviceConfig(str(i), report_every_us=2 * SECOND, limits=limits) for i in range(devices)]
    fleet = Fleet(configs, bus, make_spool=lambda name: SqliteSpool())
    router = Router(compile_program(text, BUILT_IN), limits, SqliteSpool())
    cloud = Cloud(graph, router)
    run = LocalRun(cloud, fleet, bus)
    run.produced = []
    run.connect_all()
    run.send(cloud.deploy(random_hosts(rng, graph)))
    run.carry(run)
    run.carry = carry_at_random(rng)
    return run, router


@settings(max_examples=examples(8))
@given(seeds, st.sampled_from(["a: 12 seconds, b: 2 seconds", "a: 0 seconds, b: 9 seconds"]), st.booleans())
def test_no_notice_is_lost_or_invented_with_lifetimes_by_input_while_views_move(
    seed: int, lifetime: str, layered: bool
) -> None:
    rng = random.Random(seed)
    text = with_lifetime(lifetime, LAYERED if layered else NEARBY)
    run, router = start_with_disks(text, rng, 6, HostLimits(memory_events=30, disk_bytes=10**8))
    graph = run.cloud.graph
    for _ in range(3):
        run.at(rng.randrange(25 * SECOND), lambda r: r.send(r.cloud.deploy(random_hosts(rng, graph))))
    run.run(Walkers(rng, 6).records(("location", "status")), 27 * SECOND)
    finish(run)
    found = Counter(n.identity for n in run.fleet.notices)
    assert set(found) == naive_notices(graph, run.produced or [])
    assert set(found.values()) <= {1}
    hosts = [router.publisher.host, *(d.publisher.host for d in run.fleet.devices.values() if d.publisher)]
    assert sum(h.forgotten for h in hosts) == 0


def test_who_visited_my_place_within_the_last_week() -> None:
    """The example of the paper: one input lives for seven days, the other for an instant."""
    text = with_lifetime("a: 0 seconds, b: 7 days")
    graph = graph_of(text, FRIENDS)
    limits = HostLimits(memory_events=5, disk_bytes=10**6)
    bus = Bus()
    fleet = Fleet([DeviceConfig(n, limits=limits) for n in ("0", "1")], bus, make_spool=lambda name: SqliteSpool())
    router = Router(compile_program(text, BUILT_IN), limits, SqliteSpool())
    cloud = Cloud(graph, router)
    run = LocalRun(cloud, fleet, bus)
    run.connect_all()
    run.send(cloud.deploy(dict.fromkeys(graph.views, CLOUD)))
    run.carry(run)
    hours = [DeviceRecord(h * 3600 * SECOND, "1", "location", (1, 48.0, 2.0, 0.0)) for h in range(24 * 8)]
    mine = DeviceRecord(8 * DAY, "0", "location", (0, 48.0, 2.0, 0.0))
    records = [*hours, mine]
    for record in records:  # without ticks in between: nothing else happens in these eight days
        run.now_us = record.at_us
        run.fleet.produce(record)
        run.carry(run)
    assert identities(run) == naive_notices(graph, records)
    assert len(identities(run)) == 7 * 24  # from day 1, hour 0 to day 7, hour 23
    assert router.publisher.host.forgotten == 0


# ---- bounds that are declared


def crowd(users: int) -> list[Friend]:
    """0 is a friend of everybody."""
    return [(0, i, 1.0, 1.0, 1e9) for i in range(1, users)]


def rates_of(graph: ViewGraph, per_s: float) -> dict[str, float]:
    return dict.fromkeys(graph.feeds, per_s)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (HostLimits(away_us=0, memory_events=40), True),
        (HostLimits(away_us=0, memory_events=39), False),
        (HostLimits(away_us=0, memory_events=30, disk_bytes=10 * EVENT_BYTES), True),
        (HostLimits(away_us=0, memory_events=30, disk_bytes=10 * EVENT_BYTES - 1), False),
        (HostLimits(away_us=SECOND, memory_events=40), False),
    ],
)
def test_a_lifetime_that_the_cloud_cannot_keep_at_the_known_rates_is_refused(limits: HostLimits, kept: bool) -> None:
    """Two feeds of 2 events per second that live for 10 seconds are 40 events."""
    text = with_lifetime("10 seconds")
    graph = graph_of(text, FRIENDS)
    rule = ReoptimizeRule(retention=Retention(cloud=limits))
    if kept:
        Cloud(graph, Router(compile_program(text, BUILT_IN)), rates_of(graph, 2.0), rule)
        return
    with pytest.raises(FeedError, match="would have to keep 4") as caught:
        Cloud(graph, Router(compile_program(text, BUILT_IN)), rates_of(graph, 2.0), rule)
    assert "view 'nearby'" in str(caught.value)
    assert "cloud_disk = '1 MB'" in str(caught.value)


def test_a_declared_rate_counts_until_one_is_measured() -> None:
    text = with_lifetime("7 days").replace("WITH (device = 'user')", "WITH (device = 'user', rate = 0.5)", 1)
    graph = graph_of(text, FRIENDS)
    retention = Retention()
    with pytest.raises(FeedError, match="605,700 events of 2 feeds"):
        retention.check(graph, {})
    retention.check(graph, rates_of(graph, 0.1))


def test_views_that_a_device_cannot_keep_are_computed_at_the_cloud_and_no_others() -> None:
    text = with_lifetime("10 seconds")
    graph = graph_of(text, crowd(5))
    rates = {**rates_of(graph, 0.1), "location@0": 1.0, "location@4": 10.0}
    hosts = dict.fromkeys(graph.views, "0")
    needs = {1: 10 + 1, 2: 10 + 2, 3: 10 + 3, 4: 10 + 103}  # events of 0, and of so many friends in 10 seconds
    for bound, at_cloud in ((needs[4], []), (needs[4] - 1, [4]), (needs[3], [4]), (needs[2], [4, 3])):
        retention = Retention(device=HostLimits(away_us=0, memory_events=bound))
        found = retention.fit(graph, hosts, rates)
        views = [f"nearby(location@0,location@{i})" for i in at_cloud]
        assert found == {**hosts, **dict.fromkeys(views, CLOUD)}


def test_a_running_cloud_keeps_views_away_from_devices_that_cannot_keep_them() -> None:
    text = with_lifetime("10 seconds")
    graph = graph_of(text, crowd(3))
    rates = rates_of(graph, 1.0)
    rates["location@0"] = 5.0
    rule = ReoptimizeRule(retention=Retention(device=HostLimits(away_us=0, memory_events=59)))
    cloud = Cloud(graph, Router(compile_program(text, BUILT_IN)), rates, rule)
    cloud.deploy(least_traffic(graph, rates, LinkCosts()))
    assert set(cloud.controller.current_hosts().values()) == {CLOUD}
    newer = graph_of(text, crowd(4))
    cloud.update(newer)
    assert set(cloud.controller.current_hosts().values()) == {CLOUD}
    roomy = Cloud(graph, Router(compile_program(text, BUILT_IN)), rates)
    roomy.deploy(least_traffic(graph, rates, LinkCosts()))
    assert set(roomy.controller.current_hosts().values()) == {"0"}


def test_bounds_are_declared_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "feeds.sql").write_text(with_lifetime("7 days"))
    settings = tmp_path / "feeds.toml"
    settings.write_text("[retention]\naway = '1 hour'\ncloud_disk = '10 GB'\ndevice_memory_events = 500\n")
    retention = open_project(tmp_path).retention
    assert retention.cloud == HostLimits(3600 * SECOND, 400_000, 10**10)
    assert retention.device == HostLimits(3600 * SECOND, 500, 0)
    settings.write_text("[retention]\ncloud_disc = '10 GB'\n")
    with pytest.raises(FeedError, match="cloud_disk"):
        open_project(tmp_path)


def test_a_running_cloud_tells_once_that_rates_have_outgrown_what_it_keeps() -> None:
    graph = graph_of(with_lifetime("10 seconds"), FRIENDS)
    watch = RetentionWatch(Retention(cloud=HostLimits(away_us=0, memory_events=40)))
    said = [
        list(watch.look(graph, rates_of(graph, rate), lost)) for rate, lost in ((2, 0), (3, 0), (3, 7), (2, 7), (3, 7))
    ]
    assert [len(lines) for lines in said] == [0, 1, 1, 0, 1]
    assert "would have to keep 60 events" in said[1][0]
    assert "7 events were let go" in said[2][0]
