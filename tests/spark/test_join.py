"""Joins of two and three streams that are born at different sites, on real Spark, sockets and tables.

Some of the sites send over another. The oracle is Spark's own batch join of the raw files, window by window. Catches
what `test_join.py` cannot: what Spark makes of the sides' expressions, tables of partials on disk, and late files that
a second run finds.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results, read_windows
from tests.worlds.projects import as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = 'a,b', path = 'data/{site}');
CREATE STREAM sales (ts TIMESTAMP, buyer BIGINT, item STRING, price DECIMAL(10, 2))
  WITH (event_time = 'ts', sites = 'b,c', path = 'sales/{site}');
CREATE TABLE pages (page STRING, section STRING) WITH (path = 'pages.csv');
CREATE MATERIALIZED VIEW sold AS
  SELECT window.start, section, s.item, count(*) AS n, sum(h.bytes) AS bytes, avg(h.ms) AS ms, sum(s.price) AS price,
         max(s.price) AS high, approx_count_distinct(h.user) AS users, sum(h.bytes) / count(*) AS mean
  FROM hits h JOIN sales s ON h.user = s.buyer JOIN pages p ON h.page = p.page
  WHERE h.bytes > 100
  GROUP BY window(s.ts, '2 minutes'), section, s.item
  HAVING count(*) > 1;
CREATE MATERIALIZED VIEW overlapping AS
  SELECT window.start, count(*) AS n, sum(h.bytes) AS bytes, max(s.price) AS high
  FROM sales s JOIN hits h ON h.user = s.buyer GROUP BY window(h.ts, '2 minutes', '1 minute');
CREATE MATERIALIZED VIEW either AS
  SELECT window.start, coalesce(h.user, s.buyer) AS who, s.item, count(*) AS n, sum(h.bytes) AS bytes,
         sum(coalesce(CAST(s.price AS DOUBLE), 0)) AS price, count(h.ms) AS hits
  FROM hits h FULL JOIN sales s ON h.user = s.buyer AND h.bytes > 100
  WHERE s.price IS NULL OR s.price < 40 GROUP BY window(h.ts, '2 minutes'), 2, s.item;
CREATE MATERIALIZED VIEW third WITH (max_error = 0.2) AS
  SELECT window.start, s.item, count(*) AS n, sum(g.bytes) AS bytes, sum(s.price) AS price,
         histogram(h.ms, 0, 100, 4) AS ms
  FROM hits h JOIN sales s ON h.user = s.buyer JOIN hits g ON g.user = s.buyer AND g.page = h.page AND g.bytes > 500
  GROUP BY window(h.ts, '2 minutes'), s.item;
CREATE MATERIALIZED VIEW users AS
  SELECT window.start, user, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), user;
"""
SOLD = """
  SELECT w.start, section, item, count(*) AS n, sum(bytes) AS bytes, avg(ms) AS ms, sum(price) AS price,
         max(price) AS high, count(DISTINCT user) AS users, sum(bytes) / count(*) AS mean
  FROM hits_2 JOIN sales_2 USING (w) JOIN pages USING (page) WHERE user = buyer AND bytes > 100
  GROUP BY w, section, item HAVING count(*) > 1"""
OVERLAPPING = """
  SELECT w.start, count(*) AS n, sum(bytes) AS bytes, max(price) AS high
  FROM hits_1 JOIN sales_1 USING (w) WHERE user = buyer GROUP BY w"""

EITHER = """
  SELECT coalesce(h.w, s.w).start, coalesce(user, buyer), item, count(*) AS n, sum(bytes) AS bytes,
         sum(coalesce(price, 0)) AS price, count(ms) AS hits
  FROM hits_2 h FULL JOIN sales_2 s ON h.w = s.w AND user = buyer AND bytes > 100
  WHERE price IS NULL OR price < 40 GROUP BY coalesce(h.w, s.w), 2, item"""

THIRD = """
  SELECT h.w.start, item, count(*) AS n, sum(g.bytes) AS bytes, sum(price) AS price,
         array(count_if(h.ms < 0), count_if(h.ms >= 0 AND h.ms < 25), count_if(h.ms >= 25 AND h.ms < 50),
               count_if(h.ms >= 50 AND h.ms < 75), count_if(h.ms >= 75 AND h.ms < 100), count_if(h.ms >= 100)) AS ms
  FROM hits_2 h JOIN sales_2 s ON h.w = s.w AND h.user = buyer
  JOIN hits_2 g ON g.w = s.w AND g.user = buyer AND g.page = h.page AND g.bytes > 500 GROUP BY h.w, item"""
KEYS = {"overlapping": 1, "third": 2}  # of the other views: three


