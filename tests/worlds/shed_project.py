"""A project whose streams may be shed, its records, and the answers computed from them by hand."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.shedding.fragment_stats import SheddableFragment
from catchment.shedding.monitor import Arrivals, Decision, LoadMonitor
from catchment.shedding.sampler import TAKE_ALL, GroupRates, Sampler

START_S = 1_700_000_040
SPAN_S = 60
SPARED = 1500.0  # values beyond it are never shed
GROUPS = (("p0", 0.2), ("p1", 0.5))  # where rates are by page; other pages are taken whole
TOML = """
[project]
name = "shed"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
[defaults]
trigger = "200 ms"
freshness = "none"
sharing = "{sharing}"
"""
VIEWS = """
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes, avg(ms) AS mean
  FROM hits GROUP BY window(ts, '10 seconds'), page;
CREATE MATERIALIZED VIEW totals AS SELECT window.start, count(*) AS n, sum(bytes) AS bytes
  FROM hits GROUP BY window(ts, '20 seconds', '10 seconds');
CREATE MATERIALIZED VIEW parts AS SELECT window.start, part AS page, count(*) AS n, sum(bytes) AS bytes, avg(ms) AS mean
  FROM hits LATERAL VIEW explode(array(page, page, 'all')) t AS part GROUP BY window(ts, '10 seconds'), part;
CREATE MATERIALIZED VIEW users AS SELECT window.start, approx_count_distinct(page) AS n FROM hits GROUP BY window(ts, '10 seconds');
CREATE MATERIALIZED VIEW asked WITH (repair = 'on_demand') AS SELECT window.start, count(*) AS n
  FROM hits WHERE page <> 'p1' GROUP BY window(ts, '10 seconds');
CREATE MATERIALIZED VIEW lost WITH (repair = 'never') AS SELECT window.start, count(*) AS n
  FROM hits WHERE page <> 'p1' GROUP BY window(ts, '15 seconds');
"""  # noqa: E501
SOURCES = {
    "replay": "connector = 'replay', path = 'data/{site}.json', speed = 1000000",
    "files": "connector = 'files', path = 'data/{site}'",
    "typed": "connector = 'replay', path = 'data/{site}.parquet', speed = 1000000",
}


class ForcedMonitor(LoadMonitor):
    """Sheds every batch but the first, whatever the load; repairs wait for the end of the stream."""

    RATE = 0.3

    def decide(self, arrivals: Arrivals) -> Decision:
        self.shedding = True
        self.last = Decision({f.name: self._sampler(f) for f in self.fragments}, 2.0, {}, "forced")
        return self.last

    def _sampler(self, fragment: SheddableFragment) -> Sampler:
        if fragment.fixed:
            return TAKE_ALL
        spared = tuple((sql, SPARED) for sql in {argument for _, argument in fragment.spareable})
        groups = GroupRates(fragment.group_key, GROUPS) if fragment.group_key else None
        return Sampler(self.RATE, spared, groups)

    @property
    def has_room(self) -> bool:
        return False


def make_hits(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    times = sorted(chance.random() * SPAN_S for _ in range(count))
    return [
        {
            "ts": datetime.fromtimestamp(START_S + t, UTC).isoformat(),
            "page": f"p{min(int(chance.expovariate(1.0)), 4)}",
            "bytes": chance.randrange(100, 2000),
            "ms": round(chance.lognormvariate(2, 0.5), 3),
        }
        for t in times
    ]


def write_shed_project(folder: Path, connector: str, hits: dict[str, list[dict[str, Any]]], files: int = 6) -> Path:
    """Files are read by views that share a fragment, and so its rate and its repair; a replay by views of their own."""
    (folder / "queries").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "catchment.toml").write_text(TOML.replace("{sharing}", "full" if connector == "files" else "none"))
    format_ = "parquet" if connector == "typed" else "json"
    stream = (
        "CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT, ms DOUBLE)\n"
        f"  WITH (event_time = 'ts', sites = 'a,b', {SOURCES[connector]}, format = '{format_}', shed = true);\n"
    )
    (folder / "queries" / "q.sql").write_text(stream + VIEWS)
    for site, records in hits.items():
        lines = [json.dumps(r) for r in records]
        if connector == "typed":
            rows = [{**r, "ts": datetime.fromisoformat(r["ts"])} for r in records]
            pq.write_table(pa.Table.from_pylist(rows), folder / "data" / f"{site}.parquet")
            continue
        if connector == "replay":
            (folder / "data" / f"{site}.json").write_text("\n".join(lines))
            continue
        (folder / "data" / site).mkdir()
        step = -(-len(lines) // files)
        for i in range(files):
            (folder / "data" / site / f"{i}.json").write_text("\n".join(lines[i * step : (i + 1) * step]))
    return folder


def expected(
    records: Sequence[dict[str, Any]], size_s: int, slide_s: int, by_page: bool, only: bool = False
) -> dict[tuple[datetime, str | None], dict[str, float]]:
    """The oracle: every record into every window that contains it."""
    groups: dict[tuple[datetime, str | None], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if only and record["page"] == "p1":
            continue
        at = datetime.fromisoformat(record["ts"]).timestamp()
        first = int(at // slide_s) * slide_s
        for start in range(first - size_s + slide_s, first + 1, slide_s):
            if start <= at < start + size_s:
                groups[datetime.fromtimestamp(start, UTC), record["page"] if by_page else None].append(record)
    return {
        key: {
            "n": len(rows),
            "bytes": sum(r["bytes"] for r in rows),
            "mean": sum(r["ms"] for r in rows) / len(rows),
        }
        for key, rows in groups.items()
    }


def expected_parts(records: Sequence[dict[str, Any]]) -> dict[tuple[datetime, str | None], dict[str, float]]:
    """The same of a view in which each record is its page twice, and once a part of all."""
    of_all = expected(records, 10, 10, False)
    return expected([*records, *records], 10, 10, True) | {(start, "all"): row for (start, _), row in of_all.items()}


def kept_records(folder: Path) -> int:
    """Return how many records are in the history of all sites."""
    import pyarrow.dataset as ds

    folders = (folder / "state" / "sites").glob("*/history/hits")
    return sum(ds.dataset(p, format="parquet", partitioning="hive").count_rows() for p in folders)
