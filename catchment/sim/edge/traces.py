"""Traces: when records came, and with which key.

A trace is two columns, instants in order and integer key codes; what the keys were does not matter to a
policy. Read from CSV or Parquet, or generated from a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from catchment.arrays import Ints
from catchment.errors import SimulationError

_FORM = "a trace is CSV or Parquet with the columns ts (seconds or timestamps, in order) and key"
_EMPTY = "the trace is empty: it has no records"


@dataclass(frozen=True, eq=False)
class KeyTrace:
    """Records in order of time: `ts_us` and, for each, the code of its key (0, 1, ...)."""

    ts_us: Ints
    codes: Ints

    def __post_init__(self) -> None:
        if len(self.ts_us) != len(self.codes):
            raise SimulationError(f"a trace has {len(self.ts_us)} times and {len(self.codes)} keys")
        if len(self.ts_us) == 0:
            raise SimulationError(_EMPTY, hint=_FORM)
        backwards = np.flatnonzero(np.diff(self.ts_us) < 0)
        if len(backwards):
            row = int(backwards[0]) + 1
            raise SimulationError(
                f"the trace is not in order of time: record {row + 1} has ts {self.ts_us[row] / 1e6:f} after "
                f"{self.ts_us[row - 1] / 1e6:f}",
                hint="sort it by ts",
            )

    @property
    def records(self) -> int:
        return len(self.ts_us)

    @cached_property
    def keys(self) -> int:
        return int(self.codes.max()) + 1

    def windows(self, window_us: int) -> Iterator[tuple[int, KeyTrace]]:
        """Yield the tumbling windows that have records: (start, the records of the window)."""
        if window_us <= 0:
            raise SimulationError(
                f"the window is {window_us / 1e6:g} s long, and must be longer than nothing",
                hint="say --window 60",
            )
        starts = self.ts_us // window_us * window_us
        cuts = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), self.records]
        for begin, end in pairwise(cuts):
            yield int(starts[begin]), KeyTrace(self.ts_us[begin:end], self.codes[begin:end])


def trace_of(ts_us: npt.ArrayLike, keys: npt.ArrayLike) -> KeyTrace:
    """Return a trace of any integer keys, numbered from 0."""
    _, codes = np.unique(np.asarray(keys), return_inverse=True)
    return KeyTrace(np.asarray(ts_us, dtype=np.int64), codes.astype(np.int64))


def load_trace(path: Path) -> KeyTrace:
    """Read a trace from a CSV or Parquet file."""
    table = _read(path)
    missing = [name for name in ("ts", "key") if name not in table.column_names]
    if missing:
        raise SimulationError(
            f"the columns {missing} are missing; there are {table.column_names}", where=str(path), hint=_FORM
        )
    if not table.num_rows:
        raise SimulationError(_EMPTY, where=str(path), hint=_FORM)
    encoded = table["key"].combine_chunks().dictionary_encode(null_encoding="encode")
    try:
        return KeyTrace(_micros(table["ts"].combine_chunks(), path), encoded.indices.to_numpy().astype(np.int64))
    except SimulationError as error:
        raise SimulationError(error.message, where=error.where or str(path), hint=error.hint) from None


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise SimulationError("there is no such file", where=str(path), hint=_FORM)
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pq.read_table(path)
        return pcsv.read_csv(path)
    except pa.ArrowInvalid as error:
        raise SimulationError(f"cannot read the trace: {error}", where=str(path), hint=_FORM) from None


def _micros(ts: pa.Array, path: Path) -> Ints:
    if ts.null_count:
        row = pc.index(pc.is_null(ts), True).as_py()
        raise SimulationError(f"record {row + 1} has no ts", where=str(path), hint=_FORM)
    if pa.types.is_timestamp(ts.type) or pa.types.is_date(ts.type):
        return np.asarray(
            ts.cast(pa.timestamp("us", tz=ts.type.tz if pa.types.is_timestamp(ts.type) else None)).cast(pa.int64())
        )
    if pa.types.is_integer(ts.type) or pa.types.is_floating(ts.type):
        seconds = np.asarray(ts.cast(pa.float64()))
        if not np.isfinite(seconds).all():
            raise SimulationError("a ts is not a finite number", where=str(path), hint=_FORM)
        return np.rint(seconds * 1e6).astype(np.int64)
    raise SimulationError(
        f"ts has the type {ts.type}, and should be seconds or timestamps", where=str(path), hint=_FORM
    )
