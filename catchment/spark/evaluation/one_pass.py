"""The partials of many fragments in one job: one pass over the records, however many look at them.

A job has a price (planning, scheduling, a round trip) that a small micro-batch pays many times where every fragment
is a job of its own. Here Spark evaluates the conditions, keys and arguments of all of them natively, in one
projection; the tasks lift what they have read (`catchment.site.lifting`) and give back a few partials each. The text
of the projection is the same for every batch, but for the place of each record where some are sampled, so that Spark
compiles it once. What is handed to the tasks costs by the column: conditions travel as the bits of one number, and
the place of a record in the bits that they leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.aggregates import Aggregate
from catchment.aggregates.base import quote
from catchment.aggregates.partials import one_array
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.places import PLACES, GroupRates, SamplingRule, number_sql
from catchment.site.lifting import Lift, Lifter, Part, Side

_PLACE = "place"
_MARKS = "marks_{}"  # a column of bits: the place of the record, and below it, which conditions it meets
_BITS = 64 - (PLACES - 1).bit_length()  # of marks, for conditions
_PLAIN = re.compile(r"`[^`]+`\.`[^`]+`")  # a column of the records, as it is
_COLUMNS = "lift INT, partials BINARY, seconds DOUBLE"


@dataclass(frozen=True)
class Take:
    """What one fragment takes of the records: those that pass at a rate, or those that do not. Records with a value
    beyond its limit in `spare` (Spark SQL of a column, limit) all pass. `groups` are rates by a key of the fragment,
    which stand in for the one rate. With `looks` the moments of its values are told though all records pass."""

    fragment: Fragment
    rate: float = 1.0
    side: Side = Side.KEPT
    spare: tuple[tuple[str, float], ...] = ()
    part: Part = Part.ALL
    groups: GroupRates | None = None
    looks: bool = False

    @property
    def sampled(self) -> bool:
        return self.rate < 1.0 and self.part is not Part.SPARED

    @property
    def kept_rate(self) -> float:
        """The rate at which what is taken has been sampled: what a sampler leaves out is taken whole."""
        return self.rate if self.side is Side.KEPT and self.part is not Part.SPARED else 1.0

    @property
    def has_moments(self) -> bool:
        """Whether the moments of what is taken are told: the bound of a sample is made of them."""
        return self.kept_rate < 1.0 or self.looks

    def row_rates(self, partials: pa.Table) -> float | NDArray[np.float64]:
        """The rate at which the records of each row have been sampled."""
        if self.groups is None or self.kept_rate >= 1.0:
            return self.kept_rate
        name = next(key.name for key in self.fragment.keys if key.sql == self.groups.key)
        return self.groups.of(one_array(partials[name]))

    @property
    def rate_sql(self) -> float | str:
        return self.rate if self.groups is None else self.groups.sql

    def split(self) -> tuple[Take, ...]:
        """The same as takes of one rate each."""
        if not self.spare or self.part is not Part.ALL or not self.sampled:
            return (self,)
        rest = replace(self, part=Part.REST)
        return (rest,) if self.side is Side.LEFT else (rest, replace(self, part=Part.SPARED, looks=True))

    @property
    def is_large(self) -> str:
        """Whether a record is spared, as Spark SQL."""
        return " OR ".join(_large_sql(f"CAST({sql} AS DOUBLE)", limit) for sql, limit in self.spare)


@dataclass(frozen=True)
class Lifted:
    """The partials of a take, merged, and the seconds of work that lifting them was, as if tasks ran one at a time."""

    table: pa.Table
    seconds: float
    tasks: int


def _large_sql(value: str, limit: float) -> str:
    return f"coalesce(abs({value}) > {number_sql(limit)} AND NOT isnan({value}), false)"


def fits(fragment: Fragment) -> bool:
    """Whether a fragment can be one of many: a look-up may double records, which a projection cannot."""
    return not fragment.lookups


def lift_together(
    records: DataFrame, takes: Sequence[Take], measures: Sequence[tuple[Aggregate, ...]], rule: SamplingRule | None
) -> list[Lifted]:
    """The partials of each take, with these aggregates; `rule` tells which records pass, where a take is sampled."""
    found: dict[int, Lifted] = {}
    by_alias = sorted(range(len(takes)), key=lambda i: takes[i].fragment.stream)
    for alias, places in groupby(by_alias, key=lambda i: takes[i].fragment.stream):
        chosen = list(places)
        pairs = [(takes[i], measures[i]) for i in chosen]
        found |= dict(zip(chosen, _one_job(records.alias(alias), pairs, rule), strict=True))
    return [found[i] for i in range(len(takes))]


def _one_job(
    records: DataFrame, pairs: Sequence[tuple[Take, tuple[Aggregate, ...]]], rule: SamplingRule | None
) -> list[Lifted]:
    sampled = any(take.sampled for take, _ in pairs)
    assert rule is not None or not sampled, "a sample is taken by a rule"
    place = rule.place_sql if rule is not None and sampled else None
    columns: dict[str, str] = {}  # of the projection: expression -> name
    conditions: dict[str, str] = {}
    lifts = [_lift(take, aggregates, columns, conditions) for take, aggregates in pairs]
    marks = Marks(tuple(conditions.items()), place)
    chosen = [F.expr(sql).alias(name) for sql, name in (columns | marks.columns).items()]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lifter = Lifter(lifts, None if place is None else _PLACE)
        for batch in batches:
            lifter.add(marks.read(batch))
        for number, table, seconds in lifter.results():
            yield pa.RecordBatch.from_pydict(
                {"lift": pa.array([number], pa.int32()), "partials": [_packed(table)], "seconds": [seconds]}
            )

    rows = records.select(*chosen).mapInArrow(work, _COLUMNS).toArrow().to_pylist()
    empty = [_nothing(take.fragment, aggregates) for take, aggregates in pairs]
    return [_gathered(lift, [r for r in rows if r["lift"] == i], empty[i]) for i, lift in enumerate(lifts)]


@dataclass(frozen=True)
class Marks:
    """Conditions (Spark SQL, name), and the places of records where some are sampled, as the bits of few columns."""

    conditions: tuple[tuple[str, str], ...]
    place: str | None

    @property
    def columns(self) -> dict[str, str]:
        """The columns of bits: expression -> name."""
        found: dict[str, str] = {}
        for number, start in enumerate(range(0, max(len(self.conditions), self.place is not None), _BITS)):
            bits = [f"shiftleft({self.place}, {_BITS})"] if self.place is not None and number == 0 else []
            bits += [f"CASE WHEN {sql} THEN {1 << bit}L ELSE 0L END"
                     for bit, (sql, _) in enumerate(self.conditions[start : start + _BITS])]  # fmt: skip
            found[" | ".join(bits)] = _MARKS.format(number)
        return found

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records with a column for each condition, and for their places."""
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

    def guarded(sql: str) -> str:
        """What a fragment does not take is not evaluated: its condition may keep an expression from failing."""
        plain = fragment.where is None or _PLAIN.fullmatch(sql)
        return column(sql if plain else f"CASE WHEN ({fragment.where}) THEN ({sql}) END")

    slices = fragment.slicing.sql(f"unix_micros({quote(fragment.stream)}.{quote(fragment.event_time)})")
    keys = ((SLICE_COLUMN, column(slices)), *((key.name, guarded(key.sql)) for key in fragment.keys))
    arguments = tuple(None if a.argument is None else guarded(a.argument) for a in aggregates)
    where = None if fragment.where is None else f"({fragment.where})"
    counts = None if where is None else conditions.setdefault(where, f"condition_{len(conditions)}")
    spare = tuple((column(sql), limit) for sql, limit in take.spare) if take.part is not Part.ALL else ()
    groups = None if take.groups is None else (guarded(take.groups.key), take.groups)
    return Lift(keys, aggregates, arguments, counts, take.rate, take.side, take.part, spare, groups)


def _gathered(lift: Lift, rows: Sequence[dict[str, Any]], empty: pa.Table) -> Lifted:
    tables = [pa.ipc.open_stream(pa.py_buffer(r["partials"])).read_all() for r in rows]
    return Lifted(lift.merged(tables) if tables else empty, sum(r["seconds"] for r in rows), len(rows))


def _nothing(fragment: Fragment, aggregates: tuple[Aggregate, ...]) -> pa.Table:
    fields = [(SLICE_COLUMN, pa.int64()), *((k.name, k.type) for k in fragment.keys)]
    return pa.schema([*fields, *((s.name, s.type) for a in aggregates for s in a.states)]).empty_table()


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
