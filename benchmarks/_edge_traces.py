"""The traces of the edge benchmarks: real logs by several keys, and synthetic ones; each with its window."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import zstandard

from catchment.errors import ConfigError
from catchment.sim.synthetic import drifting, memoryless, sessions, zipf_rates
from catchment.sim.traces import Trace, trace_of

WINDOWS = 24  # of each trace, at most
SYNTHETIC_WINDOW_S = 60.0


@dataclass(frozen=True)
class NamedTrace:
    """A trace, the window to aggregate it by, and the true rates (records a window) where there are any."""

    name: str
    trace: Trace
    window_s: float
    rates: npt.NDArray[np.float64] | None = None


def real_traces() -> list[Callable[[], NamedTrace]]:
    """EDGAR by company, by client and company, by client; Wikipedia edits by user; GitHub events by repository."""
    return [
        lambda: _edgar("edgar-company", ["cik"], 1800),
        lambda: _edgar("edgar-client-company", ["ip", "cik"], 1800),
        lambda: _edgar("edgar-client", ["ip"], 600),
        lambda: _wiki("wiki-user", "user", 1800),
        lambda: _github("github-repo", "repo_id", 600),
    ]


def synthetic_traces() -> list[Callable[[], NamedTrace]]:
    return [
        lambda: _memoryless("zipf", zipf_rates(3000, 1.0, 4000)),
        lambda: _memoryless("cold", zipf_rates(20_000, 0.6, 3000)),
        lambda: _memoryless("flat", np.full(3000, 1.0)),
        lambda: NamedTrace("sessions", sessions(1200, 5000, WINDOWS, SYNTHETIC_WINDOW_S, 7), SYNTHETIC_WINDOW_S),
        lambda: NamedTrace(
            "drifting", drifting(3000, zipf_rates(5000, 0.8, 1), WINDOWS, SYNTHETIC_WINDOW_S, 7), SYNTHETIC_WINDOW_S
        ),
    ]


def _memoryless(name: str, rates: npt.NDArray[np.float64]) -> NamedTrace:
    return NamedTrace(name, memoryless(rates, WINDOWS, SYNTHETIC_WINDOW_S, 3), SYNTHETIC_WINDOW_S, rates)


def _edgar(name: str, keys: list[str], window_s: float) -> NamedTrace:
    frame = pd.read_csv(_opened("web-log-edgar/edgar_20170101_1pct.csv.zst"), usecols=["date", "time", *keys])
    return _cut(name, frame["date"] + " " + frame["time"], frame, keys, window_s)


def _wiki(name: str, key: str, window_s: float) -> NamedTrace:
    frame = pd.read_json(_opened("wiki-edits/wikiticker.json.zst"), lines=True)
    return _cut(name, frame["time"], frame, [key], window_s)


def _github(name: str, key: str, window_s: float) -> NamedTrace:
    frame = pd.read_csv(_opened("github-events/gharchive.csv.zst"), usecols=["created_at", key])
    return _cut(name, frame["created_at"], frame, [key], window_s)


def _cut(name: str, times: pd.Series, frame: pd.DataFrame, keys: list[str], window_s: float) -> NamedTrace:
    """The first windows; a record that came out of order counts from when it came."""
    ts_us = pd.to_datetime(times).to_numpy().astype("datetime64[us]").astype(np.int64)
    ts_us = np.maximum.accumulate(ts_us)
    codes = frame.groupby(keys, dropna=False).ngroup().to_numpy()
    first = ts_us[0] // int(window_s * 1e6)
    inside = ts_us < (first + WINDOWS) * int(window_s * 1e6)
    return NamedTrace(name, trace_of(ts_us[inside], codes[inside]), window_s)


def _opened(path: str) -> io.TextIOWrapper:
    default = Path(__file__).parent.parent.parent / "shared" / "data"
    folder = Path(os.environ.get("CATCHMENT_DATA", default))
    if not (folder / path).is_file():
        raise ConfigError(f"there is no {path} in {folder}", hint="set CATCHMENT_DATA to the folder with the data sets")
    reader = zstandard.ZstdDecompressor().stream_reader((folder / path).open("rb"))
    return io.TextIOWrapper(reader, encoding="utf-8")
