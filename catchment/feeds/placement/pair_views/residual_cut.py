"""Residual components with cycles: a min-cut, and integer programming on what it leaves open.

One variable per level, y = 1 where the node reaches it: least sum of weight * y, y falling along the levels
of a node, y_left + y_right >= 1 on each pair. On bipartite components this is the linear program of a
min-cut (totally unimodular: its vertices are integral). Elsewhere its vertices are half-integral and every
variable that is 0 or 1 keeps that value in some optimum (Nemhauser and Trotter 1975, on nested copies of
the nodes), so the integer program is needed on the halves only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse.csgraph import connected_components

from catchment.arrays import Floats, Ints
from catchment.errors import FeedError
from catchment.feeds.placement.integer_program import least_cost
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem, LiftSolution
from catchment.feeds.placement.pair_views.residual_bound import solve_roughly
from catchment.feeds.placement.segmented_sums import prefix_sums

_SOLVED = 0
_LIMIT = 1  # scipy's words for how HiGHS ended


def solve_with_cycles(problem: LiftProblem, time_limit_s: float, clock: Callable[[], float]) -> LiftSolution:
    """Return the least costly lifts of a problem of any shape; the bound says how sure that is."""
    deadline = clock() + time_limit_s
    relaxed = _relax(problem, time_limit_s)
    if relaxed is None:
        return solve_roughly(problem)
    fixed = relaxed > 0.75
    open_levels = ~fixed & (relaxed > 0.25)
    bound = float(problem.weight[fixed].sum())
    reached = _count_levels(problem, fixed)
    if open_levels.any():
        kernel = _kernel(problem, open_levels)
        for nodes in _components(kernel):
            more, least = _solve_integer(kernel.restrict(nodes), deadline - clock())
            reached[nodes] += more
            bound += least
    return LiftSolution(reached, problem.cost_of(reached), bound)


def _count_levels(problem: LiftProblem, hit: NDArray[np.bool_]) -> Ints:
    return np.bincount(problem.node_of[hit], minlength=problem.nodes).astype(np.int64)


def _kernel(problem: LiftProblem, open_levels: NDArray[np.bool_]) -> LiftProblem:
    """Return the problem on the open levels alone: above what each node reaches for certain."""
    renumber = np.cumsum(open_levels) - 1
    both = open_levels[problem.left] & open_levels[problem.right]
    start = np.concatenate(([0], np.cumsum(_count_levels(problem, open_levels))))
    owner = problem.node_of[open_levels]
    cost = prefix_sums(problem.weight[open_levels], owner)
    return LiftProblem(start, cost, renumber[problem.left[both]], renumber[problem.right[both]])


def _components(problem: LiftProblem) -> list[NDArray[np.bool_]]:
    """Return nodes of each component that has a pair, smallest component first."""
    a = problem.node_of[problem.left]
    b = problem.node_of[problem.right]
    graph = sparse.coo_array((np.ones(a.shape[0]), (a, b)), shape=(problem.nodes, problem.nodes))
    _, label = connected_components(graph, directed=False)
    sizes = np.bincount(label[a])
    return [label == component for component in np.argsort(sizes, kind="stable") if sizes[component]]


def _solve_integer(problem: LiftProblem, time_limit_s: float) -> tuple[Ints, float]:
    """Return levels reached and a lower bound: the least cost if there is time, else the better of two answers."""
    matrix = _constraints(problem)
    rhs = _right_hand_side(problem, matrix.shape[0])
    found = least_cost(problem.weight, -matrix, -rhs, time_limit_s)
    half = 0.5 * float(problem.weight.sum())  # the relaxation's own bound: every open level at one half
    answers = [] if found.chosen is None else [_count_levels(problem, found.chosen)]
    if not found.solved:
        answers.append(solve_roughly(problem).reached)
    return min(answers, key=problem.cost_of), max(half, found.bound)


def _constraints(problem: LiftProblem) -> sparse.csr_array:
    """Return rows `A y >= rhs`, the pairs first (rhs 1), then the order of a node's levels (rhs 0)."""
    pairs = problem.left.shape[0]
    upper = np.flatnonzero(problem.node_of[1:] == problem.node_of[:-1]) + 1
    row = np.concatenate((np.arange(pairs), np.arange(pairs), pairs + np.arange(upper.shape[0]).repeat(2)))
    column = np.concatenate((problem.left, problem.right, np.stack((upper - 1, upper), axis=1).ravel()))
    value = np.concatenate((np.ones(2 * pairs), np.tile([1.0, -1.0], upper.shape[0])))
    shape = (pairs + upper.shape[0], problem.cost.shape[0])
    return sparse.csr_array((value, (row, column)), shape=shape)


def _right_hand_side(problem: LiftProblem, rows: int) -> Floats:
    rhs = np.zeros(rows)
    rhs[: problem.left.shape[0]] = 1.0
    return rhs


def _relax(problem: LiftProblem, time_limit_s: float) -> Floats | None:
    """Return a vertex of the linear program, 0, 1/2 or 1 for each level; None when time is up."""
    matrix = _constraints(problem)
    rhs = _right_hand_side(problem, matrix.shape[0])
    limit = {"time_limit": time_limit_s}
    found = linprog(problem.weight, A_ub=-matrix, b_ub=-rhs, bounds=(0, 1), method="highs-ds", options=limit)
    if found.status == _LIMIT:
        return None
    if found.status != _SOLVED:
        raise FeedError(f"the relaxation of the residual problem failed: {found.message}", where="residual")
    return np.asarray(found.x)
