"""One deployment to hold bounds to their rates: late and shed at once, at three sites, two of them behind a relay.

Sources keep the order of their records and stall now and then, which is the lateness that a contract can learn. Every
site sheds now and then; a record that becomes several rows is in a sample with all of them or with none. Faults of
processes, disks and links are drawn per seed; clocks are right, because what is late is measured by them, and no site
is gone for good, so that every window ends exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.query.catalog import Catalog
from catchment.testing.campaigns.features import Feature, Features
from catchment.testing.campaigns.generate import BEGIN_US, PAGES, GeneratedProject
from catchment.testing.simulated.records import ArrivingRecords, Workload
from catchment.timeline import SECOND_US

ALWAYS = frozenset({Feature.LATE, Feature.SHED, Feature.CONTRACT, Feature.RELAY})
FAULTS = frozenset(
    {
        Feature.CRASH,
        Feature.AWAY,
        Feature.POWER_CUT,
        Feature.RECOVERY_CRASH,
        Feature.DISK_ERROR,
        Feature.TORN_WRITE,
        Feature.SLOW_DISK,
        Feature.LOSS,
        Feature.DOUBLED,
        Feature.DELAY,
        Feature.ONE_WAY_CUT,
        Feature.JAM,
        Feature.REPLAY,
    }
)
SITES = ("a", "b", "c")
SPAN_US = 24 * SECOND_US
SOURCES = 3  # per site
RECORDS_PER_S = 4  # of each source
MAX_STALL_S = 8.0
ON_THE_WAY_US = 10_000  # from its birth to its arrival, where its source does not stall

_TOML = """[project]
name = "late_and_shed"
center = "center"
[sites.center]
[sites.hub]
[sites.a]
[sites.b]
[sites.c]
[[links]]
from = "a"
to = "hub"
[[links]]
from = "b"
to = "hub"
[[links]]
from = "c"
to = "center"
[[links]]
from = "hub"
to = "center"
[defaults]
trigger = "1 s"
slack = "{slack_s} s"
freshness = "{freshness_s} s"
relay_wait = "{relay_wait_s} s"
repair_horizon = "1 h"
repair_after = "{repair_after_s} s"
"""
_SQL = """CREATE STREAM load (ts TIMESTAMP, page STRING, source STRING, bytes BIGINT)
  WITH (event_time = 'ts', sites = 'a,b,c', path = 'data/{{site}}', shed = true, source = 'source');
CREATE MATERIALIZED VIEW totals WITH (max_error = {max_error}, confidence = 0.9) AS
  SELECT window.start, count(*) AS n, sum(bytes) AS bytes, avg(bytes) AS mean FROM load
  GROUP BY window(ts, '{window_s} seconds');
CREATE MATERIALIZED VIEW pages WITH (max_error = {max_error}, confidence = 0.9) AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM load
  GROUP BY window(ts, '{window_s} seconds'), page;
CREATE MATERIALIZED VIEW parts WITH (max_error = {max_error}, confidence = 0.9) AS
  SELECT window.start, part, count(*) AS n, sum(bytes) AS bytes, avg(bytes) AS mean
  FROM load LATERAL VIEW explode(array(page, page, source)) t AS part
  GROUP BY window(ts, '{window_s} seconds'), part;
CREATE TABLE kinds (page STRING, kind STRING) WITH (path = 'kinds.csv');
CREATE MATERIALIZED VIEW kinds_of_pages WITH (max_error = {max_error}, confidence = 0.9) AS
  SELECT window.start, kind, count(*) AS n, sum(bytes) AS bytes, avg(bytes) AS mean
  FROM load JOIN kinds ON load.page = kinds.page
  GROUP BY window(ts, '{window_s} seconds'), kind;
"""


def choose_faults(drawn: Features) -> Features:
    """Return the features of a seed: what it is about, and the faults that were drawn."""
    return ALWAYS | (drawn & FAULTS)


def write_late_and_shed(folder: Path, chance: random.Random, features: Features) -> GeneratedProject:
    """Write the project, with settings drawn."""
    (folder / "queries").mkdir(parents=True)
    settings = {
        "slack_s": chance.choice((0, 1)),
        "freshness_s": chance.choice((5, 10, 30)),
        "relay_wait_s": chance.choice((0, 2)),
        "repair_after_s": chance.choice((1, 5)),
    }
    (folder / "catchment.toml").write_text(_TOML.format(**settings))
    promised = {"max_error": chance.choice((0.1, 0.2)), "window_s": chance.choice((1, 2))}
    (folder / "queries" / "all.sql").write_text(_SQL.format(**promised))
    kinds = [
        f"{page},{'odd' if (number + row) % 2 else 'even'}" for number, page in enumerate(PAGES) for row in range(5)
    ]
    (folder / "kinds.csv").write_text("\n".join(["page,kind", *kinds]) + "\n")
    return GeneratedProject(folder, SITES, ("hub",), (), features)


def draw_stalling_records(catalog: Catalog, chance: random.Random) -> Workload:
    """Draw the records of every site, and when they arrive."""
    stream = catalog.streams["load"]
    workload = {}
    for site in SITES:
        drawn = [row for number in range(SOURCES) for row in _draw_source(f"{site}{number}", chance)]
        arrival_us, times_us, sources = zip(*drawn, strict=True)
        table = pa.table(
            {
                "ts": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                "page": pa.array([chance.choice(PAGES) for _ in drawn]),
                "source": pa.array(sources),
                "bytes": pa.array([chance.randrange(1, 10) for _ in drawn], pa.int64()),
            }
        )
        workload[stream.name, site] = ArrivingRecords.of(stream, site, table, np.array(arrival_us))
    return workload


def _draw_source(name: str, chance: random.Random) -> Iterator[tuple[int, int, str]]:
    """Yield (arrival, event time, source) of the records of one source, in their order."""
    stalls = []
    for begin_us in (chance.randrange(SPAN_US) for _ in range(2)):
        stalls.append((begin_us, begin_us + round(min(chance.paretovariate(1.5), MAX_STALL_S) * SECOND_US)))
    arrived_us = 0
    for at_us in range(0, SPAN_US, SECOND_US // RECORDS_PER_S):
        stalled = (end_us for begin_us, end_us in stalls if begin_us <= at_us < end_us)
        arrived_us = max([arrived_us, at_us + ON_THE_WAY_US, *stalled])
        yield BEGIN_US + arrived_us, BEGIN_US + at_us, name
