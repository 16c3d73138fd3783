"""When views are placed anew, what it costs against a clairvoyant, and that nothing is lost by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import (
    LinkCosts,
    all_at_cloud,
    assignment_of,
    least_traffic,
    place_one_by_one,
)
from catchment.feeds.cloud.reoptimize import MovePrice, ReoptimizeRule
from catchment.feeds.cloud.routes import CLOUD, predict, source_of
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
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
    random_friends,
    start,
)
from tests.worlds.tiers import examples

PAIR = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
(NAME,) = PAIR.views
ONE = LinkCosts()
PRICE = 20.0
PLACES = (CLOUD, "0", "1")


def cost_at(host: str, rates: Mapping[str, float]) -> float:
    return predict(PAIR, {NAME: host}, rates).cost(1, 1)


def try_all_places(graph: ViewGraph, rates: Mapping[str, float], costs: LinkCosts) -> dict[str, str]:
    return {NAME: min(PLACES, key=lambda place: cost_at(place, rates))}


def clairvoyant(history: list[dict[str, float]], start_at: str) -> float:
    """The least cost of serving a known history, by dynamic programming over the three places."""
    best = {place: (0.0 if place == start_at else PRICE) for place in PLACES}
    for rates in history:
        served = {place: best[place] + cost_at(place, rates) for place in PLACES}
        best = {place: min(served[place], min(served.values()) + PRICE) for place in PLACES}
    return min(best.values())


def play(
    patience: float, choose: Callable[[str], dict[str, float]], steps: int
) -> tuple[float, list[dict[str, float]], int]:
    """The cost of the rule against rates that are chosen knowing the present host."""
    account = ReoptimizeRule(patience=patience, strategy=try_all_places).build(lambda *_: PRICE)
    host, paid, moves, history = "0", 0.0, 0, []
    for _ in range(steps):
        rates = choose(host)
        history.append(rates)
        paid += cost_at(host, rates)
        best = account.observe(PAIR, {NAME: host}, rates, 1.0)
        if best is not None and best[NAME] != host:
            host, paid, moves = best[NAME], paid + PRICE, moves + 1
    return paid, history, moves


def hit_the_host(host: str) -> dict[str, float]:
    """Make what the present host downloads dear, and the other's cheap."""
    return {"location@0": 0.25 if host == "1" else 0.0, "location@1": 0.25 if host != "1" else 0.0}


def test_an_adversary_makes_the_rule_pay_three_times_the_optimum_and_no_more() -> None:
    paid, history, moves = play(2.0, hit_the_host, 1200)
    assert moves > 10
    assert paid <= 3.05 * clairvoyant(history, "0") + 3 * PRICE


def test_acting_at_once_the_overhead_can_cost_four_times_the_optimum() -> None:
    paid, history, _ = play(1.0, hit_the_host, 1200)
    assert paid > 3.7 * clairvoyant(history, "0")


@settings(max_examples=examples(8))
@given(st.integers(0, 10_000), st.sampled_from([1, 5, 40, 150]))
def test_against_random_rates_the_rule_is_within_three_times_the_optimum(seed: int, stay: int) -> None:
    rng, current = random.Random(seed), {}

    def choose(host: str) -> dict[str, float]:
        if not current or rng.random() < 1 / stay:
            current.update({"location@0": rng.random() / 4, "location@1": rng.random() / 4})
        return dict(current)

    paid, history, _ = play(2.0, choose, 400)
    assert paid <= 3.05 * clairvoyant(history, "0") + 3 * PRICE


def test_an_account_without_loss_is_opened_anew() -> None:
    account = ReoptimizeRule().build(lambda *_: PRICE)
    good, bad = {"location@0": 5.0, "location@1": 0.1}, {"location@0": 0.1, "location@1": 1.0}
    assert account.observe(PAIR, {NAME: "0"}, good, 60.0) is None
    assert account.open_s == 0.0
    assert account.observe(PAIR, {NAME: "0"}, bad, 1.0) is None
    assert (account.open_s, account.lost) == (1.0, pytest.approx(1.8))


