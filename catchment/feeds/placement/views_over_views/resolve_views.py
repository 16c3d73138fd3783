"""Views over views: resolving what two devices both took, and what a device took beyond its budget.

Devices joined by such a view form a component; each is one integer program (HiGHS). Variable x of a node: the device
keeps the view; one of each (feed, rate level): the device sends or receives the feed at that level or above. With the
views of one device alone the program is a min-cut, so fractions come only from views that are wanted twice and from
budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from catchment.arrays import Floats, Ints, Mask
from catchment.feeds.placement.integer_program import least_cost
from catchment.feeds.placement.segmented_sums import starts_of
from catchment.feeds.placement.views_over_views.device_links import DeviceLinks


@dataclass(frozen=True, eq=False)
class Resolved:
    """Which nodes are kept, and how much at least that must add to the devices' own optima."""

    kept: Mask
    added: float
    conflicts: int
    components: int


def resolve(
    links: DeviceLinks, wanted: Mask, capacity: Floats | None, time_limit_s: float, clock: Callable[[], float]
) -> Resolved:
    """Keep each view on one device at most and each device within its budget, at least cost."""
    deadline = clock() + time_limit_s
    chosen = wanted & ~links.sources
    takers = np.bincount(links.trees.vertex[chosen], minlength=int(links.trees.vertex.max(initial=-1)) + 1)
    groups = _groups(links, chosen, takers, _over_budget(links, chosen, capacity))
    kept = wanted.copy()
    added = 0.0
    for devices in groups:
        members = np.isin(links.trees.device, devices)
        program = _ViewProgram(links, wanted, np.flatnonzero(chosen & members), capacity)
        nodes, bound = program.solve(deadline - clock())
        kept[program.nodes] = nodes
        added += max(0.0, bound - links.cost(wanted, members))
    return Resolved(kept, added, int((takers > 1).sum()), len(groups))


def _over_budget(links: DeviceLinks, chosen: Mask, capacity: Floats | None) -> Ints:
    if capacity is None:
        return np.zeros(0, dtype=np.int64)
    load = np.bincount(links.trees.device[chosen], minlength=capacity.shape[0])
    return np.flatnonzero(load > capacity)


