"""Oracles for placement that share nothing with it: they enumerate placements, or solve another formulation.

`pair_costs` and `view_costs` try every placement and add up what each link carries. `ilp_cost` lets HiGHS
choose the placement of every view at once. `cut_cost` is one max-flow in whole numbers over all device links.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp
from scipy.sparse.csgraph import maximum_flow

from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.views_over_views.hierarchy import VIEW, Hierarchy

Floats = NDArray[np.float64]


def random_pairs(rng: np.random.Generator, most_devices: int, most_pairs: int) -> tuple[int, NDArray[np.int64]]:
    """A random simple graph: number of devices and an array of pairs (a < b)."""
    devices = int(rng.integers(2, most_devices + 1))
    every = np.asarray(list(itertools.combinations(range(devices), 2)))
    count = int(rng.integers(1, min(most_pairs, len(every)) + 1))
    return devices, every[rng.choice(len(every), count, replace=False)]


def graph_of(devices: int, pairs: NDArray[np.int64], rates: Floats, **more: object) -> DemandGraph:
    """A demand graph from pairs and their (pairs, 2) rates."""
    a, b = pairs[:, 0], pairs[:, 1]
    src, dst = np.concatenate((a, b)), np.concatenate((b, a))
    return DemandGraph.from_edges(src, dst, rates.T.ravel(), devices=devices, **more)  # type: ignore[arg-type]


def pair_costs(
    devices: int, pairs: NDArray[np.int64], rates: Floats, upload: Floats, download: Floats
) -> tuple[Floats, NDArray[np.int64]]:
    """The cost of every placement (0 cloud, 1 at a, 2 at b for each pair), and the placements."""
    choice = np.stack(np.meshgrid(*[np.arange(3)] * len(pairs), indexing="ij"), -1).reshape(-1, len(pairs))
    sent, received = np.zeros((devices, len(choice))), np.zeros((devices, len(choice)))
    for p, (a, b) in enumerate(pairs):
        for device, own, other, here in ((a, rates[p, 0], rates[p, 1], 1), (b, rates[p, 1], rates[p, 0], 2)):
            local = choice[:, p] == here
            np.maximum(sent[device], np.where(local, 0.0, own), out=sent[device])
            received[device] += np.where(local, other, 0.0)
    return upload @ sent + download @ received, choice


def cheapest_pairs(devices: int, pairs: NDArray[np.int64], rates: Floats, upload: Floats, download: Floats) -> float:
    """The least cost over every placement of every pair's view."""
    return float(pair_costs(devices, pairs, rates, upload, download)[0].min())


def cost_of_decisions(graph: DemandGraph, upload: NDArray[np.bool_], up: Floats, down: Floats) -> float:
    """What decisions cost, added up row by row."""
    sent, received = np.zeros(graph.devices), np.zeros(graph.devices)
    for row in range(graph.edges):
        device = graph.src[row]
        if upload[row]:
            sent[device] = max(sent[device], graph.rate[row])
        else:
            received[device] += graph.peer_rate[row]
    return float(up @ sent + down @ received)


def ilp_cost(graph: DemandGraph, up: Floats, down: Floats) -> float:
    """The least cost found by one integer program over all views: no thresholds, no residuals."""
    rows, devices = graph.edges, graph.devices  # x[row]: the view is at the row's src; u[device]: upload rate
    mate = {(int(s), int(d)): e for e, (s, d) in enumerate(zip(graph.src, graph.dst, strict=True))}
    at = np.arange(rows)
    back = np.asarray([mate[int(d), int(s)] for s, d in zip(graph.src, graph.dst, strict=True)], dtype=np.int64)
    covers = sparse.csr_array(
        (
            np.concatenate((np.ones(rows), graph.rate)),
            (np.concatenate((at, at)), np.concatenate((rows + graph.src, at))),
        ),
        shape=(rows, rows + devices),
    )
    once = sparse.csr_array(
        (np.ones(2 * rows), (np.concatenate((at, at)), np.concatenate((at, back)))), shape=(rows, rows + devices)
    )
    found = milp(
        np.concatenate((down[graph.src] * graph.peer_rate, up)),
        constraints=[LinearConstraint(covers, graph.rate, np.inf), LinearConstraint(once, -np.inf, 1.0)],
        integrality=np.concatenate((np.ones(rows), np.zeros(devices))),
        bounds=(0, np.concatenate((np.ones(rows), np.full(devices, np.inf)))),
        options={"mip_rel_gap": 0.0},
    )
    assert found.status == 0
    return float(found.fun)


