"""The assignment: for each demand row, whether src uploads its feed for that pair (U) or downloads (D).

Law: on no pair do both sides download (the assignment is viable), and no viable assignment costs less when
`optimal` is true. When Cu <= Cd each device's own optimum is already the global one; above that the
conflicts go to the residual problem (Chandramouli et al., VLDB'13, sections 3.4 to 3.7).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Floats
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import AT_CLOUD, Outcome
from catchment.feeds.placement.pair_views.conflicts import apply_lifts, residual_problem
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.pair_views.residual import solve_lifts
from catchment.feeds.placement.threshold_costs import Curves, Edges, cost_curves


@dataclass(frozen=True, eq=False, kw_only=True)
class Assignment(Outcome):
    """Decisions of one demand graph: `upload[e]` for row e; device i uploads at rate `threshold[i]`."""

    graph: DemandGraph
    upload: NDArray[np.bool_]
    threshold: Floats
    residual_kinds: Mapping[str, int] = field(default_factory=dict)  # components by tree, bipartite, odd


def assign(
    graph: DemandGraph,
    costs: DeviceCosts,
    *,
    time_limit_s: float = 60.0,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Assignment:
    """Return the cheapest viable assignment; the time limit bounds the search in cyclic residual components."""
    began = clock()
    upload_cost, download_cost = costs.per_device(graph.devices)
    edges = Edges(graph.start, graph.rate, graph.peer_rate, download_cost, graph.load)
    curves = cost_curves(edges, upload_cost, None if budget is None else budget.per_device(graph.devices))
    conflicts = residual_problem(graph, curves)
    lifts = solve_lifts(conflicts.problem, time_limit_s, clock)
    threshold = apply_lifts(curves, conflicts, lifts.reached)
    cost = float(curves.best.sum()) + lifts.cost
    return Assignment(
        graph=graph,
        upload=_uploads(graph, curves, threshold),
        threshold=threshold,
        cost=cost,
        all_upload_cost=_all_upload_cost(graph, upload_cost),
        conflicts=conflicts.pairs,
        residual_components=lifts.components,
        residual_kinds=lifts.kinds,
        optimal=lifts.optimal,
        gap=lifts.gap * lifts.cost / cost if cost > 0 else 0.0,
        seconds=clock() - began,
    )


def _uploads(graph: DemandGraph, curves: Curves, threshold: Floats) -> NDArray[np.bool_]:
    """Return everything but the rows above their device's threshold, which lifts can only have made fewer."""
    upload = np.ones(graph.edges, dtype=np.bool_)
    down = curves.down
    upload[down[graph.rate[down] > threshold[graph.src_of(down)]]] = False
    return upload


def _all_upload_cost(graph: DemandGraph, upload: Floats) -> float:
    filled = np.flatnonzero(np.diff(graph.start))
    if filled.shape[0] == 0:
        return 0.0
    return float((upload[filled] * np.maximum.reduceat(graph.rate, graph.start[filled])).sum())


@dataclass(frozen=True, eq=False)
class PairPlacement:
    """One entry per pair {src, dst}, src < dst: `site` is AT_CLOUD or the device that computes the view."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    site: NDArray[np.int32]

    @property
    def at_cloud(self) -> int:
        """Number of views computed at the cloud."""
        return int((self.site == AT_CLOUD).sum())


def place(assignment: Assignment) -> PairPlacement:
    """Return the placement of an assignment, pairs in ascending order."""
    graph = assignment.graph
    rows = np.flatnonzero(graph.src < graph.dst)
    src = graph.src[rows]
    dst = graph.dst[rows]
    dst_uploads = assignment.upload[graph.counterpart[rows]]
    site = np.where(dst_uploads, AT_CLOUD, dst)
    return PairPlacement(src, dst, np.where(assignment.upload[rows], site, src).astype(np.int32))
