"""How the partial aggregations of fragments are evaluated on a batch of records.

Two ways that give equal partials: native Spark SQL, a job a fragment, which is fastest for many records; and one
job for all of them (`catchment.spark.evaluation.one_pass`), which is fastest where the price of jobs counts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.partials import combine, one_array
from catchment.aggregates.shed_terms import terms_in
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.places import SamplingRule
from catchment.shedding.terms import add_terms
from catchment.site.lifting import Part, Side
from catchment.spark.evaluation.one_pass import Take, fits, lift_together

NOT_KNOWN_ROWS = 2**31  # of a batch: it may be a large one
ONE_PASS_ROWS = 250_000  # a fragment: of larger whole batches native jobs are faster
_RECORDS = make_aggregate("count", None, None, name="_records")
_COUNT = _RECORDS.states[0].name
SIZE = "_size"

Records = tuple[tuple[int, int], ...]  # (slice, how many raw records)


class Reduced(NamedTuple):
    """The partials of some records per (slice, keys) and how many records each slice had; the keys with how many
    records they stand for (`SIZE`), in the same order the moments of their values where these were asked for. `spared`
    records were taken whatever the rate: the rows of `sizes` and `moments` from `spared_from` on. `seconds` is what
    it took, beside what all takes share."""

    table: pa.Table
    records: Records
    sizes: pa.Table
    moments: pa.Table
    seconds: float = 0.0
    spared: int = 0
    spared_from: int | None = None


class Evaluator(Protocol):
    """Evaluates fragments on the records of one micro-batch."""

    def reduce_all(
        self, records: DataFrame, takes: Sequence[Take], rows: int, rule: SamplingRule | None = None, hold: bool = False
    ) -> list[Reduced]:
        """The partials of what each of many fragments takes of about so many records, with what must travel with them.
        `rule` tells which pass, where any is sampled; with `hold` the records are read once only, for they are costly
        to read."""

    def rows(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        """The records that a fragment takes, with what it looks up."""


class NativeEvaluator:
    """Native Spark SQL: look-ups, filter, and one group-by on the executors; or one pass for many fragments."""

    def __init__(self, tables: Mapping[str, DataFrame]) -> None:
        self.tables = tables

    def _reduce(self, records: DataFrame, take: Take) -> Reduced:
        began, fragment = time.monotonic(), take.fragment
        rows = self.rows(records, fragment)
        micros = f"unix_micros({qualified(fragment, fragment.event_time)})"
        keys = [F.expr(fragment.slicing.sql(micros)).alias(SLICE_COLUMN)]
        keys += [F.expr(key.sql).alias(key.name) for key in fragment.keys]
        found = rows.groupBy(*keys).agg(*lift_columns(measured(fragment, take.has_moments))).toArrow()
        return with_terms(found, take, time.monotonic() - began)

    def reduce_all(
        self, records: DataFrame, takes: Sequence[Take], rows: int, rule: SamplingRule | None = None, hold: bool = False
    ) -> list[Reduced]:
        pieces = [take.split() for take in takes]
        found = iter(self._reduce_pieces(records, [p for split in pieces for p in split], rows, rule, hold))
        return [joined([next(found) for _ in split], split) for split in pieces]

    def _reduce_pieces(
        self, records: DataFrame, takes: Sequence[Take], rows: int, rule: SamplingRule | None, hold: bool
    ) -> list[Reduced]:
        many = [i for i, take in enumerate(takes) if fits(take.fragment)]
        small = rows <= ONE_PASS_ROWS * len(many) or any(take.sampled for take in takes)
        many = many if small and len(many) > 1 else []
        alone = [i for i in range(len(takes)) if i not in many]
        again = hold and len(alone) + bool(many) > 1
        held = records.persist() if again else records
        try:
            found = dict(zip(many, self._together(held, [takes[i] for i in many], rule), strict=True))
            found |= {i: self._alone(held, takes[i], rule) for i in alone}
        finally:
            if again:
                held.unpersist()
        return [found[i] for i in range(len(takes))]

    def _together(self, records: DataFrame, takes: Sequence[Take], rule: SamplingRule | None) -> list[Reduced]:
        measures = [measured(t.fragment, t.has_moments) for t in takes]
        cores = records.sparkSession.sparkContext.defaultParallelism
        return [
            with_terms(lifted.table, take, lifted.seconds / max(min(lifted.tasks, cores), 1))
            for take, lifted in zip(takes, lift_together(records, takes, measures, rule), strict=True)
        ]

    def _alone(self, records: DataFrame, take: Take, rule: SamplingRule | None) -> Reduced:
        records = records.alias(take.fragment.stream)
        if take.part is not Part.ALL:
            large = F.expr(take.is_large)
            records = records.where(large if take.part is Part.SPARED else ~large)
        if take.sampled and rule is not None:
            keep = F.expr(rule.keep_sql(take.rate_sql))
            records = records.where(keep if take.side is Side.KEPT else ~keep)
        return self._reduce(records, take)

    def rows(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        rows = self._joined(records, fragment)
        return rows.where(F.expr(fragment.where)) if fragment.where else rows

    def _joined(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        rows = records.alias(fragment.stream)
        for lookup in fragment.lookups:
            reference = F.broadcast(self.tables[lookup.table]).alias(lookup.alias)
            rows = rows.join(reference, F.expr(lookup.on), lookup.how)
        return rows


def measured(fragment: Fragment, moments: bool) -> tuple[Aggregate, ...]:
    """What is aggregated for a fragment: the number of records, its aggregates, and the moments that the terms of a
    sample need."""
    terms = terms_in(fragment.aggregates)
    lifted = tuple(a for a in fragment.aggregates if a not in terms)
    return (_RECORDS, *lifted, *(_moments(fragment) if moments else ()))


def _moments(fragment: Fragment) -> tuple[Aggregate, ...]:
    return tuple(m for m in (t.moments for t in terms_in(fragment.aggregates)) if m is not None)


def with_terms(found: pa.Table, take: Take, seconds: float) -> Reduced:
    fragment, rates = take.fragment, take.row_rates(found)
    counts = one_array(found[_COUNT]).cast(pa.int64())
    table = add_terms(found, fragment.aggregates, counts, rates)
    table = table.select(fragment.schema.names).cast(fragment.schema)
    moments = [s.name for m in _moments(fragment) for s in m.states] if take.has_moments else []
    sizes = found.select(list(fragment.key_names)).append_column(SIZE, pa.array(np.asarray(counts) / rates))
    return Reduced(table, _per_slice(found), sizes, found.select(moments), seconds)


def joined(pieces: Sequence[Reduced], takes: Sequence[Take]) -> Reduced:
    """What a take is, from the pieces of one rate each."""
    if len(pieces) == 1:
        return pieces[0]
    rest, spared = pieces
    fragment = takes[0].fragment
    table = combine(pa.concat_tables([rest.table, spared.table]), [SLICE_COLUMN, *fragment.key_names],
                    fragment.aggregates)  # fmt: skip
    slices = Counter(dict(rest.records)) + Counter(dict(spared.records))
    sizes, moments = (pa.concat_tables(both) for both in ((rest.sizes, spared.sizes), (rest.moments, spared.moments)))
    count, seconds = sum(n for _, n in spared.records), rest.seconds + spared.seconds
    return Reduced(table, tuple(sorted(slices.items())), sizes, moments, seconds, count, rest.sizes.num_rows)


def lift_columns(aggregates: tuple[Aggregate, ...]) -> list[Column]:
    """The Spark columns that lift raw records to states."""
    return [F.expr(sql).alias(s.name) for a in aggregates for s, sql in zip(a.states, a.lift_sql(), strict=True)]


def merge_columns(aggregates: tuple[Aggregate, ...]) -> list[Column]:
    """The Spark columns that merge states."""
    return [F.expr(sql).alias(s.name) for a in aggregates for s, sql in zip(a.states, a.merge_sql(), strict=True)]


def qualified(fragment: Fragment, column: str) -> str:
    """A column of the fragment's stream, as Spark SQL."""
    return f"`{fragment.stream}`.`{column}`"


def _per_slice(table: pa.Table) -> Records:
    counts = table.group_by(SLICE_COLUMN).aggregate([(_COUNT, "sum")])
    records = pc.cast(counts[f"{_COUNT}_sum"], pa.int64())
    return tuple(sorted(zip(counts[SLICE_COLUMN].to_pylist(), records.to_pylist(), strict=True)))
