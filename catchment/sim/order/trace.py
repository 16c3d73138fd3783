"""A trace: the records of a stream in the order in which they arrived, and how it is read and written.

Invariant: a `Trace` holds at least one record, arrival times never fall, and every value is a finite number.
A file that breaks this is refused with the row that does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from catchment.errors import SimulationError
from catchment.timeline import SECOND_US

ONE_SOURCE = ("stream",)  # the sources of a trace that names none


@dataclass(frozen=True)
class ArrivalTrace:
    """Records in arrival order: event and arrival time, value, and the source by its place in `sources`."""

    event_us: npt.NDArray[np.int64]
    arrival_us: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    source: npt.NDArray[np.int32]
    sources: tuple[str, ...] = ONE_SOURCE
    key: npt.NDArray[np.int32] | None = None
    keys: tuple[str, ...] = ()
    name: str = field(default="trace")

    def __post_init__(self) -> None:
        if not len(self.event_us):
            raise SimulationError("the trace has no records", where=self.name)
        lengths = {len(self.event_us), len(self.arrival_us), len(self.value), len(self.source)}
        if len(lengths) != 1:
            raise SimulationError(
                f"the columns of the trace have different lengths: {sorted(lengths)}", where=self.name
            )
        self._refuse(
            np.diff(self.arrival_us) < 0, "arrives before the record above it", "sort the trace by arrival_time"
        )
        self._refuse(~np.isfinite(self.value), "has a value that is not a finite number", "drop or repair that record")

    def _refuse(self, bad: npt.NDArray[np.bool_], what: str, hint: str) -> None:
        if bad.any():
            row = int(np.argmax(bad)) + 1
            raise SimulationError(f"record {row} of {len(self.event_us)} {what}", where=self.name, hint=hint)

    def __len__(self) -> int:
        return len(self.event_us)


def read_trace(path: Path) -> ArrivalTrace:
    """Return a trace from CSV or Parquet with event_time, arrival_time, value and optionally source and key."""
    table = _read_table(path)
    columns = set(table.column_names)
    missing = [c for c in ("event_time", "arrival_time", "value") if c not in columns]
    if missing:
        raise SimulationError(
            f"the trace has no column {', '.join(missing)}; its columns are {', '.join(table.column_names)}",
            where=str(path),
            hint="a trace needs event_time, arrival_time and value, and may have source and key",
        )
    if not table.num_rows:
        raise SimulationError("the trace has no records", where=str(path))
    source, sources = _codes(table, "source")
    key, keys = _codes(table, "key")
    return ArrivalTrace(
        event_us=_instants(table, "event_time", path),
        arrival_us=_instants(table, "arrival_time", path),
        value=_numbers(table, "value", path),
        source=np.zeros(table.num_rows, np.int32) if source is None else source,
        sources=sources or ONE_SOURCE,
        key=key,
        keys=keys,
        name=str(path),
    )


def write_trace(trace: ArrivalTrace, path: Path) -> None:
    """Write the trace as CSV or Parquet, by the file's name; times are in seconds."""
    columns: dict[str, Any] = {
        "event_time": trace.event_us / SECOND_US,
        "arrival_time": trace.arrival_us / SECOND_US,
        "value": trace.value,
        "source": pa.DictionaryArray.from_arrays(trace.source, list(trace.sources)).cast(pa.string()),
    }
    if trace.key is not None:
        columns["key"] = pa.DictionaryArray.from_arrays(trace.key, list(trace.keys)).cast(pa.string())
    write = pq.write_table if _kind(path) == "parquet" else pa_csv.write_csv
    write(pa.table(columns), str(path))


def _kind(path: Path) -> str:
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in ("csv", "parquet"):
        raise SimulationError(f"cannot tell the format of {path.name!r}", hint="name the file .csv or .parquet")
    return suffix


def _read_table(path: Path) -> pa.Table:
    kind = _kind(path)
    if not path.is_file():
        raise SimulationError("there is no such trace", where=str(path), hint="`catchment simulate trace` makes one")
    try:
        return pq.read_table(path) if kind == "parquet" else pa_csv.read_csv(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise SimulationError(f"cannot read the trace: {error}", where=str(path)) from error


def _codes(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int32] | None, tuple[str, ...]]:
    """Return a column of names as places in a list of its distinct names; a record without a name gets the name ''."""
    if column not in table.column_names:
        return None, ()
    names = pc.fill_null(table.column(column).cast(pa.string()), "").combine_chunks().dictionary_encode()
    return np.asarray(names.indices, dtype=np.int32), tuple(names.dictionary.to_pylist())


def _numbers(table: pa.Table, column: str, path: Path) -> npt.NDArray[np.float64]:
    data = table.column(column)
    if not (pa.types.is_integer(data.type) or pa.types.is_floating(data.type) or pa.types.is_null(data.type)):
        raise SimulationError(f"the column {column} holds {data.type}, not numbers", where=str(path))
    return np.asarray(data.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _instants(table: pa.Table, column: str, path: Path) -> npt.NDArray[np.int64]:
    """Return microseconds of a column of timestamps or of seconds."""
    data = table.column(column)
    if data.null_count:
        row = int(np.argmax(data.is_null().to_numpy())) + 1
        raise SimulationError(f"record {row} has no {column}", where=str(path), hint="drop that record")
    if pa.types.is_timestamp(data.type):
        return np.asarray(data.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(), dtype=np.int64)
    if pa.types.is_integer(data.type) or pa.types.is_floating(data.type):
        seconds = np.asarray(data.cast(pa.float64()).to_numpy(), dtype=np.float64)
        return _whole_micros(seconds, column, path)
    raise SimulationError(
        f"the column {column} holds {data.type}, not seconds or timestamps",
        where=str(path),
        hint="write seconds as numbers or times as 2024-05-01T12:00:00",
    )


def _whole_micros(seconds: npt.NDArray[np.float64], column: str, path: Path) -> npt.NDArray[np.int64]:
    bad = ~(np.abs(seconds) < 2**62 / SECOND_US)
    if bad.any():
        row = int(np.argmax(bad)) + 1
        raise SimulationError(f"record {row} has the impossible {column} {seconds[row - 1]}", where=str(path))
    return np.asarray(np.rint(seconds * SECOND_US), dtype=np.int64)
