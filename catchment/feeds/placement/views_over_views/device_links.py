"""What the links of devices carry when views over views are placed on them.

A device that computes the set S of views uploads, of each feed that it holds (its sources and the views in S), the
highest rate that a view outside S wants, and downloads, of each other feed that views in S read, the highest rate that
one of them wants: a feed crosses a link once each way, and lower rates are sampled from it. Both are sums of maxima,
so the cost is submodular in S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from catchment.arrays import Floats, Ints, Mask
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.views_over_views.hierarchy import Hierarchy, Trees, device_trees


@dataclass(frozen=True, eq=False)
class DeviceLinks:
    """Nodes of all devices' trees, the other inputs that each reads, and the costs of each node's device."""

    trees: Trees
    rate: Floats  # that a node demands of its parent's feed; 0 for sources
    reader: Ints  # node, for each other input of a node
    read: Ints  # the feed it reads, a vertex
    read_rate: Floats
    upload: Floats  # cost per unit of rate, of the node's device
    download: Floats

    @classmethod
    def of(cls, hierarchy: Hierarchy, costs: DeviceCosts) -> DeviceLinks:
        """Return the links of a hierarchy."""
        trees = device_trees(hierarchy)
        upload, download = costs.per_device(hierarchy.devices)
        joined = trees.edge >= 0
        rate = np.where(joined, hierarchy.rate[trees.edge], 0.0) if hierarchy.rate.size else np.zeros(joined.shape)
        reader, edge = _other_inputs(hierarchy, trees)
        costs_of = (upload[trees.device], download[trees.device])
        return cls(trees, rate, reader, hierarchy.feed[edge], hierarchy.rate[edge], *costs_of)

    @property
    def sources(self) -> Mask:
        """Nodes that are a device's own sources."""
        return self.trees.parent < 0

    def coupled_devices(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield, for each device of which two views read one feed, its nodes and the rows of `reader` about them.

        The views of such a device cannot be weighed one by one.
        """
        device = self.trees.device[self.reader]
        rows = np.lexsort((self.read, device))
        same = (np.diff(device[rows]) == 0) & (np.diff(self.read[rows]) == 0)
        nodes = np.argsort(self.trees.device, kind="stable")
        owner = self.trees.device[nodes]
        for found in np.unique(device[rows][1:][same]):
            mine = slice(*np.searchsorted(owner, [found, found + 1]))
            yield nodes[mine], rows[slice(*np.searchsorted(device[rows], [found, found + 1]))]

    def upload_rates(self, inside: Mask) -> Floats:
        """Return for each node the highest rate of its feed that a child outside wants."""
        sent = np.zeros(self.rate.shape[0])
        out = np.flatnonzero(~inside & ~self.sources)
        np.maximum.at(sent, self.trees.parent[out], self.rate[out])
        return sent

    def cost(self, inside: Mask, nodes: Mask | None = None) -> float:
        """Return the cost of the devices (of some nodes) when `inside` says what each computes."""
        of = inside if nodes is None else inside & nodes
        uploads = float((self.upload * self.upload_rates(inside))[of].sum())
        rows = np.flatnonzero(of[self.reader])
        order = rows[np.lexsort((self.read_rate[rows], self.read[rows], self.trees.device[self.reader[rows]]))]
        device = self.trees.device[self.reader[order]]
        feed = self.read[order]
        last = np.append((np.diff(device) != 0) | (np.diff(feed) != 0), True)[: order.shape[0]]
        highest = order[last]
        return uploads + float((self.download[self.reader[highest]] * self.read_rate[highest]).sum())


def _other_inputs(hierarchy: Hierarchy, trees: Trees) -> tuple[Ints, Ints]:
    """Return for each node of a view the edges of the view's other inputs: pairs (node, edge)."""
    by_view = np.argsort(hierarchy.view, kind="stable")
    start = np.searchsorted(hierarchy.view[by_view], np.arange(hierarchy.vertices + 1))
    count = np.diff(start)[trees.vertex]
    node = np.repeat(np.arange(trees.vertex.shape[0]), count)
    offset = np.arange(node.shape[0]) - np.repeat(np.cumsum(count) - count, count)
    edge = by_view[start[trees.vertex[node]] + offset]
    other = edge != trees.edge[node]
    return node[other], edge[other]
