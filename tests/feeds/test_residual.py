"""Conflicts are resolved at the least cost: trees, bipartite and odd components, and what happens without time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.pair_views.assign import assign
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem
from catchment.feeds.placement.pair_views.residual import solve_lifts
from catchment.feeds.placement.pair_views.residual_bound import solve_roughly, take_back
from catchment.feeds.placement.pair_views.residual_cut import solve_with_cycles
from catchment.feeds.placement.pair_views.residual_tree import solve_forest
from tests.worlds.feeds_brute import graph_of


def _clock() -> float:
    return 0.0


def _random_problem(rng: np.random.Generator, shape: str) -> LiftProblem:
    """Nodes with up to three levels of rising cost, pairs on distinct node pairs of the wanted shape."""
    nodes = int(rng.integers(2, 7))
    if shape == "tree":
        ends = [(int(rng.integers(0, node)), node) for node in range(1, nodes)]
    else:
        every = [(a, b) for a, b in itertools.combinations(range(nodes), 2) if shape == "any" or (a + b) % 2]
        ends = [every[k] for k in rng.permutation(len(every))[: int(rng.integers(1, len(every) + 1))]]
    levels = rng.integers(1, 4, nodes)
    start = np.concatenate(([0], np.cumsum(levels)))
    cost = np.concatenate([np.cumsum(rng.integers(0, 4, k)) for k in levels]).astype(float)
    left, right = (np.asarray([start[e[s]] + rng.integers(0, levels[e[s]]) for e in ends]) for s in (0, 1))
    return LiftProblem(start, cost, left, right)


def _least(problem: LiftProblem) -> float:
    choices = itertools.product(*(range(int(k) + 1) for k in np.diff(problem.start)))
    every = (np.asarray(choice) for choice in choices)
    return min(problem.cost_of(choice) for choice in every if problem.is_resolved(choice))


@pytest.mark.parametrize("shape", ["tree", "bipartite", "any"])
def test_lifts_cost_the_least_of_all_choices(shape: str) -> None:
    rng = np.random.default_rng(len(shape))
    for _ in range(120):
        problem = _random_problem(rng, shape)
        found = solve_lifts(problem, 60.0, _clock)
        assert problem.is_resolved(found.reached)
        assert found.cost == pytest.approx(_least(problem), abs=1e-9)
        assert found.optimal
        assert sum(found.kinds.values()) == found.components


def test_dynamic_programming_and_integer_programming_agree_on_large_trees() -> None:
    rng = np.random.default_rng(3)
    nodes = 3000
    levels = rng.integers(1, 6, nodes)
    start = np.concatenate(([0], np.cumsum(levels)))
    cost = np.concatenate([np.cumsum(rng.random(k)) for k in levels])
    ends = np.asarray([(int(rng.integers(max(0, n - 50), n)), n) for n in range(1, nodes)])
    left, right = (start[ends[:, s]] + rng.integers(0, levels[ends[:, s]]) for s in (0, 1))
    problem = LiftProblem(start, cost, left, right)
    by_walk = problem.cost_of(solve_forest(problem))
    assert by_walk == pytest.approx(solve_with_cycles(problem, 60.0, _clock).cost, rel=1e-9)


def test_every_kind_of_component_occurs_at_extreme_costs() -> None:
    rng = np.random.default_rng(4)
    devices, every = 400, np.stack(np.triu_indices(400, 1), axis=1)
    pairs = every[rng.choice(len(every), 500, replace=False)]
    rates = rng.random((len(pairs), 2))
    graph = graph_of(devices, pairs, rates)
    found = [assign(graph, DeviceCosts(ratio, 1.0)) for ratio in (2.0, 4.0, 8.0)]
    kinds = {kind for each in found for kind, count in each.residual_kinds.items() if count}
    assert kinds >= {"tree", "odd"}


def test_close_costs_leave_only_trees() -> None:
    """With Cu < (1 + 1/S) Cd, S the largest ratio of two rates of one device, no cycle of conflicts is left."""
    rng = np.random.default_rng(5)
    pairs = np.stack(np.triu_indices(60, 1), axis=1)
    for _ in range(20):
        rates = 1.0 + rng.random((len(pairs), 2))  # S <= 2
        chosen = pairs[rng.random(len(pairs)) < 0.03]
        found = assign(graph_of(60, chosen, rates[: len(chosen)]), DeviceCosts(1.45, 1.0))
        assert found.residual_kinds.get("bipartite", 0) + found.residual_kinds.get("odd", 0) == 0


def _odd_problem(rng: np.random.Generator, nodes: int) -> LiftProblem:
    every = np.stack(np.triu_indices(nodes, 1), axis=1)
    ends = every[rng.choice(len(every), 6 * nodes, replace=False)]
    start = np.arange(0, 3 * nodes + 1, 3)
    cost = np.cumsum(1.0 + rng.random((nodes, 3)), axis=1).ravel()
    left, right = (start[ends[:, s]] + rng.integers(0, 3, len(ends)) for s in (0, 1))
    return LiftProblem(start, cost, left, right)


def test_without_time_the_answer_is_viable_and_its_gap_is_true() -> None:
    rng = np.random.default_rng(6)
    for _ in range(10):
        problem = _odd_problem(rng, 20)
        rough, exact = solve_with_cycles(problem, 0.0, _clock), solve_with_cycles(problem, 60.0, _clock)
        assert problem.is_resolved(rough.reached)
        assert rough.bound <= exact.cost + 1e-9
        assert exact.cost <= rough.cost + 1e-9
        assert rough.cost * (1 - rough.gap) <= exact.cost + 1e-9
        assert not rough.optimal


def test_the_rough_answer_costs_at_most_twice_its_bound() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        problem = _random_problem(rng, "any")
        rough = solve_roughly(problem)
        assert problem.is_resolved(rough.reached)
        assert rough.bound <= _least(problem) + 1e-9
        assert rough.cost <= 2 * rough.bound + 1e-9


def test_taking_back_leaves_no_lift_that_could_be_lowered() -> None:
    rng = np.random.default_rng(8)
    for _ in range(60):
        problem = _random_problem(rng, "any")
        kept = take_back(problem, np.diff(problem.start))
        assert problem.is_resolved(kept)
        for node in np.flatnonzero(kept):
            lower = kept.copy()
            lower[node] -= 1
            assert not problem.is_resolved(lower)


def test_one_weight_a_device_would_not_be_exact() -> None:
    """A device in conflict at a low and at a high rate may lift to the low one alone."""
    rates = {(0, 1): 0.6, (1, 0): 0.6, (0, 2): 3.0, (2, 0): 0.7}
    src, dst = np.asarray(list(rates)).T
    from catchment.feeds.placement.pair_views.demand import DemandGraph

    graph = DemandGraph.from_edges(src, dst, list(rates.values()))
    found = assign(graph, DeviceCosts(8.0, 1.0))
    assert found.conflicts == 2
    lifted = found.threshold
    assert lifted[0] == 0.6 or lifted[1] == 0.6
    assert lifted[0] < 3.0
