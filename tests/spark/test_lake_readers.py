"""The tables that catchment itself writes, result tables and history, are read by programs that others wrote.

DuckDB and Polars read them here; Spark with its Delta jar reads them in an environment of its own, because no such jar
is published for the Spark that catchment runs on.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from catchment.center.statuses import FINAL, ON_TIME
from catchment.testing.check_target import VIEW, PublishedView
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.scan import HistoryWriter

polars = pytest.importorskip("polars")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".delta"
MISSING = "needs a Spark that has a Delta jar: sh tools/delta_spark.sh .delta (with Maven and PyPI)"
COLUMNS = ("country", "n", "bytes", "status", "revision", "retracted", "coverage")
RECORDS = pa.table(
    {
        "ts": pa.array([1_767_225_600_000_000 + n for n in range(500)], pa.timestamp("us", tz="UTC")),
        "page": [f"p{n % 7}" if n % 5 else None for n in range(500)],
        "ms": [n / 4 for n in range(500)],
    }
)
READ_WITH_SPARK = """
import glob, json, sys
from pyspark.sql import SparkSession
delta, history, columns, jars = sys.argv[1:]
own = [jar for jar in glob.glob(jars + "/*.jar") if "/delta-" in jar]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", ",".join(own)).config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
answers = spark.read.format("delta").load(delta).select(*columns.split(","))
records = spark.read.parquet(history)
sums = records.selectExpr("count(*) AS n", "count(page) AS pages", "sum(ms) AS ms", "unix_micros(max(ts)) AS newest")
print(json.dumps({"answers": [list(row) for row in answers.collect()], "history": sums.first().asDict()}))
"""


@pytest.fixture
def published(tmp_path: Path) -> PublishedView:
    view = PublishedView(tmp_path / "state")
    view.publish(0, [("nl", 5), ("de", 3), (None, 1)], ON_TIME)
    view.publish(0, [("nl", 6), ("de", -3)], FINAL)
    view.publish(1, [(None, 2)])
    return view


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.parquet"
    writer = HistoryWriter(path, RECORDS.schema)
    writer.write(RecordColumns.of(RECORDS, RECORDS.schema), np.arange(RECORDS.num_rows))
    writer.close()
    return path


def expected_sums() -> dict[str, Any]:
    newest: datetime = RECORDS["ts"][-1].as_py()
    return {"n": 500, "pages": 400, "ms": sum(RECORDS["ms"].to_pylist()), "newest": round(newest.timestamp() * 1e6)}


def stored_rows(view: PublishedView) -> list[list[Any]]:
    table = DeltaTable(view.state / "results" / VIEW).to_pyarrow_table(columns=list(COLUMNS))
    return sorted(([row[c] for c in COLUMNS] for row in table.to_pylist()), key=repr)


def test_duckdb_and_polars_read_every_revision_of_a_result_table(published: PublishedView) -> None:
    path = published.state / "results" / VIEW
    assert len(stored_rows(published)) == 6
    with duckdb.connect() as database:
        database.register("answers", DeltaTable(path).to_pyarrow_dataset())
        found = database.sql(f"SELECT {', '.join(COLUMNS)} FROM answers").fetchall()
    assert sorted(map(list, found), key=repr) == stored_rows(published)
    read = polars.read_delta(str(path), columns=list(COLUMNS)).rows()
    assert sorted(map(list, read), key=repr) == stored_rows(published)


def test_duckdb_and_polars_read_history(history: Path) -> None:
    sums = "SELECT count(*) AS n, count(page) AS pages, sum(ms) AS ms, epoch_us(max(ts)) AS newest"
    with duckdb.connect() as database:
        found = database.sql(f"{sums} FROM read_parquet('{history}')").to_arrow_table().to_pylist()
    assert found == [expected_sums()]
    read = polars.scan_parquet(history).select(
        n=polars.len().cast(polars.Int64),
        pages=polars.col("page").count().cast(polars.Int64),
        ms=polars.col("ms").sum(),
        newest=polars.col("ts").max().dt.timestamp("us"),
    )
    assert read.collect().to_dicts() == [expected_sums()]


@pytest.mark.integration
@pytest.mark.skipif(not (ENVIRONMENT / ".complete").exists(), reason=MISSING)
def test_spark_reads_result_tables_with_its_delta_jar_and_history(published: PublishedView, history: Path) -> None:
    path = published.state / "results" / VIEW
    python = ENVIRONMENT / "env" / "bin" / "python"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    ended = subprocess.run(
        [python, "-c", READ_WITH_SPARK, path, history, ",".join(COLUMNS), ENVIRONMENT / "jars"],
        capture_output=True,
        text=True,
        check=False,
        env=clean,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert sorted(found["answers"], key=repr) == stored_rows(published)
    assert found["history"] == expected_sums()
