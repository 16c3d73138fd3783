"""Uploads that do not nest, and the knapsacks of devices with budgets."""

from __future__ import annotations

import numpy as np
import pytest

from catchment.errors import FeedError
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.assign import place
from catchment.feeds.placement.pair_views.assign_unshared import assign_unshared
from tests.worlds.feeds_brute import graph_of, random_pairs

RATIOS = ((1.0, 1.0), (1.0, 2.0), (3.0, 1.0), (20.0, 1.0))


def _every_placement(
    devices: int, pairs: np.ndarray, rates: np.ndarray, load: np.ndarray, up: float, down: float
) -> tuple[np.ndarray, np.ndarray]:
    """The cost of every placement when each upload is paid for, and the load of each device."""
    choice = np.stack(np.meshgrid(*[np.arange(3)] * len(pairs), indexing="ij"), -1).reshape(-1, len(pairs))
    cost, loads = np.zeros(len(choice)), np.zeros((devices, len(choice)))
    for p, (a, b) in enumerate(pairs):
        cost += np.where(choice[:, p] == 1, down * rates[p, 1], up * rates[p, 0])
        cost += np.where(choice[:, p] == 2, down * rates[p, 0], up * rates[p, 1])
        loads[a] += (choice[:, p] == 1) * load[p, 0]
        loads[b] += (choice[:, p] == 2) * load[p, 1]
    return cost, loads


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda r: f"Cu={r[0]:g},Cd={r[1]:g}")
@pytest.mark.parametrize("equal_loads", [True, False], ids=["views count", "loads count"])
def test_the_knapsacks_are_filled_at_the_least_cost_of_all_placements(
    equal_loads: bool, ratio: tuple[float, float]
) -> None:
    rng = np.random.default_rng([equal_loads, int(ratio[0])])
    for _ in range(40):
        devices, pairs = random_pairs(rng, 5, 6)
        rates = rng.integers(0, 5, (len(pairs), 2)).astype(float)
        load = np.ones_like(rates) if equal_loads else rng.random(rates.shape)
        capacity = rng.random(devices) * 2.5
        capacity[rng.random(devices) < 0.3] = np.inf
        graph = graph_of(devices, pairs, rates, load=load.T.ravel())
        cost, loads = _every_placement(devices, pairs, rates, load, *ratio)
        within = (loads <= capacity[:, None]).all(axis=0)
        found = assign_unshared(graph, DeviceCosts(*ratio), budget=Budget(capacity))
        assert found.cost == pytest.approx(cost[within].min(), abs=1e-9)
        assert found.optimal
        assert (found.upload | found.upload[graph.counterpart]).all()
        free = assign_unshared(graph, DeviceCosts(*ratio))
        assert free.cost == pytest.approx(cost.min(), abs=1e-9)


def test_views_go_where_the_knapsacks_put_them() -> None:
    pairs, rates = np.asarray([[0, 1], [0, 2]]), np.asarray([[5.0, 1.0], [9.0, 1.0]])
    found = assign_unshared(
        graph_of(3, pairs, rates), DeviceCosts(1.0, 1.0), budget=Budget(np.asarray([1.0, 1.0, 1.0]))
    )
    assert place(found).site.tolist() == [AT_CLOUD, 0]


def test_without_time_a_knapsack_is_filled_greedily_and_the_gap_is_true() -> None:
    rng = np.random.default_rng(16)
    pairs = np.stack((np.zeros(40, dtype=np.int64), np.arange(1, 41)), axis=1)
    rates = np.stack((5 + rng.random(40), rng.random(40)), axis=1)
    graph = graph_of(41, pairs, rates, load=np.concatenate((1 + rng.random(40), np.ones(40))))
    budget = Budget(np.concatenate(([12.0], np.full(40, np.inf))))
    rough = assign_unshared(graph, DeviceCosts(1.0, 1.0), budget=budget, time_limit_s=0.0)
    exact = assign_unshared(graph, DeviceCosts(1.0, 1.0), budget=budget)
    assert exact.optimal
    assert exact.cost <= rough.cost + 1e-9
    assert rough.cost * (1 - rough.gap) <= exact.cost + 1e-9


def test_a_budget_must_be_a_number_for_every_device() -> None:
    with pytest.raises(FeedError, match="expected a number, 0 or more"):
        Budget(np.asarray([1.0, -2.0]))
    graph = graph_of(2, np.asarray([[0, 1]]), np.ones((1, 2)))
    with pytest.raises(FeedError, match="3 budgets for 2 devices"):
        assign_unshared(graph, DeviceCosts(1.0, 1.0), budget=Budget(np.ones(3)))
