"""Views over views: resolving what two devices both took, and what a device took beyond its budget.

Devices joined by such a view form a component; each is one integer program (HiGHS). Variable x of a node:
the device keeps the view; z of a (node, rate level): the device uploads the node's feed at that level or
above. With the views of one device alone the program is a min-cut, so fractions come only from views that
are wanted twice and from budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from catchment.feeds.hierarchy import Hierarchy, Trees
from catchment.feeds.integer_program import least_cost
from catchment.feeds.segments import starts_of

Floats = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Taken:
    """The devices' own choices, an entry a node of the trees."""

    trees: Trees
    rate: Floats  # demanded of the parent's feed
    price: Floats  # of the other inputs, if the device takes the node
    threshold: Floats  # rate at which the node's feed is uploaded
    best: Floats  # cost of the node's subtree, without its own price
    upload: Floats  # cost of uploading one unit, of the node's device
    inside: Mask


@dataclass(frozen=True, eq=False)
class Lifts:
    """Which nodes are kept, and what that adds to the sum of the devices' own optima."""

    kept: Mask
    cost: float
    bound: float
    conflicts: int
    components: int

    @property
    def optimal(self) -> bool:
        return self.cost - self.bound <= 1e-9 * max(1.0, abs(self.cost))


def resolve(
    hierarchy: Hierarchy,
    taken: Taken,
    capacity: Floats | None,
    time_limit_s: float,
    clock: Callable[[], float],
) -> Lifts:
    """Keep each view on one device at most and each device within its budget, at least cost."""
    deadline = clock() + time_limit_s
    chosen = taken.inside & (taken.trees.parent >= 0)
    takers = np.bincount(taken.trees.vertex[chosen], minlength=hierarchy.vertices)
    over = _over_budget(taken, chosen, capacity)
    kept, cost, bound = taken.inside.copy(), 0.0, 0.0
    groups = _groups(taken, chosen, takers, over)
    for devices in groups:
        program = _Program(taken, chosen & np.isin(taken.trees.device, devices), capacity)
        nodes, added, least = program.solve(deadline - clock())
        kept[program.nodes] = nodes
        cost, bound = cost + added, bound + least
    return Lifts(kept, cost, bound, int((takers > 1).sum()), len(groups))


def _over_budget(taken: Taken, chosen: Mask, capacity: Floats | None) -> Index:
    if capacity is None:
        return np.zeros(0, dtype=np.int64)
    load = np.bincount(taken.trees.device[chosen], minlength=capacity.shape[0])
    return np.flatnonzero(load > capacity)


