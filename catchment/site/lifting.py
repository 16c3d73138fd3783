"""The partials of all fragments of a stream, lifted in one pass where the records are read.

The records of a micro-batch come as columns: what fragments group by and aggregate, and, for each fragment with a
condition, whether the record meets it. Each fragment, or a sampled part of it, is lifted by the laws of its aggregates
(`catchment.aggregates.partials.lift`), batch after batch, and merged; a few partials leave, however many records come.
Pure: it runs in Spark's workers, which reuse what it has imported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.grouped import floats_of
from catchment.arrays import Floats, Ints, Mask
from catchment.shedding.places import PLACES
from catchment.shedding.sampler import Selection, Side, SparedPart

MERGE_ROWS = 200_000  # rows of partials that may wait in a worker until they are merged


@dataclass(frozen=True)
class Places:
    """The places of the records of a batch (`catchment.shedding.places`), and which records pass at a rate.

    Fragments often share a rate, so answers are kept.
    """

    numbers: Ints
    _passing: dict[float, pa.Array] = field(default_factory=dict)

    def passing(self, rate: float) -> pa.Array:
        """Return which records pass at a rate."""
        if rate not in self._passing:
            self._passing[rate] = pa.array(self.numbers < math.ceil(rate * PLACES))
        return self._passing[rate]

    def passing_each(self, rates: Floats) -> pa.Array:
        """Return which records pass, each at its own rate."""
        return pa.array(self.numbers < rates * PLACES)


@dataclass(frozen=True)
class Lift:
    """What is lifted of the records, by the columns that hold it.

    `condition` is the column that says which records count (None: all); `selection` names columns, not SQL.
    """

    keys: tuple[tuple[str, str], ...]  # name, column
    aggregates: tuple[Aggregate, ...]
    arguments: tuple[str | None, ...]  # the column of each aggregate's argument
    condition: str | None = None
    selection: Selection = field(default_factory=Selection)

    def of(self, records: pa.RecordBatch, places: Places | None) -> pa.Table:
        """Return the partials of one batch of records."""
        chosen = self._select_records(records, places)
        columns = dict.fromkeys([column for _, column in self.keys] + [a for a in self.arguments if a is not None])
        rows = pa.table({c: records.column(c) if chosen is None else records.column(c).filter(chosen) for c in columns})
        given = {a.name: argument for a, argument in zip(self.aggregates, self.arguments, strict=True)}
        found = partials.lift(rows, [column for _, column in self.keys], self.aggregates, given)
        return found.rename_columns([*self.names, *found.column_names[len(self.keys) :]])

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.keys]

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the partials of all tables as one table."""
        return partials.combine(pa.concat_tables(tables), self.names, self.aggregates)

    def _select_records(self, records: pa.RecordBatch, places: Places | None) -> pa.Array | None:
        """Return which records are lifted; None: all of them."""
        sampler = self.selection.sampler
        side = self.selection.side
        part = self.selection.part
        masks = [] if self.condition is None else [records.column(self.condition).fill_null(False)]
        if part is not SparedPart.ALL:
            spared = self._find_spared(records)
            masks.append(pa.array(spared if part is SparedPart.SPARED else ~spared))
        if places is not None and part is not SparedPart.SPARED and (sampler.sheds or side is Side.LEFT):
            passing = self._passing(records, places)
            masks.append(passing if side is Side.KEPT else pc.invert(passing))
        if not masks:
            return None
        chosen = reduce(pc.and_, masks)
        return None if chosen.true_count == len(chosen) else chosen

    def _passing(self, records: pa.RecordBatch, places: Places) -> pa.Array:
        groups = self.selection.sampler.groups
        if groups is None:
            return places.passing(self.selection.sampler.rate)
        return places.passing_each(groups.of(records.column(groups.key)))

    def _find_spared(self, records: pa.RecordBatch) -> Mask:
        spared = np.zeros(records.num_rows, dtype=np.bool_)
        for column, limit in self.selection.sampler.spared:
            spared |= np.abs(floats_of(records.column(column))) > limit  # NaN is not large
        return spared


@dataclass
class Lifter:
    """Lifts batch after batch; `seconds` is the time that each lift has taken."""

    lifts: Sequence[Lift]
    place: str | None = None  # the column of the records' places, where any lift is sampled
    seconds: list[float] = field(init=False)
    _tables: list[list[pa.Table]] = field(init=False)
    _rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = [0.0] * len(self.lifts)
        self._tables = [[] for _ in self.lifts]
        self._rows = [0] * len(self.lifts)

    def add(self, records: pa.RecordBatch) -> None:
        """Lift one batch of records."""
        places = None if self.place is None else Places(np.asarray(records.column(self.place)))
        for number, lift in enumerate(self.lifts):
            began = time.perf_counter()
            self._add(number, lift.of(records, places))
            self.seconds[number] += time.perf_counter() - began

    def _add(self, number: int, table: pa.Table) -> None:
        self._tables[number].append(table)
        self._rows[number] += table.num_rows
        if self._rows[number] > MERGE_ROWS:
            self._tables[number] = [self.lifts[number].merge(self._tables[number])]
            self._rows[number] = 0

    def results(self) -> Iterable[tuple[int, pa.Table, float]]:
        """Yield the number, partials and seconds of each lift that was given any records."""
        for number, lift in enumerate(self.lifts):
            if self._tables[number]:
                yield number, lift.merge(self._tables[number]), self.seconds[number]
