"""Views over views: who wants which feed, at which rate, when a view's output is itself a feed.

A vertex is a source (born on a device, or at the cloud, as reference data is) or a view; an edge says
that a view demands a vertex's feed at a rate. The devices whose data a view holds are those of its
inputs.

Invariant: the views form no cycle, and no device's feed reaches a view by two of its inputs (assumption 2
of Chandramouli et al., VLDB'13). So the views that hold the data of one source form a tree under it:
every view has one input by which that data comes. `Trees` are those trees, one node for each (device,
vertex).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catchment.arrays import Floats, Ints
from catchment.errors import FeedError
from catchment.feeds.placement.outcome import AT_CLOUD

VIEW = -2  # home of a vertex that is a view: where it is computed is what placement decides


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Sources and views: `home[v]` of each vertex; edges (input vertex, view, rate) in any order."""

    devices: int
    home: Ints
    feed: Ints  # an edge's input vertex
    view: Ints  # the view that demands it
    rate: Floats

    @classmethod
    def of(cls, devices: int, home: ArrayLike, feed: ArrayLike, view: ArrayLike, rate: ArrayLike) -> Hierarchy:
        """Return the hierarchy from anything that holds numbers."""
        return cls(
            devices,
            np.asarray(home, dtype=np.int64),
            np.asarray(feed, dtype=np.int64),
            np.asarray(view, dtype=np.int64),
            np.asarray(rate, dtype=np.float64),
        )

    def __post_init__(self) -> None:
        self._check_edges()
        self._check_homes()
        _ = self.level  # refuses cycles

    @property
    def vertices(self) -> int:
        return int(self.home.shape[0])

    def _check_edges(self) -> None:
        for column in (self.feed, self.view):
            self._refuse((column < 0) | (column >= self.vertices), "names a vertex that does not exist")
        self._refuse(self.feed == self.view, "makes a view its own input (a cycle of views)")
        bad_rate = ~((self.rate >= 0) & np.isfinite(self.rate))
        self._refuse(bad_rate, "has a rate that is negative or not finite; expected 0 or more")
        key = self.feed * self.vertices + self.view
        _, first = np.unique(key, return_index=True)
        self._refuse(~np.isin(np.arange(key.shape[0]), first), "repeats an edge that was already given")
        self._refuse(self.home[self.view] != VIEW, "feeds a source; only views have inputs")

    def _check_homes(self) -> None:
        bad = (self.home < VIEW) | (self.home >= self.devices)
        bad[self.home == VIEW] |= np.bincount(self.view, minlength=self.vertices)[self.home == VIEW] == 0
        if bad.any():
            vertex = int(bad.argmax())
            raise FeedError(
                f"vertex {vertex} has home {self.home[vertex]} and no input; expected a source on a known "
                f"device (0 to {self.devices - 1}), a source at the cloud ({AT_CLOUD}) or a view with inputs",
                where="views",
            )

    def _refuse(self, bad: NDArray[np.bool_], message: str) -> None:
        if bad.any():
            e = int(bad.argmax())
            edge = f"edge {self.feed[e]} -> {self.view[e]} at rate {self.rate[e]:g}"
            raise FeedError(f"{edge} {message}", where=f"views, row {e + 1}")

    @cached_property
    def level(self) -> Ints:
        """Return the level of each vertex: 0 for sources, for a view one more than the highest of its inputs."""
        level = np.where(self.home == VIEW, -1, 0).astype(np.int64)
        waiting = np.bincount(self.view, minlength=self.vertices)
        fresh = level == 0
        height = 0
        while fresh.any():
            height += 1
            waiting -= np.bincount(self.view[fresh[self.feed]], minlength=self.vertices)
            fresh = (waiting == 0) & (level < 0)
            level[fresh] = height
        if (level < 0).any():
            raise self._cycle_fault(level < 0)
        return level

    def _cycle_fault(self, stuck: NDArray[np.bool_]) -> FeedError:
        """Return the error of a cycle, found by a walk from input to input until a view comes back."""
        inside = stuck[self.feed]
        input_of = dict(zip(self.view[inside].tolist(), self.feed[inside].tolist(), strict=True))
        path = [next(iter(input_of))]
        while path[-1] not in path[:-1]:
            path.append(input_of[path[-1]])
        cycle = path[path.index(path[-1]) :][::-1]
        return FeedError(
            f"a cycle of views: {' -> '.join(map(str, cycle))}",
            where="views",
            hint="a view may read other views, but not, directly or through others, itself",
        )


@dataclass(frozen=True, eq=False)
class Trees:
    """One node for each (device, vertex that holds its data), levels ascending, parents before children."""

    device: Ints
    vertex: Ints
    parent: Ints  # the node by which the device's data comes; -1 for a source
    edge: Ints  # the edge from the parent's vertex; -1 for a source


def device_trees(hierarchy: Hierarchy) -> Trees:
    """Return the trees of all devices, refused where a feed reaches a view by two inputs."""
    sources = np.flatnonzero(hierarchy.home >= 0)
    none = np.full(sources.shape[0], -1, dtype=np.int64)
    levels = [Trees(hierarchy.home[sources], sources, none, none)]
    first = np.zeros(hierarchy.vertices, dtype=np.int64)  # first node of each vertex, whose nodes are contiguous
    count = np.zeros(hierarchy.vertices, dtype=np.int64)
    first[sources] = np.arange(sources.shape[0])
    count[sources] = 1
    total = sources.shape[0]
    for height in range(1, int(hierarchy.level.max(initial=0)) + 1):
        edges = np.flatnonzero(hierarchy.level[hierarchy.view] == height)
        nodes = _children(hierarchy, edges, first, count, levels)
        vertices, starts, sizes = np.unique(nodes.vertex, return_index=True, return_counts=True)
        first[vertices] = total + starts
        count[vertices] = sizes
        total += nodes.vertex.shape[0]
        levels.append(nodes)
    return _join_levels(levels)


def _children(hierarchy: Hierarchy, edges: Ints, first: Ints, count: Ints, levels: list[Trees]) -> Trees:
    """Return a node for each device of each input of the views of one level, sorted by (view, device)."""
    sizes = count[hierarchy.feed[edges]]
    edge = np.repeat(edges, sizes)
    offset = np.arange(edge.shape[0]) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    parent = first[hierarchy.feed[edge]] + offset
    device = _join_levels(levels).device[parent]
    order = np.lexsort((device, hierarchy.view[edge]))
    nodes = Trees(device[order], hierarchy.view[edge][order], parent[order], edge[order])
    twice = (nodes.device[1:] == nodes.device[:-1]) & (nodes.vertex[1:] == nodes.vertex[:-1])
    if twice.any():
        at = int(twice.argmax())
        raise FeedError(
            f"the feed of device {nodes.device[at]} reaches view {nodes.vertex[at]} by two of its inputs",
            where="views",
            hint="combine the feeds of one device into one before they are joined with others",
        )
    return nodes


def _join_levels(levels: list[Trees]) -> Trees:
    parts = zip(*((t.device, t.vertex, t.parent, t.edge) for t in levels), strict=True)
    return Trees(*(np.concatenate(part) for part in parts))
