"""What a slack controller observes: one row per (source, slice) of a micro-batch.

A Spark pipeline gets these rows from one native `groupBy(source, slice)`; simulators and tests make them from records
with `SourceBatch.of_records`. A heartbeat ("everything of mine up to x is sent") is a row with a count of 0.
Invariant: all columns have one length; a row that counts records has oldest <= newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats, Ints, Mask
from catchment.errors import SiteError
from catchment.timeline import Slicing

_COLUMNS = ("source_index", "slice_us", "newest_us", "oldest_us", "count", "total", "square")


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The rows of one micro-batch, as columns.

    `source_index` points into `sources`; `total` and `square` are the sums of the values and of their squares.
    """

    sources: tuple[str, ...]
    source_index: Ints
    slice_us: Ints
    newest_us: Ints
    oldest_us: Ints
    count: Ints
    total: Floats
    square: Floats

    def __post_init__(self) -> None:
        rows = len(self)
        for name in _COLUMNS:
            entries = len(getattr(self, name))
            if entries != rows:
                raise SiteError(f"a batch of {rows} rows has {entries} entries in {name}")

    def __len__(self) -> int:
        return len(self.source_index)

    def take(self, rows: slice | Mask | Ints) -> SourceBatch:
        """Return some of the rows, or all of them in another order."""
        return SourceBatch(self.sources, *(getattr(self, name)[rows] for name in _COLUMNS))

    @classmethod
    def of_records(
        cls,
        slicing: Slicing,
        sources: Sequence[str],
        event_us: npt.ArrayLike,
        value: npt.ArrayLike | None = None,
    ) -> SourceBatch:
        """Return the rows of single records; without values each record has the value 1."""
        events = np.asarray(event_us, dtype=np.int64)
        values = np.ones(len(events)) if value is None else np.asarray(value, dtype=np.float64)
        if not len(sources) == len(events) == len(values):
            raise SiteError(f"{len(sources)} sources, {len(events)} event times and {len(values)} values do not match")
        names, codes = np.unique(np.asarray(sources, dtype=str), return_inverse=True)
        distinct = tuple(str(name) for name in names)
        return cls.group_records(distinct, codes.astype(np.int64), slicing.starts_of(events), events, values)

    @classmethod
    def group_records(
        cls, sources: tuple[str, ...], source_index: Ints, slice_us: Ints, event_us: Ints, value: Floats
    ) -> SourceBatch:
        """Group records into one row per (source, slice), sorted by both."""
        order = np.lexsort((slice_us, source_index))
        if not len(order):
            return cls(sources, source_index, slice_us, event_us, event_us, source_index, value, value)
        source_index = source_index[order]
        slice_us = slice_us[order]
        event_us = event_us[order]
        value = value[order]
        new_group = (source_index[1:] != source_index[:-1]) | (slice_us[1:] != slice_us[:-1])
        first = np.flatnonzero(np.append(True, new_group))
        return cls(
            sources,
            source_index[first],
            slice_us[first],
            newest_us=np.maximum.reduceat(event_us, first),
            oldest_us=np.minimum.reduceat(event_us, first),
            count=np.diff(np.append(first, len(order))),
            total=np.add.reduceat(value, first),
            square=np.add.reduceat(value * value, first),
        )

    @classmethod
    def heartbeats(cls, progress_us: Mapping[str, int]) -> SourceBatch:
        """Return rows of sources that say how far everything of theirs is sent, without a record."""
        marks = np.array(list(progress_us.values()), dtype=np.int64)
        zeros = np.zeros(len(marks))
        return cls(tuple(progress_us), np.arange(len(marks)), marks, marks, marks, zeros.astype(np.int64), zeros, zeros)
