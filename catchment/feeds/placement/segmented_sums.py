"""Running sums and extremes inside the segments of one flat array.

A segment is a run of equal numbers in `owner`. The sums are taken inside each segment alone (log2 of the
longest segment passes), never as differences of one long running sum: such differences round, and a rounded
sum breaks ties that decide between upload and download.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Floats, Ints


def starts_of(owner: NDArray[np.integer]) -> Ints:
    """Return where each run of equal owners begins."""
    if owner.shape[0] == 0:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate(([0], np.flatnonzero(owner[1:] != owner[:-1]) + 1))


def suffix_sums(values: Floats, owner: NDArray[np.integer]) -> Floats:
    """Return for each position the sum from there to the end of its segment."""
    return _scan(values, owner, np.add, 0.0)


def prefix_sums(values: Floats, owner: NDArray[np.integer]) -> Floats:
    """Return for each position the sum from the start of its segment to there."""
    return suffix_sums(values[::-1], owner[::-1])[::-1]


def suffix_minima(values: Floats, owner: NDArray[np.integer]) -> Floats:
    """Return for each position the least value from there to the end of its segment."""
    return _scan(values, owner, np.minimum, np.inf)


def _scan(values: Floats, owner: NDArray[np.integer], combine: np.ufunc, neutral: float) -> Floats:
    total = values.astype(np.float64, copy=True)
    starts = starts_of(owner)
    longest = int(np.diff(np.append(starts, owner.shape[0])).max(initial=0))
    reach = 1
    while reach < longest:  # after this pass each position covers 2 * reach values
        ahead = np.where(owner[reach:] == owner[:-reach], total[reach:], neutral)
        total[:-reach] = combine(total[:-reach], ahead)
        reach *= 2
    return total
