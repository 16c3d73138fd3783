"""The offline optima: the best schedules if every arrival were known beforehand.

Heintz et al., HPDC'15, section 4: one update per key (Lemma 1), sent at its last arrival (eager, Theorem 3) or
as late as the best staleness allows (lazy, Theorem 4). Windows share the link, so a window may find it busy
with the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats
from catchment.sim.edge.network import Bandwidth
from catchment.sim.edge.traces import KeyTrace


@dataclass(frozen=True, eq=False)
class OptimalWindow:
    """The two extreme optimal schedules of one window: keys by last arrival, and when each is sent."""

    start_us: int
    codes: npt.NDArray[np.int64]
    eager_s: Floats
    lazy_s: Floats
    staleness_s: float


def optimal_windows(trace: KeyTrace, window_us: int, bandwidth: Bandwidth) -> list[OptimalWindow]:
    """Return both schedules of every window, and the least possible staleness."""
    out: list[OptimalWindow] = []
    clear = -np.inf
    for start_us, records in trace.windows(window_us):
        codes, last_us = last_arrivals(records)
        end_s = (start_us + window_us) / 1e6
        begun = bandwidth.works(last_us / 1e6)
        done = served_at(begun, clear)
        clear = float(done[-1])
        staleness_s = max(bandwidth.when(clear) - end_s, 0.0)
        turns = np.arange(len(codes), 0, -1, dtype=np.float64)
        lazy_s = bandwidth.whens(bandwidth.work(end_s + staleness_s) - turns)
        # Late in the window a lazy send may be a rounding error before the arrival that it waits for.
        lazy_s = np.maximum(lazy_s, last_us / 1e6)
        out.append(OptimalWindow(start_us, codes, last_us / 1e6, lazy_s, staleness_s))
    return out


def last_arrivals(records: KeyTrace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each key of a window once, in order of its last arrival, with the time of it."""
    backwards = records.codes[::-1]
    codes, place = np.unique(backwards, return_index=True)
    last = records.records - 1 - place
    order = np.argsort(last)
    return codes[order], records.ts_us[last[order]]


def served_at(begun: Floats, clear: float) -> Floats:
    """Return when each update is through a FIFO queue that was free from `clear` on.

    All numbers are work, of which an update takes one unit.
    """
    turn = np.arange(len(begun))
    return np.asarray(np.maximum(np.maximum.accumulate(begun - turn), clear) + turn + 1)
