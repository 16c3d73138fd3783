"""Where each view is computed: at the cloud, or on one of the two devices of its pair.

The view of a pair goes to the device that downloads on it, and to the cloud where both upload (Chandramouli
et al., VLDB'13, algorithm 2). A viable assignment has exactly one placement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catchment.feeds.placement.assign import Assignment

CLOUD = -1


@dataclass(frozen=True, eq=False)
class Placement:
    """One entry a pair {src, dst}, src < dst: `site` is CLOUD or the device that computes the view."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    site: NDArray[np.int32]

    @property
    def at_cloud(self) -> int:
        """Number of views computed at the cloud."""
        return int((self.site == CLOUD).sum())


def place(assignment: Assignment) -> Placement:
    """The placement of an assignment, pairs in ascending order."""
    graph = assignment.graph
    rows = np.flatnonzero(graph.src < graph.dst)
    src, dst = graph.src[rows], graph.dst[rows]
    dst_uploads = assignment.upload[graph.counterpart[rows]]
    site = np.where(dst_uploads, CLOUD, dst)
    return Placement(src, dst, np.where(assignment.upload[rows], site, src).astype(np.int32))
