"""All fragments of a stream lifted in one pass over its records, where the records are read.

The records of a micro-batch come as columns: what fragments group by and aggregate, and for each that has a condition
whether the record meets it. Each fragment, or a sampled part of it, is lifted by the laws of its aggregates
(`catchment.aggregates.partials.lift`), batch after batch, and merged; what leaves is a few partials, whatever the
number of records. Pure: it runs in Spark's workers, which reuse what it has imported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.grouped import floats_of
from catchment.shedding.places import PLACES, GroupRates

MERGE_ROWS = 200_000  # partials of a worker that wait to be merged; at the bound they are


class Side(StrEnum):
    """Which records of a sampler's input: those that pass it, or those that it leaves out."""

    KEPT = "kept"
    LEFT = "left"


class Part(StrEnum):
    """Which records of a fragment whose large values are spared: those, which all pass, or the rest, or both."""

    ALL = "all"
    SPARED = "spared"
    REST = "rest"


@dataclass(frozen=True)
class Places:
    """Where the records of a batch have their places by the sampling rule (`catchment.shedding.places`), and which of
    them pass; fragments often share a rate, so what was asked before is known."""

    numbers: NDArray[np.int64]
    _known: dict[float, pa.Array] = field(default_factory=dict)

    def passing(self, rate: float) -> pa.Array:
        """Which records pass at a rate."""
        if rate not in self._known:
            self._known[rate] = pa.array(self.numbers < math.ceil(rate * PLACES))
        return self._known[rate]

    def passing_each(self, rates: NDArray[np.float64]) -> pa.Array:
        """Which records pass at a rate of their own."""
        return pa.array(self.numbers < rates * PLACES)


@dataclass(frozen=True)
class Lift:
    """What is lifted of the records: keys and arguments by the columns that hold them, and the column that says which
    records count (None: all)."""

    keys: tuple[tuple[str, str], ...]  # name, column
    aggregates: tuple[Aggregate, ...]
    arguments: tuple[str | None, ...]  # the column of each aggregate's argument
    counts: str | None = None
    rate: float = 1.0
    side: Side = Side.KEPT
    part: Part = Part.ALL
    spare: tuple[tuple[str, float], ...] = ()  # column, the size beyond which a record of it is spared
    groups: tuple[str, GroupRates] | None = None  # column, and the rates by its values that stand in for `rate`

    def of(self, records: pa.RecordBatch, places: Places | None) -> pa.Table:
        """The partials of one batch of records."""
        chosen = self._chosen(records, places)
        columns = dict.fromkeys([column for _, column in self.keys] + [a for a in self.arguments if a is not None])
        rows = pa.table({c: records.column(c) if chosen is None else records.column(c).filter(chosen) for c in columns})
        given = {a.name: argument for a, argument in zip(self.aggregates, self.arguments, strict=True)}
        found = partials.lift(rows, [column for _, column in self.keys], self.aggregates, given)
        return found.rename_columns([*self.names, *found.column_names[len(self.keys) :]])

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.keys]

    def merged(self, found: Sequence[pa.Table]) -> pa.Table:
        return partials.combine(pa.concat_tables(found), self.names, self.aggregates)

    def _chosen(self, records: pa.RecordBatch, places: Places | None) -> pa.Array | None:
        """Which records are lifted; None: all of them."""
        masks = [] if self.counts is None else [records.column(self.counts).fill_null(False)]
        if self.part is not Part.ALL:
            large = self._large(records)
            masks.append(pa.array(large if self.part is Part.SPARED else ~large))
        if places is not None and self.part is not Part.SPARED and (self.rate < 1.0 or self.side is Side.LEFT):
            passes = self._passing(records, places)
            masks.append(passes if self.side is Side.KEPT else pc.invert(passes))
        chosen = reduce(pc.and_, masks) if masks else None
        return None if chosen is None or chosen.true_count == len(chosen) else chosen

    def _passing(self, records: pa.RecordBatch, places: Places) -> pa.Array:
        if self.groups is None:
            return places.passing(self.rate)
        return places.passing_each(self.groups[1].of(records.column(self.groups[0])))

    def _large(self, records: pa.RecordBatch) -> NDArray[np.bool_]:
        found = np.zeros(records.num_rows, dtype=np.bool_)
        for column, limit in self.spare:
            found |= np.abs(floats_of(records.column(column))) > limit  # of NaN: no
        return found


@dataclass
class Lifter:
    """Lifts batch after batch; `seconds` is the time that each lift has taken."""

    lifts: Sequence[Lift]
    place: str | None = None  # the column of the records' places, where any lift is sampled
    seconds: list[float] = field(init=False)
    _found: list[list[pa.Table]] = field(init=False)
    _rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = [0.0] * len(self.lifts)
        self._found = [[] for _ in self.lifts]
        self._rows = [0] * len(self.lifts)

    def add(self, records: pa.RecordBatch) -> None:
        places = None if self.place is None else Places(np.asarray(records.column(self.place)))
        for place, lift in enumerate(self.lifts):
            began = time.perf_counter()
            self._note(place, lift.of(records, places))
            self.seconds[place] += time.perf_counter() - began

    def _note(self, place: int, found: pa.Table) -> None:
        self._found[place].append(found)
        self._rows[place] += found.num_rows
        if self._rows[place] > MERGE_ROWS:
            merged = self.lifts[place].merged(self._found[place])
            self._found[place], self._rows[place] = [merged], 0

    def results(self) -> Iterable[tuple[int, pa.Table, float]]:
        """The partials of each lift that was given any records, and the seconds that they took."""
        for place, lift in enumerate(self.lifts):
            if self._found[place]:
                yield place, lift.merged(self._found[place]), self.seconds[place]
