"""A view that begins in the past, over ten million records at three sites, beside live windows.

Three sites and the center in one process. Ten million records of the last hour are read as they would be in a first
run; then records come live, and a view is submitted with `start = 'all'`. Measured are the time until every window of
the past is exact, what the sites sent meanwhile, the memory of all processes, and how late live windows of another view
were published before and beside it. No figure is believed before the counts and sums of the past are those of the
generated records.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import RenderableType
from rich.table import Table

from catchment.errors import EngineError

DESCRIPTION = "a view that begins in the past of ten million records at three sites, beside live windows"
SITES = ("a", "b", "c")
RECORDS = 10_000_000
QUICK_RECORDS = 300_000
FILE_RECORDS = 100_000
KEYS = 200
PAST_S = 3600
LIVE_S = 30.0  # of live windows before the view is submitted
LIVE_RECORDS = 500  # per second and site
LIMIT_S = 420.0
TOML = """
[project]
name = "backfill"
center = "center"
[sites.center]
{sites}
[defaults]
trigger = "1 s"
"""
SQL = """
CREATE STREAM events (ts TIMESTAMP, key INT, value BIGINT)
  WITH (event_time = 'ts', sites = 'a,b,c', connector = 'files', path = 'data/{site}', format = 'parquet');
CREATE MATERIALIZED VIEW live AS
  SELECT window.start, count(*) AS n FROM events GROUP BY window(ts, '5 seconds');
"""
PAST_SQL = """
CREATE MATERIALIZED VIEW past WITH (start = 'all') AS
  SELECT window.start, key, count(*) AS n, sum(value) AS total FROM events GROUP BY window(ts, '10 seconds'), key;
"""
Report = Callable[[str], None]


def run(report: Report, quick: bool) -> dict[str, Any]:
    """Measure one backfill."""
    records = QUICK_RECORDS if quick else RECORDS
    with tempfile.TemporaryDirectory() as name:
        world = _Backfill(Path(name), records, report)
        return {"data": f"{records:,} made-up records of an hour at {len(SITES)} sites", **world.measure()}


@dataclass
class _Backfill:
    """One project, its records, and what is seen of it."""

    folder: Path
    records: int
    report: Report
    raw_bytes: int = 0
    counts: Any = field(default_factory=lambda: np.zeros(0))
    _begin_s: int = 0

    def measure(self) -> dict[str, Any]:
        """Write the project, read it, submit the view, and wait until its past is exact."""
        import catchment

        self._write_project()
        opened = catchment.open(self.folder)
        with opened.start() as running, _Memory() as memory:
            pipelines = running._runner.pipelines
            self._wait("records are read", lambda: _read_records(pipelines) >= self.records, 2 * LIMIT_S)
            with _Feeder(self.folder):
                self.report("live windows alone")
                live_from_s = time.time()
                time.sleep(LIVE_S)
                before_peak, memory.peak_bytes = memory.peak_bytes, 0
                sent_before = _sent_bytes(pipelines)
                submitted_s = time.time()
                opened.submit(PAST_SQL)
                self._wait("the past is exact", lambda: self._is_exact(opened), LIMIT_S)
                over_s = time.time()
                sent = _sent_bytes(pipelines) - sent_before
                self._check(opened)
                lags = _lags(opened)
        alone = [lag for at_s, lag in lags if live_from_s + 5 <= at_s < submitted_s]
        beside = [lag for at_s, lag in lags if submitted_s <= at_s < over_s]
        return {
            "records": self.records,
            "seconds": over_s - submitted_s,
            "records_per_s": self.records / (over_s - submitted_s),
            "sent_bytes": sent,
            "parquet_bytes": self.raw_bytes,
            "peak_bytes_before": before_peak,
            "peak_bytes": memory.peak_bytes,
            "live_lag_alone_s": _spread(alone),
            "live_lag_beside_s": _spread(beside),
            "load_average": os.getloadavg()[0],
        }

    def _write_project(self) -> None:
        sites = "".join(f'[sites.{s}]\n[[links]]\nfrom = "{s}"\nto = "center"\n' for s in SITES)
        (self.folder / "queries").mkdir()
        (self.folder / "catchment.toml").write_text(TOML.format(sites=sites))
        (self.folder / "queries" / "all.sql").write_text(SQL)
        chance = np.random.default_rng(1)
        self._begin_s = int(time.time()) // 10 * 10 - PAST_S
        found = np.zeros((PAST_S // 10, KEYS, 2), np.int64)
        for site in SITES:
            (self.folder / "data" / site).mkdir(parents=True)
            mine = self.records // len(SITES) + (self.records % len(SITES) if site == SITES[0] else 0)
            for number, first in enumerate(range(0, mine, FILE_RECORDS)):
                count = min(FILE_RECORDS, mine - first)
                span_us = (PAST_S - 60) * 1_000_000
                offsets = np.sort(chance.integers(span_us * first // mine, span_us * (first + count) // mine, count))
                keys, values = chance.integers(0, KEYS, count), chance.integers(0, 1000, count)
                rows = offsets // 10_000_000 * KEYS + keys
                for place, weights in enumerate((np.ones(count), values)):
                    sums = np.bincount(rows, weights, PAST_S // 10 * KEYS)
                    found[:, :, place] += sums.astype(np.int64).reshape(-1, KEYS)
                path = self.folder / "data" / site / f"past-{number:05d}.parquet"
                _write_file(path, self._begin_s * 1_000_000 + offsets, keys, values)
                self.raw_bytes += path.stat().st_size
        self.counts = found

    def _wait(self, what: str, is_done: Callable[[], bool], limit_s: float) -> None:
        self.report(f"waiting until {what}")
        deadline = time.monotonic() + limit_s
        while not is_done():
            if time.monotonic() > deadline:
                raise EngineError(f"after {limit_s:.0f} s it is not so that {what}")
            time.sleep(0.5)

    def _is_exact(self, opened: Any) -> bool:
        """Return whether every window of the past is published and lacks nothing."""
        from catchment.center.results.read import newest_windows, read_windows
        from catchment.errors import CenterError

        try:
            log = newest_windows(read_windows(opened.project.state_folder, "past"))
        except CenterError:
            return False
        ends_s = np.asarray(log["window_end"].cast(pa.int64())) // 1_000_000
        past = pa.array(ends_s <= self._begin_s + PAST_S - 60)
        mine = log.filter(past)
        wanted = int((self.counts[:, :, 0].sum(axis=1) > 0).sum())
        return mine.num_rows >= wanted and bool(
            pc.all(pc.is_in(mine["status"], value_set=pa.array(["exact", "final"]))).as_py()
        )

    def _check(self, opened: Any) -> None:
        """Refuse a past that is not that of the generated records."""
        rows = opened.results("past").to_arrow()
        places = (np.asarray(rows["window_start"].cast(pa.int64())) // 1_000_000 - self._begin_s) // 10
        mine = (places >= 0) & (places < (PAST_S - 60) // 10)
        found = np.zeros_like(self.counts)
        keys = np.asarray(rows["key"])[mine]
        found[places[mine], keys, 0] = np.asarray(rows["n"])[mine]
        found[places[mine], keys, 1] = np.asarray(rows["total"])[mine]
        if not np.array_equal(found, self.counts):
            wrong = int((found != self.counts).any(axis=2).sum())
            raise EngineError(f"{wrong} rows of the past are not those of the generated records")


class _Feeder:
    """Writes a small file per second and site, with records of now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        chance = np.random.default_rng(2)
        number = 0
        while not self._over.wait(1.0):
            number += 1
            for site in SITES:
                times_us = np.sort(int(time.time() * 1e6) - chance.integers(0, 1_000_000, LIVE_RECORDS))
                keys, values = chance.integers(0, KEYS, LIVE_RECORDS), chance.integers(0, 1000, LIVE_RECORDS)
                _write_file(self._folder / "data" / site / f"live-{number:06d}.parquet", times_us, keys, values)


