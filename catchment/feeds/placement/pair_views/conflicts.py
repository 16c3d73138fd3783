"""From the devices' own choices to the residual problem, and from its answer back to thresholds.

Invariant: a lift goes to the cheapest threshold at or above the level that the residual solution asks for,
so the cost of the assignment is the sum of the devices' own optima and the lifts' costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Floats, Ints
from catchment.feeds.placement.pair_views.conflict_problem import LiftProblem
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.threshold_costs import Curves


@dataclass(frozen=True, eq=False)
class Conflicts:
    """The residual problem, with the device of each node and the step (of the curves) of each level."""

    problem: LiftProblem
    device: Ints
    step: Ints

    @property
    def pairs(self) -> int:
        return int(self.problem.left.shape[0])


def residual_problem(graph: DemandGraph, curves: Curves) -> Conflicts:
    """Return the pairs on which both devices would download, as a residual problem."""
    rows = curves.down
    rows = rows[graph.peer_rate[rows] > curves.threshold[graph.dst[rows]]]
    src = graph.src_of(rows)
    dst = graph.dst[rows]
    once = src < dst
    rows = rows[once]
    return conflicts_among(curves, src[once], dst[once], graph.rate[rows], graph.peer_rate[rows])


def conflicts_among(
    curves: Curves, a: NDArray[np.int32], b: NDArray[np.int32], rate_a: Floats, rate_b: Floats
) -> Conflicts:
    """Return the residual problem of pairs {a, b} that demand rate_a of a's feed and rate_b of b's."""
    key_of_step, keys = _keys(curves, np.concatenate((a, b)), np.concatenate((rate_a, rate_b)))
    levels, level_of = np.unique(keys, return_inverse=True)
    step = np.searchsorted(key_of_step, levels)
    device, start = np.unique(curves.device[step], return_index=True)
    lift_cost = curves.least_cost_from()[step] - curves.best[curves.device[step]]
    left = level_of[: a.shape[0]]
    right = level_of[a.shape[0] :]
    start = np.append(start, step.shape[0]).astype(np.int64)
    return Conflicts(LiftProblem(start, np.maximum(lift_cost, 0.0), left, right), device, step)


def _keys(curves: Curves, device: Ints, rate: Floats) -> tuple[Ints, Ints]:
    """Return one ascending number for each (device, rate), for the steps of the curves and for the given rows."""
    rates, code = np.unique(np.concatenate((curves.rate, rate)), return_inverse=True)
    of_device = np.concatenate((curves.device, device.astype(np.int64)))
    key = of_device * rates.shape[0] + code
    return key[: curves.rate.shape[0]], key[curves.rate.shape[0] :]


def apply_lifts(curves: Curves, conflicts: Conflicts, reached: Ints) -> Floats:
    """Return every device's threshold after the lifts."""
    threshold = curves.threshold.copy()
    lifted = np.flatnonzero(reached)
    asked = conflicts.step[conflicts.problem.start[lifted] + reached[lifted] - 1]
    least = curves.least_cost_from()
    ends = np.searchsorted(curves.device, curves.device[asked], side="right")
    for device, first, end in zip(conflicts.device[lifted], asked, ends, strict=True):
        steps = curves.cost[first:end]
        threshold[device] = curves.rate[first:end][steps == least[first]].max()
    return threshold
