"""Fragments and watches as the reading tasks evaluate them: their expressions translated, their partials lifted.

Whatever several of them have in common (a condition, a key, an argument) is evaluated once per batch of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.grouped import floats_of
from catchment.aggregates.grouping import CodedColumn, RowGroups, encode, group_coded
from catchment.aggregates.shed_terms import terms_in
from catchment.arrays import Ints
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.query.types import TIMESTAMP
from catchment.timeline import END_OF_TIME_US, Slicing
from catchment.vectorised.coercion import NotVectorisedError, type_name
from catchment.vectorised.expressions import InputColumn, KernelCall, VectorExpression
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.row_index import INDEX_AFTER, RowIndex, ValueTest
from catchment.vectorised.translate import translate, translate_condition

MERGE_ROWS = 400_000  # rows of partials of one fragment that may wait until they are merged
ONE_SOURCE = "stream"  # the source of all records, where a stream has no source column
NULL_SOURCE = "null"  # the source of records whose source is null
LARGEST_WATCHED = 1e150  # a watched value that is not below it counts as 0: sums of squares must stay numbers


@dataclass(frozen=True)
class _SliceStarts:
    """Codes of slices, which are their numbers less the lowest of them."""

    slicing: Slicing
    low: int

    def decode(self, codes: Ints) -> pa.Array:
        return pa.array(self.slicing.starts_of_numbers(codes + self.low))


@dataclass
class EvaluatedRecords:
    """A batch of records, and what was evaluated of them so far."""

    records: RecordColumns
    _values: dict[VectorExpression, pa.Array] = field(default_factory=dict)
    _chosen: dict[VectorExpression, EvaluatedRecords] = field(default_factory=dict)
    _slices: dict[tuple[Slicing, str], CodedColumn] = field(default_factory=dict)
    _keys: dict[VectorExpression, CodedColumn] = field(default_factory=dict)
    _counts: dict[tuple[Slicing, str], Counter[int]] = field(default_factory=dict)
    _groupings: dict[tuple[Slicing, str, tuple[VectorExpression, ...]], RowGroups] = field(default_factory=dict)
    _compared: Counter[InputColumn] = field(default_factory=Counter)  # how often each column was compared with a value
    _indexes: dict[InputColumn, RowIndex | None] = field(default_factory=dict)

    def where(self, condition: VectorExpression | None) -> EvaluatedRecords:
        """Return the records that meet a condition; unknown is not met."""
        if condition is None:
            return self
        if condition not in self._chosen:
            self._chosen[condition] = self._look_up(condition) or self._choose(condition)
        return self._chosen[condition]

    def _choose(self, condition: VectorExpression) -> EvaluatedRecords:
        holds = condition.evaluate(self.records).fill_null(False)
        is_all = holds.true_count == len(holds)
        return self if is_all else EvaluatedRecords(self.records.filter(holds))

    def _look_up(self, condition: VectorExpression) -> EvaluatedRecords | None:
        """Return the records that meet a condition about a value of a column, once an index of it pays."""
        test = ValueTest.of(condition)
        if test is None:
            return None
        self._compared[test.column] += 1
        if self._compared[test.column] <= INDEX_AFTER:
            return None
        if test.column not in self._indexes:
            self._indexes[test.column] = RowIndex.of(self._code_key(test.column))
        index = self._indexes[test.column]
        if index is None:
            return None
        found = EvaluatedRecords(self.records.take(index.rows_of(test.value)))
        return found.where(test.rest)

    def value(self, expression: VectorExpression) -> pa.Array:
        """Return the values of an expression."""
        if expression not in self._values:
            self._values[expression] = expression.evaluate(self.records)
        return self._values[expression]

    def slices(self, slicing: Slicing, event_time: str) -> pa.Array:
        """Return the starts of the records' slices."""
        coded = self._code_slices(slicing, event_time)
        return coded.decoder.decode(coded.codes)

    def count_per_slice(self, slicing: Slicing, event_time: str) -> Counter[int]:
        """Return how many records each slice has."""
        if (slicing, event_time) not in self._counts:
            coded = self._code_slices(slicing, event_time)
            groups = group_coded({SLICE_COLUMN: coded}, self.records.rows)
            assert groups is not None, "a single column always fits into one word"
            counts = np.bincount(groups.codes, minlength=groups.size)
            pairs = zip(groups.keys[SLICE_COLUMN].to_pylist(), counts.tolist(), strict=True)
            self._counts[slicing, event_time] = Counter(dict(pairs))
        return self._counts[slicing, event_time]

    def group(self, slicing: Slicing, event_time: str, keys: tuple[VectorExpression, ...]) -> RowGroups:
        """Return the groups of the records by slice and keys, the keys named by their numbers."""
        wanted = (slicing, event_time, keys)
        if wanted not in self._groupings:
            self._groupings[wanted] = self._group(slicing, event_time, keys)
        return self._groupings[wanted]

    def _group(self, slicing: Slicing, event_time: str, keys: tuple[VectorExpression, ...]) -> RowGroups:
        coded = {SLICE_COLUMN: self._code_slices(slicing, event_time)}
        coded |= {str(number): self._code_key(key) for number, key in enumerate(keys)}
        groups = group_coded(coded, self.records.rows)
        if groups is not None:
            return groups
        columns = {SLICE_COLUMN: self.slices(slicing, event_time)}
        columns |= {str(number): self.value(key) for number, key in enumerate(keys)}
        return partials.group_rows(pa.table(columns), list(columns))

    def _code_key(self, key: VectorExpression) -> CodedColumn:
        if key not in self._keys:
            self._keys[key] = encode(self.value(key))
        return self._keys[key]

    def _code_slices(self, slicing: Slicing, event_time: str) -> CodedColumn:
        if (slicing, event_time) not in self._slices:
            numbers = slicing.numbers_of(self.micros(event_time))
            low = int(numbers.min(initial=END_OF_TIME_US))
            count = int(numbers.max(initial=low - 1)) - low + 1
            self._slices[slicing, event_time] = CodedColumn(numbers - low, count, _SliceStarts(slicing, low))
        return self._slices[slicing, event_time]

    def micros(self, event_time: str) -> Ints:
        """Return the event times, which are never null here."""
        return np.asarray(self.records.columns[event_time].cast(pa.int64()))


