"""Laying out a log for replay: see `catchment.spark.spool`.

A log (JSON lines, CSV or Parquet; plain, .gz or .zst) is read once and written as an Arrow file with a column
`arrival_us`; text formats keep each line as it was (`value`), so that parsing, and finding bad records, is the
same work as for a live stream. A line without a readable arrival time keeps its place behind the line before it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from catchment.errors import EngineError
from catchment.spark.spool import ARRIVAL, ROWS_PER_BATCH, Instants
from catchment.wire.files import sync_folder

_FINGERPRINT = b"catchment.fingerprint"


def make_spool(log: Path, spool: Path, *, format: str, arrival: str) -> int:
    """Lay out a log for replay, unless that was done before; the number of its rows."""
    if not log.is_file():
        raise EngineError(f"there is no log {log} to replay", hint="check the stream's path")
    fingerprint = f"{log.stat().st_size}:{log.stat().st_mtime_ns}".encode()
    if not spool.exists():
        table = _read_log(log, format, arrival)
        _write(table.replace_schema_metadata({_FINGERPRINT: fingerprint}), spool)
    with pa.memory_map(str(spool)) as source:
        reader = pa.ipc.open_file(source)
        if (reader.schema.metadata or {}).get(_FINGERPRINT) != fingerprint:
            raise EngineError(
                f"the log {log} has changed since its replay began",
                hint=f"restore it, or start over with a new state folder (the old layout is {spool})",
            )
        return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


def read_header(path: Path) -> list[str]:
    """The column names in the first line of a CSV file."""
    with _open_text(path) as lines:
        return next(csv.reader([next(lines, "")]), [])


def _read_log(log: Path, format: str, arrival: str) -> pa.Table:
    if format == "parquet":
        table = pq.read_table(log)
        if arrival not in table.column_names:
            raise EngineError(f"{log} has no column {arrival!r} to replay by, only {table.column_names}")
        times = _micros(table[arrival].to_pandas())
    else:
        with _open_text(log) as lines:
            table, times = (_json_lines if format == "json" else _csv_lines)(lines, arrival, log)
    times = _in_place(times)
    order = np.argsort(times, kind="stable")
    table = table.add_column(0, ARRIVAL, pa.array(times))
    return table.take(pa.array(order)) if np.any(order[1:] < order[:-1]) else table


def _json_lines(lines: Iterator[str], arrival: str, log: Path) -> tuple[pa.Table, Instants]:
    kept = [line.rstrip("\r\n") for line in lines if line.strip()]
    return pa.table({"value": pa.array(kept, pa.string())}), _micros(
        pd.Series([_json_field(k, arrival) for k in kept], dtype=object)
    )


def _json_field(line: str, name: str) -> object:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record.get(name) if isinstance(record, dict) else None


def _csv_lines(lines: Iterator[str], arrival: str, log: Path) -> tuple[pa.Table, Instants]:
    header = next(csv.reader([next(lines, "")]), [])
    if arrival not in header:
        raise EngineError(f"{log} has no column {arrival!r} to replay by, only {header}")
    place = header.index(arrival)
    kept = [line.rstrip("\r\n") for line in lines if line.strip()]
    fields = [row[place] if place < len(row) else None for row in csv.reader(kept)]
    return pa.table({"value": pa.array(kept, pa.string())}), _micros(pd.Series(fields, dtype=object))


def _micros(values: pd.Series) -> Instants:
    """Instants of ISO 8601 texts, timestamps, or numbers of seconds; the least integer where there is none."""
    numbers = pd.to_numeric(values, errors="coerce") if values.dtype == object else values
    if pd.api.types.is_numeric_dtype(numbers) and numbers.notna().any():
        stamps = pd.to_datetime(numbers * 1e6, unit="us", errors="coerce", utc=True)
    else:
        stamps = pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
    micros = stamps.dt.as_unit("us").astype("int64").to_numpy()
    return np.where(stamps.isna(), np.iinfo(np.int64).min, micros)


def _in_place(times: Instants) -> Instants:
    """Unreadable times take the time of the row before them; at the very start, of the first readable one."""
    known = times != np.iinfo(np.int64).min
    if not known.any():
        return np.zeros(len(times), dtype=np.int64)
    last = np.maximum.accumulate(np.where(known, np.arange(len(times)), -1))
    return times[np.where(last < 0, np.argmax(known), last)]


def _write(table: pa.Table, spool: Path) -> None:
    spool.parent.mkdir(parents=True, exist_ok=True)
    unfinished = spool.with_suffix(".unfinished")
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=ROWS_PER_BATCH)
    unfinished.rename(spool)
    sync_folder(spool.parent)


def _open_text(path: Path) -> io.TextIOWrapper:
    if path.suffix == ".zst":
        return io.TextIOWrapper(
            zstandard.ZstdDecompressor().stream_reader(path.open("rb")), encoding="utf-8", errors="replace"
        )
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")
