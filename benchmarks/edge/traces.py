"""The traces of the edge benchmarks: real logs by several keys, and synthetic ones; each with its window.

The constants of the policy were set on other parts of these logs (their first hours) and on other seeds; the last
changes to how it forecasts were made with EDGAR and `sessions` of these in sight.

`python -m benchmarks.edge.traces NAME FILE.csv` writes one of them for `catchment simulate edge`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.data import open_text
from catchment.sim.edge.synthetic import drifting, memoryless, sessions, zipf_rates
from catchment.sim.edge.traces import KeyTrace, trace_of

WINDOWS = 24  # of each trace, at most
SYNTHETIC_WINDOW_S = 60.0
SEED = 2026
DAY_US = 86_400_000_000


@dataclass(frozen=True)
class NamedTrace:
    """A trace, the window to aggregate it by, and the true rates (records per window) where there are any."""

    name: str
    trace: KeyTrace
    window_s: float
    rates: npt.NDArray[np.float64] | None = None


# EDGAR by company and by client, Wikipedia edits by user, GitHub events by actor; then synthetic ones.
TRACES: dict[str, Callable[[str], NamedTrace]] = {
    "edgar-company": lambda name: _edgar(name, "cik", 1800, from_hour=12),
    "edgar-client": lambda name: _edgar(name, "ip", 600, from_hour=12),
    "wiki-user": lambda name: _wiki(name, "user", 1800, from_hour=12),
    "github-actor": lambda name: _github(name, "actor_id", 600),
    "zipf": lambda name: _memoryless(name, zipf_rates(3000, 1.0, 4000)),
    "cold": lambda name: _memoryless(name, zipf_rates(20_000, 0.6, 3000)),
    "sessions": lambda name: NamedTrace(
        name, sessions(1200, 5000, WINDOWS, SYNTHETIC_WINDOW_S, SEED), SYNTHETIC_WINDOW_S
    ),
    "drifting": lambda name: NamedTrace(
        name, drifting(3000, zipf_rates(5000, 0.8, 1), WINDOWS, SYNTHETIC_WINDOW_S, SEED), SYNTHETIC_WINDOW_S
    ),
}


def load(name: str) -> NamedTrace:
    """The trace of this name."""
    return TRACES[name](name)


def _memoryless(name: str, rates: npt.NDArray[np.float64]) -> NamedTrace:
    return NamedTrace(name, memoryless(rates, WINDOWS, SYNTHETIC_WINDOW_S, SEED), SYNTHETIC_WINDOW_S, rates)


def _edgar(name: str, key: str, window_s: float, from_hour: int) -> NamedTrace:
    frame = pd.read_csv(open_text("edgar"), usecols=["date", "time", key])
    return _cut(name, frame["date"] + " " + frame["time"], frame[key], window_s, from_hour)


def _wiki(name: str, key: str, window_s: float, from_hour: int) -> NamedTrace:
    frame = pd.read_json(open_text("wiki_edits"), lines=True)
    return _cut(name, frame["time"], frame[key], window_s, from_hour)


def _github(name: str, key: str, window_s: float) -> NamedTrace:
    frame = pd.read_csv(open_text("github_events"), usecols=["created_at", key])
    return _cut(name, frame["created_at"], frame[key], window_s, 0)


def _cut(name: str, times: pd.Series, keys: pd.Series, window_s: float, from_hour: int) -> NamedTrace:
    """The first windows from an hour of the day on; a record that came out of order counts from when it came."""
    at = pd.to_datetime(times, utc=True).dt.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64)
    ts_us = np.maximum.accumulate(at)
    begin_us = ts_us[0] // DAY_US * DAY_US + from_hour * 3_600_000_000
    inside = (ts_us >= begin_us) & (ts_us < begin_us + WINDOWS * int(window_s * 1e6))
    codes, _ = pd.factorize(keys)
    return NamedTrace(name, trace_of(ts_us[inside], codes[inside]), window_s)


def main() -> None:
    """Write a trace as CSV: the seconds at which records came, and their keys."""
    name, path = sys.argv[1:]
    trace = load(name).trace
    pd.DataFrame({"ts": trace.ts_us / 1e6, "key": trace.codes}).to_csv(path, index=False)


if __name__ == "__main__":
    main()
