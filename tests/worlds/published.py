"""A project folder as it is after a run, made without Spark: what `show`, `sql` and the facade look at.

The web log is small enough to be counted by hand: three ten-minute windows at two sites, the last one published without
`eu`, the first one revised by a late record.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.aggregates import partials
from catchment.center.events import Publish
from catchment.center.results.bounds import column_laws
from catchment.center.results.write import ResultTables
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.timeline import Window

START = datetime(2017, 1, 1, 2, tzinfo=UTC)
START_US = int(START.timestamp() * 1e6)
MINUTE_US = 60_000_000
PUBLISHED = datetime(2026, 11, 15, 22, 1, 2, 345678, tzinfo=UTC)

TOML = """\
[project]
name = "web-log"
center = "center"
[sites.us]
[sites.eu]
[sites.center]
[[links]]
from = "us"
to = "center"
bandwidth = "64 KB/s"
[[links]]
from = "eu"
to = "center"
latency = "45 ms"
"""
QUERIES = """\
CREATE STREAM requests (ts TIMESTAMP, client STRING, country STRING, code INT, bytes BIGINT)
  WITH (event_time = 'ts', path = 'data/{site}');
CREATE MATERIALIZED VIEW traffic AS
  SELECT window.start, country, code, count(*) AS requests, sum(bytes) AS bytes
  FROM requests GROUP BY window(ts, '10 minutes'), country, code;
CREATE MATERIALIZED VIEW audience AS
  SELECT window.start, window.end, approx_count_distinct(client) AS clients, approx_top_k(country, 3) AS countries,
         percentile_approx(bytes, 0.5) AS median_bytes
  FROM requests GROUP BY window(ts, '10 minutes');
CREATE MATERIALIZED VIEW quiet AS
  SELECT window.start, count(*) AS requests FROM requests GROUP BY window(ts, '1 hour');
"""

Request = tuple[str, str, int, int]  # client, country, code, bytes
FIRST: list[Request] = [("c1", "nl", 200, 100), ("c2", "nl", 200, 300), ("c1", "[de]", 404, 7)]
SECOND: list[Request] = [("c3", "nl", 200, 1_234_567)]
LAST: list[Request] = [("c1", "us", 200, 50)]


def publish_project(folder: Path) -> Path:
    """The project, with its results, statuses and quarantine."""
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "log.sql").write_text(QUERIES)
    catalog = load_catalog(Project.load(folder))
    for name in ("traffic", "audience"):
        _publish(folder / "state", plan_view(catalog.view(name), catalog))
    _write_status(folder / "state")
    _write_quarantine(folder / "state")
    return folder


def _publish(state: Path, plan: QueryPlan) -> None:
    from catchment.spark.evaluation.finish import make_finish

    tables = ResultTables(state, plan.name, plan.fragment, make_finish(None, plan), column_laws(plan))
    late = FIRST[:2] if plan.fragment.keys else FIRST  # without keys, the one row of the window is what changed
    revisions = [
        make_revision(plan, 0, 1, EXACT, FIRST[1:], "closed: every site has passed its end"),
        make_revision(plan, 1, 1, EXACT, SECOND, "closed: every site has passed its end"),
        make_revision(plan, 0, 2, EXACT, late, "late: 1 row changed"),
        make_revision(plan, 0, 2, FINAL, [], "the repair horizon has passed"),
        make_revision(plan, 2, 1, ON_TIME, LAST, "closed without eu", 0.625, ("eu",)),
    ]
    for number, revision in enumerate(revisions, start=1):
        tables.publish(number, [revision])


def make_revision(
    plan: QueryPlan,
    place: int,
    revision: int,
    status: str,
    requests: list[Request],
    reason: str,
    coverage: float = 1.0,
    missing: tuple[str, ...] = (),
) -> Publish:
    start = START_US + place * 10 * MINUTE_US
    window = Window(start, start + 10 * MINUTE_US)
    raw = pa.table(
        {
            "client": [r[0] for r in requests],
            "country": pa.array([r[1] for r in requests], pa.string()),
            "code": pa.array([r[2] for r in requests], pa.int32()),
            "bytes": pa.array([r[3] for r in requests], pa.int64()),
        }
    )
    fragment = plan.fragment
    sources = {a.name: a.argument and a.argument.rpartition(".")[2].strip("`") for a in fragment.aggregates}
    rows = partials.lift(raw, list(fragment.key_names), fragment.aggregates, sources)
    published_us = int(PUBLISHED.timestamp() * 1e6)
    return Publish(plan.name, window, revision, status, coverage, missing, reason, rows, published_us)


def _write_status(state: Path) -> None:
    newest = START_US + 25 * MINUTE_US
    site = {
        "rows": 12345,
        "read_bytes": 1_234_500,
        "quarantined": 2,
        "newest_event_us": newest,
        "pending_rows": 3,
        "bytes_sent": 45_678,
        "bytes_by_fragment": {"traffic": 40_000},
        "queued_bytes": 0,
        "goodput_bytes_per_s": 1e4,
        "round_trip_s": 0.02,
        "connected": True,
        "last_error": None,
        "finished": False,
        "contracts": {
            "traffic": {
                "controller": "adaptive",
                "slack_us": 2_500_000,
                "contract_kept": False,
                "windows_to_regain": 12,
                "regain_us": 720_000_000,
                "violations": 3,
                "settled": 40,
                "idle": ["c7"],
                "behind": [],
            }
        },
    }
    away = {**site, "connected": False, "last_error": "cannot reach [::1]:9410: connection refused by the far side"}
    queries = {"traffic": {"marks_us": {"us": newest, "eu": None}, "closed_us": newest, "open_slices": 1}}
    for name, status in (("us", site), ("eu", away)):
        (state / "sites" / name).mkdir(parents=True)
        (state / "sites" / name / "status.json").write_text(json.dumps(status))
    (state / "center").mkdir()
    (state / "center" / "status.json").write_text(json.dumps({"published": 7, "refused": {}, "queries": queries}))


def _write_quarantine(state: Path) -> None:
    folder = state / "sites" / "us" / "quarantine" / "requests" / "batch=0"
    folder.mkdir(parents=True)
    reasons, raws = ["not readable as json", "no event time (ts)"], ["[bold]oh no[/bold]", '{"client": "c1"}']
    times = pa.array([START + timedelta(hours=1)] * 2, pa.timestamp("us", tz="UTC"))
    pq.write_table(
        pa.table({"ts": times, "_raw": raws, "_problem": reasons, "site": ["us", "us"]}), folder / "part-0.parquet"
    )
