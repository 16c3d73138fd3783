"""Traces made from a seed, each stressing a policy in its own way.

`memoryless`: every key a Poisson process of its own rate. `sessions`: a key comes in bursts and falls silent.
`drifting`: the total rate swings from window to window and within each.
"""

from __future__ import annotations

import numpy as np

from catchment.arrays import Floats
from catchment.sim.edge.traces import KeyTrace, trace_of


def zipf_rates(keys: int, exponent: float, records: float) -> Floats:
    """Return rates by rank that sum to `records` per window."""
    rates = 1.0 / np.arange(1, keys + 1) ** exponent
    return np.asarray(rates / rates.sum() * records)


def memoryless(rates: Floats, windows: int, window_s: float, seed: int) -> KeyTrace:
    """Return independent Poisson arrivals; `rates` are records per window, and key i has the code i."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rates * windows)
    at_s = rng.random(int(counts.sum())) * windows * window_s
    order = np.argsort(at_s, kind="stable")
    return KeyTrace((at_s[order] * 1e6).astype(np.int64), np.repeat(np.arange(len(rates)), counts)[order])


def sessions(starts: int, keys: int, windows: int, window_s: float, seed: int) -> KeyTrace:
    """Return `starts` sessions per window, each a few records of one key, a sixtieth of a window apart."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(0.3, starts * windows)
    begin_s = np.repeat(rng.random(len(lengths)) * windows * window_s, lengths)
    session = np.repeat(np.arange(len(lengths)), lengths)
    gaps_s = rng.exponential(window_s / 60, len(session))
    gaps_s[np.flatnonzero(np.diff(session, prepend=-1))] = 0.0
    elapsed_s = np.cumsum(gaps_s)
    since_s = elapsed_s - elapsed_s[np.searchsorted(session, session, "left")]
    at_s = begin_s + since_s
    key = rng.integers(0, keys, len(lengths))[session]
    order = np.argsort(at_s, kind="stable")
    inside = order[at_s[order] < windows * window_s]
    return trace_of((at_s[inside] * 1e6).astype(np.int64), key[inside])


def drifting(records: float, rates: Floats, windows: int, window_s: float, seed: int) -> KeyTrace:
    """Return arrivals at 0.4 to 1.6 times `records` per window that lean to the start or the end of windows."""
    rng = np.random.default_rng(seed)
    at_s = []
    for window in range(windows):
        count = rng.poisson(records * (1 + 0.6 * np.sin(window)))
        lean = 1 / (1 + 0.5 * np.cos(2 * window))
        at_s.append(window_s * (window + rng.random(count) ** lean))
    ordered = np.sort(np.concatenate(at_s))
    return trace_of((ordered * 1e6).astype(np.int64), rng.choice(len(rates), len(ordered), p=rates / rates.sum()))
