"""The partials of many fragments in one Spark job, with one pass over the records.

A job has a fixed cost (planning, scheduling, a round trip) that a small micro-batch would pay once per fragment. Here
Spark evaluates the conditions, keys and arguments of all fragments natively, in one projection; the tasks lift what
they have read (`catchment.site.lifting`) and return a few partials each. The text of the projection is the same for
every batch, except for the place of each record where some are sampled, so that Spark compiles it once. Handing records
to the Python tasks costs time per column: conditions travel as the bits of one number, and the place of a record in the
bits that they leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from catchment.aggregates import Aggregate
from catchment.aggregates.base import quote
from catchment.aggregates.partials import one_array
from catchment.arrays import Floats
from catchment.functions.installed import functions_in, install, installed_files
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.places import PLACES, SamplingRule
from catchment.shedding.sampler import Selection, SparedPart
from catchment.site.lifting import Lift, Lifter
from catchment.spark.evaluation.project_functions import expression

_PLACE = "place"
_MARKS = "marks_{}"  # a column of bits: the place of the record, and below it, which conditions it meets
_BITS = 64 - (PLACES - 1).bit_length()  # how many conditions one column of marks holds
_PLAIN_COLUMN = re.compile(r"`[^`]+`\.`[^`]+`")
_COLUMNS = "lift INT, partials BINARY, seconds DOUBLE"


@dataclass(frozen=True)
class Take:
    """What one fragment takes of the records of a batch.

    With `with_moments` the moments of its values are returned though all records pass.
    """

    fragment: Fragment
    selection: Selection = field(default_factory=Selection)
    with_moments: bool = False

    @property
    def has_moments(self) -> bool:
        """Whether the moments of what is taken are returned: the bound of a sample is made of them."""
        return self.selection.scales or self.with_moments

    def row_rates(self, partials: pa.Table) -> float | Floats:
        """Return the rate at which the records of each row were sampled."""
        groups = self.selection.sampler.groups
        if not self.selection.scales:
            return 1.0
        if groups is None:
            return self.selection.sampler.rate
        name = next(key.name for key in self.fragment.keys if key.sql == groups.key)
        return groups.of(one_array(partials[name]))

    def split(self) -> tuple[Take, ...]:
        """Return takes that together are this one, none of which mixes spared and sampled records."""
        selections = self.selection.split()
        return tuple(
            replace(self, selection=s, with_moments=self.with_moments or s.part is SparedPart.SPARED)
            for s in selections
        )


@dataclass(frozen=True)
class Lifted:
    """The merged partials of a take, and the seconds that lifting them took, summed over tasks."""

    table: pa.Table
    seconds: float
    tasks: int


def fits(fragment: Fragment) -> bool:
    """Return whether a fragment can be lifted with others.

    A look-up or an explode may double records, which a projection cannot; and the arguments of the project's own
    functions are evaluated on every record of a projection, also on those that the fragment does not take.
    """
    if fragment.lookups or fragment.explodes:
        return False
    return fragment.where is None or not any(functions_in(sql) for sql in _expressions(fragment))


def _expressions(fragment: Fragment) -> Iterator[str]:
    yield from (key.sql for key in fragment.keys)
    yield from (a.argument for a in fragment.aggregates if a.argument is not None)


def lift_rows(rows: DataFrame, take: Take, measures: tuple[Aggregate, ...]) -> Lifted:
    """Return the partials of a take from rows that are all its own, looked up and filtered."""
    (found,) = _one_job(rows, [(take, measures)], None)
    return found


def lift_together(
    records: DataFrame, takes: Sequence[Take], measures: Sequence[tuple[Aggregate, ...]], rule: SamplingRule | None
) -> list[Lifted]:
    """Return the partials of each take, with these aggregates; `rule` is needed where a take is sampled."""
    found: dict[int, Lifted] = {}
    by_alias = sorted(range(len(takes)), key=lambda i: takes[i].fragment.stream)
    for alias, numbers in groupby(by_alias, key=lambda i: takes[i].fragment.stream):
        chosen = list(numbers)
        pairs = [(takes[i], measures[i]) for i in chosen]
        found |= dict(zip(chosen, _one_job(records.alias(alias), pairs, rule), strict=True))
    return [found[i] for i in range(len(takes))]


def _one_job(
    records: DataFrame, pairs: Sequence[tuple[Take, tuple[Aggregate, ...]]], rule: SamplingRule | None
) -> list[Lifted]:
    sampled = any(take.selection.is_sampled for take, _ in pairs)
    assert rule is not None or not sampled, "sampling needs a rule"
    place = rule.place_sql if rule is not None and sampled else None
    columns: dict[str, str] = {}  # expression of the projection -> name
    conditions: dict[str, str] = {}
    lifts = [_lift(take, aggregates, columns, conditions) for take, aggregates in pairs]
    marks = Marks(tuple(conditions.items()), place)
    spark = records.sparkSession
    chosen = [expression(spark, sql).alias(name) for sql, name in (columns | marks.columns).items()]
    files = installed_files()

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in files:
            install(file)
        lifter = Lifter(lifts, None if place is None else _PLACE)
        for batch in batches:
            lifter.add(marks.read(batch))
        for number, table, seconds in lifter.results():
            yield pa.RecordBatch.from_pydict(
                {"lift": pa.array([number], pa.int32()), "partials": [_to_bytes(table)], "seconds": [seconds]}
            )

    rows = records.select(*chosen).mapInArrow(work, _COLUMNS).toArrow().to_pylist()
    empty = [_empty_table(take.fragment, aggregates) for take, aggregates in pairs]
    return [_gather(lift, [r for r in rows if r["lift"] == i], empty[i]) for i, lift in enumerate(lifts)]


@dataclass(frozen=True)
class Marks:
    """Conditions (Spark SQL, name), and the places of records where some are sampled, packed into few columns."""

    conditions: tuple[tuple[str, str], ...]
    place: str | None

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns of bits: expression -> name."""
        found: dict[str, str] = {}
        for number, start in enumerate(range(0, max(len(self.conditions), self.place is not None), _BITS)):
            bits = [f"shiftleft({self.place}, {_BITS})"] if self.place is not None and number == 0 else []
            bits += [
                f"CASE WHEN {sql} THEN {1 << bit}L ELSE 0L END"
                for bit, (sql, _) in enumerate(self.conditions[start : start + _BITS])
            ]
            found[" | ".join(bits)] = _MARKS.format(number)
        return found

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records with a column per condition, and one for their places."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        for at, (_, name) in enumerate(self.conditions):
            marks = np.asarray(batch.column(_MARKS.format(at // _BITS)))
            columns[name] = pa.array(marks & (1 << at % _BITS) != 0)
        if self.place is not None:
            marks = np.asarray(batch.column(_MARKS.format(0))).view(np.uint64)
            columns[_PLACE] = pa.array((marks >> np.uint64(_BITS)).view(np.int64))
        return pa.record_batch(columns)


def _lift(take: Take, aggregates: tuple[Aggregate, ...], columns: dict[str, str], conditions: dict[str, str]) -> Lift:
    fragment = take.fragment

    def column(sql: str) -> str:
        return columns.setdefault(sql, f"column_{len(columns)}")

    def guard(sql: str) -> str:
        """Return an expression that is evaluated only on what the fragment takes: on other records it might fail."""
        plain = fragment.where is None or _PLAIN_COLUMN.fullmatch(sql)
        return column(sql if plain else f"CASE WHEN ({fragment.where}) THEN ({sql}) END")

    slices = fragment.slicing.sql(f"unix_micros({quote(fragment.stream)}.{quote(fragment.event_time)})")
    keys = ((SLICE_COLUMN, column(slices)), *((key.name, guard(key.sql)) for key in fragment.keys))
    arguments = tuple(None if a.argument is None else guard(a.argument) for a in aggregates)
    where = None if fragment.where is None else f"({fragment.where})"
    condition = None if where is None else conditions.setdefault(where, f"condition_{len(conditions)}")
    return Lift(keys, aggregates, arguments, condition, take.selection.over_columns(column, guard))


def _gather(lift: Lift, rows: Sequence[dict[str, Any]], empty: pa.Table) -> Lifted:
    tables = [pa.ipc.open_stream(pa.py_buffer(r["partials"])).read_all() for r in rows]
    return Lifted(lift.merge(tables) if tables else empty, sum(r["seconds"] for r in rows), len(rows))


def _empty_table(fragment: Fragment, aggregates: tuple[Aggregate, ...]) -> pa.Table:
    fields = [(SLICE_COLUMN, pa.int64()), *((k.name, k.type) for k in fragment.keys)]
    return pa.schema([*fields, *((s.name, s.type) for a in aggregates for s in a.states)]).empty_table()


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
