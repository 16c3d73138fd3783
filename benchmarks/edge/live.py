"""Edge policies live: bytes, updates and staleness of real sites on shaped links.

A real web log (SEC EDGAR, one day, 1% sample) is replayed so that an hour takes half a minute (a minute and a half
where a cell says so: a window then has three times as many micro-batches, nearer to windows of real length); the three
queries of the first table of Heintz et al. (HPDC'15): small (sum by country and status), medium (moments by client),
large (distinct clients by company). For each query the link is shaped to a multiple of what streaming needs, which is
measured first on links that are not shaped. All policies of a cell run at the same time, each as sites of its own with
links of their own, so that noise affects all alike; three sites share one cell's bandwidth and records. Staleness is
from the end of a window, by the pace of the replay, to the landing of its last update at the center; the least
possible is that of the offline optimum of the paper on the same arrivals and link, to which every live run adds its
micro-batches. The first window, in which policies have nothing to go by, is left out. A window after the end of the
log the run is cut: what still waits then counts as sent, and as landing at that moment (`waiting` rows).
"""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.data import open_text

DESCRIPTION = "edge policies live: bytes, updates and staleness on shaped links (EDGAR log)"
POLICIES = ("streaming", "batching", "hybrid:0.25", "spillway")
QUERIES = {
    "small": ("country, code", "sum(bytes) AS answer"),
    "medium": ("client", "moments(bytes) AS answer"),
    "large": ("company", "approx_count_distinct(client) AS answer"),
}
TRIGGER_MS = 1000
# A window's end falls anywhere within a micro-batch: means over three windows differ by half of one by chance alone.
STALER_BY_S = 0.5 * TRIGGER_MS / 1000
HOURS = 4
UNSHAPED = 50e6
UNSHAPED_TAIL_S = 5.0
HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class Setting:
    """What all policies meet at the same time: a query, so many sites, a link in multiples of what streaming needs, and
    the seconds that an hour of the log takes."""

    query: str
    sites: int
    factor: float
    window_s: float = 30.0


PARTS: dict[str, tuple[Setting, ...]] = {
    "large": (Setting("large", 1, 1.0), Setting("large", 1, 5.0)),
    "large-between": (Setting("large", 1, 0.2), Setting("large", 1, 0.5), Setting("large", 1, 2.0)),
    "large-slow": (Setting("large", 1, 5.0, 90.0),),
    "small-medium": (Setting("medium", 1, 1.0), Setting("small", 1, 1.0)),
    "small-medium-fat": (Setting("medium", 1, 5.0), Setting("small", 1, 5.0)),
    "small-medium-thin": (Setting("medium", 1, 0.2), Setting("small", 1, 0.2)),
    "three-sites-large": (Setting("large", 3, 1.0),),
    "three-sites-large-fat": (Setting("large", 3, 5.0),),
    "three-sites-large-thin": (Setting("large", 3, 0.2),),
    "three-sites-small": (Setting("small", 3, 1.0),),
    "three-sites-medium": (Setting("medium", 3, 1.0),),
}
QUICK = {"large": PARTS["large"]}

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Member:
    """One policy in one cell: its sites, the bandwidth of each, and the seconds that an hour of the log takes."""

    policy: str
    query: str
    sites: tuple[str, ...]
    bandwidth: float
    window_s: float

    @property
    def speed(self) -> float:
        return 3600 / self.window_s


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """Every cell of the chosen parts."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    chosen = QUICK if quick else {name: PARTS[name] for name in parts or PARTS}
    settings = [setting for settings in chosen.values() for setting in settings]
    records = read_log(HOURS)
    spark = make_session("bench edge", SparkConfig(master="local[2]", memory="3g"))
    cells: list[dict[str, Any]] = []
    try:
        needs = streaming_needs(spark, records, settings)
        for kind, need in needs.items():
            report(f"{kind.query}, {kind.sites} site(s): streaming needs {need:,.0f} bytes/s")
        for setting in settings:
            cells += measure(spark, records, setting, needs[replace(setting, factor=0.0)], report)
    finally:
        spark.stop()
    return {
        "compared": f"policies {', '.join(POLICIES)}; links in multiples of what streaming needs",
        "data": f"SEC EDGAR log of 2017-01-01 (1% sample), {HOURS} hours, {len(records):,} records",
        "parts": list(chosen),
        "cells": cells,
        "claims": claims(cells),
    }


def measure(
    spark: Any, records: Records, setting: Setting, need: float, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All policies in this setting, at once."""
    members = [_member(policy, setting, j, need * setting.factor) for j, policy in enumerate(POLICIES)]
    found = dict(zip(POLICIES, live(spark, records, members, setting.window_s), strict=True))
    batching = found["batching"]
    updates_per_s = members[0].bandwidth * batching["updates"] / batching["bytes"]
    least_s = least_staleness_s(records, setting, updates_per_s)
    cells = []
    for policy, seen in found.items():
        cell = {**asdict(setting), "policy": policy, **seen, "least_staleness_s": least_s}
        cell["staleness_over_batching"] = seen["staleness_mean_s"] / batching["staleness_mean_s"]
        cells.append(cell)
        report(
            f"{_name(cell)}, {policy}: {seen['bytes']:,} bytes, "
            f"{seen['updates_over_optimal']:.3f} of optimal updates, staleness {seen['staleness_mean_s']:.2f} s"
        )
    return cells


