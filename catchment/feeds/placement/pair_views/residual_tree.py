"""Residual components that are trees: dynamic programming over the levels, in linear time.

For node i at level k the subtree costs F_i(k) plus, for each child, the child's best if level k resolves
the pair, else the best among the child's levels that do. With one level per node this is the vertex cover of
Chandramouli et al. (VLDB'13, theorem 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catchment.arrays import Ints
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem


@dataclass(slots=True)
class _Best:
    """The least cost of a subtree, and the level of its root that gives it."""

    cost: float
    level: int


def solve_forest(problem: LiftProblem) -> Ints:
    """Return levels reached by each node of a problem whose pairs form a forest."""
    return _Forest(problem).solve()


class _Forest:
    """The forest as lists, for a walk node by node."""

    def __init__(self, problem: LiftProblem) -> None:
        self.start: list[int] = problem.start.tolist()
        self.cost: list[float] = problem.cost.tolist()
        self.neighbours: list[list[tuple[int, int, int]]] = [[] for _ in range(problem.nodes)]
        ends = zip(
            problem.node_of[problem.left].tolist(),
            problem.node_of[problem.right].tolist(),
            (problem.left - problem.start[problem.node_of[problem.left]] + 1).tolist(),
            (problem.right - problem.start[problem.node_of[problem.right]] + 1).tolist(),
            strict=True,
        )
        for a, b, level_a, level_b in ends:
            self.neighbours[a].append((b, level_a, level_b))
            self.neighbours[b].append((a, level_b, level_a))

    def solve(self) -> Ints:
        order, parent = self._order()
        free: list[_Best] = [_Best(0.0, 0)] * len(order)  # the pair with the parent is resolved by the parent
        bound: list[_Best] = list(free)  # it must be resolved here
        for node in reversed(order):
            costs = self._subtree_costs(node, parent[node][0], free, bound)
            free[node] = _least(costs, 0)
            bound[node] = _least(costs, parent[node][1])
        return self._choose(order, parent, free, bound)

    def _order(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Return the nodes, parents first; and for each (parent, own level on the pair, parent's level on it)."""
        order: list[int] = []
        parent = [(-1, 0, 0)] * len(self.neighbours)
        seen = [False] * len(self.neighbours)
        for root in range(len(self.neighbours)):
            stack = [] if seen[root] else [root]
            seen[root] = True
            while stack:
                node = stack.pop()
                order.append(node)
                for other, own, theirs in self.neighbours[node]:
                    if not seen[other]:
                        seen[other] = True
                        parent[other] = (node, theirs, own)
                        stack.append(other)
        return order, parent

    def _subtree_costs(self, node: int, parent: int, free: list[_Best], bound: list[_Best]) -> list[float]:
        first = self.start[node]
        last = self.start[node + 1]
        saving = [0.0] * (last - first + 1)
        unresolved = 0.0
        for child, own, _ in self.neighbours[node]:
            if child != parent:
                unresolved += bound[child].cost
                saving[own] += bound[child].cost - free[child].cost
        costs = []
        saved = 0.0
        for level, lift in enumerate([0.0, *self.cost[first:last]]):
            saved += saving[level]
            costs.append(lift + unresolved - saved)
        return costs

    def _choose(
        self,
        order: list[int],
        parent: list[tuple[int, int, int]],
        free: list[_Best],
        bound: list[_Best],
    ) -> Ints:
        reached = np.zeros(len(order), dtype=np.int64)
        for node in order:
            above, _, needed_above = parent[node]
            resolved = above < 0 or reached[above] >= needed_above
            reached[node] = (free if resolved else bound)[node].level
        return reached


def _least(costs: list[float], lowest: int) -> _Best:
    level = min(range(lowest, len(costs)), key=costs.__getitem__)
    return _Best(costs[level], level)
