"""Budgets of devices in the placement of a running cloud: never exceeded where that is possible, and at the least cost.

Placements are compared with all that there are, over small graphs, by `predict` and by sums of their own. What this
cannot catch is a size of messages that is expected wrongly: `test_expected_sizes...` compares those with real ones.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.cloud import place_within as placing
from catchment.feeds.cloud.budgets import Budgets, DeviceBudget, loads_of, message_bytes
from catchment.feeds.cloud.choose_hosts import least_traffic
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.place_within import place_within
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.routes import CLOUD, all_routes, predict
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.project import open_project
from catchment.feeds.protocol.codec import encode
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.workload import placement_rule
from catchment.serve.feed_workload import load_workload
from catchment.serve.open_feeds import explain_workload
from tests.worlds.feeds_world import (
    DECLARED,
    LAYERED,
    NEARBY,
    SECOND,
    Friend,
    Walkers,
    finish,
    graph_of,
    identities,
    start,
)
from tests.worlds.tiers import examples

COUPONS = """
CREATE STREAM coupon (shop BIGINT, lat DOUBLE) WITH (born = 'cloud');
CREATE FEED VIEW offers WITH (lifetime = '3 seconds') AS SELECT a.user, c.shop FROM location a JOIN coupon c
ON a.lat < c.lat;
"""
Used = dict[str, list[float]]  # bytes per second up and down, and views, by device


def used_by(graph: ViewGraph, hosts: Mapping[str, str], rates: Mapping[str, float]) -> Used:
    """What devices carry, summed up from the routes of a placement."""
    used: Used = {device: [0.0, 0.0, 0.0] for device in graph.devices}
    for feed, routes in all_routes(graph, hosts):
        for way, shares in enumerate((routes.uploads, routes.downloads)):
            for device, share in shares.items():
                used[device][way] += share * rates.get(feed, 0.0) * message_bytes(graph, feed)
    for host in hosts.values():
        if host != CLOUD:
            used[host][2] += 1
    return used


def excess_of(used: Used, budgets: Budgets) -> tuple[float, float]:
    """By how much downloads and views, and by how much uploads, exceed their budgets."""
    hard = soft = 0.0
    for device, (up, down, views) in used.items():
        budget = budgets.of(device)
        hard += max(0.0, down - budget.download_bytes_per_s) + max(0.0, views - budget.views)
        soft += max(0.0, up - budget.upload_bytes_per_s)
    return hard, soft


def every_placement(graph: ViewGraph) -> Iterator[dict[str, str]]:
    choices = [sorted({CLOUD, *graph.origins(name)}) for name in graph.views]
    return (dict(zip(graph.views, hosts, strict=True)) for hosts in itertools.product(*choices))


def random_graph(rng: random.Random) -> ViewGraph:
    text = rng.choice((NEARBY, LAYERED, NEARBY + COUPONS))
    pairs = rng.sample([(0, 1), (1, 0), (1, 2), (2, 0), (0, 3)], rng.randrange(1, 4))
    friends = [(a, b, rng.choice((0.3, 1.0)), rng.choice((0.5, 1.0)), 1e9) for a, b in pairs]
    return generate_views(read_program(DECLARED + text), ReferenceData({"friends": friends}, (0, 1, 2, 3)))


def random_budget(rng: random.Random) -> DeviceBudget:
    return DeviceBudget(
        rng.choice((math.inf, math.inf, 0.0, 60.0, 300.0)),
        rng.choice((math.inf, 0.0, 60.0, 300.0)),
        rng.choice((math.inf, 0, 1, 2)),
    )


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1_000_000))
def test_no_placement_within_the_budgets_costs_less(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng)
    rates = {name: rng.choice((0.0, 0.5, 1.0, 3.0)) for name in (*graph.feeds, *graph.views)}
    plans = {d: (rng.choice((1.0, 5.0)), rng.choice((1.0, 2.0))) for d in graph.devices if rng.random() < 0.3}
    costs = LinkCosts(rng.choice((1.0, 3.0)), rng.choice((1.0, 2.0)), plans)
    budgets = Budgets(random_budget(rng), {d: random_budget(rng) for d in graph.devices if rng.random() < 0.4})
    if len(list(itertools.islice(every_placement(graph), 5_000))) == 5_000:
        return

    def judge(hosts: Mapping[str, str]) -> tuple[float, float, float]:
        traffic = predict(graph, hosts, rates)
        hard, soft = excess_of(used_by(graph, hosts, rates), budgets)
        return hard, soft, costs.of_messages(traffic.up, traffic.down)

    best = min(map(judge, every_placement(graph)))
    free = least_traffic(graph, rates, costs)
    found = judge(place_within(graph, free, rates, costs, budgets))
    assert best[0] == 0
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert found[1] == pytest.approx(best[1], abs=1e-3)
    if judge(free)[:2] != (0, 0):  # else it is the one without budgets, whose optimality has its own tests
        assert found[2] <= best[2] * (1 + 1e-6) + 1e-6


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1_000_000))
def test_views_that_are_too_many_go_to_the_cloud_and_no_others(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng)
    rates = {name: rng.choice((0.5, 1.0, 3.0)) for name in (*graph.feeds, *graph.views)}
    budgets = Budgets(DeviceBudget(math.inf, rng.choice((math.inf, 100.0)), rng.choice((math.inf, 0, 1))))
    hosts = {name: rng.choice(sorted({CLOUD, *graph.origins(name)})) for name in graph.views}
    movable = [name for name in hosts if rng.random() < 0.7]
    fitted = budgets.fit(graph, hosts, rates, LinkCosts(), movable)
    moved = {name for name in hosts if fitted[name] != hosts[name]}
    assert moved <= set(movable)
    assert all(fitted[name] == CLOUD for name in moved)
    over = budgets.exceeded(loads_of(graph, fitted, rates))
    assert not [name for name in movable if fitted[name] in over]
    if not budgets.exceeded(loads_of(graph, hosts, rates)):
        assert not moved
    whole = budgets.fit(graph, hosts, rates, LinkCosts())
    assert excess_of(used_by(graph, whole, rates), budgets)[0] == pytest.approx(0, abs=1e-6)


def test_a_graph_that_is_too_large_to_be_solved_keeps_to_the_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MAX_CHOICES", 3)
    friends: list[Friend] = [(0, b, 1.0, 1.0, 1e9) for b in range(1, 6)]
    graph = graph_of(DECLARED + NEARBY, friends)
    rates = {f"location@{d}": 9.0 if d == 0 else 1.0 for d in range(6)}
    free = least_traffic(graph, rates, LinkCosts())
    assert list(free.values()).count("0") == 5
    hosts = place_within(graph, free, rates, LinkCosts(), Budgets(DeviceBudget(views=2)))
    assert list(hosts.values()).count("0") == 2


def test_expected_sizes_of_messages_are_near_those_of_real_ones() -> None:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
    records = list(itertools.islice(Walkers(random.Random(3), 2).records(), 50))
    sizes = []
    for number, record in enumerate(records):
        at = 1_700_000_000_000 + number
        event = FeedEvent(f"location@{record.device}", (at,), 1_700_000_000_000_000, tuple(record.row[1:3]))
        sizes.append(len(encode(at, event)))
    assert message_bytes(graph, "location@0") == pytest.approx(sum(sizes) / len(sizes), rel=0.25)


# ---- a running cloud


def test_a_device_gets_no_more_views_than_its_budget_and_gives_up_those_that_become_too_much() -> None:
    friends: list[Friend] = [(0, b, 1.0, 1.0, 1e9) for b in (1, 2, 3)]
    graph = graph_of(DECLARED + NEARBY, friends[:2])
    budgets = Budgets(DeviceBudget(download_bytes_per_s=2.5 * message_bytes(graph, "location@1")))
    rule = ReoptimizeRule(patience=0.01, budgets=budgets)
    run = start(graph, dict.fromkeys(graph.views, CLOUD), 4, rule=rule)
    cloud = run.cloud
    assert isinstance(cloud, Cloud)
    walkers = Walkers(random.Random(5), 4, rate={0: 9.0, 1: 1.0, 2: 1.0, 3: 1.0})
    records = walkers.records()
    run.run(records, 8 * SECOND)
    run.send(cloud.review(8.0))
    run.run(records, 30 * SECOND)
    assert list(cloud.controller.current_hosts().values()).count("0") == 2
    newer = graph_of(DECLARED + NEARBY, friends)
    (added,) = newer.views.keys() - graph.views.keys()
    assert cloud.hosts_for_added(newer) == {added: CLOUD}, "a third one would be too much"
    cloud.rule = ReoptimizeRule(patience=0.01)
    assert cloud.hosts_for_added(newer) == {added: "0"}, "and only its budget keeps it away"
    cloud.rule = rule
    walkers.rate.update({1: 4.0, 2: 4.0})
    run.run(records, 40 * SECOND)
    run.send(cloud.review(1.0))
    run.run(records, 60 * SECOND)
    assert set(cloud.controller.current_hosts().values()) == {CLOUD}, "each of them alone is too much now"
    finish(run)
    due = naive_notices(graph, run.produced or [], cloud.controller.active_since_us)
    assert due
    assert due <= identities(run), "moves because of budgets lose nothing"


# ---- settings


def make_folder(folder: Path, settings: str, budgets: str = "") -> Path:
    (folder / "feeds.sql").write_text(DECLARED + NEARBY)
    (folder / "friends.csv").write_text("user,friend,share,friend_share,radius\n1,2,1,1,10\n")
    (folder / "feeds.toml").write_text(settings)
    (folder / "budgets.csv").write_text(budgets)
    return folder


def test_budgets_are_read_for_every_device_and_for_some(tmp_path: Path) -> None:
    text = '[budgets]\nupload = "2 KB/s"\nviews = 20\nper_device = "budgets.csv"\n'
    folder = make_folder(tmp_path, text, "device,upload,download,views\n7,100,,0\n8,,50.5,\n")
    budgets = open_project(folder).budgets
    assert budgets.of("1") == DeviceBudget(2000.0, math.inf, 20)
    assert budgets.of("7") == DeviceBudget(100.0, math.inf, 0)
    assert budgets.of("8") == DeviceBudget(math.inf, 50.5, math.inf)
    assert not open_project(make_folder(tmp_path, "")).budgets.are_bound


@pytest.mark.parametrize(
    ("settings_text", "budgets", "says"),
    [
        ('[budgets]\nupload = "2 KB"\n', "", "2 KB"),
        ("[budgets]\nviews = -1\n", "", "views"),
        ('[budgets]\nper_device = "b.csv"\n', "", "there is no b.csv"),
        ('[budgets]\nper_device = "budgets.csv"\n', "device,upload,download,views\n7,-1,,\n", "budgets.csv, line 2"),
        ('[budgets]\nper_device = "budgets.csv"\n', "device,upload,download\n7,1,\n", "expected device,upload"),
    ],
)
def test_wrong_budgets_are_refused_with_their_place(
    tmp_path: Path, settings_text: str, budgets: str, says: str
) -> None:
    with pytest.raises(FeedError, match=says):
        open_project(make_folder(tmp_path, settings_text, budgets))


def test_explain_and_clouds_place_within_the_budgets_of_the_project(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "[budgets]\nviews = 0\n")
    workload = load_workload(folder, needs_records=False)
    assert explain_workload(workload)["strategies"]["ours"]["views_on_devices"] == 0
    assert placement_rule(workload).budgets.of("1").views == 0
