"""A sample of a stream's records: how many groups they form by any columns, and what their partials take when packed.

Counts per column say nothing of columns that depend on each other: a page has one language and one namespace, so that a
fragment by all three sends no more rows than one by page. Records say it. The groups of a slice are counted where as
many records follow each other as a slice holds. Where a slice holds more than the sample does, its groups are those of
as many equally likely values as would give the groups of the sample. How far columns and sketches shrink is not
guessed either: some partials are lifted from the sample and packed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate, quote
from catchment.aggregates.partials import lift, number_groups, one_array
from catchment.arrays import Ints
from catchment.optimizer.normal_form.predicates import can_evaluate, evaluate
from catchment.optimizer.sharing.equally_likely import expected_groups, likely_values
from catchment.query.fragment import SLICE_COLUMN, Key
from catchment.timeline import SECOND_US

MAX_RECORDS = 4_096  # of one stream at one site; the newest are taken
LEAST_RECORDS = 64  # with fewer nothing is concluded
LEAST_COUNTED = 16  # records in which groups are counted, though a slice may hold fewer
MAX_LIFTED = 1_024  # records of which partials are packed
SMALL_NUMBERS = 10  # different values of an argument that the sample does not tell

PackedSize = Callable[[pa.Table], int]  # the bytes of a table as it is packed for the wire


@dataclass(frozen=True, eq=False)
class RecordSample:
    """Records of one stream that follow each other, in the order of their event times.

    `times_us` are these times; the columns of the table have the names of the stream's.
    """

    stream: str
    table: pa.Table
    times_us: Ints
    packed_size: PackedSize
    _counted: dict[tuple[frozenset[str], frozenset[str]], Ints] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[frozenset[str], pa.Table] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def newest(cls, stream: str, table: pa.Table, event_time: str, packed_size: PackedSize) -> RecordSample:
        """Return the newest records of a table."""
        micros = one_array(table[event_time]).cast(pa.timestamp("us", table.schema.field(event_time).type.tz))
        times_us = np.asarray(micros.cast(pa.int64()).fill_null(0), dtype=np.int64)
        order = np.argsort(times_us, kind="stable")[-MAX_RECORDS:]
        return cls(stream, table.take(pa.array(order)), times_us[order], packed_size)

    @classmethod
    def merge(cls, samples: Sequence[RecordSample]) -> RecordSample:
        """Return the records of several sites together, from when on all have some."""
        if len(samples) == 1:
            return samples[0]
        from_us = max(int(s.times_us[0]) for s in samples)
        times_us = np.concatenate([s.times_us for s in samples])
        table = pa.concat_tables([s.table for s in samples])
        order = np.argsort(times_us, kind="stable")
        order = order[times_us[order] >= from_us]
        return cls(samples[0].stream, table.take(pa.array(order)), times_us[order], samples[0].packed_size)

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def _keys(self) -> Mapping[str, Key]:
        """Every column as a key, by how expressions name it."""
        names = ((f.name, f"{quote(self.stream)}.{quote(f.name)}", f.type) for f in self.table.schema)
        return {sql: Key(name, sql, type_) for name, sql, type_ in names}

    def column_of(self, sql: str) -> str | None:
        """Return the column that an expression is; None where it is more, or of another table."""
        return self._keys[sql].name if sql in self._keys else None

    def can_decide(self, condition: str) -> bool:
        """Return whether the columns tell which records a condition keeps."""
        return can_evaluate(condition, tuple(self._keys.values()))

    def count_kept(self, conditions: Collection[str]) -> int:
        """Return how many records some conditions keep."""
        return len(self._codes(frozenset(), frozenset(conditions)))

    def estimate_groups(self, columns: Collection[str], conditions: Collection[str], records: float) -> float:
        """Return the groups by some columns of so many records that the conditions keep; they must be decidable."""
        codes = self._codes(frozenset(columns), frozenset(conditions))
        if not columns or len(codes) < 2:
            return min(1.0, records)
        size = min(max(round(records), LEAST_COUNTED), len(codes))
        blocks = len(codes) // size
        block = np.repeat(np.arange(blocks), size)
        met = len(np.unique(block * len(codes) + codes[: blocks * size]))
        return expected_groups(likely_values(size, met / blocks), records)

    def packed_row_bytes(
        self,
        keys: Mapping[str, str],
        aggregates: Mapping[Aggregate, str | None],
        conditions: Collection[str],
        slice_records: float,
        message_slices: float,
    ) -> float | None:
        """Return the bytes of one partial in a message of some slices; None where the sample has nothing for it.

        Keys, and arguments of aggregates, come with the columns whose values they take. An argument without a column
        takes small numbers: the states of plain aggregates hardly depend on them.
        """
        kept = self._keep(frozenset(conditions))
        size = min(max(round(slice_records), 1), MAX_LIFTED)
        slices = max(1, min(round(message_slices), MAX_LIFTED // size))
        rows = kept.slice(max(kept.num_rows - size * slices, 0))
        if not rows.num_rows:
            return None
        numbers = np.arange(rows.num_rows)
        columns = {SLICE_COLUMN: pa.array(numbers // size * SECOND_US)}
        columns |= {name: rows[column] for name, column in keys.items()}
        for aggregate, column in aggregates.items():
            taken = pa.array(numbers % SMALL_NUMBERS) if column is None else rows[column]
            if aggregate.argument is not None:
                columns[_argument_of(aggregate)] = taken.cast(aggregate.argument_type, safe=False)
        arguments = {a.name: None if a.argument is None else _argument_of(a) for a in aggregates}
        partials = lift(pa.table(columns), [SLICE_COLUMN, *keys], list(aggregates), arguments)
        return float(self.packed_size(partials) / partials.num_rows)

    def _codes(self, columns: frozenset[str], conditions: frozenset[str]) -> Ints:
        """Return the number of the group of each record that is kept, in their order."""
        place = columns, conditions
        if place not in self._counted:
            codes, _ = number_groups(self._keep(conditions), sorted(columns))
            self._counted[place] = codes.astype(np.int64)
        return self._counted[place]

    def _keep(self, conditions: frozenset[str]) -> pa.Table:
        """Return the records that some conditions keep."""
        if conditions not in self._kept:
            kept = self.table
            for condition in sorted(conditions):
                kept = kept.filter(evaluate(condition, kept, self._keys))
            self._kept[conditions] = kept
        return self._kept[conditions]


def _argument_of(aggregate: Aggregate) -> str:
    return f"argument of {aggregate.name}"
