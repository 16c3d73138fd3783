"""Sites that come back with an older copy of their state, or with none, on real Spark, boxes and tables: healed.

Catches: what the cores cannot show: history that is read again, files that are read again under a new life, an outbox
that begins anew beside a journal that goes on, rows that are replaced in the result tables.
"""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.deploy.repairing.heal import heal
from tests.spark.test_past import COPIED, REFERRED_TO
from tests.spark.test_sites import QUERIES, feed, minute
from tests.worlds.projects import write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("connector", [COPIED, REFERRED_TO])
def test_after_an_older_copy_and_an_empty_disk_every_record_is_counted_once(
    spark: SparkSession, tmp_path: Path, connector: str
) -> None:
    folder = write_project(tmp_path / "p", ["a", "b"], {"a": [], "b": []}, queries=QUERIES, connector=connector)
    born: dict[str, list[dict[str, Any]]] = {site: feed(folder, site, 0) for site in ("a", "b")}
    run_project(spark, folder, once=True)
    sites = folder / "state" / "sites"
    shutil.copytree(sites / "a", tmp_path / "copy")
    for site in born:
        born[site] += feed(folder, site, 1)
    run_project(spark, folder, once=True)

    shutil.rmtree(sites / "a")
    shutil.copytree(tmp_path / "copy", sites / "a")
    shutil.rmtree(sites / "b")
    assert heal(folder, "a")["healed"] == ["a"]
    assert heal(folder, "b")["views"] == ["numbers"]
    for site in born:
        born[site] += feed(folder, site, 2)
    run_project(spark, folder, once=True)

    expected = Counter((minute(r), r["page"]) for records in born.values() for r in records)
    rows = read_results(folder / "state", "numbers").to_pylist()
    assert {(row["start"].replace(tzinfo=UTC), row["page"]): row["n"] for row in rows} == dict(expected)
    log = read_windows(folder / "state", "numbers")
    assert any(row["reason"].startswith("computed again") for row in log.to_pylist())
    newest = newest_windows(log).to_pylist()
    assert {tuple(w["missing_sites"]) for w in newest} == {()}
    assert {w["status"] for w in newest[:-1]} <= {"exact", "final"}
