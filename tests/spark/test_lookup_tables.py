"""Look-up tables on Spark: rows by event time, and tables that are read again while a site runs.

The oracle of look-ups by event time is a loop over all records and rows. Catches: a row that is found outside of its
time, a version that changes under a batch, a bad new version that replaces a good one.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.errors import EngineError
from catchment.query.catalog import Catalog
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.timeline import ManualClock
from tests.worlds.postgres_server import MISSING, PostgresServer, has_server
from tests.worlds.query_support import make_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECOND = 1_000_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SQL = """
CREATE STREAM orders (ts TIMESTAMP, shop STRING, amount BIGINT)
  WITH (event_time = 'ts', sites = 'us', path = 'orders/{site}');
CREATE TABLE tiers (shop STRING, tier STRING, valid_from TIMESTAMP, valid_to TIMESTAMP)
  WITH (path = 'tiers.csv', refresh = '1 minute');
CREATE MATERIALIZED VIEW by_tier AS
  SELECT window.start, t.tier, count(*) AS n, sum(amount) AS total
  FROM orders o LEFT JOIN tiers t ON o.shop = t.shop AND o.ts >= t.valid_from
       AND (t.valid_to IS NULL OR o.ts < t.valid_to)
  GROUP BY window(ts, '1 hour'), t.tier;
"""


def catalog_of(sql: str) -> Catalog:
    return Catalog(make_project()).add(*parse_sql(sql, "q.sql"))


def at(hours: float) -> datetime:
    return BEGIN + timedelta(hours=hours)


def write_tiers(path: Path, rows: list[tuple[str, str, datetime, datetime | None]]) -> None:
    lines = [
        f"{shop},{tier},{low:%Y-%m-%dT%H:%M:%SZ},{high:%Y-%m-%dT%H:%M:%SZ}"
        if high
        else f"{shop},{tier},{low:%Y-%m-%dT%H:%M:%SZ},"
        for shop, tier, low, high in rows
    ]
    path.write_text("\n".join(["shop,tier,valid_from,valid_to", *lines]) + "\n")


def test_a_record_finds_the_row_that_was_valid_at_its_event_time(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.evaluation.evaluator import SparkEvaluator
    from catchment.spark.sources.lookup_tables import LookupTables

    catalog = catalog_of(SQL)
    tiers = [
        ("a", "new", at(0), at(2)),
        ("a", "gold", at(2), None),
        ("b", "new", at(1), at(1.5)),
        ("b", "silver", at(3), at(4)),
    ]
    write_tiers(tmp_path / "tiers.csv", tiers)
    chance = random.Random(1)
    orders = [(at(chance.randrange(0, 20) / 4), chance.choice("abc"), number) for number in range(120)]
    fragment = plan_view(catalog.view("by_tier"), catalog).fragment
    evaluator = SparkEvaluator(LookupTables(spark, catalog.tables, tmp_path, ManualClock(0)))
    records = spark.createDataFrame(orders, "ts TIMESTAMP, shop STRING, amount BIGINT")
    versions = evaluator.rows(records, fragment).select("tiers.tier", "tiers._version").distinct().collect()
    assert len({row._version for row in versions if row.tier is not None}) == 1
    rows = evaluator.rows(records, fragment).select("orders.amount", "tiers.tier").collect()
    expected = [
        (
            amount,
            next((t for s, t, low, high in tiers if s == shop and low <= ts and (high is None or ts < high)), None),
        )
        for ts, shop, amount in orders
    ]
    assert sorted(map(tuple, rows)) == expected
    assert {tier for _, tier in expected} == {"new", "gold", "silver", None}


def test_a_table_is_read_again_when_it_has_changed_and_a_version_in_use_stays_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.sources.lookup_tables import LookupTables

    clock = ManualClock(0)
    path = tmp_path / "tiers.csv"
    write_tiers(path, [("a", "new", at(0), None)])
    tables = LookupTables(spark, catalog_of(SQL).tables, tmp_path, clock)
    first = tables["tiers"]
    before = tables.status()["tiers"]["version"]
    write_tiers(path, [("a", "gold", at(0), None), ("b", "new", at(0), None)])
    assert tables["tiers"] is first, "it is not yet time to look again"
    clock.advance(60 * SECOND)
    assert {row.tier for row in tables["tiers"].collect()} == {"gold", "new"}
    assert [row.tier for row in first.collect()] == ["new"], "a batch that has begun goes on with what it has"
    assert tables.status()["tiers"]["version"] != before
    assert {row._version for row in first.collect()} == {before}, "rows name the version that they are of"
    assert {row._version for row in tables["tiers"].collect()} == {tables.status()["tiers"]["version"]}

    good = tables["tiers"]
    path.write_text("shop,tier,valid_from,valid_to\na,gold,never,\n")
    clock.advance(60 * SECOND)
    assert tables["tiers"] is good
    assert "cannot be used" in tables.status()["tiers"]["problem"]
    path.unlink()
    clock.advance(60 * SECOND)
    assert tables["tiers"] is good
    write_tiers(path, [("c", "new", at(0), None)])
    clock.advance(60 * SECOND)
    assert [row.shop for row in tables["tiers"].collect()] == ["c"]
    assert tables.status()["tiers"]["problem"] is None


def test_rows_that_are_not_unique_are_refused_at_the_start_and_leave_the_version_before_in_use_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.sources.lookup_tables import LookupTables

    clock = ManualClock(0)
    good, bad = "shop,tier\na,gold\nb,gold\n", "shop,tier\na,gold\na,silver\n"
    for name, refresh in (("still", ""), ("fresh", ", refresh = '1 minute'")):
        options = f"path = '{name}.csv', unique = 'shop'{refresh}"
        tables = catalog_of(f"CREATE TABLE shops (shop STRING, tier STRING) WITH ({options})").tables
        (tmp_path / f"{name}.csv").write_text(bad)
        with pytest.raises(EngineError, match="2 rows with shop = 'a'"):
            LookupTables(spark, tables, tmp_path, clock)
    (tmp_path / "fresh.csv").write_text(good)
    held = LookupTables(spark, tables, tmp_path, clock)
    (tmp_path / "fresh.csv").write_text(bad)
    clock.advance(60 * SECOND)
    assert {row.shop for row in held["shops"].collect()} == {"a", "b"}
    assert "2 rows with shop = 'a'" in held.status()["shops"]["problem"]


LOOKED = """
CREATE STREAM orders (ts TIMESTAMP, shop STRING, amount BIGINT)
  WITH (event_time = 'ts', sites = 'us', path = 'orders/{site}');
