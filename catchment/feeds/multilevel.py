"""The assignment of views over views: each device chooses which views to compute, for its own link alone.

A device computes a set S of views, closed towards its source: with a view also the input by which the
device's data comes. It pays `Cu * max{r(u -> v) : v not in S}` for each feed u it holds and `Cd * r(w ->
v)` for each other input w of each v in S. In the device's tree (see hierarchy.py) this is a recursion of
the local step: at feed u, with threshold t, a child v with r(u -> v) > t is taken in, at the price of its
other inputs and of the best that follows from it.

Ties take the smallest set. Then for Cu <= Cd no view is taken by two devices and the choices are the
global optimum. (As printed, algorithm 3 of Chandramouli et al., VLDB'13, leaves out in its lines 9 to 17
the price of the parent's other inputs that its section 3.6.2 states, and is not optimal.) Otherwise the
views taken twice, and budgets that are exceeded, go to an integer program over the devices concerned:
dropping views from a device's own optimum is enough, for the cost is submodular.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catchment.errors import FeedError
from catchment.feeds.budget import Budget
from catchment.feeds.costs import Costs
from catchment.feeds.curves import Edges, cost_curves
from catchment.feeds.hierarchy import CLOUD, Hierarchy, Trees, device_trees
from catchment.feeds.multilevel_residual import Taken, resolve
from catchment.feeds.outcome import Outcome

Floats = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class ViewAssignment(Outcome):
    """`site[v]` of each vertex: a device, or CLOUD."""

    hierarchy: Hierarchy
    site: Index

    @property
    def upload(self) -> NDArray[np.bool_]:
        """For each edge, whether its input reaches its view by the cloud."""
        host = self.site[self.hierarchy.feed]
        return np.asarray((host == CLOUD) | (host != self.site[self.hierarchy.view]))


def assign_views(
    hierarchy: Hierarchy,
    costs: Costs,
    *,
    time_limit_s: float = 60.0,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ViewAssignment:
    """The cheapest placement of every view; a budget counts the views a device computes."""
    began = clock()
    trees = device_trees(hierarchy)
    taken = _local_step(hierarchy, trees, costs)
    capacity = None if budget is None else _capacity(budget, hierarchy)
    lifts = resolve(hierarchy, taken, capacity, time_limit_s, clock)
    cost = float(taken.best[trees.parent < 0].sum()) + lifts.cost
    return ViewAssignment(
        hierarchy=hierarchy,
        site=_sites(hierarchy, trees, lifts.kept),
        cost=cost,
        all_upload_cost=_all_upload_cost(hierarchy, costs),
        conflicts=lifts.conflicts,
        residual_components=lifts.components,
        optimal=lifts.optimal,
        gap=(lifts.cost - lifts.bound) / cost if cost > 0 else 0.0,
        seconds=clock() - began,
    )


def _local_step(hierarchy: Hierarchy, trees: Trees, costs: Costs) -> Taken:
    """What each device takes, found from the highest views down to the sources."""
    upload, download = costs.per_device(hierarchy.devices)
    nodes = trees.device.shape[0]
    joined = trees.edge >= 0
    price = np.zeros(nodes)  # of a node's other inputs
    price[joined] = download[trees.device[joined]] * hierarchy.others[trees.edge[joined]]
    rate = np.zeros(nodes)
    rate[joined] = hierarchy.rate[trees.edge[joined]]
    threshold, best = np.zeros(nodes), np.zeros(nodes)
    level = hierarchy.level[trees.vertex]
    for height in range(int(level.max(initial=0)), -1, -1):
        here = np.flatnonzero(level == height)
        children = np.flatnonzero(joined)[level[trees.parent[joined]] == height]
        children = children[np.argsort(trees.parent[children], kind="stable")]
        edges = Edges(
            np.searchsorted(trees.parent[children], np.append(here, here[-1] + 1)) if here.size else _EMPTY,
            rate[children],
            price[children] + best[children],
            np.ones(here.shape[0]),
        )
        curves = cost_curves(edges, upload[trees.device[here]])
        threshold[here], best[here] = curves.threshold, curves.best
    return Taken(trees, rate, price, threshold, best, upload[trees.device], _follow(trees, rate, threshold, level))


_EMPTY = np.zeros(1, dtype=np.int64)


def _follow(trees: Trees, rate: Floats, threshold: Floats, level: Index) -> NDArray[np.bool_]:
    """Which nodes the devices take: from the sources upwards, wherever the rate exceeds the threshold."""
    inside = trees.parent < 0
    for height in range(1, int(level.max(initial=0)) + 1):
        here = np.flatnonzero((level == height) & (trees.parent >= 0))
        parent = trees.parent[here]
        inside[here] = inside[parent] & (rate[here] > threshold[parent])
    return inside


def _sites(hierarchy: Hierarchy, trees: Trees, kept: NDArray[np.bool_]) -> Index:
    site = np.full(hierarchy.vertices, CLOUD, dtype=np.int64)
    site[trees.vertex[kept]] = trees.device[kept]
    return site


def _all_upload_cost(hierarchy: Hierarchy, costs: Costs) -> float:
    upload, _ = costs.per_device(hierarchy.devices)
    from_device = hierarchy.home[hierarchy.feed] >= 0
    largest = np.zeros(hierarchy.vertices)
    np.maximum.at(largest, hierarchy.feed[from_device], hierarchy.rate[from_device])
    sources = hierarchy.home >= 0
    return float((upload[hierarchy.home[sources]] * largest[sources]).sum())


def _capacity(budget: Budget, hierarchy: Hierarchy) -> Floats:
    if budget.capacity.shape != (hierarchy.devices,):
        raise FeedError(f"{budget.capacity.shape[0]} budgets for {hierarchy.devices} devices", where="budget")
    return budget.capacity
