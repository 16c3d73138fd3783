"""The layout of a log for replay: see `catchment.replay.spool`.

A log (JSON lines, CSV or Parquet; plain, .gz or .zst) is read once and written as an Arrow file with a column
`arrival_us`; text formats keep each line unchanged (`value`), so that parsing, and finding bad records, is the same
work as for a live stream. A line without a readable arrival time stays behind the line before it; so does one whose
time is far from all others (see `catchment.site.plausible`): a replay must not wait years for it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from catchment.arrays import Ints
from catchment.errors import EngineError
from catchment.query.sql.connectors import FilesConnector, ReplayConnector
from catchment.replay.spool import ARRIVAL, ROWS_PER_BATCH
from catchment.site.plausible import find_plausible_times
from catchment.storage.files import sync_folder

_FINGERPRINT = b"catchment.fingerprint"  # metadata key of what a spool was made from
_UNREADABLE = np.iinfo(np.int64).min
_MAX_SECONDS = 1e12  # a larger number is not a time in seconds


def make_spool(log: Path, spool: Path, replay: ReplayConnector, schema: pa.Schema, arrival: str, jump_us: int) -> int:
    """Lay out a log of records of this schema for replay, unless that was done before; return the number of rows."""
    if not log.is_file():
        raise EngineError(f"there is no log {log} to replay", hint="check the stream's path")
    fingerprint = f"{log.stat().st_size}:{log.stat().st_mtime_ns}".encode()
    if not spool.exists():
        table, times = _read_log(log, replay, schema, arrival)
        _write(_sort_by_arrival(table, times, jump_us).replace_schema_metadata({_FINGERPRINT: fingerprint}), spool)
    with pa.memory_map(str(spool)) as source:
        reader = pa.ipc.open_file(source)
        if (reader.schema.metadata or {}).get(_FINGERPRINT) != fingerprint:
            raise EngineError(
                f"the log {log} has changed since its replay began",
                hint=f"restore it, or start over with a new state folder (the old layout is {spool})",
            )
        return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


def read_header(path: Path, delimiter: str) -> list[str]:
    """Return the column names in the first line of a CSV file."""
    with _open_text(path) as lines:
        return split_names(next(lines, ""), delimiter)


def split_names(line: str, delimiter: str) -> list[str]:
    """Return the column names in a line."""
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]


def _read_log(log: Path, replay: ReplayConnector, schema: pa.Schema, arrival: str) -> tuple[pa.Table, Ints]:
    if replay.format == "parquet":
        table = _to_schema(pq.read_table(log), schema, log)
        return table, pc.fill_null(table[arrival].cast(pa.int64()), _UNREADABLE).to_numpy()
    with _open_text(log) as lines:
        if replay.format == "json":
            return _json_lines(lines, arrival)
        return _csv_lines(lines, arrival, replay, schema.names, log)


def _to_schema(table: pa.Table, schema: pa.Schema, log: Path) -> pa.Table:
    """Return the declared columns in their order and types; times are truncated to microseconds."""
    found = {name.lower(): name for name in table.column_names}
    absent = [name for name in schema.names if name.lower() not in found]
    if absent:
        raise EngineError(f"{absent} are declared, but the columns of {log} are {table.column_names}")
    try:
        columns = [
            pc.cast(table[found[f.name.lower()]], options=pc.CastOptions(f.type, allow_time_truncate=True))
            for f in schema
        ]
    except pa.ArrowException as error:
        raise EngineError(f"the columns of {log} are not of the declared types: {error}") from error
    return pa.table(columns, schema=schema)


def _sort_by_arrival(table: pa.Table, times: Ints, jump_us: int) -> pa.Table:
    times = _fill_unreadable(_drop_implausible(times, jump_us))
    order = np.argsort(times, kind="stable")
    table = table.add_column(0, ARRIVAL, pa.array(times))
    return table.take(pa.array(order)) if np.any(order[1:] < order[:-1]) else table


def _drop_implausible(times: Ints, jump_us: int) -> Ints:
    """Return the times, those that are far from the rest as unreadable."""
    known = times[times != _UNREADABLE]
    if not known.size:
        return times
    buckets, counts = np.unique(known // jump_us, return_counts=True)
    limits = find_plausible_times(
        dict(zip(buckets.tolist(), counts.tolist(), strict=True)), None, int(known.max()), jump_us
    )
    return np.where((times >= limits.start_us) & (times < limits.end_us), times, _UNREADABLE)


def _json_lines(lines: Iterator[str], arrival: str) -> tuple[pa.Table, Ints]:
    texts = [line.rstrip("\r\n") for line in lines if line.strip()]
    fields = [_json_field(line, arrival) for line in texts]
    return pa.table({"value": pa.array(texts, pa.string())}), _micros(fields)


def _json_field(line: str, name: str) -> object:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    found = record.get(name) if isinstance(record, dict) else None
    return found if isinstance(found, str | int | float) and not isinstance(found, bool) else None


def _csv_lines(
    lines: Iterator[str], arrival: str, files: FilesConnector, declared: Sequence[str], log: Path
) -> tuple[pa.Table, Ints]:
    header = split_names(next(lines, ""), files.delimiter) if files.header else list(declared)
    names = [name.lower() for name in header]
    if arrival.lower() not in names:
        raise EngineError(f"{log} has no column {arrival!r} to replay by, only {header}")
    index = names.index(arrival.lower())
    texts = [line.rstrip("\r\n") for line in lines if line.strip()]
    rows = (next(csv.reader([line], delimiter=files.delimiter)) for line in texts)
    fields = [row[index] if index < len(row) else None for row in rows]
    return pa.table({"value": pa.array(texts, pa.string())}), _micros(fields)


def _micros(values: Sequence[object]) -> Ints:
    """Return instants, each from an ISO 8601 text or a number of seconds; anything else is unreadable."""
    given = pd.Series(values, dtype=object)
    seconds = pd.to_numeric(given, errors="coerce").astype(float)
    counted = seconds.abs() < _MAX_SECONDS
    stamps = pd.to_datetime(given.where(seconds.isna()), errors="coerce", utc=True, format="ISO8601").dt.as_unit("us")
    texts = np.where(stamps.isna(), _UNREADABLE, stamps.astype("int64"))
    return np.where(counted, np.rint(seconds.where(counted, 0) * 1e6).astype(np.int64), texts)


def _fill_unreadable(times: Ints) -> Ints:
    """Give unreadable times the time of the row before them; at the very start, that of the first readable one."""
    known = times != _UNREADABLE
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
            zstandard.ZstdDecompressor().stream_reader(path.open("rb")), encoding="utf-8-sig", errors="replace"
        )
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")
