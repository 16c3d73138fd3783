"""The assignment when uploads are not shared: each pair wants its own extract of a device's feed.

Black-box operators give no lower rate from a higher one (Chandramouli et al., VLDB'13, section 4.1), so
an upload on row (i, j) costs `Cu * r_ij` by itself, and computing the view on i instead gains `Cu * r_ij
- Cd * r_ji`. Without budgets each pair is on its own: the side that gains more, if one gains, downloads.
With a budget a device keeps the views of most gain that fit: the 0-1 knapsack of section 4.6, solved
exactly; where both sides of a pair gain (Cu > Cd), together with the devices it is connected with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from catchment.arrays import Floats, Ints, Mask
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.integer_program import least_cost
from catchment.feeds.placement.pair_views.assign import Assignment
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.segmented_sums import starts_of


def assign_unshared(
    graph: DemandGraph,
    costs: DeviceCosts,
    *,
    time_limit_s: float = 60.0,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Assignment:
    """Return the cheapest viable assignment of a demand graph whose uploads are paid for row by row."""
    began = clock()
    upload, download = costs.per_device(graph.devices)
    sending = upload[graph.src] * graph.rate
    gain = sending - download[graph.src] * graph.peer_rate
    wanted_twice = (gain > 0) & (gain[graph.counterpart] > 0)
    capacity = np.full(graph.devices, np.inf) if budget is None else budget.per_device(graph.devices)
    down = _larger_gains(graph, gain)
    groups = _groups(graph, gain, wanted_twice, capacity)
    missed = 0.0
    for devices in groups:
        rows = np.flatnonzero((gain > 0) & np.isin(graph.src, devices))
        sacks = _Sacks.of(graph, gain, capacity, rows)
        down[rows], lost = sacks.fill(began + time_limit_s - clock())
        missed += lost
    total = float(sending.sum())
    cost = total - float(gain[down].sum())
    gap = missed / cost if cost > 0 else 0.0
    return Assignment(
        graph=graph,
        upload=~down,
        threshold=_largest_upload(graph, ~down),
        cost=cost,
        all_upload_cost=total,
        conflicts=int(wanted_twice.sum()) // 2,
        residual_components=len(groups),
        optimal=gap <= 1e-9,
        gap=gap,
        seconds=clock() - began,
    )


def _larger_gains(graph: DemandGraph, gain: Floats) -> Mask:
    """Return for each pair the side that gains more by computing the view, if one gains; ties: the smaller device."""
    other = gain[graph.counterpart]
    return np.asarray((gain > 0) & ((gain > other) | ((gain == other) & (graph.src < graph.dst))))


def _largest_upload(graph: DemandGraph, upload: Mask) -> Floats:
    largest = np.zeros(graph.devices)
    np.maximum.at(largest, graph.src[upload], graph.rate[upload])
    return largest


def _groups(graph: DemandGraph, gain: Floats, wanted_twice: Mask, capacity: Floats) -> list[Ints]:
    """Return devices connected by pairs that both sides want, where one of them wants more than it may hold."""
    load = np.ones(graph.edges) if graph.load is None else graph.load
    wanted = np.where(gain > 0, load, 0.0)
    over = np.bincount(graph.src, weights=wanted, minlength=graph.devices) > capacity
    if not over.any():
        return []
    ends = (graph.src[wanted_twice], graph.dst[wanted_twice])
    shape = (graph.devices, graph.devices)
    _, label = connected_components(sparse.coo_array((np.ones(ends[0].shape[0]), ends), shape=shape))
    concerned = np.flatnonzero(np.isin(label, label[over]))
    order = concerned[np.argsort(label[concerned], kind="stable")]
    return np.split(order, starts_of(label[order])[1:])


@dataclass(frozen=True, eq=False)
class _Sacks:
    """The wanted rows of some devices: what each gains and loads, each device's limit, pairs wanted twice."""

    gain: Floats
    load: Floats
    owner: Ints  # device of each row, as a position in `limit`
    limit: Floats
    pair: Ints  # rows of one pair have one number

    @classmethod
    def of(cls, graph: DemandGraph, gain: Floats, capacity: Floats, rows: Ints) -> _Sacks:
        devices, owner = np.unique(graph.src[rows], return_inverse=True)
        load = np.ones(rows.shape[0]) if graph.load is None else graph.load[rows]
        _, pair = np.unique(np.minimum(rows, graph.counterpart[rows]), return_inverse=True)
        return cls(gain[rows], load, owner, capacity[devices], pair)

    def fill(self, time_limit_s: float) -> tuple[Mask, float]:
        """Return rows of most gain that fit, and how much more a better filling could at most gain."""
        if self.limit.shape[0] == 1 and (self.load == self.load[0]).all():
            return self._fill_alike(), 0.0
        found = least_cost(-self.gain, *self._constraints(), time_limit_s)
        kept = self._fill_greedily() if found.chosen is None else found.chosen
        most = min(float(self.gain.sum()), -found.bound)
        return kept, max(0.0, most - float(self.gain[kept].sum()))

    def _fill_alike(self) -> Mask:
        """Return the rows of largest gain, for one device and equal loads."""
        fit = self.gain.shape[0] if self.load[0] == 0 else int(self.limit[0] // self.load[0])
        kept = np.zeros(self.gain.shape[0], dtype=np.bool_)
        kept[np.argsort(-self.gain, kind="stable")[:fit]] = True
        return kept

    def _constraints(self) -> tuple[sparse.csr_array, Floats]:
        """Return the constraints: no device beyond its limit, no pair twice."""
        at = np.arange(self.gain.shape[0])
        loads = sparse.csr_array((self.load, (self.owner, at)), shape=(self.limit.shape[0], at.shape[0]))
        pairs = sparse.csr_array((np.ones(at.shape[0]), (self.pair, at)))
        bounded = np.flatnonzero(np.isfinite(self.limit))
        limits = np.concatenate((self.limit[bounded], np.ones(pairs.shape[0])))
        return sparse.vstack((loads[bounded], pairs), format="csr"), limits

    def _fill_greedily(self) -> Mask:
        """Return rows by gain per load while they fit: what is kept when the solver has no time at all."""
        kept = np.zeros(self.gain.shape[0], dtype=np.bool_)
        room = self.limit.copy()
        free = np.ones(int(self.pair.max()) + 1, dtype=np.bool_)
        for row in np.argsort(-self.gain / np.maximum(self.load, 1e-300), kind="stable"):
            owner = self.owner[row]
            pair = self.pair[row]
            if free[pair] and self.load[row] <= room[owner]:
                kept[row] = True
                free[pair] = False
                room[owner] -= self.load[row]
        return kept