def _member(policy: str, setting: Setting, number: int, bandwidth: float) -> Member:
    sites = tuple(f"p{number}s{n}" for n in range(setting.sites))
    return Member(policy, setting.query, sites, bandwidth / setting.sites, setting.window_s)


def streaming_needs(spark: Any, records: Records, settings: Sequence[Setting]) -> dict[Setting, float]:
    """Bytes per second that streaming sends when nothing holds it back, by setting (whatever its factor)."""
    kinds = list(dict.fromkeys(replace(setting, factor=0.0) for setting in settings))
    members = [_member("streaming", kind, i, UNSHAPED * kind.sites) for i, kind in enumerate(kinds)]
    some = [r for r in records if r["hour_us"] == records[0]["hour_us"]]
    found = live(spark, some, members, tail_s=UNSHAPED_TAIL_S)
    return {kind: seen["bytes"] / kind.window_s for kind, seen in zip(kinds, found, strict=True)}


def claims(cells: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Where the spillway is worse than hybrid:0.25: in bytes; in staleness, by more than chance explains. Of runs that
    were cut while updates waited, staleness says nothing: what waits counts as landed then, however much it is."""
    theirs = {_name(c): c for c in cells if c["policy"] == "hybrid:0.25"}
    pairs = [(c, theirs[_name(c)]) for c in cells if c["policy"] == "spillway"]

    def where(rule: Callable[[dict[str, Any], dict[str, Any]], bool]) -> list[str]:
        return [_name(c) for c, h in pairs if rule(c, h)]

    def later_s(c: dict[str, Any], h: dict[str, Any]) -> float:
        return float("nan") if c["waiting"] or h["waiting"] else c["staleness_mean_s"] - h["staleness_mean_s"]

    return {
        "more bytes than hybrid:0.25": where(lambda c, h: c["bytes"] > h["bytes"]),
        "staler than hybrid:0.25": where(lambda c, h: later_s(c, h) > STALER_BY_S),
        "better on both": where(lambda c, h: c["bytes"] < h["bytes"] and later_s(c, h) < 0),
        "cut while updates waited": where(lambda c, h: bool(c["waiting"] or h["waiting"])),
        "more waiting than hybrid:0.25": where(lambda c, h: c["waiting"] > h["waiting"]),
    }


def _name(cell: Mapping[str, Any]) -> str:
    return f"{cell['query']}, {cell['sites']} site(s), link x{cell['factor']:g}, windows of {cell['window_s']:g} s"


def least_staleness_s(records: Records, setting: Setting, updates_per_s: float) -> float:
    """The mean staleness of the offline optimum, each window by its slowest site."""
    from catchment.sim.edge.network import Bandwidth
    from catchment.sim.edge.offline_optimum import optimal_windows
    from catchment.sim.edge.traces import trace_of

    keys = QUERIES[setting.query][0].split(", ")
    stale: dict[int, float] = defaultdict(float)
    for site in range(setting.sites):
        mine = [r for r in records_of(records, setting.sites) if r["site"] == site]
        numbers = {key: n for n, key in enumerate(dict.fromkeys(tuple(r[k] for k in keys) for r in mine))}
        at_us = np.array([np.datetime64(r["ts"].rstrip("Z"), "us").astype(np.int64) for r in mine])
        trace = trace_of(
            (at_us * (setting.window_s / 3600)).astype(np.int64), [numbers[tuple(r[k] for k in keys)] for r in mine]
        )
        for window in optimal_windows(trace, round(setting.window_s * 1e6), Bandwidth((updates_per_s,))):
            stale[window.start_us] = max(stale[window.start_us], window.staleness_s)
    return float(np.mean([stale[start] for start in sorted(stale)][1:]))


@dataclass
class Watch:
    """What lands at the center: per site and slice the update rows and the time of the last one."""

    rows: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    last: dict[tuple[str, int], float] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def hear(self, segment: Any) -> None:
        now = time.time()
        for update in segment.updates():
            starts, counts = np.unique(update.table["slice_us"].to_numpy(), return_counts=True)
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
                self.rows[segment.origin, start] += count
                self.last[segment.origin, start] = now

    def cut(self, outbox: Any) -> None:
        """What still waits counts as if it landed now."""
        from catchment.wire.frames.codec import decode_segment

        for pending in outbox.pending():
            data = outbox.read(pending.sequence)
            if data is not None:
                segment = decode_segment(data)
                self.waiting[segment.origin] += sum(u.rows for u in segment.updates())
                self.hear(segment)


def live(spark: Any, records: Records, members: Sequence[Member], tail_s: float) -> list[dict[str, Any]]:
    """Run all members at once, and so long after the end; what each sent and how stale it was."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_project(folder, records, members)
        deployment = Deployment.load(folder)
        watch = Watch()
        runner = Runner(deployment, spark, deployment.sites, True, on_segment=watch.hear)
        try:
            runner.start()
            while not all(state.is_finished for pipeline in runner.pipelines for state in pipeline.states):
                runner.run(seconds=1.0)
            runner.run(seconds=tail_s)
            for pipeline in runner.pipelines:
                pipeline.sender.stop()
                watch.cut(pipeline.outbox)
            status = runner.status()["sites"]
            return [outcome(folder, member, watch, status, records) for member in members]
        finally:
            runner.close()


def outcome(folder: Path, member: Member, watch: Watch, status: Mapping[str, Any], records: Records) -> dict[str, Any]:
    """Traffic against the least possible, and staleness per window, over the sites of one policy."""
    from catchment.replay.spool import read_beginning

    sites, keys = member.sites, QUERIES[member.query][0].split(", ")
    starts = sorted({start for site, start in watch.rows if site in sites})
    measured = starts[1:] or starts
    distinct = {(r["site"], r["hour_us"], *(r[k] for k in keys)) for r in records_of(records, len(sites))}
    began = {}
    for site in sites:
        (spool,) = (folder / "state" / "sites" / site / "spool").glob("*.arrow")
        noted = read_beginning(spool)
        assert noted is not None, f"site {site} has read nothing"
        began[site] = noted
    stale = [
        max(
            watch.last[s, start] - (began[s][0] + (start + HOUR_US - began[s][1]) / member.speed) / 1e6
            for s in sites
            if (s, start) in watch.last
        )
        for start in measured
    ]
    updates = sum(n for (site, start), n in watch.rows.items() if site in sites and start in measured)
    return {
        "bytes": sum(status[s]["bytes_sent"] + status[s]["queued_bytes"] for s in sites),
        "updates": sum(n for (site, _), n in watch.rows.items() if site in sites),
        "updates_over_optimal": updates / sum(1 for place in distinct if place[1] in measured),
        "staleness_mean_s": float(np.mean(stale)),
        "staleness_p95_s": float(np.percentile(stale, 95)),
        "staleness_s": stale,
        "waiting": sum(watch.waiting[s] for s in sites),
        "reasons": {s: [f["reasons"] for f in status[s]["fragments"].values()] for s in sites},
        "goodput_over_bandwidth": [(status[s]["goodput_bytes_per_s"] or 0.0) / member.bandwidth for s in sites],
    }


def write_project(folder: Path, records: Records, members: Sequence[Member]) -> None:
    """A project with one view a member, each fed by its own sites over links of its bandwidth."""
    links = "".join(
        f'[[links]]\nfrom = "{s}"\nto = "center"\nbandwidth = "{m.bandwidth:.0f} bytes/s"\n'
        for m in members
        for s in m.sites
    )
    names = [s for m in members for s in m.sites]
    (folder / "queries").mkdir()
    (folder / "catchment.toml").write_text(
        '[project]\nname = "edge"\ncenter = "center"\n'
        + "".join(f"[sites.{s}]\n" for s in names)
        + f'[sites.center]\n{links}[defaults]\ntrigger = "{TRIGGER_MS} ms"\nfreshness = "none"\nhistory = false\n'
    )
    (folder / "queries" / "q.sql").write_text("".join(statement(n, member) for n, member in enumerate(members)))
    (folder / "data").mkdir()
    for member in members:
        texts: dict[int, list[str]] = defaultdict(list)
        for record in records_of(records, len(member.sites)):
            texts[record["site"]].append(json.dumps({k: v for k, v in record.items() if k not in ("site", "hour_us")}))
        for number, site in enumerate(member.sites):
            (folder / "data" / f"{site}.jsonl").write_text("\n".join(texts[number]) + "\n")


def statement(number: int, member: Member) -> str:
    keys, answer = QUERIES[member.query]
    return (
        f"CREATE STREAM log{number} (ts TIMESTAMP, client STRING, country STRING, company BIGINT, code INT,"
        f" bytes BIGINT) WITH (event_time = 'ts', sites = '{','.join(member.sites)}', connector = 'replay',"
        f" path = 'data/{{site}}.jsonl', format = 'json', speed = {member.speed:g});\n"
        f"CREATE MATERIALIZED VIEW answers{number} WITH (policy = '{member.policy}') AS"
        f" SELECT window.start, {keys}, {answer} FROM log{number} GROUP BY window(ts, '1 hour'), {keys};\n"
    )


def records_of(records: Records, sites: int) -> list[dict[str, Any]]:
    """The records, each with the site it is born at: by the client's address."""
    return [{**r, "site": sum(r["client"].encode()) % sites} for r in records]


def read_log(hours: int) -> list[dict[str, Any]]:
    """The first hours of the log, from the data set `edgar`."""
    country = {r["ip"]: r["country"] for r in _rows("edgar_countries")}
    records = []
    for row in _rows("edgar"):
        hour = int(row["time"][:2])
        company = int(float(row["cik"]))
        if hour >= hours:
            break
        if company < 2**53:  # five records of the log have a company that no number type holds
            records.append(
                {
                    "ts": f"{row['date']}T{row['time']}Z",
                    "client": row["ip"],
                    "country": country.get(row["ip"], "-"),
                    "company": company,
                    "code": int(float(row["code"])),
                    "bytes": int(float(row["size"] or 0)),
                    "hour_us": (1_483_228_800 + hour * 3600) * 1_000_000,
                }
            )
    return records


def _rows(name: str) -> Iterator[dict[str, str]]:
    with open_text(name) as lines:
        yield from csv.DictReader(lines)


def render(result: Mapping[str, Any]) -> RenderableType:
    """One row a cell."""
    columns = (
        "query",
        "sites",
        "link",
        "window",
        "policy",
        "bytes",
        "updates / optimal",
        "staleness",
        "p95",
        "of batching",
        "least",
        "cut",
    )
    table = Table(*columns, title=result["data"], title_justify="left")
    for c in result["cells"]:
        table.add_row(
            c["query"],
            str(c["sites"]),
            f"x{c['factor']:g}",
            f"{c['window_s']:g} s",
            c["policy"],
            f"{c['bytes']:,}",
            f"{c['updates_over_optimal']:.3f}",
            f"{c['staleness_mean_s']:.2f} s",
            f"{c['staleness_p95_s']:.2f} s",
            f"{c['staleness_over_batching']:.2f}",
            f"{c['least_staleness_s']:.2f} s",
            f"{c['waiting']:,} rows waited" if c["waiting"] else "",
        )
    kept = Table("claim", "cells")
    for claim, cells in result["claims"].items():
        kept.add_row(claim, ", ".join(cells) or "none")
    return Group(table, kept)
