"""Edge clouds under a cloud: views at devices, at edge clouds and at the cloud, against the naive recomputation.

The oracle is that of one cloud: every raw record in one place. It cannot catch a wrong view graph. The placement is
compared with every possible one, by the traffic of all links.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import least_traffic
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.edge_cloud import EdgeCloud, EdgeConfig
from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.place_at_edges import place_at_edges
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Deliver, Router
from catchment.feeds.cloud.routes import CLOUD, check_hosts, predict
from catchment.feeds.device.device import DeviceConfig, SendUp
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.protocol.channel import DATA
from catchment.feeds.protocol.messages import (
    Admitted,
    FeedEvent,
    Hello,
    Notice,
    RateReport,
    Refused,
    RelayedMessage,
    Reset,
    Upward,
)
from catchment.feeds.runs.board import Board
from catchment.feeds.runs.edge_bus import EdgeBus
from catchment.feeds.runs.local_run import Carrier, LocalRun, carry_until_quiet
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_world import (
    DECLARED,
    FILTERED,
    HOURLY,
    LAYERED,
    NEARBY,
    SECOND,
    TRIO,
    Walkers,
    carry_at_random,
    graph_of,
    random_friends,
)
from tests.worlds.tiers import examples

DEVICES = 6
EDGES = ("north", "south")
seeds = st.integers(0, 10_000)


def attachments(rng: random.Random) -> dict[str, str]:
    """Every device is attached to one of the edge clouds, or to the cloud itself."""
    chosen = {str(i): rng.choice((*EDGES, *EDGES, CLOUD)) for i in range(DEVICES)}
    return {device: edge for device, edge in chosen.items() if edge != CLOUD}


def possible_hosts(graph: ViewGraph, view: str, tree: EdgeTree) -> list[str]:
    origins = graph.origins(view)
    return sorted({CLOUD} | origins | tree.edges_above(origins))


def random_hosts(rng: random.Random, graph: ViewGraph, tree: EdgeTree) -> dict[str, str]:
    return {view: rng.choice(possible_hosts(graph, view, tree)) for view in graph.views}


class EdgeRun(LocalRun):
    """A fleet whose devices are attached to edge clouds, these, and a cloud, on one bus."""

    def __init__(self, graph: ViewGraph, edge_of: dict[str, str], carry: Carrier = carry_until_quiet) -> None:
        self.edges = [EdgeCloud(EdgeConfig(name, report_every_us=2 * SECOND)) for name in EDGES]
        self.links = EdgeBus(self.edges, edge_of, max_queued=1_000_000)
        fleet = Fleet([DeviceConfig(str(i), report_every_us=2 * SECOND) for i in range(DEVICES)], self.links)
        for device in fleet.devices.values():
            device.notified.capacity = 1_000_000
        self.tree = EdgeTree(EDGES)
        self.rule = ReoptimizeRule(tree=self.tree, costs=LinkCosts(of_device=dict.fromkeys(EDGES, (1.0, 1.0))))
        super().__init__(Cloud(graph, Router(compile_feeds(graph.program)), rule=self.rule), fleet, self.links)
        self.produced = []
        self.every(SECOND, lambda run: self.links.tick(run.now_us))
        self.links.begin(0)
        carry_until_quiet(self)
        self.connect_all()
        self.carry = carry

    def deploy(self, hosts: dict[str, str]) -> None:
        self.send(self.cloud.deploy(hosts))

    def cut(self, name: str, from_us: int, to_us: int) -> None:
        """Let the link of a device, or of an edge cloud, be down for a while."""

        def down(run: LocalRun) -> None:
            if name in EDGES:
                self.links.disconnect(name)
            else:
                self.fleet.disconnect(name, run.now_us)

        self.at(from_us, down)
        self.at(to_us, lambda run: self.connect(name))

    def connect(self, name: str) -> None:
        if name in EDGES:
            self.links.connect(name)
        else:
            self.fleet.connect(name, self.now_us)

    def finish(self) -> None:
        """Let everything that is under way arrive."""
        self.carry = carry_until_quiet
        for name in (*EDGES, *self.fleet.devices):
            self.connect(name)
        for _ in range(30):
            carry_until_quiet(self)
            self.now_us += SECOND
            self.links.tick(self.now_us)
            self.fleet.tick(self.now_us)
        carry_until_quiet(self)
        assert not self.cloud.controller.moving

    def check(self, graph: ViewGraph) -> None:
        found = Counter(notice.identity for notice in self.fleet.notices)
        assert set(found) == naive_notices(graph, self.produced or [])
        assert set(found.values()) <= {1}


@settings(max_examples=examples(15))
@given(seeds, st.sampled_from([NEARBY, HOURLY, FILTERED, LAYERED, TRIO]))
def test_notices_are_those_of_the_naive_recomputation_wherever_views_are_in_the_tree(seed: int, view: str) -> None:
    rng = random.Random(seed)
    graph = graph_of(DECLARED + view, random_friends(rng, DEVICES, 9))
    run = EdgeRun(graph, attachments(rng))
    run.deploy(random_hosts(rng, graph, run.tree))
    carry_until_quiet(run)
    run.carry = carry_at_random(rng)
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 15 * SECOND)
    run.finish()
    run.check(graph)
    assert all(edge.refused == 0 for edge in run.edges)
    assert run.cloud.controller.refused == 0


@settings(max_examples=examples(20))
@given(seeds, st.sampled_from([NEARBY, HOURLY, LAYERED, TRIO]))
def test_nothing_is_lost_or_doubled_while_views_move_in_the_tree_and_links_go_down(seed: int, view: str) -> None:
    rng = random.Random(seed)
    graph = graph_of(DECLARED + view, random_friends(rng, DEVICES, 9))
    run = EdgeRun(graph, attachments(rng))
    run.deploy(random_hosts(rng, graph, run.tree))
    carry_until_quiet(run)
    run.carry = carry_at_random(rng)
    for _ in range(5):
        run.at(rng.randrange(30 * SECOND), lambda r: run.deploy(random_hosts(rng, graph, run.tree)))
    for _ in range(3):
        run.cut(str(rng.randrange(DEVICES)), gone := rng.randrange(25 * SECOND), gone + rng.randrange(10 * SECOND))
    for edge in EDGES:
        run.cut(edge, gone := rng.randrange(25 * SECOND), gone + rng.randrange(10 * SECOND))
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 32 * SECOND)
    run.finish()
    run.check(graph)
    assert run.cloud.controller.current_hosts() == {v: run.cloud.controller.hosts_of(v)[0] for v in graph.views}
    assert all(edge.refused == 0 for edge in run.edges)


def test_what_crosses_every_link_is_what_was_predicted() -> None:
    rng = random.Random(3)
    graph = graph_of(DECLARED + NEARBY, [(i, j, 1.0, 0.5, 1e9) for i in range(DEVICES) for j in range(i)])
    run = EdgeRun(graph, {str(i): EDGES[i % 2] for i in range(4)})
    hosts = random_hosts(rng, graph, run.tree)
    assert set(EDGES) < set(hosts.values())
    run.deploy(hosts)
    carry_until_quiet(run)
    walkers = Walkers(rng, DEVICES, rate=dict.fromkeys(range(DEVICES), 2.0))
    run.run(walkers.records(), 100 * SECOND)
    predicted = predict(graph, hosts, {f"location@{i}": 2.0 for i in range(DEVICES)}, run.tree)
    for name, link in run.links.traffic().items():
        assert link.up.messages[DATA] / 100 == pytest.approx(predicted.up.get(name, 0.0), rel=0.05, abs=0.05), name
        assert link.down.messages[DATA] / 100 == pytest.approx(predicted.down.get(name, 0.0), rel=0.05, abs=0.05), name


# ---- placement


def every_placement(graph: ViewGraph, tree: EdgeTree) -> Iterator[dict[str, str]]:
    possible = [possible_hosts(graph, view, tree) for view in graph.views]
    for hosts in itertools.product(*possible):
        yield dict(zip(graph.views, hosts, strict=True))


def random_tree(rng: random.Random) -> EdgeTree:
    tree = EdgeTree(EDGES)
    tree.edge_of.update(attachments(rng))
    return tree


@settings(max_examples=examples(60))
@given(seeds, st.sampled_from([0.3, 1.0, 4.0]))
def test_the_two_steps_are_the_best_of_all_placements_in_the_tree(seed: int, edge_cost: float) -> None:
    rng = random.Random(seed)
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, DEVICES, 5))
    tree = random_tree(rng)
    costs = LinkCosts(of_device=dict.fromkeys(EDGES, (edge_cost, edge_cost)))
    rates = {feed: rng.choice((0.1, 1.0, 3.0, 10.0)) for feed in graph.feeds}

    def cost(hosts: dict[str, str]) -> float:
        traffic = predict(graph, hosts, rates, tree)
        return costs.of_messages(traffic.up, traffic.down)

    hosts = ReoptimizeRule(costs, tree=tree).place(graph, rates, rates)
    check_hosts(graph, hosts, tree)
    assert cost(hosts) == pytest.approx(min(map(cost, every_placement(graph, tree))))


@settings(max_examples=examples(40))
@given(seeds, st.sampled_from([LAYERED, TRIO]))
def test_placing_at_edge_clouds_never_sends_more_than_at_the_cloud(seed: int, view: str) -> None:
    rng = random.Random(seed)
    graph = graph_of(DECLARED + view, random_friends(rng, DEVICES, 4))
    tree = random_tree(rng)
    costs = LinkCosts()
    rates = {feed: rng.choice((0.1, 1.0, 3.0, 10.0)) for feed in (*graph.feeds, *graph.consumers)}
    star = least_traffic(graph, rates, costs)
    hosts = place_at_edges(graph, star, rates, costs, tree)
    check_hosts(graph, hosts, tree)
    assert {v: h for v, h in star.items() if h != CLOUD} == {v: hosts[v] for v, h in star.items() if h != CLOUD}

    def cost(placed: dict[str, str]) -> float:
        return predict(graph, placed, rates, tree).cost(1, 1)

    assert cost(hosts) <= cost(star) + 1e-9


def test_views_between_devices_of_one_edge_cloud_stay_below_its_link() -> None:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9), (1, 2, 1.0, 1.0, 1e9), (0, 3, 1.0, 1.0, 1e9)])
    run = EdgeRun(graph, {"0": "north", "1": "north", "2": "north"})
    rates = dict.fromkeys(graph.feeds, 1.0) | {"location@3": 9.0}
    hosts = run.rule.place(graph, rates, rates)
    inner = [view for view in graph.views if "3" not in graph.origins(view)]
    assert all(hosts[view] in ("north", *graph.origins(view)) for view in inner)
    run.deploy(hosts)
    carry_until_quiet(run)
    run.run(Walkers(random.Random(1), DEVICES, rate=dict.fromkeys(range(DEVICES), 1.0)).records(), 20 * SECOND)
    run.finish()
    run.check(graph)
    assert hosts["nearby(location@0,location@3)"] == "3"
    assert {*run.cloud.controller.moves.table.uploads} == {f"location@{i}" for i in range(3)}
    assert "north" in run.cloud.controller.moves.table.uploads["location@0"], "3 is attached to the cloud"
    assert "north" not in run.cloud.controller.moves.table.uploads["location@1"]


def test_a_placement_at_an_edge_cloud_of_no_origin_is_refused() -> None:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
    tree = EdgeTree(EDGES)
    tree.edge_of["0"] = "north"
    with pytest.raises(FeedError, match="possible: cloud, 0, 1, north"):
        check_hosts(graph, dict.fromkeys(graph.views, "south"), tree)


def test_a_board_shows_the_levels() -> None:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9), (0, 2, 1.0, 1.0, 1e9), (2, 3, 1.0, 1.0, 1e9)])
    run = EdgeRun(graph, {"0": "north", "1": "north", "2": "south"})
    pairs = ("nearby(location@0,location@1)", "nearby(location@0,location@2)", "nearby(location@2,location@3)")
    run.deploy(dict(zip(pairs, ("north", CLOUD, "2"), strict=True)))
    carry_until_quiet(run)
    board = Board("ours", run.cloud.controller, run.links.above.traffic, LinkCosts(), {})
    run.cloud.controller.rates.update(dict.fromkeys(graph.feeds, 2.0))
    records = Walkers(random.Random(4), DEVICES, rate=dict.fromkeys(range(DEVICES), 2.0)).records()
    for second in range(1, 30):
        run.run(records, second * SECOND)
        board.sample(run.now_us, 0)
    shown = board.snapshot()
    assert [shown[f"views_{level}"] for level in ("at_cloud", "at_edges", "on_devices")] == [1, 1, 1]
    assert shown["devices_heard"] == DEVICES
    north, south = shown["edges"]
    assert (north["edge"], north["devices"], north["views"], north["views_below"]) == ("north", 2, 1, 0)
    assert (south["edge"], south["devices"], south["views"], south["views_below"]) == ("south", 1, 0, 1)
    assert min(north["sent"], north["received"], south["sent"], south["received"]) > 0
    last = shown["history"][-1]
    assert last["messages_up"] == pytest.approx(shown["predicted"]["present"]["messages_up"], rel=0.15)
    assert last["messages_down"] == pytest.approx(shown["predicted"]["present"]["messages_down"], rel=0.15)


# ---- what an edge cloud takes


def told_edge() -> tuple[EdgeRun, EdgeCloud]:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
    run = EdgeRun(graph, {"0": "north", "1": "north"})
    run.deploy(dict.fromkeys(graph.views, "north"))
    carry_until_quiet(run)
    return run, run.links.edges["north"]


@pytest.mark.parametrize(
    "message",
    [
        FeedEvent("location@1", (1,), 5, (48.0, 2.0)),
        FeedEvent("location@0", (1,), 5, ("48", 2.0)),
        FeedEvent("location@0", (1,), 5, (48.0, 2.0, 1.0)),
        FeedEvent("nearby(location@0,location@1)", (1, 1, 0), 5, (0, 1, 2.0)),
        Notice("nearby(location@0,location@1)", "1", (1, 1, 0), 5, (0, 1, 2.0)),
        RelayedMessage("1", Hello(1)),
    ],
)
def test_a_device_is_heard_only_with_what_it_was_told_to_send(message: Upward) -> None:
    _, edge = told_edge()
    assert not list(edge.from_device("0", message))
    assert edge.refused == 1
    assert list(edge.from_device("0", FeedEvent("location@0", (1,), 5, (48.0, 2.0)))) == []
    assert edge.refused == 1


def test_a_hello_in_the_name_of_another_device_does_not_get_its_notices() -> None:
    _, edge = told_edge()
    assert edge.router is not None
    (view,) = edge.router.publisher.host.installed
    edge.told["0"].add(view)
    notice = Notice(view, "elsewhere", (1, 1, 0), 5, (0, 1, 2.0))
    beyond = [SendUp(RelayedMessage("0", notice))]
    list(edge.from_device("elsewhere", Hello(7, "guessed")))
    assert list(edge.from_device("0", notice)) == beyond, "the cloud has not admitted it here"
    list(edge.from_cloud(RelayedMessage("elsewhere", Admitted(7)), 0))
    assert list(edge.from_device("0", notice)) == [Deliver("elsewhere", notice)]
    list(edge.from_cloud(RelayedMessage("elsewhere", Refused(8, "the token is wrong")), 0))
    assert list(edge.from_device("0", notice)) == [Deliver("elsewhere", notice)], "it did not say that itself"
    list(edge.from_cloud(RelayedMessage("elsewhere", Reset()), 0))
    assert list(edge.from_device("0", notice)) == beyond


def test_only_an_edge_cloud_relays_and_only_its_own_devices() -> None:
    run, _ = told_edge()
    cloud = run.cloud
    report = RateReport((("location@0", 90),), SECOND)
    for link, relayed in (
        ("2", RelayedMessage("3", Hello(7))),
        ("south", RelayedMessage("0", report)),
        ("south", RelayedMessage("0", Hello(0))),
        ("north", RelayedMessage("south", Hello(7))),
        ("north", RelayedMessage("0", Reset())),
    ):
        before = dict(cloud.controller.tree.edge_of)
        assert list(cloud.receive(link, relayed)) == []
        assert cloud.controller.tree.edge_of == before
    assert "location@0" not in cloud.controller.rates
    assert list(cloud.receive("south", FeedEvent("location@0", (1,), 5, (48.0, 2.0)))) == []
    assert cloud.controller.refused >= 5


def test_an_edge_cloud_that_lost_its_state_is_told_everything_again_and_so_are_its_devices() -> None:
    graph = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9), (1, 2, 1.0, 1.0, 1e9)])
    run = EdgeRun(graph, {"0": "north", "1": "north"})
    run.deploy({"nearby(location@0,location@1)": "north", "nearby(location@1,location@2)": "1"})
    carry_until_quiet(run)
    records = Walkers(random.Random(1), DEVICES).records()
    run.run(records, 5 * SECOND)
    fresh = EdgeCloud(EdgeConfig("north", report_every_us=2 * SECOND))
    run.links.edges["north"] = run.edges[0] = fresh
    run.links._act("north", fresh.begin(10**16))
    carry_until_quiet(run)
    lost_until_us = run.now_us
    run.run(records, 30 * SECOND)
    run.finish()
    assert fresh.router is not None
    assert set(fresh.router.publisher.host.installed) == {"nearby(location@0,location@1)"}
    assert set(fresh.attached) == {"0", "1"}
    since = dict.fromkeys(graph.views, lost_until_us)
    assert {n.identity for n in run.fleet.notices} >= naive_notices(graph, run.produced or [], since)
    assert fresh.refused == 0