class _Memory:
    """The most memory that this process and its children have held together, looked at twice a second."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.peak_bytes = max(self.peak_bytes, _resident_bytes())


def _resident_bytes() -> int:
    """Return what this process and all that it has started hold in memory."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        resident[process] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    mine = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(resident.get(process, 0) for process in mine)


def _write_file(path: Path, times_us: Any, keys: Any, values: Any) -> None:
    """Write records so that their file appears whole."""
    table = pa.table(
        {
            "ts": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "key": pa.array(keys, pa.int32()),
            "value": pa.array(values, pa.int64()),
        }
    )
    aside = path.with_name(f".{path.name}")
    pq.write_table(table, aside, compression="zstd")
    aside.rename(path)


def _read_records(pipelines: Any) -> int:
    return sum(state.rows for pipeline in pipelines for state in pipeline.states)


def _sent_bytes(pipelines: Any) -> int:
    return sum(pipeline.exits.appended_bytes for pipeline in pipelines)


def _lags(opened: Any) -> list[tuple[float, float]]:
    """Return when each live window ended, and how long after that it was first published."""
    from catchment.center.results.read import read_windows

    log = read_windows(opened.project.state_folder, "live").to_pylist()
    return [
        (row["window_end"].timestamp(), (row["published_at"] - row["window_end"]).total_seconds())
        for row in log
        if row["revision"] == 1
    ]


def _spread(lags: list[float]) -> dict[str, float] | None:
    if not lags:
        return None
    return {"median": float(np.median(lags)), "most": max(lags), "windows": len(lags)}


def render(result: Mapping[str, Any]) -> RenderableType:
    """Return the figures of the backfill."""
    table = Table("figure", "value")
    lag = {name: result[f"live_lag_{name}_s"] for name in ("alone", "beside")}
    table.add_row("records", f"{result['records']:,} at {len(SITES)} sites")
    table.add_row("time until every window of the past is exact", f"{result['seconds']:.0f} s")
    table.add_row("records per second", f"{result['records_per_s']:,.0f}")
    table.add_row("sent meanwhile, live view included", f"{result['sent_bytes'] / 1e6:.1f} MB")
    table.add_row("the records as Parquet files", f"{result['parquet_bytes'] / 1e6:.1f} MB")
    table.add_row("memory of all processes before, at most", f"{result['peak_bytes_before'] / 2**20:,.0f} MiB")
    table.add_row("memory of all processes meanwhile, at most", f"{result['peak_bytes'] / 2**20:,.0f} MiB")
    for name, words in (("alone", "before"), ("beside", "meanwhile")):
        if lag[name]:
            told = f"{lag[name]['median']:.1f} s, {lag[name]['most']:.1f} s at most ({lag[name]['windows']} windows)"
            table.add_row(f"live windows published after their end, {words}", told)
    table.add_row("load average of the machine", f"{result['load_average']:.1f}")
    return table
