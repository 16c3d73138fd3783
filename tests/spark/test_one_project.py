"""A project with feed views and materialized views, run on Spark: its tables are what plain loops find."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import catchment
from catchment.feeds.runs.cloud_role import RECORDING_BEGINS_US
from tests.feeds.test_one_project import EXAMPLE, expected_notices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_US = 60_000_000


@pytest.mark.spark
def test_the_example_that_has_both_answers_what_plain_loops_find(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "town"
    shutil.copytree(EXAMPLE, folder)
    town = catchment.open(folder)
    status = town.run(once=True, spark=spark)
    due = expected_notices(folder)
    told = town.sql('SELECT epoch_us(matched_at) AS t, "user" AS u, friend, metres, copies FROM nearby')
    assert not isinstance(told, str | None)
    found: Counter[tuple[int, int, int, float]] = Counter()
    for row in told.to_pylist():
        found[row["t"] - RECORDING_BEGINS_US, row["u"], row["friend"], round(row["metres"], 6)] += row["copies"]
    assert found == due
    windows: Counter[tuple[int, int]] = Counter()
    for (at_us, _, friend, _), times in due.items():
        windows[(RECORDING_BEGINS_US + at_us) // MINUTE_US, friend] += times
    counted = town.sql("SELECT epoch_us(start) AS t, friend, notices, status FROM meetings")
    assert not isinstance(counted, str | None)
    assert {(r["t"] // MINUTE_US, r["friend"]): r["notices"] for r in counted.to_pylist()} == windows
    assert {r["status"] for r in counted.to_pylist()} == {"exact"}
    assert status["feeds"]["devices"] == 5
