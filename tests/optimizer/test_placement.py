"""Placement over a WAN: the paper's example, the greedy rules, the local search and the exact program.

The oracle of the exact planner on tiny instances is the enumeration of every assignment; of the costs, a count of bytes
by hand. A greedy placement can never beat the exact one; how far it is off is measured, not asserted
(docs/measurements/sharing.md).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from catchment.errors import PlanError
from catchment.optimizer.placement.cost import cost_of, link_rates, throughput
from catchment.optimizer.placement.exact import place_exactly
from catchment.optimizer.placement.greedy import PlacementKind, WanPlacement, place_greedily
from catchment.optimizer.placement.local_search import improve
from catchment.optimizer.placement.operators import OperatorGraph, WanOperator
from catchment.optimizer.placement.topology import Topology, WanLink
from catchment.sim.printed_placement import choose_as_printed
from catchment.sim.wan_worlds import random_instance
from tests.worlds.placement_worlds import figure_one

MB = 1e6


def both_ways(a: str, b: str, bandwidth: float = 100 * MB, latency_s: float = 0.05) -> list[WanLink]:
    return [WanLink(a, b, bandwidth, latency_s), WanLink(b, a, bandwidth, latency_s)]


@pytest.mark.parametrize(("strength", "expected"), [("none", 75 * MB), ("strict", 55 * MB), ("full", 50 * MB)])
def test_the_papers_figure_one(strength: str, expected: float) -> None:
    topology, graph = figure_one()
    asked = graph.unshare() if strength == "none" else graph
    placed = place_greedily(WanPlacement(topology, multicast=strength == "full"), asked)
    assert placed.cost.wan_bytes_per_s == pytest.approx(expected)
    assert placed.rates == pytest.approx(link_rates(asked, placed.sites, topology, strength == "full"))


def test_left_to_the_planner_the_figures_queries_cost_less_than_drawn() -> None:
    """Drawn, campaigns are united in London and sent on at 10 MB/s; reading both sources at AdInfo's is cheaper."""
    topology, graph = figure_one(as_drawn=False)
    free = place_greedily(WanPlacement(topology, multicast=True), graph)
    exact = place_exactly(free)
    assert exact.optimal
    assert exact.placement.cost.wan_bytes_per_s <= free.cost.wan_bytes_per_s <= 50 * MB


def expanding() -> tuple[Topology, list[WanOperator], list[WanOperator]]:
    """A join that makes three bytes of one, wanted at two sites that both have the input nearby."""
    topology = Topology.of([*both_ways("s", "a"), *both_ways("s", "b"), *both_ways("a", "b")], ("s",))
    shared = [WanOperator("read", (), 10 * MB, "s"), WanOperator("expand", ("read",), 30 * MB)]
    first = [*shared, WanOperator("sink 1", ("expand",), 0, "a")]
    return topology, first, [*shared, WanOperator("sink 2", ("expand",), 0, "b")]


def test_in_op_can_be_worse_than_not_sharing_and_the_corrected_rule_sees_it() -> None:
    topology, first, second = expanding()
    fair = WanPlacement(topology, True).add("q1", first).add("q2", second)
    paper = WanPlacement(topology, True).add("q1", first, choose_as_printed).add("q2", second, choose_as_printed)
    assert fair.cost.wan_bytes_per_s == 20 * MB
    assert paper.cost.wan_bytes_per_s == 40 * MB
    decision = fair.decisions["q2", "expand"]
    assert decision.chosen.kind is not PlacementKind.IN_OP
    assert {c.kind for c in decision.choices} >= {PlacementKind.IN_OP, PlacementKind.DEPLOY}


def test_line_six_as_printed_lets_a_full_link_overflow() -> None:
    """All readers of the second query are new, so the printed extra output is 0 and the test passes."""
    links = [*both_ways("s", "a"), *both_ways("a", "b", 5 * MB), *both_ways("s", "b")]
    topology = Topology.of(links, ("s",))
    shared = [WanOperator("read", (), 10 * MB, "s"), WanOperator("map", ("read",), 8 * MB)]
    first = [*shared, WanOperator("sink 1", ("map",), 0, "a")]
    second = [*shared, WanOperator("sink 2", ("map",), 0, "b")]
    paper = WanPlacement(topology, True).add("q1", first, choose_as_printed).add("q2", second, choose_as_printed)
    fair = WanPlacement(topology, True).add("q1", first).add("q2", second)
    assert paper.cost.overload == 3 * MB
    assert fair.cost.overload == 0
    assert min(throughput(paper.graph, paper.sites, topology, True).values()) == pytest.approx(5 / 8)


