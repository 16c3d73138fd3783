"""What a burst is made of: the log, the project with its seven views, and the truth.

The log is a 1% sample of what the server saw, so each record is written `COPIES` times, a hundredth of a second
apart. Seven views share the stream, with selectivities from 1% to 100% and windows of two to ten seconds. The truth is
a recomputation from the raw log by numpy, not by catchment.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import open_text

BURST_HOURS = (14, 15)  # of the busiest of the day, by the log's own counts
COPIES = 100
START_S = 1_700_000_100
CALM_SHARE = 0.35  # of the capacity, before and after the burst
BEFORE_S, AFTER_S = 24.0, 12.0  # of calm: the first batches of a process are slow
TOML = """
[project]
name = "burst"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
[defaults]
repair_horizon = "1 hour"
sharing = "none"
"""
STREAM = """
CREATE STREAM hits (arrived TIMESTAMP, ts TIMESTAMP, code INT, size BIGINT, crawler BOOLEAN, ip STRING)
  WITH (event_time = 'ts', sites = 'edge', connector = 'replay', path = '{path}', format = 'parquet',
        arrival = 'arrived', speed = 1, shed = {shed});
"""
PRIVATE = "ip LIKE '1%' AND ip RLIKE '^[0-9]+[.][0-9]+[.][0-9]*[02468][.]'"
VIEWS = {
    "everything": ("count(*) AS n, sum(size) AS bytes", "", 2, ""),
    "by_code": ("code, count(*) AS n", "", 2, ", code"),
    "served": ("count(*) AS n, sum(size) AS bytes", "WHERE code = 200", 4, ""),
    "errors": ("count(*) AS n", "WHERE code >= 400", 4, ""),
    "missing": ("count(*) AS n", "WHERE code = 404", 10, ""),
    "crawlers": ("count(*) AS n, avg(size) AS mean", "WHERE crawler", 5, ""),
    "subnets": ("count(*) AS n", f"WHERE {PRIVATE}", 4, ""),
}
MAIN_CODES = (200, 301)  # the groups of by_code that hold 90% of its records
CODES = 1_000

Log = Mapping[str, np.ndarray]
Truth = dict[str, dict[tuple[int, Any], dict[str, float]]]


def read_log(hours: Sequence[int] = BURST_HOURS) -> Log:
    """The records of some hours as columns, in order."""
    with open_text("edgar") as lines:
        rows = [r for r in csv.DictReader(lines) if int(r["time"][:2]) in hours]
    return {
        "code": np.array([int(float(r["code"])) for r in rows], dtype=np.int32),
        "size": np.array([int(float(r["size"] or 0)) for r in rows], dtype=np.int64),
        "crawler": np.array([float(r["crawler"] or 0) > 0 for r in rows]),
        "ip": np.array([r["ip"] for r in rows]),
    }


def phases_of(capacity: float, times: float, burst_s: float) -> list[tuple[float, float]]:
    """Calm of an uneven kind, then `times` the capacity, then calm again: (rows per second, seconds)."""
    calm = [(CALM_SHARE * capacity * share, BEFORE_S / 3) for share in (0.3, 1.0, 0.6)]
    return [*calm, (times * capacity, burst_s), (CALM_SHARE * capacity, AFTER_S)]


def make_table(log: Log, phases: Sequence[tuple[float, float]], start_s: int = START_S) -> pa.Table:
    """Records in the log's order, arriving in phases of (rows per second, seconds); event time is arrival time."""
    arrivals, at = [], float(start_s)
    for rate, seconds in phases:
        count = int(rate * seconds)
        arrivals.append(at + np.arange(count) / rate)
        at += seconds
    times = np.concatenate(arrivals)
    place = np.arange(len(times)) // COPIES % len(log["code"])
    micros = pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC"))
    return pa.table({"arrived": micros, "ts": micros, **{c: pa.array(log[c]).take(pa.array(place)) for c in log}})


def write_log(path: Path, log: Log, phases: Sequence[tuple[float, float]]) -> pa.Table:
    table = make_table(log, phases)
    pq.write_table(table, path, compression="zstd", row_group_size=500_000)
    return table


def write_project(folder: Path, log: Path, shed: bool) -> Path:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    views = "".join(
        f"CREATE MATERIALIZED VIEW {name} AS SELECT window.start, {what} FROM hits {where} "
        f"GROUP BY window(ts, '{seconds} seconds'){key};\n"
        for name, (what, where, seconds, key) in VIEWS.items()
    )
    sql = STREAM.replace("{path}", str(log)).replace("{shed}", str(shed).lower())
    (folder / "queries" / "q.sql").write_text(sql + views)
    return folder


def columns_of(view: str) -> list[str]:
    """The answers of a view."""
    return [column for column in ("n", "bytes", "mean") if f" AS {column}" in VIEWS[view][0]]


def members(table: pa.Table) -> dict[str, np.ndarray | None]:
    """Which records each view is about; None: all."""
    code = np.asarray(table["code"])
    ips = table["ip"].combine_chunks().dictionary_encode()
    private = re.compile(r"^1[0-9]*[.][0-9]+[.][0-9]*[02468][.]")
    fits = np.array([private.match(ip) is not None for ip in ips.dictionary.to_pylist()])
    return {
        "everything": None,
        "by_code": None,
        "served": code == 200,
        "errors": code >= 400,
        "missing": code == 404,
        "crawlers": np.asarray(table["crawler"]),
        "subnets": fits[np.asarray(ips.indices)],
    }


def truth_of(table: pa.Table) -> Truth:
    """Every window of every view, recomputed from the raw records."""
    micros = np.asarray(table["ts"].cast(pa.int64()))
    code, size = np.asarray(table["code"]), np.asarray(table["size"], dtype=np.float64)
    masks = members(table)
    answers = {}
    for view, (_, _, seconds, _) in VIEWS.items():
        chosen = slice(None) if masks[view] is None else masks[view]
        starts = micros[chosen] // (seconds * 1_000_000) * (seconds * 1_000_000)
        keys = code[chosen] if view == "by_code" else np.zeros(len(starts), dtype=np.int32)
        groups = (starts - starts[0]) // (seconds * 1_000_000) * CODES + keys  # in order of time: the first is least
        n, total = np.bincount(groups), np.bincount(groups, weights=size[chosen])
        answers[view] = {
            (int(starts[0]) + int(g) // CODES * seconds * 1_000_000, int(g) % CODES): {
                "n": float(n[g]),
                "bytes": float(total[g]),
                "mean": float(total[g] / n[g]),
            }
            for g in np.flatnonzero(n)
        }
    return answers