def _groups(links: DeviceLinks, chosen: Mask, takers: Ints, over: Ints) -> list[Ints]:
    """Return devices connected by views that more than one of them took; and devices over their budget."""
    device = links.trees.device
    vertex = links.trees.vertex
    shared = np.flatnonzero(chosen & (takers[vertex] > 1))
    count = int(device.max(initial=-1)) + 1
    ends = (device[shared], count + vertex[shared])
    size = count + takers.shape[0]
    graph = sparse.coo_array((np.ones(shared.shape[0]), ends), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    concerned = np.unique(np.concatenate((device[shared], over)))
    order = np.argsort(label[concerned], kind="stable")
    return np.split(concerned[order], starts_of(label[concerned][order])[1:]) if concerned.size else []


class _ViewProgram:
    """The integer program of one component: variables, first those of the nodes, and rows `sum <= limit`."""

    def __init__(self, links: DeviceLinks, wanted: Mask, nodes: Ints, capacity: Floats | None) -> None:
        self.links = links
        self.nodes = nodes
        self.sent = links.upload_rates(wanted)  # what views outside every device's own optimum want
        self.variable = {int(node): at for at, node in enumerate(nodes)}
        self.weight = [0.0] * nodes.shape[0]
        self.fixed = 0.0  # what sources send at least
        self.rows: list[tuple[list[int], list[float], float]] = []
        self._add_uploads()
        self._add_downloads()
        self._add_exclusions(capacity)

    def _add_uploads(self) -> None:
        children: dict[int, list[int]] = {int(node): [] for node in self.nodes}
        for node in self.nodes[np.argsort(self.links.rate[self.nodes], kind="stable")].tolist():
            children.setdefault(int(self.links.trees.parent[node]), []).append(node)
        for holder, wanting in children.items():
            self._add_holder(holder, wanting)

    def _add_holder(self, holder: int, children: list[int]) -> None:
        """Add the levels of a feed: what others want of it in any case, then the rates of the holder's children."""
        held = self.variable.get(holder)  # None: a source, which its device always holds
        unit = float(self.links.upload[holder])
        base = float(self.sent[holder])
        if held is None:
            self.fixed += unit * base
        else:
            self.weight[held] += unit * base
        own = [] if held is None else [(held, 1.0)]
        for level, child in self._levels(unit, base, ((float(self.links.rate[c]), c) for c in children)):
            kept = self.variable[child]
            self._row([(level, -1.0), (kept, -1.0), *own], 0.0 if own else -1.0)
            if held is not None:
                self._row([(kept, 1.0), (held, -1.0)], 0.0)  # closed towards the source

    def _add_downloads(self) -> None:
        """Add the downloads: a feed that comes down is paid for once, at the highest rate that a kept view reads."""
        links = self.links
        rows = np.flatnonzero(np.isin(links.reader, self.nodes))
        rows = rows[np.argsort(links.read_rate[rows], kind="stable")]
        feeds: dict[tuple[int, int], list[tuple[float, int]]] = {}
        for row in rows.tolist():
            node = int(links.reader[row])
            key = (int(links.trees.device[node]), int(links.read[row]))
            feeds.setdefault(key, []).append((float(links.read_rate[row]), node))
        for readers in feeds.values():
            unit = float(links.download[readers[0][1]])
            for level, node in self._levels(unit, 0.0, readers):
                self._row([(self.variable[node], 1.0), (level, -1.0)], 0.0)

    def _levels(self, unit: float, base: float, wanted: Iterable[tuple[float, int]]) -> list[tuple[int, int]]:
        """Return a variable for each rate above the base, each implying the one below; for each node its own."""
        levels: list[tuple[int, int]] = []
        below = base
        last = -1
        for rate, node in wanted:
            if last < 0 or rate > below:
                self.weight.append(unit * (rate - below))
                if last >= 0:
                    self._row([(len(self.weight) - 1, 1.0), (last, -1.0)], 0.0)
                below = rate
                last = len(self.weight) - 1
            levels.append((last, node))
        return levels

    def _add_exclusions(self, capacity: Floats | None) -> None:
        vertex = self.links.trees.vertex[self.nodes]
        device = self.links.trees.device[self.nodes]
        for group in _groups_of(vertex):
            if group.shape[0] > 1:
                self._row([(int(n), 1.0) for n in group], 1.0)
        for group in [] if capacity is None else _groups_of(device):
            assert capacity is not None
            self._row([(int(n), 1.0) for n in group], float(capacity[device[group[0]]]))

    def _row(self, terms: list[tuple[int, float]], limit: float) -> None:
        if np.isfinite(limit):
            self.rows.append(([t[0] for t in terms], [t[1] for t in terms], limit))

    def solve(self, time_limit_s: float) -> tuple[Mask, float]:
        """Return nodes kept, and a bound; without an answer in time the component's views stay at the cloud."""
        row = np.repeat(np.arange(len(self.rows)), [len(columns) for columns, _, _ in self.rows])
        column = np.concatenate([np.asarray(columns) for columns, _, _ in self.rows])
        value = np.concatenate([np.asarray(values) for _, values, _ in self.rows])
        matrix = sparse.csr_array((value, (row, column)), shape=(len(self.rows), len(self.weight)))
        limits = np.asarray([limit for _, _, limit in self.rows])
        count = self.nodes.shape[0]
        found = least_cost(np.asarray(self.weight), matrix, limits, time_limit_s, choices=count)
        kept = np.zeros(count, dtype=np.bool_) if found.chosen is None else found.chosen
        return kept, found.bound + self.fixed


def _groups_of(keys: Ints) -> list[Ints]:
    order = np.argsort(keys, kind="stable")
    return np.split(order, starts_of(keys[order])[1:]) if keys.size else []
