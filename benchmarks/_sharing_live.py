"""The twelve queries of examples/wan_workload as they run: three sites, one center, shaped links, real edits.

Scaled down to one machine: a star of three of the source sites, every answer at the center, the first hour of the
edits read at once. The rule for the links, fixed beforehand: a first run without sharing and without shaping tells how
many bytes each site sends; then every link gets the bandwidth that would carry its site's bytes in `SPAN_S` seconds.
Throughput is records over the time from the first update that waits for a link to the last that has landed, so that it
is the links' and not the start of Spark. The last run sends over a relay: what three sites send meets at a fourth.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from catchment.errors import ConfigError
from catchment.optimizer.share import Strength

EXAMPLE = Path(__file__).parent.parent / "examples" / "wan_workload"
SITES = ("ohio", "ireland", "mumbai")
CENTER = "virginia"
HUB = "frankfurt"
SPAN_S = 30.0
HOURS = 1
RUN_S = 240.0  # a run that takes longer is given up, and said to be
REPORT_EVERY_S = 10.0


def run_live(report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Bytes over the WAN and records a second of each strength, links being the bottleneck."""
    from catchment.config import SparkConfig
    from catchment.spark.session import make_session

    records = _records()
    spark = make_session("sharing", SparkConfig(master="local[2]"))
    try:
        with tempfile.TemporaryDirectory() as folder:
            report("live, unshaped, no sharing")
            free = _run(spark, Path(folder) / "free", records, Strength.NONE, {}, report)
            speeds = {site: sent / SPAN_S for site, sent in free["bytes_by_site"].items()}
            rows = []
            for strength in Strength:
                report(f"live, shaped, {strength.value}")
                rows.append(_run(spark, Path(folder) / strength.value, records, strength, speeds, report))
            report("live, over a relay, full")
            rows.append(_run(spark, Path(folder) / "relay", records, Strength.FULL, {}, report, HUB))
            return rows
    finally:
        spark.stop()


def _records() -> Mapping[str, list[str]]:
    """The edits of each site, as lines."""
    data = os.environ.get("CATCHMENT_DATA")
    if data is None or not (Path(data) / "wiki-edits").is_dir():
        raise ConfigError("the live part needs the wiki edits", hint="set CATCHMENT_DATA to the folder of wiki-edits")
    spec = importlib.util.spec_from_file_location("wan_workload_make", EXAMPLE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    lines: dict[str, list[str]] = {site: [] for site in SITES}
    edits = sorted(make.edits(Path(data)), key=lambda e: str(e["time"]))
    end = datetime.fromisoformat(edits[0]["time"]) + timedelta(hours=HOURS)
    for edit in (e for e in edits if datetime.fromisoformat(e["time"]) < end):
        lines[SITES[make.SOURCES.index(make.site_of(edit)) % len(SITES)]].append(json.dumps(edit))
    return lines


@dataclass
class _Watch:
    """When updates began to wait for links, and when the last had landed; says now and then how it goes."""

    report: Callable[[str], None]
    began: float | None = None
    landed: float | None = None
    told: float = 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        now, sites = time.monotonic(), status["sites"].values()
        if self.began is None and any(s["queued_bytes"] or s["bytes_sent"] for s in sites):
            self.began = now
        if self.landed is None and self.began is not None and all(s["finished"] for s in sites):
            self.landed = now
        if now - self.told >= REPORT_EVERY_S:
            self.told = now
            waiting, sent = sum(s["queued_bytes"] for s in sites), sum(s["bytes_sent"] for s in sites)
            self.report(f"  {sent:,} bytes sent, {waiting:,} wait, {status['center']['published']:,} windows published")


def _run(
    spark: Any, folder: Path, records: Mapping[str, list[str]], strength: Strength, speeds: Mapping[str, float],
    report: Callable[[str], None], hub: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    from catchment.spark.deploy import Deployment
    from catchment.spark.run import Runner

    _lay_out(folder, records, strength, speeds, hub)
    deployment = Deployment.load(folder)
    runner = Runner(deployment, spark, deployment.sites, True, once=True)
    began, watch = time.monotonic(), _Watch(report)
    try:
        runner.start()
        runner.run(watch, seconds=RUN_S)
        took, status = time.monotonic() - began, runner.status()
        if not runner.finished or watch.began is None or watch.landed is None:
            raise ConfigError(f"the run with sharing {strength.value} did not end in {RUN_S:g} s")
    finally:
        runner.close()
    span_s = watch.landed - watch.began
    sent = {f"{site} -> {hub or CENTER}": s["bytes_sent"] for site, s in status["sites"].items()}
    sent |= {f"{name} -> {CENTER}": relay["bytes_sent"] for name, relay in status["relays"].items()}
    count = sum(s["rows"] for s in status["sites"].values())
    report(
        f"  {sum(sent.values()):,} bytes, {span_s:.1f} s on links, {count / span_s:,.1f} records/s; in all {took:.1f} s"
    )
    return {
        "sharing": strength.value + (" over a relay" if hub else ""),
        "fragments": len(deployment.deployed.sharing.fragments),
        "wan_bytes": sum(sent.values()),
        "bytes_by_site": {site: s["bytes_sent"] for site, s in status["sites"].items()},
        "bytes_by_link": sent,
        "records": count,
        "windows": status["center"]["published"],
        "seconds": took,
        "link_seconds": span_s,
        "records_per_s": count / span_s,
    }


def _lay_out(
    folder: Path, records: Mapping[str, list[str]], strength: Strength, speeds: Mapping[str, float], hub: str | None
) -> None:
    (folder / "queries").mkdir(parents=True)
    links = "".join(
        f'[[links]]\nfrom = "{s}"\nto = "{hub or CENTER}"\n'
        + (f'bandwidth = "{speeds[s]:.0f} bytes/s"\n' if s in speeds else "")
        for s in SITES
    )
    if hub:
        links += f'[[links]]\nfrom = "{hub}"\nto = "{CENTER}"\n'
    sites = "".join(f"[sites.{s}]\n" for s in (*SITES, *([hub] if hub else []), CENTER))
    (folder / "catchment.toml").write_text(
        f'[project]\nname = "live"\ncenter = "{CENTER}"\n{sites}{links}'
        f'[defaults]\nsharing = "{strength.value}"\nfreshness = "none"\nhistory = false\nreoptimize = false\n'
        '[spark]\nmaster = "local[2]"\n'
    )
    streams = (EXAMPLE / "queries" / "streams.sql").read_text()
    streams = re.sub(r"sites = '[^']*'", f"sites = '{','.join(SITES)}'", streams)
    (folder / "queries" / "streams.sql").write_text(streams)
    views = (EXAMPLE / "queries" / "views.sql").read_text()
    (folder / "queries" / "views.sql").write_text(re.sub(r"WITH \(sink = '[a-z]*'\) ", "", views))
    (folder / "categories.csv").write_text((EXAMPLE / "categories.csv").read_text())
    (folder / "statistics.toml").write_text(_declared())
    for site, lines in records.items():
        (folder / "data" / site).mkdir(parents=True)
        (folder / "data" / site / "edits.json").write_text("\n".join(lines) + "\n")


def _declared() -> str:
    """The example's statistics at the pace of the edits themselves: 39,244 in a day; shares of the sites equal."""
    text = (EXAMPLE / "statistics.toml").read_text()
    text = re.sub(r"rows_per_s = \d+", f"rows_per_s = {39_244 / 86_400:.4f}", text)
    return re.sub(r"\[streams.edits.share\].*?\n\n", "", text, flags=re.DOTALL)