@dataclass(frozen=True)
class VectorFragment:
    """One partial aggregation: what of the records it takes, groups by and lifts."""

    event_time: str
    slicing: Slicing
    condition: VectorExpression | None
    keys: tuple[tuple[str, VectorExpression], ...]
    aggregates: tuple[Aggregate, ...]
    arguments: tuple[VectorExpression | None, ...]

    @property
    def expressions(self) -> tuple[VectorExpression, ...]:
        """Everything it evaluates."""
        every = (self.condition, *(value for _, value in self.keys), *self.arguments)
        return tuple(e for e in every if e is not None)

    @property
    def key_names(self) -> list[str]:
        return [SLICE_COLUMN, *(name for name, _ in self.keys)]

    def lift(self, records: EvaluatedRecords) -> pa.Table:
        """Return the partials of a batch of records."""
        chosen = records.where(self.condition)
        groups = chosen.group(self.slicing, self.event_time, tuple(key for _, key in self.keys))
        groups = replace(groups, keys=groups.keys.rename_columns(self.key_names))
        columns: dict[str, pa.Array] = {}
        given: dict[str, str | None] = {}
        for number, (aggregate, argument) in enumerate(zip(self.aggregates, self.arguments, strict=True)):
            given[aggregate.name] = None if argument is None else str(number)
            if argument is not None:
                columns[str(number)] = chosen.value(argument)
        return partials.lift(pa.table(columns), self.key_names, self.aggregates, given, groups)

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the partials of several batches as one table.

        Files mostly follow each other in event time: only slices that several tables have are merged.
        """
        if len(tables) == 1:
            return tables[0]
        slices = [pc.unique(table[SLICE_COLUMN]) for table in tables]
        counted = pc.value_counts(pa.chunked_array(slices))
        shared = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        if len(shared) == 0:
            return pa.concat_tables(tables).combine_chunks()
        is_shared = [pc.is_in(table[SLICE_COLUMN], value_set=shared) for table in tables]
        apart = [table.filter(pc.invert(mask)) for table, mask in zip(tables, is_shared, strict=True)]
        joint = [table.filter(mask) for table, mask in zip(tables, is_shared, strict=True)]
        merged = partials.combine(pa.concat_tables(joint).combine_chunks(), self.key_names, self.aggregates)
        return pa.concat_tables([*apart, merged]).combine_chunks()


@dataclass(frozen=True)
class VectorWatch:
    """What a slack controller observes of the records that a fragment takes: one row per (source, slice)."""

    event_time: str
    slicing: Slicing
    condition: VectorExpression | None
    source: VectorExpression | None
    values: tuple[VectorExpression, ...]

    @property
    def expressions(self) -> tuple[VectorExpression, ...]:
        """Everything it evaluates."""
        return tuple(e for e in (self.condition, self.source, *self.values) if e is not None)

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        names = [SLICE_COLUMN, "newest_us", "oldest_us", "count"]
        sums = [f"{sum_}_{number}" for number in range(len(self.values)) for sum_ in ("total", "square")]
        whole = [(name, pa.int64()) for name in names]
        return pa.schema([("source", pa.string()), *whole, *((name, pa.float64()) for name in sums)])

    def lift(self, records: EvaluatedRecords) -> pa.Table:
        """Return the rows of a batch of records: (source, slice_us, newest_us, oldest_us, count, total_N, square_N)."""
        chosen = records.where(self.condition)
        rows = chosen.records.rows
        source = (
            pa.repeat(ONE_SOURCE, rows) if self.source is None else chosen.value(self.source).fill_null(NULL_SOURCE)
        )
        micros = pa.array(chosen.micros(self.event_time))
        columns = {"source": source, SLICE_COLUMN: chosen.slices(self.slicing, self.event_time)}
        columns |= {"newest_us": micros, "oldest_us": micros, "count": pa.repeat(pa.scalar(1, pa.int64()), rows)}
        for number, value in enumerate(self.values):
            numbers = floats_of(chosen.value(value))
            numbers = np.where(np.abs(numbers) < LARGEST_WATCHED, numbers, 0.0)
            columns |= {f"total_{number}": pa.array(numbers), f"square_{number}": pa.array(numbers * numbers)}
        return self.merge([pa.table(columns, schema=self.schema)])

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of several batches as one table."""
        table = pa.concat_tables(tables)
        how = {"newest_us": "max", "oldest_us": "min"}
        measured = [(name, how.get(name, "sum")) for name in table.column_names[2:]]
        grouped = table.group_by(["source", SLICE_COLUMN], use_threads=False).aggregate(measured)
        return grouped.rename_columns(table.column_names).cast(table.schema)


