"""The residual problem: which devices raise their thresholds, how far, so that each conflict is resolved.

A conflict is a pair on which both devices would download. It is resolved when one of them lifts its
threshold to its rate on the pair. A node (a device) has levels, its distinct rates in conflict, ascending;
`cost` is what lifting to a level adds to its own cost, `F_i(L) = min_{t >= L} cost_i(t) - min_t cost_i(t)`.
One weight per device, as in the vertex cover of Chandramouli et al. (VLDB'13, section 3.7), is exact only
where a device has one level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class LiftProblem:
    """Choose a level of each node so that in each pair of levels one at least is reached, at least cost.

    The levels of node d are `start[d]:start[d + 1]`, with costs that do not fall; no level is free of choice.
    `left[p]` and `right[p]` are the two levels (positions in `cost`) of pair p.
    """

    start: Ints
    cost: Floats
    left: Ints
    right: Ints

    @property
    def nodes(self) -> int:
        return int(self.start.shape[0]) - 1

    @cached_property
    def node_of(self) -> Ints:
        """The node of each level."""
        return np.repeat(np.arange(self.nodes, dtype=np.int64), np.diff(self.start))

    @cached_property
    def weight(self) -> Floats:
        """What each level adds to the one below it."""
        below = np.concatenate(([0.0], self.cost[:-1]))[: self.cost.shape[0]]
        below[self.start[:-1][np.diff(self.start) > 0]] = 0.0
        return self.cost - below

    def restrict(self, nodes: NDArray[np.bool_]) -> LiftProblem:
        """Return the same problem on some nodes that no pair joins to the others."""
        levels = nodes[self.node_of]
        renumber = np.cumsum(levels) - 1
        inside = levels[self.left]
        start = np.concatenate(([0], np.cumsum(np.diff(self.start)[nodes])))
        return LiftProblem(start, self.cost[levels], renumber[self.left[inside]], renumber[self.right[inside]])

    def cost_of(self, reached: Ints) -> float:
        """Return the cost of a choice: `reached[d]` levels of node d, 0 for none."""
        lifted = np.flatnonzero(reached)
        return float(self.cost[self.start[lifted] + reached[lifted] - 1].sum())

    def is_resolved(self, reached: Ints) -> bool:
        """Return whether a choice resolves every conflict."""
        top = (self.start[:-1] + reached)[self.node_of]
        hit = np.arange(self.cost.shape[0]) < top
        return bool((hit[self.left] | hit[self.right]).all())


@dataclass(frozen=True, eq=False)
class LiftSolution:
    """A choice for every node, its cost, and how far from the least cost it may be."""

    reached: Ints
    cost: float
    bound: float  # no choice costs less than this
    components: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)  # components by the method that solved them

    @property
    def optimal(self) -> bool:
        return self.gap <= 1e-9

    @property
    def gap(self) -> float:
        """The share of the cost that a better choice could at most save."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0