def test_max_ignores_bandwidth_and_can_be_worse_than_full() -> None:
    links = [*both_ways("s", "a"), *both_ways("a", "b", 5 * MB), *both_ways("s", "b")]
    topology = Topology.of(links, ("s",))
    shared = [WanOperator("read", (), 10 * MB, "s"), WanOperator("map", ("read",), 8 * MB)]
    queries = {
        "q1": [*shared, WanOperator("sink 1", ("map",), 0, "a")],
        "q2": [*shared, WanOperator("sink 2", ("map",), 0, "b")],
    }
    graph = OperatorGraph.of(queries)
    full = place_greedily(WanPlacement(topology, True), graph)
    most = place_greedily(WanPlacement(topology, True, capacity=False), graph)
    assert most.cost.wan_bytes_per_s < full.cost.wan_bytes_per_s
    assert most.cost.overload > full.cost.overload == 0
    slowest = [min(throughput(p.graph, p.sites, topology, True).values()) for p in (most, full)]
    assert slowest[0] < slowest[1] == 1.0


def test_a_query_that_comes_or_goes_moves_no_other() -> None:
    topology, graph = random_instance(np.random.default_rng(5))
    placed = WanPlacement(topology, True)
    for query, names in graph.queries.items():
        wider = placed.add(query, [graph.operators[n] for n in names])
        assert all(wider.sites[k] == s for k, s in placed.sites.items())
        placed = wider
    for query in sorted(graph.queries):
        less = placed.drop(query)
        assert all(s == placed.sites[k] for k, s in less.sites.items())
        again = cost_of(link_rates(less.graph, less.sites, topology, True), topology)
        assert less.cost.wan_bytes_per_s == pytest.approx(again.wan_bytes_per_s)
        placed = less
    assert not placed.rates
    assert not placed.users


def test_a_stream_is_forwarded_over_a_site_between() -> None:
    topology = Topology.of([*both_ways("s", "hub"), *both_ways("hub", "a"), *both_ways("hub", "b")], ("s", "hub"))
    shared = [WanOperator("read", (), 10 * MB, "s")]
    queries = {n: [*shared, WanOperator(f"sink {n}", ("read",), 0, n)] for n in ("a", "b")}
    placed = place_greedily(WanPlacement(topology, True), OperatorGraph.of(queries))
    assert placed.rates == {("s", "hub"): 10 * MB, ("hub", "a"): 10 * MB, ("hub", "b"): 10 * MB}
    apart = place_greedily(WanPlacement(topology, False), OperatorGraph.of(queries))
    assert apart.rates["s", "hub"] == 20 * MB


def test_the_exact_planner_equals_enumeration_on_tiny_instances() -> None:
    rng = np.random.default_rng(2)
    for _ in range(6):
        topology, graph = random_instance(rng, sites=3, queries=2, sources=2)
        start = place_greedily(WanPlacement(topology, True), graph)
        free = [(q, n) for q, names in graph.queries.items() for n in names if graph.operators[n].site is None]
        costs = []
        for picked in product(topology.compute_sites, repeat=len(free)):
            sites = {**start.sites, **dict(zip(free, picked, strict=True))}
            cost = cost_of(link_rates(graph, sites, topology, True), topology)
            costs.append(cost.wan_bytes_per_s + 1000 * cost.overload)
        exact = place_exactly(start)
        assert exact.optimal
        found = exact.placement.cost
        assert found.wan_bytes_per_s + 1000 * found.overload == pytest.approx(min(costs), rel=1e-4)


@pytest.mark.parametrize("multicast", [True, False])
def test_greedy_and_search_are_never_below_the_exact_bound(multicast: bool) -> None:
    rng = np.random.default_rng(3)
    for _ in range(8):
        topology, graph = random_instance(rng)
        greedy = place_greedily(WanPlacement(topology, multicast), graph)
        better = improve(greedy)
        exact = place_exactly(better)
        price = [p.cost.wan_bytes_per_s + 1000 * p.cost.overload for p in (exact.placement, better, greedy)]
        assert exact.bound <= price[0] * (1 + 1e-4)
        assert price[0] <= price[1] * (1 + 1e-4)
        assert better.cost.key <= greedy.cost.key


def test_what_cannot_be_placed_is_refused_with_a_reason() -> None:
    topology = Topology.of([WanLink("s", "a")], ("s",))
    read = WanOperator("read", (), 1.0, "s")
    with pytest.raises(PlanError, match="no route from site 'a' to site 's'"):
        topology.required_route("a", "s")
    with pytest.raises(PlanError, match="no site that can compute"):
        WanPlacement(topology, True).add(
            "q", [read, WanOperator("m", ("read",), 1.0), WanOperator("k", ("m",), 0, "s")]
        )
    with pytest.raises(PlanError, match="which is no site"):
        WanPlacement(topology, True).add("q", [WanOperator("read", (), 1.0, "moon")])
    with pytest.raises(PlanError, match="before it is there"):
        OperatorGraph.of({"q": [WanOperator("m", ("read",), 1.0)]})
    with pytest.raises(PlanError, match="two different operators"):
        WanPlacement(topology, True).add("q", [read]).add("r", [WanOperator("read", (), 2.0, "s")])
    with pytest.raises(PlanError, match="bandwidths are positive"):
        WanLink("a", "b", 0.0)
