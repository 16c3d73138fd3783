"""The assignment of views over views: each device chooses which views to compute, for its own link alone.

A device computes a set of views that is closed towards its source: with a view also the input by which the device's
data comes. In the device's tree (see hierarchy.py) the cheapest set is found by a recursion of the local step: at feed
u, with threshold t, a child v with r(u -> v) > t is taken in, at the price of its other inputs and of the best that
follows from it. Where two views of one device read the same feed, which comes down only once, the cheapest set is a
min-cut of the device's own network.

Ties take the smallest set. Then for Cu <= Cd the choices fit together and are the global optimum. (As printed,
algorithm 3 of Chandramouli et al., VLDB'13, leaves out in its lines 9 to 17 the price of the parent's other inputs that
its section 3.6.2 states, and is not optimal.) Otherwise the views taken twice, and budgets that are exceeded, go to an
integer program over the devices concerned: dropping views from a device's own optimum is enough, for the cost is
submodular.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from catchment.arrays import Floats, Ints, Mask
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import AT_CLOUD, Outcome
from catchment.feeds.placement.threshold_costs import Edges, cost_curves
from catchment.feeds.placement.views_over_views.device_cut import cheapest_set
from catchment.feeds.placement.views_over_views.device_links import DeviceLinks
from catchment.feeds.placement.views_over_views.hierarchy import Hierarchy
from catchment.feeds.placement.views_over_views.resolve_views import resolve


@dataclass(frozen=True, eq=False, kw_only=True)
class ViewAssignment(Outcome):
    """`site[v]` of each vertex: a device, or AT_CLOUD."""

    hierarchy: Hierarchy
    site: Ints

    @property
    def upload(self) -> Mask:
        """For each edge, whether its input reaches its view by the cloud."""
        host = self.site[self.hierarchy.feed]
        return np.asarray((host == AT_CLOUD) | (host != self.site[self.hierarchy.view]))


def assign_views(
    hierarchy: Hierarchy,
    costs: DeviceCosts,
    *,
    time_limit_s: float = 60.0,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ViewAssignment:
    """Return the cheapest placement of every view; a budget counts the views a device computes."""
    began = clock()
    links = DeviceLinks.of(hierarchy, costs)
    wanted = _own_choices(hierarchy, links)
    capacity = None if budget is None else budget.per_device(hierarchy.devices)
    found = resolve(links, wanted, capacity, time_limit_s, clock)
    cost = links.cost(found.kept)
    lost = max(0.0, cost - links.cost(wanted) - found.added)
    return ViewAssignment(
        hierarchy=hierarchy,
        site=_sites(hierarchy, links, found.kept),
        cost=cost,
        all_upload_cost=links.cost(links.sources),
        conflicts=found.conflicts,
        residual_components=found.components,
        optimal=lost <= 1e-9 * cost,
        gap=lost / cost if cost > 0 else 0.0,
        seconds=clock() - began,
    )


def _own_choices(hierarchy: Hierarchy, links: DeviceLinks) -> Mask:
    """Return the nodes that each device, for itself, would compute; its sources among them."""
    level = hierarchy.level[links.trees.vertex]
    inside = _follow(links, _thresholds(links, level), level)
    for nodes, rows in links.coupled_devices():
        inside[nodes] = cheapest_set(links, nodes, rows)
    return inside


def _thresholds(links: DeviceLinks, level: Ints) -> Floats:
    """Return the rate at which each node's feed is best uploaded, found from the highest views down to the sources."""
    parent = links.trees.parent
    price = np.bincount(links.reader, links.read_rate, minlength=parent.shape[0]) * links.download
    threshold = np.zeros(parent.shape[0])
    best = np.zeros(parent.shape[0])
    for height in range(int(level.max(initial=-1)), -1, -1):
        here = np.flatnonzero(level == height)  # nodes of a level are contiguous
        children = np.flatnonzero((parent >= 0) & (level[parent] == height))
        children = children[np.argsort(parent[children], kind="stable")]
        start = np.searchsorted(parent[children], np.append(here, here[-1] + 1))
        prices = price[children] + best[children]
        edges = Edges(start, links.rate[children], prices, np.ones(here.shape[0]))
        curves = cost_curves(edges, links.upload[here])
        threshold[here] = curves.threshold
        best[here] = curves.best
    return threshold


def _follow(links: DeviceLinks, threshold: Floats, level: Ints) -> Mask:
    """Return which nodes the devices take: from the sources upwards, wherever the rate exceeds the threshold."""
    inside = links.sources.copy()
    for height in range(1, int(level.max(initial=0)) + 1):
        here = np.flatnonzero((level == height) & ~links.sources)
        parent = links.trees.parent[here]
        inside[here] = inside[parent] & (links.rate[here] > threshold[parent])
    return inside


def _sites(hierarchy: Hierarchy, links: DeviceLinks, kept: Mask) -> Ints:
    site = np.full(hierarchy.vertices, AT_CLOUD, dtype=np.int64)
    site[links.trees.vertex[kept]] = links.trees.device[kept]
    return site
