"""What a slack controller is told: one row for each (source, slice) of a micro-batch.

A Spark pipeline gets these rows from one native `groupBy(source, slice)`; a simulator and a test make them
from records with `Batch.of_records`. A heartbeat ("everything of mine up to x is sent") is a row that counts
nothing. Invariant: the columns have one length; a row that counts records has oldest <= newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catchment.errors import SiteError
from catchment.timeline import Slicing

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one micro-batch. `source` is a place in `sources`; `total` and `square` are sums over the
    values.
    """

    sources: tuple[str, ...]
    source: npt.NDArray[np.int64]
    slice_us: Ints
    newest_us: Ints
    oldest_us: Ints
    count: Ints
    total: Floats
    square: Floats

    def __post_init__(self) -> None:
        rows = len(self.source)
        for name in ("slice_us", "newest_us", "oldest_us", "count", "total", "square"):
            if len(getattr(self, name)) != rows:
                raise SiteError(f"a batch of {rows} rows has {len(getattr(self, name))} entries in {name}")

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: slice | npt.NDArray[np.bool_]) -> Batch:
        """Some of its rows."""
        return Batch(
            self.sources, self.source[rows], self.slice_us[rows], self.newest_us[rows], self.oldest_us[rows],
            self.count[rows], self.total[rows], self.square[rows],
        )  # fmt: skip

    @classmethod
    def of_records(
        cls,
        slicing: Slicing,
        sources: Sequence[str],
        event_us: npt.ArrayLike,
        value: npt.ArrayLike | None = None,
    ) -> Batch:
        """The rows of single records; without values each counts 1."""
        events = np.asarray(event_us, dtype=np.int64)
        values = np.ones(len(events)) if value is None else np.asarray(value, dtype=np.float64)
        if not len(sources) == len(events) == len(values):
            raise SiteError(f"{len(sources)} sources, {len(events)} event times and {len(values)} values do not match")
        names, codes = np.unique(np.asarray(sources, dtype=str), return_inverse=True)
        return cls.grouped(
            tuple(str(n) for n in names), codes.astype(np.int64), slicing.starts_of(events), events, values
        )

    @classmethod
    def grouped(cls, sources: tuple[str, ...], source: Ints, slice_us: Ints, event_us: Ints, value: Floats) -> Batch:
        """Records as rows, one for each (source, slice) that has any, sorted by them."""
        order = np.lexsort((slice_us, source))
        source, slice_us, event_us, value = source[order], slice_us[order], event_us[order], value[order]
        turn = (source[1:] != source[:-1]) | (slice_us[1:] != slice_us[:-1])
        first = np.flatnonzero(np.append(True, turn)) if len(order) else np.zeros(0, dtype=np.int64)
        newest, oldest = (f.reduceat(event_us, first) if len(first) else event_us for f in (np.maximum, np.minimum))
        total, square = (np.add.reduceat(v, first) if len(first) else v for v in (value, value * value))
        count = np.diff(np.append(first, len(order)))
        return cls(sources, source[first], slice_us[first], newest, oldest, count, total, square)

    @classmethod
    def heartbeats(cls, progress_us: Mapping[str, int]) -> Batch:
        """Sources that say how far everything of theirs is sent, without a record."""
        marks = np.array(list(progress_us.values()), dtype=np.int64)
        none = np.zeros(len(marks))
        return cls(tuple(progress_us), np.arange(len(marks)), marks, marks, marks, none.astype(np.int64), none, none)
