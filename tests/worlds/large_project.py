"""A project folder of many sites and views as it is while it runs, made without Spark, for the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from catchment.center.results.bounds import column_laws
from catchment.center.results.write import ResultTables
from catchment.center.statuses import EXACT, ON_TIME
from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore
from catchment.spark.evaluation.finish import make_finish
from tests.worlds.published import FIRST, START_US, make_revision

STREAM = """CREATE STREAM requests (ts TIMESTAMP, client STRING, country STRING, code INT, bytes BIGINT)
  WITH (event_time = 'ts', path = 'data/{site}');
"""
MINUTE_US = 60_000_000
WINDOWS = 12


def write_large_project(folder: Path, sites: int = 14, views: int = 40, windows: int = WINDOWS) -> Path:
    """Write a project with a status for every site and the center, and some windows of every view."""
    names = [f"site_{number:02}" for number in range(sites)]
    toml = '[project]\nname = "large"\ncenter = "center"\n[sites.center]\n'
    for name in names:
        toml += f'[sites.{name}]\n[[links]]\nfrom = "{name}"\nto = "center"\nbandwidth = "64 KB/s"\n'
    queries = STREAM
    for number in range(views):
        queries += f"""CREATE MATERIALIZED VIEW view_{number:02} AS SELECT window.start, country, count(*) AS requests,
  sum(bytes) AS bytes FROM requests WHERE code = {number} GROUP BY window(ts, '10 minutes'), country;\n"""
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(toml)
    (folder / "queries" / "views.sql").write_text(queries)
    deployment = Deployment.load(folder)
    DeploymentStore(folder / "state").change(lambda now: deployment.deployed)
    publish_windows(folder, 1, range(windows))
    write_statuses(folder, rows=1_000)
    return folder


def publish_windows(folder: Path, entry: int, places: range) -> None:
    """Publish windows of every view in one entry."""
    for plan in _load(folder).plans:
        tables = ResultTables(folder / "state", plan.name, plan.fragment, make_finish(None, plan), column_laws(plan))
        reason = "closed: every site has passed its end"
        tables.publish(entry, [make_revision(plan, n, 1, EXACT if n % 5 else ON_TIME, FIRST, reason) for n in places])


@cache
def _load(folder: Path) -> Deployment:
    return Deployment.load(folder)


def write_statuses(folder: Path, rows: int) -> None:
    """Write the status of every role, as running processes do four times per second."""
    closed_us = START_US + 120 * MINUTE_US
    deployment = _load(folder)
    for number, site in enumerate(deployment.sites):
        status = {
            "rows": rows + number,
            "read_bytes": 110 * (rows + number),
            "quarantined": 0,
            "newest_event_us": closed_us,
            "pending_rows": 12,
            "bytes_sent": 45_000 + rows,
            "sent_bytes_per_s": 900.0 * number,
            "queued_bytes": 0,
            "connected": True,
            "last_error": None,
            "finished": False,
        }
        _write(deployment.project.site_folder(site) / "status.json", status)
    queries = {
        plan.name: {
            "closed_us": closed_us,
            "open_slices": 2,
            "late_records": 0,
            "marks_us": dict.fromkeys(deployment.sites, closed_us),
        }
        for plan in deployment.plans
    }
    _write(folder / "state" / "center" / "status.json", {"queries": queries, "refused": {}})


def _write(path: Path, status: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(status))
    unfinished.rename(path)
