"""The exact optimum of the residual problem, component by component.

Trees are solved by dynamic programming, bipartite components by a min-cut, components with odd cycles by
integer programming on what the half-integral relaxation leaves open. Each conflict belongs to one
component, so the costs and the bounds of the components add up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from catchment.arrays import Ints
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem, LiftSolution
from catchment.feeds.placement.pair_views.residual_cut import solve_with_cycles
from catchment.feeds.placement.pair_views.residual_tree import solve_forest


def solve_lifts(problem: LiftProblem, time_limit_s: float, clock: Callable[[], float]) -> LiftSolution:
    """Return the least costly lifts that resolve every conflict, or the best found in time with its bound."""
    if problem.left.shape[0] == 0:
        return LiftSolution(np.zeros(problem.nodes, dtype=np.int64), 0.0, 0.0)
    components, label, is_tree, is_bipartite = _classify(problem)
    reached = np.zeros(problem.nodes, dtype=np.int64)
    tree_nodes = is_tree[label]
    reached[tree_nodes] = solve_forest(problem.restrict(tree_nodes))
    bound = problem.cost_of(reached)
    if not is_tree.all():
        cyclic = solve_with_cycles(problem.restrict(~tree_nodes), time_limit_s, clock)
        reached[~tree_nodes] = cyclic.reached
        bound += cyclic.bound
    assert problem.is_resolved(reached)
    kinds = {
        "tree": int(is_tree.sum()),
        "bipartite": int((is_bipartite & ~is_tree).sum()),
        "odd": int((~is_bipartite).sum()),
    }
    return LiftSolution(reached, problem.cost_of(reached), bound, components, kinds)


def _classify(problem: LiftProblem) -> tuple[int, Ints, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the number of connected components, each node's label, and which are trees and which bipartite."""
    nodes = problem.nodes
    a = problem.node_of[problem.left]
    b = problem.node_of[problem.right]
    count, label = connected_components(_graph(a, b, nodes), directed=False)
    sizes = np.bincount(label, minlength=count)
    pairs = np.bincount(label[a], minlength=count)
    # In the double cover each pair joins a node with the other side's copy of its peer: a component has
    # an odd cycle iff a node is connected with its own copy.
    cover = _graph(np.concatenate((a, a + nodes)), np.concatenate((b + nodes, b)), 2 * nodes)
    _, side = connected_components(cover, directed=False)
    is_bipartite = np.ones(count, dtype=np.bool_)
    is_bipartite[label[side[:nodes] == side[nodes:]]] = False
    return count, label, pairs == sizes - 1, is_bipartite


def _graph(a: Ints, b: Ints, nodes: int) -> sparse.coo_array:
    return sparse.coo_array((np.ones(a.shape[0], dtype=np.int8), (a, b)), shape=(nodes, nodes))
