"""Project folders for tests, and the answers a person would compute from their records by hand."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2024, 3, 1, tzinfo=UTC)

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});

CREATE TABLE pages (page STRING, section STRING) WITH (connector = 'files', path = 'pages.csv');

CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes, min(ms) AS low, max(ms) AS high, avg(ms) AS mean,
         stddev_samp(ms) AS spread, var_pop(ms) AS variance, moments(ms) AS moments, sum(ms) AS total
  FROM hits GROUP BY window(ts, '1 minute'), page;

CREATE MATERIALIZED VIEW sketches AS
  SELECT window.start, window.end, approx_count_distinct(user) AS users, percentile_approx(ms, 0.5) AS median,
         approx_top_k(page, 2) AS top
  FROM hits GROUP BY window(ts, '3 minutes', '1 minute');

CREATE MATERIALIZED VIEW sections AS
  SELECT window.start, section, sum(bytes) / count(*) AS bytes_per_hit, count(*) FILTER (WHERE ms > 50) AS slow
  FROM hits JOIN pages ON hits.page = pages.page
  WHERE bytes > 10
  GROUP BY window(ts, '2 minutes'), section
  HAVING count(*) > 3;
"""

# A smaller project, and a view that comes to it while it runs.
TWO_VIEWS = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE TABLE pages (page STRING, section STRING) WITH (connector = 'files', path = 'pages.csv');
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW slowest AS
  SELECT window.start, max(ms) AS high FROM hits GROUP BY window(ts, '1 minute');
"""
ANOTHER_VIEW = """CREATE MATERIALIZED VIEW users AS
  SELECT window.start, user, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), user;"""

SECTIONS = {"/": "home", "/a": "docs", "/b": "docs", "/c": "shop"}


def make_records(count: int, seed: int, spread_s: int = 600) -> list[dict[str, Any]]:
    """Records in order of time, keys skewed, values of a wide range."""
    chance = random.Random(seed)
    moments = sorted(chance.uniform(0, spread_s) for _ in range(count))
    return [
        {
            "ts": (START + timedelta(milliseconds=int(at * 1000))).isoformat().replace("+00:00", "Z"),
            "page": chance.choices(list(SECTIONS), [8, 4, 2, 1])[0],
            "user": int(chance.paretovariate(1.0)) % 1000,
            "ms": round(chance.lognormvariate(3, 1), 3),
            "bytes": chance.randrange(0, 10_000),
        }
        for at in moments
    ]


def write_project(
    folder: Path,
    sites: Sequence[str],
    lines: dict[str, list[str]],
    *,
    connector: str = "connector = 'files', path = 'data/{site}'",
    toml: str = "",
    listen: str = "",
    queries: str = QUERIES,
    files_per_site: int = 2,
) -> Path:
    """A project of these sites whose records lie in files, one JSON text a line."""
    links = "".join(f'[[links]]\nfrom = "{s}"\nto = "center"\nbandwidth = "20 MB/s"\n' for s in sites)
    names = "".join(f"[sites.{s}]\n" for s in sites)
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(
        f'[project]\nname = "test"\ncenter = "center"\n{names}[sites.center]\n{listen}\n{links}\n'
        f'[defaults]\ntrigger = "200 ms"\nfreshness = "none"\n{toml}\n[spark]\nmaster = "local[2]"\nmemory = "700m"\n'
    )
    (folder / "queries" / "q.sql").write_text(
        queries.replace("{sites}", ",".join(sites)).replace("{connector}", connector)
    )
    (folder / "pages.csv").write_text("page,section\n" + "".join(f"{p},{s}\n" for p, s in SECTIONS.items()))
    for site, mine in lines.items():
        where = folder / "data" / site
        where.mkdir(parents=True)
        for part in range(files_per_site):
            (where / f"part{part}.json").write_text("".join(line + "\n" for line in mine[part::files_per_site]))
        (folder / "data" / f"{site}.jsonl").write_text("".join(line + "\n" for line in mine))
    return folder


def as_lines(records: Iterable[dict[str, Any]]) -> list[str]:
    return [json.dumps(r) for r in records]


def windows_of(record: dict[str, Any], size_s: int, slide_s: int) -> list[datetime]:
    at = datetime.fromisoformat(record["ts"])
    first = datetime.fromtimestamp(at.timestamp() // slide_s * slide_s, UTC)
    starts = [first - timedelta(seconds=slide_s * k) for k in range(size_s // slide_s)]
    return [s for s in starts if s <= at < s + timedelta(seconds=size_s)]


def group(
    records: Iterable[dict[str, Any]], size_s: int, slide_s: int, key: str | None
) -> dict[tuple[datetime, Any], list[dict[str, Any]]]:
    groups: dict[tuple[datetime, Any], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        for start in windows_of(record, size_s, slide_s):
            groups[start, record[key] if key else None].append(record)
    return groups


def expected_numbers(records: Iterable[dict[str, Any]]) -> dict[tuple[datetime, str], dict[str, Any]]:
    """The view `numbers`, by plain arithmetic."""
    answer = {}
    for place, rows in group(records, 60, 60, "page").items():
        ms = [r["ms"] for r in rows]
        mean = math.fsum(ms) / len(ms)
        square = math.fsum((x - mean) ** 2 for x in ms)
        answer[place] = {
            "n": len(rows),
            "bytes": sum(r["bytes"] for r in rows),
            "low": min(ms),
            "high": max(ms),
            "mean": mean,
            "spread": math.sqrt(square / (len(ms) - 1)) if len(ms) > 1 else None,
            "variance": square / len(ms),
            "moments": [math.fsum(x**k for x in ms) / len(ms) for k in range(1, 6)],
            "total": math.fsum(ms),
        }
    return answer


def expected_sections(records: Iterable[dict[str, Any]]) -> dict[tuple[datetime, str], tuple[float, int]]:
    """The view `sections`, by plain arithmetic."""
    kept = [{**r, "section": SECTIONS[r["page"]]} for r in records if r["bytes"] > 10]
    groups = group(kept, 120, 120, "section")
    return {
        place: (sum(r["bytes"] for r in rows) / len(rows), sum(r["ms"] > 50 for r in rows))
        for place, rows in groups.items()
        if len(rows) > 3
    }
