"""A good answer and a sure bound for residual components that are too large for the time allowed.

Pairs are paid for one after the other: each charges both its ends the least that one of them still lacks
to reach its level, and an end that lacks nothing has reached it. The charges are a feasible dual, so
their sum is a lower bound, and the levels reached cost at most twice that (local ratio, Bar-Yehuda and
Even 1985, on nested levels). Lifts that turn out not to be needed are taken back, the dearest first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Ints
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem, LiftSolution


def solve_roughly(problem: LiftProblem) -> LiftSolution:
    """Return lifts that resolve every conflict at no more than twice the least cost, with the bound that proves it."""
    lacking: list[float] = problem.weight.tolist()
    first_of: list[int] = problem.start[problem.node_of].tolist()
    bound = 0.0
    for left, right in zip(problem.left.tolist(), problem.right.tolist(), strict=True):
        charge = min(
            sum(lacking[first_of[left] : left + 1]),
            sum(lacking[first_of[right] : right + 1]),
        )
        bound += charge
        for level in (left, right):
            _pay(lacking, first_of[level], level, charge)
    reached = take_back(problem, _paid_levels(problem, np.asarray(lacking)))
    return LiftSolution(reached, problem.cost_of(reached), bound)


def _pay(lacking: list[float], first: int, level: int, charge: float) -> None:
    """Spend a charge on a node's levels from the given one downwards: lower levels serve more pairs."""
    while charge > 0 and level >= first:
        paid = min(charge, lacking[level])
        lacking[level] -= paid
        charge -= paid
        level -= 1


def _paid_levels(problem: LiftProblem, lacking: NDArray[np.float64]) -> Ints:
    """Return how many levels of each node, from the lowest, are paid in full; rounding forgives the last bits."""
    open_level = lacking > 1e-12 * problem.cost
    position = np.arange(lacking.shape[0])
    first_open = np.where(open_level, position, np.repeat(problem.start[1:], np.diff(problem.start)))
    filled = np.diff(problem.start) > 0
    reached = np.zeros(problem.nodes, dtype=np.int64)
    starts = problem.start[:-1][filled]
    reached[filled] = np.minimum.reduceat(first_open, starts) - starts
    return reached


def take_back(problem: LiftProblem, reached: Ints) -> Ints:
    """Return the same lifts without those that no pair needs; first those that save most."""
    pairs_of = _pairs_by_node(problem)
    start: list[int] = problem.start.tolist()
    top: list[int] = (problem.start[:-1] + reached).tolist()
    node_of: list[int] = problem.node_of.tolist()
    spent = np.where(reached > 0, problem.cost[np.maximum(problem.start[:-1] + reached - 1, 0)], 0.0)
    for node in np.argsort(-spent, kind="stable").tolist():
        needed = [own + 1 for own, other in pairs_of[node] if other >= top[node_of[other]]]
        top[node] = min(top[node], max(needed, default=start[node]))
    return np.asarray(top, dtype=np.int64) - problem.start[:-1]


def _pairs_by_node(problem: LiftProblem) -> list[list[tuple[int, int]]]:
    """Return for each node its pairs as (own level, the other's level)."""
    pairs_of: list[list[tuple[int, int]]] = [[] for _ in range(problem.nodes)]
    node_of: list[int] = problem.node_of.tolist()
    for left, right in zip(problem.left.tolist(), problem.right.tolist(), strict=True):
        pairs_of[node_of[left]].append((left, right))
        pairs_of[node_of[right]].append((right, left))
    return pairs_of