def test_a_rule_without_patience_or_time_is_refused() -> None:
    with pytest.raises(FeedError, match="patience"):
        ReoptimizeRule(patience=0)
    with pytest.raises(FeedError, match="cannot be booked"):
        ReoptimizeRule().build().observe(PAIR, {NAME: CLOUD}, {}, 0.0)
    with pytest.raises(FeedError, match="link costs"):
        LinkCosts(-1, 1)


def test_the_price_of_a_move_is_its_instructions_and_the_overlap() -> None:
    rates = {"location@0": 2.0, "location@1": 1.0}
    price = MovePrice(per_device=5, per_view=10)(PAIR, {NAME: CLOUD}, {NAME: "0"}, rates)
    assert price == 2 * 5 + 10 + 3 * 1.0  # for 3 seconds device 0 downloads device 1's feed as well
    assert MovePrice()(PAIR, {NAME: "0"}, {NAME: "0"}, rates) == 0


# ---- placements


def friends_and_rates(seed: int, devices: int = 10) -> tuple[list[Friend], dict[str, float]]:
    rng = random.Random(seed)
    rates = {f"location@{i}": rng.choice((0.5, 1.0, 4.0, 9.0)) for i in range(devices)}
    return random_friends(rng, devices, 18), rates


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.sampled_from([(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (5.0, 1.0)]))
def test_the_routes_of_a_placement_cost_what_the_assignment_says(seed: int, link: tuple[float, float]) -> None:
    friends, rates = friends_and_rates(seed)
    graph, costs = graph_of(DECLARED + NEARBY, friends), LinkCosts(*link)
    assignment = assignment_of(graph, rates, costs)
    assert assignment is not None
    routed = predict(graph, least_traffic(graph, rates, costs), rates).cost(*link)
    assert routed == pytest.approx(assignment.cost)
    at_cloud = predict(graph, all_at_cloud(graph, rates, costs), rates).cost(*link)
    assert at_cloud == pytest.approx(assignment.all_upload_cost)


def test_a_view_over_views_goes_where_it_adds_least() -> None:
    graph = graph_of(DECLARED + LAYERED, [(0, 1, 1.0, 1.0, 1e9)])
    lower, upper = graph.views
    rates = {"location@0": 9.0, "location@1": 1.0, "status[free]@1": 0.1, lower: 2.0}
    hosts = least_traffic(graph, rates, ONE)
    assert hosts == {lower: "0", upper: "0"}
    dear = {**rates, "status[free]@1": 50.0, lower: 0.1}
    assert least_traffic(graph, dear, ONE) == {lower: "0", upper: "1"}


WATCHED = (
    NEARBY
    + """
CREATE TABLE watchers (user BIGINT, watcher BIGINT);
CREATE FEED VIEW watched AS SELECT n.user, s.user AS watcher FROM nearby n
JOIN watchers w ON w.user = n.user JOIN status s ON s.user = w.watcher WHERE s.free;
"""
)


@settings(max_examples=examples(25))
@given(st.integers(0, 10_000), st.sampled_from([(1.0, 1.0), (1.0, 3.0), (3.0, 1.0)]))
def test_views_over_views_are_placed_as_cheaply_as_the_best_of_all_placements(
    seed: int, link: tuple[float, float]
) -> None:
    rng = random.Random(seed)
    friends = random_friends(rng, 3, 3)
    watchers = [(rng.randrange(3), rng.choice((3, 4))) for _ in range(2)]
    data = ReferenceData({"friends": friends, "watchers": watchers})
    graph = generate_views(read_program(DECLARED + WATCHED), data)
    rates = {name: rng.choice((0.2, 1.0, 3.0)) for name in (*graph.feeds, *graph.views)}
    ours = predict(graph, least_traffic(graph, rates, LinkCosts(*link)), rates).cost(*link)
    assert ours == pytest.approx(min(predict(graph, h, rates).cost(*link) for h in every_placement(graph)))


