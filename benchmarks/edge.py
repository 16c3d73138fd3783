"""Edge policies live: bytes, updates and staleness of real sites on shaped links.

A real web log (SEC EDGAR, one day, 1% sample) is replayed so that an hour takes `WINDOW_WALL_S` seconds; the three
queries of the first table of Heintz et al. (HPDC'15): small (sum by country and status), medium (moments by client),
large (distinct clients by company). For each query the link is shaped to a multiple of what streaming needs, which is
measured first on a link that is not shaped. Policies of one cell run at the same time, each as a site of its own with a
link of its own, so that noise meets all alike. Staleness is from the end of a window, by the pace of the replay, to the
landing of its last update at the center; the least possible is that of the offline optimum of the paper on the same
arrivals and link, to which every live run adds its micro-batches. The first window, in which policies have nothing to
go by, is left out. The quick run is the large query alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from rich.console import RenderableType
from rich.table import Table

DESCRIPTION = "edge policies live: bytes, updates and staleness on shaped links (EDGAR log)"
POLICIES = ("streaming", "batching", "hybrid:0.25", "spillway")
QUERIES = {
    "small": ("country, code", "sum(bytes) AS answer"),
    "medium": ("client", "moments(bytes) AS answer"),
    "large": ("company", "approx_count_distinct(client) AS answer"),
}
WINDOW_WALL_S = 12.0
HOURS = 5
FACTORS = (0.2, 0.5, 1.0, 2.0, 5.0)
QUICK_FACTORS = (0.2, 1.0, 5.0)
UNSHAPED = 50e6


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """One site a policy at every link; then three sites at a few."""
    from catchment.config import SparkConfig
    from catchment.spark.session import make_session

    records = read_log(HOURS)
    queries = ["large"] if quick else list(QUERIES)
    spark = make_session("bench edge", SparkConfig(master="local[2]", memory="3g"))
    cells: list[dict[str, Any]] = []
    try:
        for query in queries:
            need = streaming_need(spark, records, query)
            report(f"{query}: streaming needs {need:,.0f} bytes/s")
            several = (1.0,) if query == "large" else ()
            for sites, factors in ((1, QUICK_FACTORS if quick else FACTORS), (3, several)):
                for factor in factors:
                    cells += measure(spark, records, query, sites, factor, need, report)
    finally:
        spark.stop()
    return {
        "compared": f"policies {', '.join(POLICIES)}; links in multiples of what streaming needs",
        "data": f"SEC EDGAR log of 2017-01-01 (1% sample), {HOURS} hours, {len(records):,} records, "
        f"an hour in {WINDOW_WALL_S:g} s",
        "cells": cells,
    }


def measure(
    spark: Any, records: Sequence[dict[str, Any]], query: str, sites: int, factor: float, need: float,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """All policies of one cell: one site each at once; with several sites a policy, one policy after another."""
    bandwidth = need * factor / sites
    groups = [POLICIES] if sites == 1 else [(p,) for p in POLICIES]
    found: dict[str, dict[str, Any]] = {}
    for policies in groups:
        found |= live(spark, records, query, policies, sites, bandwidth)
    batching = found["batching"]
    best_s = least_staleness_s(records, query, sites, bandwidth * batching["updates_sent"] / batching["bytes"])
    cells = []
    for policy, seen in found.items():
        cell = {"query": query, "sites": sites, "factor": factor, "policy": policy, **seen}
        cell["staleness_over_batching"] = seen["staleness_mean_s"] / batching["staleness_mean_s"]
        cell["least_staleness_s"] = best_s
        cells.append(cell)
        report(
            f"{query}, {sites} site(s), link x{factor:g}, {policy}: {seen['bytes']:,} bytes, "
            f"{seen['updates_over_optimal']:.3f} of optimal updates, staleness {seen['staleness_mean_s']:.2f} s"
        )
    return cells


def streaming_need(spark: Any, records: Sequence[dict[str, Any]], query: str) -> float:
    """Bytes a second that streaming sends when nothing holds it back."""
    seen = live(spark, records, query, ("streaming",), 1, UNSHAPED)["streaming"]
    return float(seen["bytes"] / (seen["hours"] * WINDOW_WALL_S))


def least_staleness_s(records: Sequence[dict[str, Any]], query: str, sites: int, updates_per_s: float) -> float:
    """The mean staleness of the offline optimum, each window by its slowest site."""
    from catchment.sim.network import Bandwidth
    from catchment.sim.optimum import optimal_windows
    from catchment.sim.traces import trace_of

    keys = QUERIES[query][0].split(", ")
    stale: dict[int, float] = defaultdict(float)
    for site in range(sites):
        mine = [r for r in records_of(records, sites) if r["site"] == site]
        numbers = {key: n for n, key in enumerate(dict.fromkeys(tuple(r[k] for k in keys) for r in mine))}
        at_us = np.array([np.datetime64(r["ts"].rstrip("Z"), "us").astype(np.int64) for r in mine]) / speed()
        trace = trace_of(at_us.astype(np.int64), [numbers[tuple(r[k] for k in keys)] for r in mine])
        for window in optimal_windows(trace, round(WINDOW_WALL_S * 1e6), Bandwidth((updates_per_s,))):
            stale[window.start_us] = max(stale[window.start_us], window.staleness_s)
    return float(np.mean([stale[start] for start in sorted(stale)][1:]))


@dataclass
class Watch:
    """What lands at the center: per site and slice the update rows and the time of the last one."""

    rows: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    last: dict[tuple[str, int], float] = field(default_factory=dict)

    def hear(self, segment: Any) -> None:
        now = time.time()
        for update in segment.updates():
            starts, counts = np.unique(update.table["slice_us"].to_numpy(), return_counts=True)
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
                self.rows[segment.origin, start] += count
                self.last[segment.origin, start] = now


def live(
    spark: Any, records: Sequence[dict[str, Any]], query: str, policies: Sequence[str], sites: int, bandwidth: float
) -> dict[str, dict[str, Any]]:
    """Run the policies, `sites` sites each, all at once; what each sent and how stale it was."""
    from catchment.spark.deploy import Deployment
    from catchment.spark.run import Runner

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        names = {p: [f"p{i}s{n}" for n in range(sites)] for i, p in enumerate(policies)}
        write_project(folder, records, query, names, bandwidth)
        deployment = Deployment.load(folder)
        watch = Watch()
        runner = Runner(deployment, spark, deployment.sites, True, on_segment=watch.hear)
        try:
            runner.start()
            runner.run(seconds=HOURS * WINDOW_WALL_S * 6 + 60)
            status = runner.status()["sites"]
            return {p: outcome(folder, names[p], watch, status, records, query) for p in policies}
        finally:
            runner.close()


def outcome(
    folder: Path, sites: Sequence[str], watch: Watch, status: Mapping[str, Any], records: Sequence[dict[str, Any]],
    query: str,
) -> dict[str, Any]:  # fmt: skip
    """Traffic against the least possible, and staleness per window, over the sites of one policy."""
    from catchment.spark.spool import read_beginning

    starts = sorted({start for site, start in watch.rows if site in sites})[1:]
    keys = QUERIES[query][0].split(", ")
    distinct = {(r["site"], r["hour_us"], *(r[k] for k in keys)) for r in records_of(records, len(sites))}
    stale = []
    for start in starts:
        late = []
        for site in sites:
            (spool,) = (folder / "state" / "sites" / site / "spool").glob("*.arrow")
            began = read_beginning(spool)
            if began is not None and (site, start) in watch.last:
                end_wall = began[0] / 1e6 + (start + 3600e6 - began[1]) / 1e6 / speed()
                late.append(watch.last[site, start] - end_wall)
        stale.append(max(late))
    updates = sum(n for (site, start), n in watch.rows.items() if site in sites and start in starts)
    optimal = sum(1 for place in distinct if place[1] in starts)
    return {
        "bytes": sum(status[s]["bytes_sent"] for s in sites),
        "updates": updates,
        "updates_sent": sum(n for (site, _), n in watch.rows.items() if site in sites),
        "updates_over_optimal": updates / optimal,
        "staleness_mean_s": float(np.mean(stale)),
        "staleness_p95_s": float(np.percentile(stale, 95)),
        "hours": len(starts) + 1,
    }


def write_project(
    folder: Path, records: Sequence[dict[str, Any]], query: str, names: Mapping[str, Sequence[str]], bandwidth: float
) -> None:
    """A project with one view a policy, each fed by its own sites over links of one bandwidth."""
    everyone = [s for sites in names.values() for s in sites]
    links = "".join(
        f'[[links]]\nfrom = "{s}"\nto = "center"\nbandwidth = "{bandwidth:.0f} bytes/s"\n' for s in everyone
    )
    (folder / "queries").mkdir()
    (folder / "catchment.toml").write_text(
        '[project]\nname = "edge"\ncenter = "center"\n' + "".join(f"[sites.{s}]\n" for s in everyone)
        + f'[sites.center]\n{links}[defaults]\ntrigger = "500 ms"\nfreshness = "none"\nhistory = false\n'
    )  # fmt: skip
    keys, answer = QUERIES[query]
    statements = []
    for number, (policy, sites) in enumerate(names.items()):
        statements.append(
            f"CREATE STREAM log{number} (ts TIMESTAMP, client STRING, country STRING, company BIGINT, code INT,"
            f" bytes BIGINT) WITH (event_time = 'ts', sites = '{','.join(sites)}', connector = 'replay',"
            f" path = 'data/{{site}}.jsonl', format = 'json', speed = {speed():g});\n"
            f"CREATE MATERIALIZED VIEW answers{number} WITH (policy = '{policy}') AS"
            f" SELECT window.start, {keys}, {answer} FROM log{number} GROUP BY window(ts, '1 hour'), {keys};\n"
        )
    (folder / "queries" / "q.sql").write_text("".join(statements))
    (folder / "data").mkdir()
    for sites in names.values():
        texts: dict[int, list[str]] = defaultdict(list)
        for record in records_of(records, len(sites)):
            texts[record["site"]].append(json.dumps({k: v for k, v in record.items() if k not in ("site", "hour_us")}))
        for number, site in enumerate(sites):
            (folder / "data" / f"{site}.jsonl").write_text("\n".join(texts[number]) + "\n")


def records_of(records: Sequence[dict[str, Any]], sites: int) -> list[dict[str, Any]]:
    """The records, each with the site it is born at: by the client's address."""
    return [{**r, "site": sum(r["client"].encode()) % sites} for r in records]


