"""Sites that come, go and lose their disk between runs on real Spark, boxes and tables.

Catches: what the cores cannot show: a site that reads all its files again under its old name, an inbox that takes its
new numbers, a center that goes on with the same views. The oracle is plain arithmetic over the raw records.
"""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.deploy.sites import add_site, list_sites, replace_site, retire_site
from tests.worlds.projects import START, as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', {connector});
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page;
"""
PART_S = 300


def feed(folder: Path, site: str, part: int) -> list[dict[str, Any]]:
    """Five minutes of records of a site, in a file of their own."""
    first = START + timedelta(seconds=part * PART_S)
    records = make_records(60, seed=10 * part + ord(site), spread_s=PART_S)
    for record in records:
        moved = datetime.fromisoformat(record["ts"]) - START + first
        record["ts"] = moved.isoformat().replace("+00:00", "Z")
    (folder / "data" / site).mkdir(parents=True, exist_ok=True)
    (folder / "data" / site / f"more{part}.json").write_text("".join(line + "\n" for line in as_lines(records)))
    return records


def counts_from(folder: Path, site: str) -> datetime:
    found = next(s for s in list_sites(folder)["sites"] if s["site"] == site)
    return datetime.fromtimestamp(found["counts_from_us"] / 1e6, UTC)


def minute(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["ts"]).replace(second=0, microsecond=0)


@pytest.mark.spark
def test_a_site_joins_another_loses_its_disk_and_nothing_is_counted_twice(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", ["a", "b"], {"a": [], "b": []}, queries=QUERIES)
    born: dict[str, list[dict[str, Any]]] = {site: feed(folder, site, 0) for site in ("a", "b")}
    run_project(spark, folder, once=True)

    born["c"] = feed(folder, "c", 0)  # older than its boundary
    add_site(folder, "c")
    for site in born:
        born[site] += feed(folder, site, 1)
    run_project(spark, folder, once=True)
    joined = counts_from(folder, "c")
    assert joined > START + timedelta(seconds=PART_S - 60)

    sent_before = list(born["b"])
    shutil.rmtree(folder / "state" / "sites" / "b")
    replace_site(folder, "b")
    retire_site(folder, "a")
    for site in ("b", "c"):
        born[site] += feed(folder, site, 2)
    run_project(spark, folder, once=True)
    replaced = counts_from(folder, "b")

    counted = [
        *born["a"],
        *sent_before,
        *(r for r in born["b"] if minute(r) >= replaced),
        *(r for r in born["c"] if minute(r) >= joined),
    ]
    expected = Counter((minute(r), r["page"]) for r in counted)
    rows = read_results(folder / "state", "numbers").to_pylist()
    found = {(row["start"].replace(tzinfo=UTC), row["page"]): row["n"] for row in rows}
    assert found == dict(expected)
    windows = newest_windows(read_windows(folder / "state", "numbers")).to_pylist()
    assert {w["status"] for w in windows if not w["missing_sites"]} <= {"exact", "final"}
    states = {s["site"]: (s["state"], s["life"]) for s in list_sites(folder)["sites"]}
    assert states == {"a": ("retired", 0), "b": ("counts", 1), "c": ("counts", 0), "center": ("center", 0)}
