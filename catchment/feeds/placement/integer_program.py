"""Integer programs over choices of 0 and 1, solved by HiGHS.

HiGHS stops when its answer is within an absolute 1e-6 of its bound, whatever the scale of the costs, so the
costs are scaled up first: what is called solved is then right to about 1e-11 of the largest cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from catchment.arrays import Floats

LARGEST_COST = 1e5  # costs are scaled so that this is the largest


@dataclass(frozen=True, eq=False)
class IntegerSolution:
    """The best choice found (None: none in time), a bound that no choice is below, and whether both meet."""

    chosen: NDArray[np.bool_] | None
    bound: float
    solved: bool


def least_cost(
    cost: Floats,
    matrix: sparse.csr_array,
    limits: Floats,
    time_limit_s: float,
    *,
    choices: int | None = None,
) -> IntegerSolution:
    """Minimise cost @ x over `matrix @ x <= limits`, x in [0, 1], the first `choices` (all) of them whole."""
    count = cost.shape[0]
    scale = LARGEST_COST / max(float(np.abs(cost).max(initial=0.0)), 1e-300)
    found: Any = milp(
        cost * scale,
        constraints=LinearConstraint(matrix, -np.inf, limits),
        bounds=Bounds(0, 1),
        integrality=(np.arange(count) < (count if choices is None else choices)).astype(np.int64),
        options={"time_limit": max(time_limit_s, 0.0), "mip_rel_gap": 0.0},
    )
    bound = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) / scale
    chosen = None if found.x is None else np.asarray(found.x[:choices] > 0.5)
    return IntegerSolution(chosen, bound, solved=found.status == 0)