def make_sales(count: int, seed: int, spread_s: int = 600) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "ts": record["ts"],
            "buyer": chance.choice([None, *range(12)]),
            "item": chance.choice(["book", "cup", None]),
            "price": round(chance.uniform(0, 50), 2),
        }
        for record in make_records(count, seed, spread_s)
    ]


def write_sales(folder: Path, site: str, name: str, records: list[dict[str, Any]]) -> None:
    (folder / "sales" / site).mkdir(parents=True, exist_ok=True)
    (folder / "sales" / site / name).write_text("".join(json.dumps(r) + "\n" for r in records))


def batch_answers(spark: SparkSession, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """What Spark makes of the raw records."""
    from catchment.project.config import Project
    from catchment.query.catalog import load_catalog
    from catchment.query.types import sql_type

    catalog = load_catalog(Project.load(folder))
    for stream, path in (("hits", "data"), ("sales", "sales")):
        schema = ", ".join(f"{c.name} {sql_type(c.type)}" for c in catalog.streams[stream].columns)
        raw = spark.read.schema(schema).json([str(p) for p in sorted((folder / path).glob("*/*.json"))])
        raw.createOrReplaceTempView("raw")
        for slide in (1, 2):
            spark.sql(
                f"SELECT window(ts, '2 minutes', '{slide} minutes') AS w, * EXCEPT (ts) FROM raw"
            ).createOrReplaceTempView(f"{stream}_{slide}")
    spark.read.csv(str(folder / "pages.csv"), header=True).createOrReplaceTempView("pages")
    return [tuple(row) for row in spark.sql(sql).collect()]


def check(spark: SparkSession, folder: Path, view: str, sql: str) -> None:
    columns = [c["name"] for c in _columns(folder, view)]
    found = [tuple(r[c] for c in columns) for r in read_results(folder / "state", view).to_pylist()]
    expected = batch_answers(spark, folder, sql)
    assert len(found) == len(expected) >= 10
    keys = KEYS.get(view, 3)
    by_key = {_instant(row[:keys]): row[keys:] for row in expected}
    for row in found:
        for a, b in zip(row[keys:], by_key[_instant(row[:keys])], strict=True):
            assert a == b or math.isclose(float(a), float(b), rel_tol=1e-9), (row, by_key[_instant(row[:keys])])


def _instant(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Spark gives instants in the zone of this machine."""
    return (key[0].timestamp(), *key[1:])


def _columns(folder: Path, view: str) -> list[dict[str, Any]]:
    from catchment.project.config import Project
    from catchment.query.catalog import load_catalog
    from catchment.query.explain import explain_data
    from catchment.query.planning.build import plan_view

    catalog = load_catalog(Project.load(folder))
    return list(explain_data(plan_view(catalog.view(view), catalog), catalog.project)["columns"])


def put_behind_a_hub(folder: Path, *sites: str) -> None:
    path = folder / "catchment.toml"
    text = path.read_text() + '[sites.hub]\n[[links]]\nfrom = "hub"\nto = "center"\n'
    for site in sites:
        text = text.replace(f'from = "{site}"\nto = "center"', f'from = "{site}"\nto = "hub"')
    path.write_text(text)


def test_two_streams_at_different_sites_some_behind_a_hub_are_joined_as_spark_joins_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = {name: as_lines(make_records(300, seed)) for seed, name in enumerate(("a", "b"))}
    folder = write_project(tmp_path / "p", ["a", "b", "c"], {**lines, "c": []}, queries=QUERIES)
    for seed, site in enumerate(("b", "c")):
        write_sales(folder, site, "first.json", make_sales(200, seed + 10))
    put_behind_a_hub(folder, "b", "c")
    hub = run_project(spark, folder, faults=True)["relays"]["hub"]
    assert 0 < hub["rows_out"] < hub["rows_in"], "both sell: what they sell meets there"
    check(spark, folder, "sold", SOLD)
    check(spark, folder, "overlapping", OVERLAPPING)
    check(spark, folder, "either", EITHER)
    check(spark, folder, "third", THIRD)
    log = read_windows(folder / "state", "sold").to_pylist()
    assert {w["status"] for w in log} <= {"exact", "final"}

    (folder / "data" / "a" / "late.json").write_text("\n".join(as_lines(make_records(20, 5, spread_s=200))))
    write_sales(folder, "c", "late.json", make_sales(20, 6, spread_s=500))
    run_project(spark, folder)
    check(spark, folder, "sold", SOLD)
    check(spark, folder, "overlapping", OVERLAPPING)
    check(spark, folder, "either", EITHER)
    check(spark, folder, "third", THIRD)
    late = [w for w in read_windows(folder / "state", "sold").to_pylist() if w["reason"].startswith("late: ")]
    assert late
    before, after = ({r["revision"] for r in read_results(folder / "state", v).to_pylist()} for v in ("sold", "users"))
    assert max(before) > 1
    assert max(after) > 1