def speed() -> float:
    return 3600 / WINDOW_WALL_S


def read_log(hours: int) -> list[dict[str, Any]]:
    """The first hours of the log, from the folder that CATCHMENT_DATA names."""
    from catchment.errors import ConfigError

    folder = Path(os.environ.get("CATCHMENT_DATA", Path(__file__).parents[2] / "shared" / "data")) / "web-log-edgar"
    if not folder.is_dir():
        raise ConfigError(
            f"there is no EDGAR log in {folder}", hint="set CATCHMENT_DATA to the folder of the data sets"
        )
    country = {r["ip"]: r["country"] for r in _rows(folder / "ip_country.csv.zst")}
    records = []
    for row in _rows(folder / "edgar_20170101_1pct.csv.zst"):
        hour = int(row["time"][:2])
        company = int(float(row["cik"]))
        if hour >= hours:
            break
        if company < 2**53:  # five records of the log have a company that no number type holds
            records.append({
                "ts": f"{row['date']}T{row['time']}Z", "client": row["ip"], "country": country.get(row["ip"], "-"),
                "company": company, "code": int(float(row["code"])), "bytes": int(float(row["size"] or 0)),
                "hour_us": (1_483_228_800 + hour * 3600) * 1_000_000,
            })  # fmt: skip
    return records


def _rows(path: Path) -> Any:
    stream = zstandard.ZstdDecompressor().stream_reader(path.open("rb"))
    return csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8"))


def render(result: Mapping[str, Any]) -> RenderableType:
    """One row a cell."""
    columns = (
        "query", "sites", "link", "policy", "bytes", "updates / optimal", "staleness", "p95", "of batching", "least",
    )  # fmt: skip
    table = Table(*columns, title=result["data"], title_justify="left")
    for c in result["cells"]:
        table.add_row(
            c["query"], str(c["sites"]), f"x{c['factor']:g}", c["policy"], f"{c['bytes']:,}",
            f"{c['updates_over_optimal']:.3f}", f"{c['staleness_mean_s']:.2f} s", f"{c['staleness_p95_s']:.2f} s",
            f"{c['staleness_over_batching']:.2f}", f"{c['least_staleness_s']:.2f} s",
        )  # fmt: skip
    return table