Taken = VectorFragment | VectorWatch


@dataclass
class TableCollector:
    """Collects the tables of one fragment or watch, and merges them when they have many rows."""

    of: Taken
    records: Counter[int] = field(default_factory=Counter)  # how many records each slice has
    _tables: list[pa.Table] = field(default_factory=list)
    _rows: int = 0

    def add(self, records: EvaluatedRecords) -> None:
        """Take a batch of records."""
        table = self.of.lift(records)
        self.records.update(records.where(self.of.condition).count_per_slice(self.of.slicing, self.of.event_time))
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows > MERGE_ROWS + 2 * self._tables[0].num_rows:
            self._tables = [self.of.merge(self._tables)]
            self._rows = self._tables[0].num_rows

    def result(self) -> pa.Table | None:
        """Return everything merged; None where nothing came."""
        return self.of.merge(self._tables) if self._tables else None


def vectorise_fragment(fragment: Fragment, columns: pa.Schema) -> VectorFragment:
    """Return a fragment as the tasks evaluate it, or say what of it is left to Spark."""
    _check_input(fragment, columns)
    if terms_in(fragment.aggregates):
        raise NotVectorisedError("its stream may be sampled")
    keys = tuple((k.name, _translate_typed(k.sql, k.type, fragment, columns)) for k in fragment.keys)
    arguments = tuple(
        None if a.argument is None else _translate_typed(a.argument, a.argument_type, fragment, columns)
        for a in fragment.aggregates
    )
    condition = _condition(fragment, columns)
    return VectorFragment(fragment.event_time, fragment.slicing, condition, keys, fragment.aggregates, arguments)


def vectorise_watch(fragment: Fragment, source: str | None, values: Sequence[str], columns: pa.Schema) -> VectorWatch:
    """Return what is observed of a fragment's records, by source."""
    _check_input(fragment, columns)
    named = None if source is None else source_as_text(source, columns)
    translated = tuple(_translate_typed(value, pa.float64(), fragment, columns) for value in values)
    return VectorWatch(fragment.event_time, fragment.slicing, _condition(fragment, columns), named, translated)


def source_as_text(source: str, columns: pa.Schema) -> VectorExpression:
    """Return the column that names the sources of records, as text."""
    column = InputColumn(columns.field(source).type, source)
    if column.type == pa.string():
        return column
    if not pa.types.is_signed_integer(column.type):
        raise NotVectorisedError(f"the source {column.name} is {type_name(column.type)}")
    return KernelCall(pa.string(), "to_text", (column,))


def _condition(fragment: Fragment, columns: pa.Schema) -> VectorExpression | None:
    return None if fragment.where is None else translate_condition(fragment.where, fragment.stream, columns)


def _check_input(fragment: Fragment, columns: pa.Schema) -> None:
    if fragment.lookups:
        raise NotVectorisedError(f"it looks up {fragment.lookups[0].table}")
    if fragment.explodes:
        raise NotVectorisedError("it makes several rows of a record")
    type_ = columns.field(fragment.event_time).type
    if type_ != TIMESTAMP:
        raise NotVectorisedError(f"the event time {fragment.event_time} is {type_name(type_)}")


def _translate_typed(sql: str, type_: pa.DataType | None, fragment: Fragment, columns: pa.Schema) -> VectorExpression:
    found = translate(sql, fragment.stream, columns)
    if found.type != type_:
        raise NotVectorisedError(f"{sql} is {type_name(found.type)} here")
    return found
