"""Placement inside the cloud, the second step: which of its nodes computes each view placed at the cloud.

The cloud's nodes form a tree (regions, data centres, racks); each device is attached to one of them, its
gateway. A feed crosses a link once, at the highest rate that is wanted beyond it. Costs inside the cloud
are the same both ways, so each link is a min-cut of its own between the feeds and the views on either
side, and the cuts fit together: taken from the root down, a view stays outside the cuts that did not take
it at no loss (the cut function is submodular and symmetric). With costs that are the same both ways on
the devices' links too, the two steps together are the optimum over the whole network (Chandramouli et
al., VLDB'13, section 4.2, theorem 8).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from catchment.arrays import Floats, Ints, Mask
from catchment.errors import FeedError
from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.assign import Assignment, place
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem
from catchment.feeds.placement.pair_views.residual import solve_lifts


@dataclass(frozen=True, eq=False)
class CloudTree:
    """`parent[c]` of each cloud node (-1: the root), the cost of a unit of rate on that link, gateways."""

    parent: Ints
    link_cost: Floats
    gateway: Ints  # cloud node of each device

    @classmethod
    def of(cls, parent: ArrayLike, link_cost: ArrayLike, gateway: ArrayLike) -> CloudTree:
        """Return the tree from anything that holds numbers."""
        return cls(
            np.asarray(parent, dtype=np.int64),
            np.asarray(link_cost, dtype=np.float64),
            np.asarray(gateway, dtype=np.int64),
        )

    def __post_init__(self) -> None:
        nodes = self.parent.shape[0]
        if self.link_cost.shape != (nodes,) or not (np.isfinite(self.link_cost) & (self.link_cost >= 0)).all():
            raise FeedError("every cloud node needs the cost of its link, 0 or more", where="cloud")
        if ((self.gateway < 0) | (self.gateway >= nodes)).any():
            raise FeedError(f"a gateway is none of the {nodes} nodes of the cloud", where="cloud")
        if (self.parent < -1).any() or (self.parent >= nodes).any() or len(self.top_down()) != nodes:
            raise FeedError(
                f"the parents {self.parent.tolist()} of the cloud's nodes form no tree",
                where="cloud",
                hint="one node has parent -1; for a network with cycles give a spanning tree",
            )

    def top_down(self) -> list[int]:
        """Return the nodes, parents before children; fewer than all where the links form no tree."""
        order = np.flatnonzero(self.parent == -1).tolist()[:1]
        for node in order:
            order += np.flatnonzero(self.parent == node).tolist()
        return order

    def under(self, node: int) -> Mask:
        """Return which cloud nodes are the given one or below it."""
        inside = np.zeros(self.parent.shape[0], dtype=np.bool_)
        for other in self.top_down():
            inside[other] = other == node or (self.parent[other] >= 0 and inside[self.parent[other]])
        return inside


@dataclass(frozen=True, eq=False)
class CloudPlacement:
    """For each pair (in the order of `place`) the cloud node of its view, AT_CLOUD where a device has it."""

    node: Ints
    cost: float
    optimal: bool


def place_in_cloud(
    assignment: Assignment,
    tree: CloudTree,
    *,
    time_limit_s: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> CloudPlacement:
    """Return the cheapest cloud node for each view that the assignment leaves to the cloud."""
    if tree.gateway.shape != (assignment.graph.devices,):
        raise FeedError(f"{tree.gateway.shape[0]} gateways for {assignment.graph.devices} devices", where="cloud")
    views = _Views.of(assignment, tree)
    deadline = clock() + time_limit_s
    cost = 0.0
    optimal = True
    for node in tree.top_down()[1:]:
        crossed, sure = views.descend(node, tree, deadline - clock(), clock)
        cost += float(tree.link_cost[node]) * crossed
        optimal = optimal and sure
    return CloudPlacement(np.where(views.pinned, AT_CLOUD, views.at), cost, optimal)


@dataclass(frozen=True, eq=False)
class _Views:
    """Pairs, and where their views are so far: `at` moves down the tree; a pinned view is on a device."""

    a: Ints
    b: Ints
    rate_a: Floats
    rate_b: Floats
    pinned: Mask
    at: Ints

    @classmethod
    def of(cls, assignment: Assignment, tree: CloudTree) -> _Views:
        graph = assignment.graph
        placed = place(assignment)
        rows = np.flatnonzero(graph.src < graph.dst)
        pinned = placed.site != AT_CLOUD
        root = tree.top_down()[0]
        at = np.where(pinned, tree.gateway[placed.site], root)
        a = placed.src.astype(np.int64)
        b = placed.dst.astype(np.int64)
        return cls(a, b, graph.rate[rows], graph.peer_rate[rows], pinned, at)

    def descend(
        self, node: int, tree: CloudTree, time_limit_s: float, clock: Callable[[], float]
    ) -> tuple[float, bool]:
        """Move views from a node's parent to the node where that makes its link cheaper; return what crosses it."""
        under = tree.under(node)
        below = under[tree.gateway]
        a_below = below[self.a]
        b_below = below[self.b]
        waiting = ~self.pinned & (self.at == tree.parent[node])
        self.at[waiting & a_below & b_below] = node
        open_views = np.flatnonzero(waiting & (a_below != b_below))
        base = self._must_cross(below, under, open_views)
        problem, device = _lifts_above(base, self, open_views)
        found = solve_lifts(problem, time_limit_s, clock)
        crosses = base.copy()
        lifted = np.flatnonzero(found.reached)
        crosses[device[lifted]] += problem.cost[problem.start[lifted] + found.reached[lifted] - 1]
        inner_a = a_below[open_views]
        inner = np.where(inner_a, self.a[open_views], self.b[open_views])
        inner_rate = np.where(inner_a, self.rate_a[open_views], self.rate_b[open_views])
        self.at[open_views[crosses[inner] < inner_rate]] = node  # that feed stays below: the view comes down
        return float(crosses.sum()), found.optimal

    def _must_cross(self, below: Mask, under: Mask, open_views: Ints) -> Floats:
        """Return the rate at which each feed crosses the link for the views whose side is settled."""
        base = np.zeros(below.shape[0])
        settled = np.ones(self.a.shape[0], dtype=np.bool_)
        settled[open_views] = False
        view_below = under[self.at]
        for device, rate in ((self.a, self.rate_a), (self.b, self.rate_b)):
            crossing = settled & (below[device] != view_below)
            np.maximum.at(base, device[crossing], rate[crossing])
        return base


def _lifts_above(base: Floats, views: _Views, rows: Ints) -> tuple[LiftProblem, Ints]:
    """Return the problem of one link: one of a view's two feeds must cross it, at a rate above what crosses already."""
    a, b, rate_a, rate_b = (column[rows] for column in (views.a, views.b, views.rate_a, views.rate_b))
    needed = (rate_a > base[a]) & (rate_b > base[b])
    device = np.concatenate((a[needed], b[needed]))
    rate = np.concatenate((rate_a[needed], rate_b[needed]))
    order = np.lexsort((rate, device))
    fresh = np.append(True, (np.diff(device[order]) != 0) | (np.diff(rate[order]) != 0))[: order.shape[0]]
    level = np.empty_like(order)
    level[order] = np.cumsum(fresh) - 1
    at = device[order][fresh]
    top = rate[order][fresh]
    devices, start = np.unique(at, return_index=True)
    pairs = int(needed.sum())
    start = np.append(start, at.shape[0]).astype(np.int64)
    return LiftProblem(start, top - base[at], level[:pairs], level[pairs:]), devices
