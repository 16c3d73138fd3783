"""The twelve queries live, each strength of sharing on the same records: links shaped, edits read at once.

The rule for the links, fixed beforehand: a first run without sharing and without shaping tells how many bytes each
site sends; then every link gets the bandwidth that would carry its site's bytes in `SPAN_S` seconds. Throughput is, by
link and added up, records over the time from the first update that waits for it to the last that has landed: that of
the links, not of Spark, which starts one site after another. `run_live` takes an hour of edits as they came,
`run_dense` the whole day made half an hour, so that a slice holds many records and wide fragments many rows.
`run_relay` sends over a fourth site, where what three sites send meets, and holds the bytes of each link against what
`explain` says of them once sites have measured their streams: at the sites' own links these are calibrated, behind the
hub they are a prediction.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.sharing.world import CENTER, DAY_RECORDS, HUB, Edits, Layout, edits_of
from catchment.errors import ConfigError
from catchment.optimizer.choices import Strength

SPAN_S = 30.0
FIRST_HOUR, HOURS = 12, 1
DAY_S = 86_400
SQUEEZE = 48
RUN_S = 240.0  # a run that takes longer is given up, and said to be
REPORT_EVERY_S = 10.0

Report = Callable[[str], None]


def run_live(report: Report) -> list[dict[str, Any]]:
    """Bytes over the WAN and records per second of each strength, links being the bottleneck."""
    return _compared(edits_of(HOURS, first=FIRST_HOUR), DAY_RECORDS / DAY_S, report)


def run_dense(report: Report) -> list[dict[str, Any]]:
    """The same where many records meet in a slice."""
    return _compared(edits_of(DAY_S / 3600, SQUEEZE), DAY_RECORDS / DAY_S * SQUEEZE, report)


def run_relay(report: Report) -> dict[str, Any]:
    """Over a hub that merges, links not shaped: what each link carries, beside what `explain` says it would."""
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        report("live, over a relay, full")
        edits = edits_of(HOURS, first=FIRST_HOUR)
        return _run(spark, Path(folder) / "relay", edits, Layout(Strength.FULL, hub=HUB), report)


def _compared(edits: Edits, rows_per_s: float, report: Report) -> list[dict[str, Any]]:
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        report("live, unshaped, no sharing")
        free = Layout(Strength.NONE, rows_per_s=rows_per_s)
        sent = _run(spark, Path(folder) / "free", edits, free, report)["bytes_by_site"]
        speeds = {site: count / SPAN_S for site, count in sent.items()}
        rows = []
        for strength in Strength:
            report(f"live, shaped, {strength.value}")
            layout = Layout(strength, speeds, rows_per_s=rows_per_s)
            rows.append(_run(spark, Path(folder) / strength.value, edits, layout, report))
        return rows


@contextmanager
def session() -> Iterator[Any]:
    """Spark, for as long as it is needed."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    spark = make_session("sharing", SparkConfig(master="local[2]"))
    try:
        yield spark
    finally:
        spark.stop()


@dataclass
class _Watch:
    """When updates of each site began to wait, and when its last had landed; says now and then how it goes."""

    report: Report
    began: dict[str, float] = field(default_factory=dict)
    landed: dict[str, float] = field(default_factory=dict)
    told: float = 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        now, sites = time.monotonic(), status["sites"].values()
        for name, site in status["sites"].items():
            if site["queued_bytes"] or site["bytes_sent"]:
                self.began.setdefault(name, now)
            if site["finished"] and name in self.began:
                self.landed.setdefault(name, now)
        if now - self.told >= REPORT_EVERY_S:
            self.told = now
            waiting, sent = sum(s["queued_bytes"] for s in sites), sum(s["bytes_sent"] for s in sites)
            self.report(f"  {sent:,} bytes sent, {waiting:,} wait, {status['center']['published']:,} windows published")


def _run(spark: Any, folder: Path, edits: Edits, layout: Layout, report: Report) -> dict[str, Any]:
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    layout.write(folder, edits)
    deployment = Deployment.load(folder)
    runner = Runner(deployment, spark, deployment.sites, True, once=True)
    began, watch = time.monotonic(), _Watch(report)
    try:
        runner.start()
        runner.run(watch, seconds=RUN_S)
        took, status = time.monotonic() - began, runner.status()
        if not runner.finished or watch.landed.keys() != status["sites"].keys():
            raise ConfigError(f"the run with sharing {layout.sharing.value} did not end in {RUN_S:g} s")
    finally:
        runner.close()
    sent, rows = bytes_by_link(status, layout.hub), {name: s["rows"] for name, s in status["sites"].items()}
    spans = {name: watch.landed[name] - watch.began[name] for name in rows}
    pace = sum(rows[name] / span for name, span in spans.items())
    report(f"  {sum(sent.values()):,} bytes, {pace:,.1f} records/s over the links; in all {took:.1f} s")
    return {
        "sharing": layout.sharing.value,
        "fragments": len(deployment.deployed.sharing.fragments),
        "wan_bytes": sum(sent.values()),
        "bytes_by_site": {site: s["bytes_sent"] for site, s in status["sites"].items()},
        "bytes_by_link": sent,
        "partials_by_link": _partials_by_link(status, layout.hub),
        "planned_by_link": _planned_by_link(deployment, edits),
        "records": sum(rows.values()),
        "windows": status["center"]["published"],
        "seconds": took,
        "link_seconds": spans,
        "records_per_s": pace,
    }


def bytes_by_link(status: Mapping[str, Any], hub: str | None) -> dict[str, int]:
    """What each link has carried."""
    sent = {f"{site} -> {hub or CENTER}": s["bytes_sent"] for site, s in status["sites"].items()}
    return sent | {f"{name} -> {CENTER}": relay["bytes_sent"] for name, relay in status["relays"].items()}


def _partials_by_link(status: Mapping[str, Any], hub: str | None) -> dict[str, int]:
    """How many partials each link has carried."""
    rows = {
        f"{site} -> {hub or CENTER}": sum(f["updates"] for f in s["fragments"].values())
        for site, s in status["sites"].items()
    }
    return rows | {f"{name} -> {CENTER}": relay["rows_out"] for name, relay in status["relays"].items()}


def _planned_by_link(deployment: Any, edits: Edits) -> dict[str, float]:
    """What each link would carry of these edits by what the sites have measured of their streams."""
    from catchment.deploy.rebalance import known_statistics
    from catchment.optimizer.sharing.link_traffic import link_traffic

    times = [datetime.fromisoformat(str(row["time"])) for rows in edits.values() for row in rows]
    span_s = (max(times) - min(times)).total_seconds()
    rates = link_traffic(deployment.project, deployment.deployed.sharing, known_statistics(deployment))
    return {f"{a} -> {b}": rate * span_s for (a, b), rate in rates.items()}
