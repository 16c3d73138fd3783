"""Pathway: tumbling windows over the files as a static input."""

from __future__ import annotations

import datetime
import sys
import time

import pandas as pd
import pathway as pw

from benchmarks.peers.programs.turns import serve

folder, format, window_s, slide_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
assert window_s == slide_s, "tumbling windows only"
assert format in ("json", "csv"), "it reads text files"


class Event(pw.Schema):
    ts: str
    key: int
    value: float


def build(path: str) -> None:
    """Put the query together, with its answers written to a file."""
    pw.internals.parse_graph.G.clear()
    read = {"json": pw.io.jsonlines.read, "csv": pw.io.csv.read}[format]
    events = read(folder, schema=Event, mode="static")
    timed = events.select(
        at=events.ts.dt.strptime("%Y-%m-%dT%H:%M:%S.%fZ", contains_timezone=False), key=events.key, value=events.value
    )
    windows = timed.windowby(
        timed.at, window=pw.temporal.tumbling(datetime.timedelta(seconds=window_s)), instance=timed.key
    )
    totals = windows.reduce(
        start=pw.this._pw_window_start,
        key=pw.this._pw_instance,
        n=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.value),
    )
    pw.io.csv.write(totals, path)


def run(path: str = "/dev/null") -> float:
    build(path)
    began = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return time.perf_counter() - began


def write_answers(path: str) -> None:
    run(f"{path}.csv")
    found = pd.read_csv(f"{path}.csv")
    starts = pd.to_datetime(found["start"]).astype("datetime64[us]").astype("int64")
    pd.DataFrame({"slice_us": starts, "key": found["key"], "n": found["n"], "total": found["total"]}).to_parquet(path)


serve(pw.__version__, run, write_answers)
