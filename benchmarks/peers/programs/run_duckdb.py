"""DuckDB: the whole folder as one group-by, on all cores."""

from __future__ import annotations

import sys
import time

import duckdb

from benchmarks.peers.programs.turns import serve

folder, format, window_s, slide_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
COLUMNS = "columns={ts: 'TIMESTAMPTZ', key: 'BIGINT', value: 'DOUBLE'}"
SOURCES = {
    "parquet": f"'{folder}/*.parquet'",
    "json": f"read_json('{folder}/*.json', {COLUMNS})",
    "kafka": f"read_json('{folder}/*.json', {COLUMNS})",  # the files whose lines are the values of the topic
    "csv": f"read_csv('{folder}/*.csv', {COLUMNS})",
}
WINDOWS = window_s // slide_s  # that contain a record
SQL = f"""
SELECT epoch_us(ts) // {slide_s * 1_000_000} * {slide_s * 1_000_000} - slide * {slide_s * 1_000_000} AS slice_us,
       key, count(*) AS n, sum(value) AS total
FROM {SOURCES[format]} CROSS JOIN range({WINDOWS}) AS slides(slide)
GROUP BY ALL
"""
if WINDOWS == 1:
    SQL = SQL.replace(f" - slide * {slide_s * 1_000_000}", "").replace(
        f" CROSS JOIN range({WINDOWS}) AS slides(slide)", ""
    )


def run() -> float:
    began = time.perf_counter()
    with duckdb.connect() as connection:
        connection.sql(SQL).to_arrow_table()
    return time.perf_counter() - began


def write_answers(path: str) -> None:
    with duckdb.connect() as connection:
        connection.sql(f"COPY ({SQL}) TO '{path}' (FORMAT parquet)")


serve(duckdb.__version__, run, write_answers)
