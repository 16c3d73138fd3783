"""The assignment is the cheapest there is: against every placement, against an integer program, against a min-cut.

Every placement is tried on small graphs (it cannot miss a case, but sees few devices); the integer program and the
min-cut see larger ones, and share no step with the code under test.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.assign import Assignment, assign, place
from catchment.feeds.placement.pair_views.demand import DemandGraph
from tests.worlds.feeds_brute import (
    cheapest_pairs,
    cost_of_decisions,
    cut_cost,
    graph_of,
    ilp_cost,
    pair_costs,
    random_pairs,
)
from tests.worlds.tiers import examples

RATIOS = ((1.0, 1.0), (1.0, 2.0), (1.0, 1.25), (2.0, 1.0), (1.5, 1.0), (5.0, 1.0), (20.0, 1.0), (1.0, 0.0), (0.0, 1.0))
GRAPHS_A_CASE = 60


def _rates(rng: np.random.Generator, kind: str, devices: int, pairs: np.ndarray) -> np.ndarray:
    shape = (len(pairs), 2)
    if kind == "per edge":
        return rng.random(shape)
    if kind == "per edge, tied":
        return rng.integers(0, 4, shape).astype(float)
    of_device = rng.random(devices) if kind == "same" else rng.integers(0, 4, devices).astype(float)
    return of_device[pairs]


def _check(found: Assignment, up: np.ndarray, down: np.ndarray, least: float, slip: float = 1e-9) -> None:
    graph = found.graph
    assert found.cost == pytest.approx(least, abs=slip)
    assert found.optimal
    assert cost_of_decisions(graph, found.upload, up, down) == pytest.approx(found.cost, abs=1e-9)
    assert (found.upload | found.upload[graph.counterpart]).all(), "both sides of a pair download"


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda r: f"Cu={r[0]:g},Cd={r[1]:g}")
@pytest.mark.parametrize("kind", ["per edge", "per edge, tied", "same", "same, tied"])
def test_the_assignment_costs_the_least_of_all_placements(kind: str, ratio: tuple[float, float]) -> None:
    rng = np.random.default_rng([len(kind), int(100 * ratio[0]), int(100 * ratio[1])])
    for _ in range(GRAPHS_A_CASE):
        devices, pairs = random_pairs(rng, 6, 7)
        rates = _rates(rng, kind, devices, pairs)
        up, down = np.full(devices, ratio[0]), np.full(devices, ratio[1])
        found = assign(graph_of(devices, pairs, rates), DeviceCosts(*ratio))
        _check(found, up, down, cheapest_pairs(devices, pairs, rates, up, down))
        if ratio[0] <= ratio[1]:
            assert found.conflicts == 0


def test_each_device_may_have_its_own_costs() -> None:
    rng = np.random.default_rng(7)
    for _ in range(150):
        devices, pairs = random_pairs(rng, 6, 7)
        rates = rng.integers(0, 5, (len(pairs), 2)).astype(float)
        up, down = rng.random(devices) * 3, rng.random(devices)
        found = assign(graph_of(devices, pairs, rates), DeviceCosts(up, down))
        _check(found, up, down, cheapest_pairs(devices, pairs, rates, up, down))


def test_budgets_are_kept_at_the_least_cost() -> None:
    rng = np.random.default_rng(8)
    for turn in range(200):
        devices, pairs = random_pairs(rng, 6, 6)
        rates, load = rng.random((len(pairs), 2)), rng.integers(1, 4, (len(pairs), 2)).astype(float)
        capacity = rng.integers(0, 5, devices).astype(float)
        capacity[rng.random(devices) < 0.3] = np.inf
        up, down = np.full(devices, (1.0, 3.0)[turn % 2]), np.ones(devices)
        costs, choice = pair_costs(devices, pairs, rates, up, down)
        loads = np.zeros((devices, len(choice)))
        for p, (a, b) in enumerate(pairs):
            loads[a] += (choice[:, p] == 1) * load[p, 0]
            loads[b] += (choice[:, p] == 2) * load[p, 1]
        graph = graph_of(devices, pairs, rates, load=load.T.ravel())
        found = assign(graph, DeviceCosts(up[0], 1.0), budget=Budget(capacity))
        _check(found, up, down, costs[(loads <= capacity[:, None]).all(axis=0)].min())


@pytest.mark.parametrize("ratio", [(1.0, 1.0), (3.0, 1.0), (10.0, 1.0)])
def test_the_assignment_equals_an_integer_program_on_larger_graphs(ratio: tuple[float, float]) -> None:
    rng = np.random.default_rng(9)
    for _ in range(12):
        devices, pairs = random_pairs(rng, 14, 40)
        graph = graph_of(devices, pairs, rng.random((len(pairs), 2)))
        up, down = np.full(devices, ratio[0]), np.full(devices, ratio[1])
        slip = 1e-5  # HiGHS takes 1e-6 of a view for none
        _check(assign(graph, DeviceCosts(*ratio)), up, down, ilp_cost(graph, up, down), slip)


@pytest.mark.parametrize(("up", "down"), [(1, 1), (2, 3)])
def test_the_assignment_equals_the_min_cut_of_every_link_on_large_graphs(up: int, down: int) -> None:
    rng = np.random.default_rng(10)
    devices, every = 1500, np.stack(np.triu_indices(1500, 1), axis=1)
    pairs = every[rng.choice(len(every), 12_000, replace=False)]
    rates = np.minimum(rng.zipf(2.0, (len(pairs), 2)), 1000).astype(float)
    graph = graph_of(devices, pairs, rates)
    found = assign(graph, DeviceCosts(up, down))
    assert found.cost == cut_cost(graph, up, down)
    assert found.improvement > 1.2


@settings(max_examples=examples(150))
@given(data=st.data())
def test_any_order_of_the_rows_gives_the_same_decisions(data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.sampled_from([(a, b) for a in range(6) for b in range(a)]), min_size=1, unique=True))
    rows = [row for a, b in pairs for row in ((a, b), (b, a))]
    rates = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    costs = DeviceCosts(*data.draw(st.sampled_from([(1.0, 1.0), (3.0, 1.0), (1.0, 3.0)])))
    src, dst = np.asarray(rows).T
    shuffled = np.asarray(order)
    straight = assign(DemandGraph.from_edges(src, dst, rates), costs)
    mixed = assign(DemandGraph.from_edges(src[shuffled], dst[shuffled], np.asarray(rates)[shuffled]), costs)
    assert mixed.cost == straight.cost
    assert (mixed.upload == straight.upload).all()


def test_a_pair_of_equal_rates_is_left_to_the_cloud() -> None:
    found = assign(DemandGraph.from_edges([0, 1], [1, 0], [2.0, 2.0]), DeviceCosts(1.0, 1.0))
    assert found.upload.all()
    assert found.conflicts == 0


def test_a_busy_device_downloads_the_quiet_one() -> None:
    """Alice sends once an hour, Bob 360 times: her feed goes to him, 2 messages in place of 361."""
    found = assign(DemandGraph.from_named(["alice", "bob"], ["bob", "alice"], [1.0, 360.0]), DeviceCosts(1.0, 1.0))
    assert found.cost == 2.0
    assert found.all_upload_cost == 361.0
    placed = place(found)
    assert found.graph.name(int(placed.site[0])) == "bob"


def test_a_view_is_where_its_pair_downloads_else_at_the_cloud() -> None:
    rng = np.random.default_rng(11)
    devices, pairs = 40, np.stack(np.triu_indices(40, 1), axis=1)
    found = assign(graph_of(devices, pairs, rng.pareto(1.0, (len(pairs), 2))), DeviceCosts(2.0, 1.0))
    placed, graph = place(found), found.graph
    upload = dict(zip(zip(graph.src.tolist(), graph.dst.tolist(), strict=True), found.upload.tolist(), strict=True))
    for a, b, site in zip(placed.src.tolist(), placed.dst.tolist(), placed.site.tolist(), strict=True):
        expected = AT_CLOUD if upload[a, b] and upload[b, a] else (b if upload[a, b] else a)
        assert site == expected
    assert 0 < placed.at_cloud < graph.pairs


def test_an_empty_graph_costs_nothing() -> None:
    found = assign(DemandGraph.from_edges(np.zeros(0, dtype=int), np.zeros(0, dtype=int), []), DeviceCosts(1.0, 1.0))
    assert (found.cost, found.improvement, found.optimal) == (0.0, 1.0, True)


def test_devices_without_demands_cost_nothing() -> None:
    found = assign(DemandGraph.from_edges([1, 3], [3, 1], [1.0, 5.0], devices=6), DeviceCosts(1.0, 1.0))
    assert found.cost == 2.0
    assert found.threshold.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("costs", [(-1.0, 1.0), (1.0, float("nan")), (float("inf"), 1.0)])
def test_costs_that_are_no_costs_are_refused(costs: tuple[float, float]) -> None:
    with pytest.raises(FeedError, match="expected a finite number"):
        DeviceCosts(*costs)