def cut_cost(graph: DemandGraph, up: int, down: int) -> int:
    """The sum over device links of the min-cut between the device and the rest, for whole rates.

    Every link must be cut in any placement, so this is a lower bound on any cost; a placement of this cost is optimal.
    """
    arcs: list[tuple[int, int, int]] = []
    nodes = itertools.count(2)  # 0: the devices' side, 1: the cloud's
    for device in range(graph.devices):
        rows = np.arange(graph.start[device], graph.start[device + 1])
        views = {int(row): next(nodes) for row in rows}
        below = 0
        for level in np.unique(graph.rate[rows]).astype(int).tolist():
            step = next(nodes)
            arcs.append((0, step, up * (level - below)))
            arcs += [(step, views[row], 2**30) for row in rows[graph.rate[rows] >= level].tolist()]
            below = level
        arcs += [(view, 1, down * int(graph.peer_rate[row])) for row, view in views.items()]
    size = next(nodes)
    tail, head, capacity = np.asarray(arcs, dtype=np.int32).T
    network = sparse.csr_array((capacity, (tail, head)), shape=(size, size))
    return int(maximum_flow(network, 0, 1).flow_value)


def random_hierarchy(rng: np.random.Generator, whole_rates: bool, levels: int = 2) -> Hierarchy:
    """Up to four devices, a source at the cloud, and views over sources and views with disjoint data."""
    devices = int(rng.integers(2, 5))
    home = [*range(devices), AT_CLOUD]
    data: list[frozenset[int]] = [*(frozenset({d}) for d in range(devices)), frozenset()]
    level = [0] * len(home)
    edges: list[tuple[int, int]] = []
    while sum(h == VIEW for h in home) < 5:
        a, b = (int(v) for v in rng.choice(len(home), 2, replace=False))
        if data[a] & data[b] or not data[a] | data[b] or max(level[a], level[b]) >= levels:
            if rng.random() < 0.1:
                break
            continue
        view = len(home)
        home.append(VIEW)
        data.append(data[a] | data[b])
        level.append(1 + max(level[a], level[b]))
        edges += [(a, view), (b, view)]
    rates = rng.integers(0, 5, len(edges)) if whole_rates else rng.random(len(edges))
    feeds, views = (np.asarray(edges, dtype=np.int64).reshape(-1, 2)[:, side] for side in (0, 1))
    return Hierarchy.of(devices, home, feeds, views, rates)


def hierarchy_of_pairs(graph: DemandGraph) -> Hierarchy:
    """A demand graph as one level of views: a source for each device, a view for each pair."""
    rows = np.flatnonzero(graph.src < graph.dst)
    view = graph.devices + np.arange(rows.shape[0], dtype=np.int64)
    home = np.concatenate((np.arange(graph.devices), np.full(rows.shape[0], VIEW)))
    feed = np.concatenate((graph.src[rows], graph.dst[rows]))
    rate = np.concatenate((graph.rate[rows], graph.peer_rate[rows]))
    return Hierarchy.of(graph.devices, home, feed, np.concatenate((view, view)), rate)


def view_costs(
    h: Hierarchy, upload: Floats, download: Floats, capacity: Sequence[float] | None = None
) -> tuple[Floats, NDArray[np.int64]]:
    """The cost of every placement of the views, inf where it is not allowed, and the placements."""
    views = np.flatnonzero(h.home == VIEW)
    sites = np.stack(np.meshgrid(*[np.arange(AT_CLOUD, h.devices)] * len(views), indexing="ij"), -1)
    where = np.tile(h.home, (sites.size // max(len(views), 1), 1))
    where[:, views] = sites.reshape(-1, len(views))
    cost = np.zeros(len(where))
    for view in views:  # at the cloud or where one of its inputs is
        inputs = h.feed[h.view == view]
        cost[(where[:, view] != AT_CLOUD) & ~(where[:, inputs] == where[:, [view]]).any(axis=1)] = np.inf
    for vertex in range(h.vertices):
        sent, got = np.zeros(len(where)), np.zeros((h.devices, len(where)))
        for e in np.flatnonzero(h.feed == vertex):
            host, reader = where[:, vertex], where[:, h.view[e]]
            np.maximum(sent, np.where((host != reader) & (host != AT_CLOUD), h.rate[e], 0.0), out=sent)
            for device in range(h.devices):  # a feed comes down once, however many views there read it
                arrives = (host != reader) & (reader == device)
                np.maximum(got[device], np.where(arrives, h.rate[e], 0.0), out=got[device])
        cost += np.where(where[:, vertex] == AT_CLOUD, 0.0, upload[where[:, vertex]]) * sent + download @ got
    for device, most in enumerate(capacity or []):
        cost[(where[:, views] == device).sum(axis=1) > most] = np.inf
    return cost, where