CREATE TABLE fresh (shop STRING, tier STRING) WITH (path = 'fresh.csv', refresh = '1 minute');
CREATE TABLE still (shop STRING, name STRING) WITH (path = 'still.csv');
CREATE MATERIALIZED VIEW by_tier AS SELECT window.start, tier, name, count(*) AS n FROM orders
  JOIN fresh ON orders.shop = fresh.shop JOIN still ON orders.shop = still.shop
  WHERE amount > 0 GROUP BY window(ts, '1 hour'), tier, name;
"""


def test_a_batch_says_in_which_version_it_looked_records_up_also_those_that_found_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.evaluation.evaluator import SparkEvaluator
    from catchment.spark.evaluation.one_pass import Take
    from catchment.spark.sources.lookup_tables import LookupTables

    catalog = catalog_of(LOOKED)
    fragment = plan_view(catalog.views["by_tier"], catalog).fragment
    (tmp_path / "fresh.csv").write_text("shop,tier\na,gold\n")
    (tmp_path / "still.csv").write_text("shop,name\na,A\n")
    clock = ManualClock(0)
    tables = LookupTables(spark, catalog.tables, tmp_path, clock)
    evaluator = SparkEvaluator(tables)
    found = [(at(0.5), "a", 1), (at(1.5), "unknown", 1), (at(2.5), "a", 0)]
    records = spark.createDataFrame(found, "ts TIMESTAMP, shop STRING, amount BIGINT")
    hours = [round(at(hour).timestamp() * SECOND) for hour in (0, 1)]
    told = []
    for tier in ("gold", "silver"):
        (tmp_path / "fresh.csv").write_text(f"shop,tier\na,{tier}\n")
        clock.advance(60 * SECOND)
        (reduced,) = evaluator.reduce_all(records, [Take(fragment)], len(found))
        assert reduced.table["tier"].to_pylist() == [tier]
        (fact,) = reduced.looked_up
        assert (fact.fragment, fact.table, list(fact.slices)) == (fragment.name, "fresh", hours)
        assert fact.version == tables.status()["fresh"]["version"]
        assert reduced.events("f")[1:] == [fact]
        told.append(fact.version)
    assert len(set(told)) == 2


@pytest.mark.integration
@pytest.mark.skipif(not has_server(), reason=MISSING)
def test_a_table_of_a_database_is_read_again_and_stays_in_use_while_the_database_is_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.sources.lookup_tables import LookupTables

    server = PostgresServer().start()
    try:
        clock = ManualClock(0)
        server.query("CREATE TABLE tiers (shop text, tier text, valid_from timestamptz, valid_to timestamptz)")
        server.query("INSERT INTO tiers VALUES ('a', 'new', '2026-01-01T01:00:00+01', NULL)")
        declared = SQL.replace("path = 'tiers.csv'", f"connector = 'postgres', url = '{server.url}', table = 'tiers'")
        tables = LookupTables(spark, catalog_of(declared).tables, tmp_path, clock)
        first = tables["tiers"]
        assert [(r.shop, r.tier, r.valid_from.astimezone(UTC), r.valid_to) for r in first.collect()] == [
            ("a", "new", at(0), None)
        ]
        server.query("UPDATE tiers SET tier = 'new'")  # the same rows in another place: the same version
        clock.advance(60 * SECOND)
        assert tables["tiers"] is first
        server.kill()
        clock.advance(60 * SECOND)
        assert tables["tiers"] is first
        assert "cannot be read from PostgreSQL" in tables.status()["tiers"]["problem"]
        server.start()
        server.query("INSERT INTO tiers VALUES ('b', 'gold', now(), NULL)")
        clock.advance(60 * SECOND)
        assert {row.shop for row in tables["tiers"].collect()} == {"a", "b"}
        assert tables.status()["tiers"]["problem"] is None
    finally:
        server.remove()