@settings(max_examples=examples(25))
@given(st.integers(0, 10_000), st.booleans())
def test_where_devices_pay_differently_the_placement_is_still_the_best_of_all(seed: int, layered: bool) -> None:
    rng = random.Random(seed)
    friends = random_friends(rng, 4, 4)
    watchers = [(rng.randrange(4), 4)]
    data = ReferenceData({"friends": friends[: 2 if layered else 4], "watchers": watchers})
    graph = generate_views(read_program(DECLARED + (WATCHED if layered else NEARBY)), data)
    rates = {name: rng.choice((0.2, 1.0, 3.0)) for name in (*graph.feeds, *graph.views)}
    prices = {device: (rng.choice((0.0, 1.0, 5.0)), rng.choice((0.5, 1.0, 4.0))) for device in graph.devices[::2]}
    costs = LinkCosts(1.0, 2.0, prices)

    def cost(hosts: Mapping[str, str]) -> float:
        traffic = predict(graph, hosts, rates)
        return costs.of_messages(traffic.up, traffic.down)

    assert cost(least_traffic(graph, rates, costs)) == pytest.approx(min(map(cost, every_placement(graph))))


def test_a_device_whose_link_is_dear_computes_nothing_for_others() -> None:
    rates = {"location@0": 9.0, "location@1": 1.0}
    assert least_traffic(PAIR, rates, ONE) == {NAME: "0"}
    dear = LinkCosts(of_device={"0": (1.0, 20.0)})
    assert least_traffic(PAIR, rates, dear) == {NAME: CLOUD}
    rule = ReoptimizeRule(dear).build(lambda *_: 0.0)
    assert rule.observe(PAIR, {NAME: "0"}, rates, 10.0) == {NAME: CLOUD}, "a running cloud follows it too"


def every_placement(graph: ViewGraph) -> Iterator[dict[str, str]]:
    """Each view at the cloud or with one of its inputs."""
    placements: list[dict[str, str]] = [{}]
    for name, view in graph.views.items():
        placements = [
            {**hosts, name: place}
            for hosts in placements
            for place in {CLOUD, *(source_of(graph, hosts, i) for i in view.inputs)}
        ]
    yield from placements


def test_an_added_view_does_not_move_the_others() -> None:
    friends, rates = friends_and_rates(4)
    graph = graph_of(DECLARED + NEARBY, friends)
    before = dict.fromkeys(list(graph.views)[:-1], CLOUD)
    added = graph.views[list(graph.views)[-1]]
    after = place_one_by_one(graph, before, [added], rates, ONE)
    assert {name: after[name] for name in before} == before
    options = [predict(graph, {**before, added.name: h}, rates).cost(1, 1) for h in (CLOUD, *graph.origins(added.name))]
    assert predict(graph, after, rates).cost(1, 1) == pytest.approx(min(options))


# ---- live


def test_rates_that_change_are_measured_and_views_move_without_a_lost_notification() -> None:
    rng = random.Random(3)
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, 8, 14))
    walkers = Walkers(rng, 8, rate={i: (4.0 if i % 2 else 0.5) for i in range(8)})
    rates = {f.name: walkers.rate[int(f.device)] for f in graph.feeds.values()}
    run = start(graph, least_traffic(graph, rates, ONE), 8)
    run.cloud.controller.rates.update(rates)
    run.every(2 * SECOND, lambda r: r.send(r.cloud.review(2.0)))

    def swap(r: LocalRun) -> None:
        walkers.rate.update({i: (0.5 if i % 2 else 4.0) for i in range(8)})

    run.at(20 * SECOND, swap)
    run.run(walkers.records(), 90 * SECOND)
    finish(run)
    assert run.cloud.redeployed >= 1
    assert identities(run) == naive_notices(graph, run.produced or [])
    changed = {f.name: walkers.rate[int(f.device)] for f in graph.feeds.values()}
    now = predict(graph, run.cloud.controller.current_hosts(), changed).cost(1, 1)
    assert now == pytest.approx(predict(graph, least_traffic(graph, changed, ONE), changed).cost(1, 1), rel=0.05)
    stale = predict(graph, least_traffic(graph, rates, ONE), changed).cost(1, 1)
    assert now < stale


def test_steady_rates_cause_no_redeployment() -> None:
    rng = random.Random(5)
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, 6, 8))
    walkers = Walkers(rng, 6, rate={i: 1.0 + i for i in range(6)})
    rates = {f.name: walkers.rate[int(f.device)] for f in graph.feeds.values()}
    run = start(graph, least_traffic(graph, rates, ONE), 6)
    run.cloud.controller.rates.update(rates)
    run.every(2 * SECOND, lambda r: r.send(r.cloud.review(2.0)))
    run.run(walkers.records(), 60 * SECOND)
    assert run.cloud.redeployed == 0
