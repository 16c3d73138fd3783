"""Polars: the whole folder as one lazy group-by, on all cores, with its streaming engine."""

from __future__ import annotations

import sys
import time

import polars as pl

from benchmarks.peers.programs.turns import serve

folder, format, window_s, slide_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
assert window_s == slide_s, "tumbling windows only"
SCHEMA = {"ts": pl.String, "key": pl.Int64, "value": pl.Float64}


def query() -> pl.LazyFrame:
    if format == "parquet":
        events = pl.scan_parquet(f"{folder}/*.parquet")
    else:
        files = f"{folder}/*.{format}"
        events = pl.scan_ndjson(files, schema=SCHEMA) if format == "json" else pl.scan_csv(files, schema=SCHEMA)
        events = events.with_columns(pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us"))
    size_us = window_s * 1_000_000
    slices = (pl.col("ts").dt.epoch("us") // size_us * size_us).alias("slice_us")
    return events.group_by(slices, "key").agg(pl.len().cast(pl.Int64).alias("n"), pl.col("value").sum().alias("total"))


def run() -> float:
    began = time.perf_counter()
    query().collect(engine="streaming")
    return time.perf_counter() - began


serve(pl.__version__, run, lambda path: query().collect().write_parquet(path))
