"""A first project from a person's own file: its columns and types, its event time, and a query to begin with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from catchment.aggregates import quote
from catchment.errors import ConfigError
from catchment.query.types import sql_type
from catchment.units import SECOND_US, format_duration

SAMPLE_BYTES = 4_000_000  # how much of a text file is looked at
SAMPLE_ROWS = 100_000
MAX_GROUPS = 50  # a column with more distinct values is no first grouping
WINDOWS = 20  # about how many windows the first query cuts the file into
INSTANT = pa.timestamp("us", tz="UTC")
_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_TIME_NAMES = re.compile(r"(?i)(^|_)(ts|time|timestamp|date|datetime|at|when|event_time|created|updated)($|_)")
_WINDOW_LENGTHS_US = [n * SECOND_US for n in (1, 10, 60, 300, 900, 3600, 6 * 3600, 24 * 3600)]


@dataclass(frozen=True)
class InferredStream:
    """What a file says about the stream that it holds."""

    name: str
    path: Path
    format: str
    schema: pa.Schema
    event_time: str
    group: str | None  # a column with few values
    value: str | None  # a column of numbers
    window_us: int

    def to_sql(self) -> str:
        """Return a CREATE STREAM for the file, and a first view over it."""
        columns = ",\n  ".join(f"{quote(f.name)} {sql_type(f.type)}" for f in self.schema)
        keys = f"{quote(self.group)}, " if self.group else ""
        value = f", sum({quote(self.value)}) AS total, avg({quote(self.value)}) AS mean" if self.value else ""
        window = f"window({quote(self.event_time)}, '{format_duration(self.window_us)}')"
        grouped = f"{window}, {quote(self.group)}" if self.group else window
        return (
            f"-- As {self.path.name} says; correct what it cannot say.\n"
            f"CREATE STREAM {quote(self.name)} (\n  {columns}\n) WITH (\n"
            f"  event_time = '{self.event_time}', sites = 'edge',\n"
            f"  connector = 'files', path = '{self.path}', format = '{self.format}'\n);\n\n"
            f"-- A first question; `catchment run` answers it.\n"
            f"CREATE MATERIALIZED VIEW {quote(self.name + '_by_window')} AS\n"
            f"  SELECT window.start, {keys}count(*) AS records{value}\n"
            f"  FROM {quote(self.name)} GROUP BY {grouped};\n"
        )


def infer_stream(path: Path) -> InferredStream:
    """Look at a file of CSV, JSON lines or Parquet, and propose a stream."""
    format_ = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}.get(
        path.suffix
    )
    if not path.is_file() or format_ is None:
        raise ConfigError(
            f"{path} is not a file that a stream can be inferred from",
            hint="give a file of CSV with a heading (.csv), JSON lines (.json, .jsonl) or Parquet (.parquet)",
        )
    table = _with_instants(_read_sample(path, format_))
    event_time = _find_event_time(table, path)
    return InferredStream(
        re.sub(r"\W", "_", path.stem).lower().strip("_") or "records",
        path.resolve(),
        format_,
        pa.schema([pa.field(f.name, _declared(f.type)) for f in table.schema]),
        event_time,
        _find_group(table),
        _find_value(table),
        _window_us(table[event_time]),
    )


def _read_sample(path: Path, format_: str) -> pa.Table:
    """Return the beginning of a file; the last line of a text that is cut there is left out."""
    try:
        if format_ == "parquet":
            return pa.Table.from_batches([next(pq.ParquetFile(path).iter_batches(SAMPLE_ROWS))])
        with path.open("rb") as file:
            text = file.read(SAMPLE_BYTES)
        if len(text) == SAMPLE_BYTES:
            text = text[: text.rfind(b"\n") + 1]
        read = pyarrow.csv.read_csv if format_ == "csv" else pyarrow.json.read_json
        return read(pa.BufferReader(text))
    except (pa.ArrowInvalid, StopIteration) as error:
        raise ConfigError(
            f"{path} cannot be read as {format_}: {error}", hint="is the first line a heading?"
        ) from error


def _with_instants(table: pa.Table) -> pa.Table:
    """Return the table with its timestamps as instants; texts that are all timestamps are timestamps too."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_timestamp(field.type):
            table = table.set_column(place, field.name, _to_instant(column))
        elif pa.types.is_string(field.type) and _TIME_NAMES.search(field.name):
            try:
                table = table.set_column(place, field.name, column.cast(INSTANT))
            except pa.ArrowInvalid:
                continue
    return table


def _to_instant(column: pa.ChunkedArray) -> pa.ChunkedArray:
    naive = column.type.tz is None
    return (pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC") if naive else column).cast(INSTANT)


def _find_event_time(table: pa.Table, path: Path) -> str:
    times: list[str] = [f.name for f in table.schema if pa.types.is_timestamp(f.type)]
    if not times:
        raise ConfigError(
            f"{path} has no column of timestamps",
            where=", ".join(table.column_names),
            hint="records need an event time, such as 2026-01-31T14:00:00Z",
        )
    named: list[str] = [name for name in times if _TIME_NAMES.search(name)]
    return (named or times)[0]


def _find_group(table: pa.Table) -> str | None:
    """Return the column of texts with the fewest values, two at least."""
    counts = {f.name: pc.count_distinct(table[f.name]).as_py() for f in table.schema if pa.types.is_string(f.type)}
    few = {name: count for name, count in counts.items() if 2 <= count <= MAX_GROUPS}
    return min(few, key=lambda name: few[name], default=None)


def _find_value(table: pa.Table) -> str | None:
    """Return the last column of numbers that is not a name for something."""
    numbers = [f.name for f in table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    return next((name for name in reversed(numbers) if not re.search(r"(?i)(^|_)(id|code|year)$", name)), None)


def _window_us(times: pa.ChunkedArray) -> int:
    """Return a round length that cuts the time of the sample into about so many windows."""
    extremes = pc.min_max(times.cast(pa.int64())).as_py()
    if extremes["min"] is None:
        return 60 * SECOND_US
    wanted = (extremes["max"] - extremes["min"]) / WINDOWS
    return min(_WINDOW_LENGTHS_US, key=lambda length: abs(length - wanted))


def _declared(type_: pa.DataType) -> pa.DataType:
    """Return the type that a stream declares for a column: what SQL has no name for is read as text."""
    if pa.types.is_null(type_) or pa.types.is_time(type_) or pa.types.is_duration(type_):
        return pa.string()
    try:
        sql_type(type_)
    except (KeyError, ValueError, ConfigError):
        return pa.string()
    return type_