def _groups(taken: Taken, chosen: Mask, takers: Index, over: Index) -> list[Index]:
    """Devices connected by views that more than one of them took; and devices over their budget."""
    device, vertex = taken.trees.device, taken.trees.vertex
    shared = np.flatnonzero(chosen & (takers[vertex] > 1))
    count = int(device.max(initial=-1)) + 1
    ends = (device[shared], count + vertex[shared])
    size = count + takers.shape[0]
    graph = sparse.coo_array((np.ones(shared.shape[0]), ends), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    concerned = np.unique(np.concatenate((device[shared], over)))
    order = np.argsort(label[concerned], kind="stable")
    return np.split(concerned[order], starts_of(label[concerned][order])[1:]) if concerned.size else []


class _Program:
    """The integer program of one component. Costs are counted relative to the devices' own optima."""

    def __init__(self, taken: Taken, members: Mask, capacity: Floats | None) -> None:
        self.taken = taken
        self.nodes = np.flatnonzero(members)
        self.capacity = capacity
        self.position = np.full(members.shape[0], -1, dtype=np.int64)
        self.position[self.nodes] = np.arange(self.nodes.shape[0])
        self.rows: list[tuple[list[int], list[float], float]] = []  # sum(coefficient * variable) <= limit
        self.weight: list[float] = taken.price[self.nodes].tolist()
        self.fixed = 0.0  # cost of what sources upload at least
        self._add_uploads()
        self._add_exclusions()

    def _add_uploads(self) -> None:
        """Levels of each holder's upload: the threshold that others set, then the rates of its children."""
        parent = self.taken.trees.parent[self.nodes]
        order = self.nodes[np.lexsort((self.taken.rate[self.nodes], parent))]
        children: dict[int, list[int]] = {}
        for node in order.tolist():
            children.setdefault(int(self.taken.trees.parent[node]), []).append(node)
        for holder in dict.fromkeys([*children, *self.nodes.tolist()]):
            self._add_holder(holder, children.get(holder, []))

    def _add_holder(self, holder: int, children: list[int]) -> None:
        held = int(self.position[holder])  # -1: a source, which its device always holds
        unit, below = float(self.taken.upload[holder]), float(self.taken.threshold[holder])
        if held < 0:
            self.fixed += unit * below
        else:
            self.weight[held] += unit * below
        last = -1
        for child in children:
            rate, kept = float(self.taken.rate[child]), int(self.position[child])
            if last < 0 or rate > below:
                level = self._new_variable(unit * (rate - below))
                if last >= 0:
                    self._row([(level, 1.0), (last, -1.0)], 0.0)  # a level implies the one below
                below, last = rate, level
            self._row([(last, -1.0), (kept, -1.0), (held, 1.0)], 0.0 if held >= 0 else -1.0)
            if held >= 0:
                self._row([(kept, 1.0), (held, -1.0)], 0.0)  # closed towards the source

    def _add_exclusions(self) -> None:
        vertex, device = self.taken.trees.vertex[self.nodes], self.taken.trees.device[self.nodes]
        for group in _groups_of(vertex):
            if group.shape[0] > 1:
                self._row([(int(n), 1.0) for n in group], 1.0)
        for group in _groups_of(device) if self.capacity is not None else []:
            assert self.capacity is not None
            self._row([(int(n), 1.0) for n in group], float(self.capacity[device[group[0]]]))

    def _new_variable(self, weight: float) -> int:
        self.weight.append(weight)
        return len(self.weight) - 1

    def _row(self, terms: list[tuple[int, float]], limit: float) -> None:
        terms = [term for term in terms if term[0] >= 0]
        if np.isfinite(limit):
            self.rows.append(([t[0] for t in terms], [t[1] for t in terms], limit))

    def solve(self, time_limit_s: float) -> tuple[Mask, float, float]:
        """Nodes kept, cost and bound; without an answer in time the component's views stay at the cloud."""
        matrix, limits = self._matrix()
        count = self.nodes.shape[0]
        found = least_cost(np.asarray(self.weight), matrix, limits, time_limit_s, choices=count)
        kept = np.zeros(count, dtype=np.bool_) if found.chosen is None else found.chosen
        own_optima = self._own_optima()
        return kept, self._cost(kept) - own_optima, max(found.bound + self.fixed - own_optima, 0.0)

    def _matrix(self) -> tuple[sparse.csr_array, Floats]:
        row = np.repeat(np.arange(len(self.rows)), [len(columns) for columns, _, _ in self.rows])
        column = np.concatenate([np.asarray(columns) for columns, _, _ in self.rows])
        value = np.concatenate([np.asarray(values) for _, values, _ in self.rows])
        shape = (len(self.rows), len(self.weight))
        return sparse.csr_array((value, (row, column)), shape=shape), np.asarray([r[2] for r in self.rows])

    def _holders(self) -> Index:
        """Members, and the sources that feed them."""
        parent = self.taken.trees.parent[self.nodes]
        return np.unique(np.concatenate((self.nodes, parent)))

    def _own_optima(self) -> float:
        return self._cost(np.ones(self.nodes.shape[0], dtype=np.bool_))

    def _cost(self, kept: Mask) -> float:
        """What the component's holders pay when these members are kept."""
        taken = self.taken
        holders = self._holders()
        held = np.ones(taken.rate.shape[0], dtype=np.bool_)
        held[self.nodes] = kept
        sent = taken.threshold.copy()
        dropped = self.nodes[~kept]
        np.maximum.at(sent, taken.trees.parent[dropped], taken.rate[dropped])
        uploads = (taken.upload * sent)[holders[held[holders]]].sum()
        return float(uploads + taken.price[self.nodes[kept]].sum())


def _groups_of(keys: Index) -> list[Index]:
    order = np.argsort(keys, kind="stable")
    return np.split(order, starts_of(keys[order])[1:]) if keys.size else []
