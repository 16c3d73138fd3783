"""The baselines of placement: operators dealt round over sites, and how late answers are where links are too slow.

The oracle of delays steps through time: every second each link is given what its flows send and lets through what it
carries, and what waits before it is counted.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from catchment.optimizer.placement.cost import query_flows
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.operators import OperatorGraph, WanOperator
from catchment.optimizer.placement.topology import LinkName, Topology, WanLink
from catchment.sim.even_spread import EvenSpread
from catchment.sim.wan_delay import answer_delays_s
from catchment.sim.wan_worlds import random_instance


def test_operators_are_dealt_evenly_whatever_the_links() -> None:
    rng = np.random.default_rng(7)
    for _ in range(5):
        topology, graph = random_instance(rng)
        placed = place_greedily(WanPlacement(topology, False), graph.unshare(), EvenSpread(random.Random(1)))
        free = [s for (_, name), s in placed.sites.items() if placed.graph.operators[name].site is None]
        dealt = Counter(free)
        counts = [dealt[site] for site in topology.compute_sites]
        assert max(counts) - min(counts) <= 1


def test_an_operator_that_runs_already_is_shared_where_it_runs() -> None:
    topology, graph = random_instance(np.random.default_rng(3))
    placed = place_greedily(WanPlacement(topology, True), graph, EvenSpread(random.Random(1)))
    assert all(len(placed.running(name)) == 1 for name in placed.graph.operators)


def step_through(placed: WanPlacement, after_s: int) -> dict[LinkName, float]:
    """What waits before each link after so many seconds, in seconds that it takes to carry it."""
    waiting = dict.fromkeys(placed.topology.links, 0.0)
    for _ in range(after_s):
        for name, link in placed.topology.links.items():
            waiting[name] = max(0.0, waiting[name] + placed.rates.get(name, 0.0) - link.bandwidth_bytes_per_s)
    return {name: waiting[name] / link.bandwidth_bytes_per_s for name, link in placed.topology.links.items()}


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_as_late_as_what_waits_on_their_slowest_way(seed: int) -> None:
    topology, graph = random_instance(np.random.default_rng(seed))
    placed = place_greedily(WanPlacement(topology, True), graph)
    waiting = step_through(placed, 50)
    for query, delay_s in answer_delays_s(placed, 50.0).items():
        names = placed.graph.queries[query]
        flows = list(query_flows(placed.graph, query, names, placed.sites, placed.topology, placed.multicast))
        links = {link: waiting[link] + placed.topology.links[link].latency_s for (_, link), _ in flows}
        assert delay_s == pytest.approx(_longest_s(placed, query, names[-1], links))


def _longest_s(placed: WanPlacement, query: str, operator: str, links: dict[LinkName, float]) -> float:
    """The slowest way to an operator, by trying all."""
    ways = [0.0]
    for producer in placed.graph.operators[operator].inputs:
        route = placed.topology.required_route(placed.sites[query, producer], placed.sites[query, operator])
        ways.append(_longest_s(placed, query, producer, links) + sum(links[link] for link in route))
    return max(ways)


def test_a_link_that_is_asked_for_twice_what_it_carries_is_a_second_later_every_second() -> None:
    topology = Topology.of([WanLink("edge", "sink", 100.0, 0.25)])
    operators = [WanOperator("read", (), 200.0, "edge"), WanOperator("publish", ("read",), 0.0, "sink")]
    placed = place_greedily(WanPlacement(topology, True), OperatorGraph.of({"q": operators}))
    assert answer_delays_s(placed, 0.0) == {"q": pytest.approx(0.25)}
    assert answer_delays_s(placed, 60.0) == {"q": pytest.approx(60.25)}
