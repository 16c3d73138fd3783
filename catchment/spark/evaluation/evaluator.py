"""How the partial aggregations of fragments are evaluated on a batch of records.

Two ways give equal partials: native Spark SQL with one job per fragment, which is fastest for many records; and one job
for all fragments (`catchment.spark.evaluation.one_pass`), which is fastest where the fixed cost of jobs dominates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.aggregates import Aggregate, make_aggregate, quote
from catchment.aggregates.partials import combine, one_array
from catchment.aggregates.shed_terms import RecordTotals, ShedTerms, terms_in
from catchment.query.fragment import SLICE_COLUMN, Fragment, count_records
from catchment.shedding.places import SamplingRule
from catchment.shedding.sampler import Selection, Side, SparedPart
from catchment.shedding.terms import add_terms
from catchment.site.events import Absorbed, Event
from catchment.spark.evaluation.one_pass import Take, fits, lift_rows, lift_together
from catchment.spark.evaluation.project_functions import expression, spark_sql
from catchment.spark.sources.lookup_tables import LookupTables
from catchment.wire.messages import LookedUp

UNKNOWN_ROWS = 2**31  # the assumed size of a batch whose rows nobody has counted
ONE_PASS_ROWS = 250_000  # rows per fragment above which native jobs are faster for a whole batch
_RECORDS = make_aggregate("count", None, None, name="_records")
_COUNT = _RECORDS.states[0].name
SIZE = "_size"
_RECORD = "_record_of_rows"  # numbers the records of a batch within one job
_ROWS = "_rows_of_records"  # how many rows they have become

RecordCounts = tuple[tuple[int, int], ...]  # (slice, how many raw records)


class Reduced(NamedTuple):
    """What a take was reduced to: partials per (slice, keys), and how many records each slice had.

    `sizes` has the keys with how many records they stand for (`SIZE`), and `moments`, in the same order, the moments of
    their values where these were asked for. `spared` records were taken whatever the rate: they are the rows of `sizes`
    and `moments` from `spared_from` on. `seconds` is what the take cost beside what all takes share. `looked_up` has
    the versions of tables that may change, each with the slices whose records were looked up in it.
    """

    table: pa.Table
    records: RecordCounts
    sizes: pa.Table
    moments: pa.Table
    seconds: float = 0.0
    spared: int = 0
    spared_from: int | None = None
    looked_up: tuple[LookedUp, ...] = ()

    def events(self, fragment: str) -> list[Event]:
        """Return what the core of a site hears of it."""
        return [Absorbed(fragment, self.table, self.records), *self.looked_up]


class Evaluator(Protocol):
    """Evaluates fragments on the records of one micro-batch."""

    def reduce_all(
        self, records: DataFrame, takes: Sequence[Take], rows: int, rule: SamplingRule | None = None, hold: bool = False
    ) -> list[Reduced]:
        """Return the partials of each take, of about this many records.

        `rule` is needed where a take is sampled. With `hold` the records are costly to read, and are read only once.
        """

    def rows(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        """Return the records that a fragment takes, with what it looks up."""


class SparkEvaluator:
    """Evaluates by Spark: look-ups, filter and one group-by on the executors, or one pass for many fragments."""

    def __init__(self, tables: Mapping[str, DataFrame]) -> None:
        self.tables = tables

    def _reduce(self, records: DataFrame, take: Take) -> Reduced:
        """Return a take reduced: all its records are looked up in one version of each table."""
        fragment = take.fragment
        if not fragment.lookups or not isinstance(self.tables, LookupTables):
            return self._reduce_held(records, take)
        held = self.tables.hold(lookup.table for lookup in fragment.lookups)
        reduced = SparkEvaluator(held.rows)._reduce_held(records, take)
        if not held.versions:
            return reduced
        slices = tuple(slice_us for slice_us, _ in self._count_records(records, fragment))
        looked_up = (LookedUp(fragment.name, table, version, slices) for table, version in held.versions if slices)
        return reduced._replace(looked_up=tuple(looked_up))

    def _reduce_held(self, records: DataFrame, take: Take) -> Reduced:
        began = time.monotonic()
        fragment = take.fragment
        rows = self.rows(records, fragment)
        measures = aggregates_with_counts(fragment, take.has_moments)
        totals = _totals(fragment)
        if totals:
            found = self._group_records(records, fragment, totals)
        elif not all(a.lifts_in_spark for a in measures):
            taken = replace(take, fragment=replace(fragment, where=None), selection=Selection())
            found = lift_rows(rows, taken, measures).table
        else:
            found = self._group(rows, fragment, measures)
        reduced = to_reduced(found, take, time.monotonic() - began)
        if fragment.explodes:
            return reduced._replace(records=self._count_records(records, fragment))
        return reduced._replace(records=_count_per_slice(found, _ROWS)) if totals else reduced

    def _group(self, rows: DataFrame, fragment: Fragment, measures: tuple[Aggregate, ...]) -> pa.Table:
        spark = rows.sparkSession
        micros = f"unix_micros({qualify(fragment, fragment.event_time)})"
        keys = [F.expr(fragment.slicing.sql(micros)).alias(SLICE_COLUMN)]
        keys += [expression(spark, key.sql).alias(key.name) for key in fragment.keys]
        return rows.groupBy(*keys).agg(*lift_columns(spark, measures)).toArrow()

    def _group_records(self, records: DataFrame, fragment: Fragment, totals: Sequence[RecordTotals]) -> pa.Table:
        """Return what `_group` does of records that may be several rows each: first per record, then of all.

        What is counted of a group are records and, apart from them, their rows. The totals of records are summed up
        beside the states.
        """
        spark = records.sparkSession
        rows = self.rows(records.withColumn(_RECORD, F.monotonically_increasing_id()), fragment)
        micros = f"unix_micros({qualify(fragment, fragment.event_time)})"
        keys = [F.expr(fragment.slicing.sql(micros)).alias(SLICE_COLUMN)]
        keys += [expression(spark, key.sql).alias(key.name) for key in fragment.keys]
        lifted = tuple(a for a in fragment.aggregates if not isinstance(a, ShedTerms))
        per_record = [
            F.expr(sql).alias(name)
            for of in totals
            for name, sql in zip(
                of.of_record,
                of.record_sql(None if of.argument is None else spark_sql(spark, of.argument)),
                strict=True,
            )
        ]
        counted = F.count(F.lit(1)).alias(_ROWS)
        each = rows.groupBy(F.col(_RECORD), *keys).agg(counted, *lift_columns(spark, lifted), *per_record)
        summed = [F.expr(sql).alias(name) for of in totals for name, sql in zip(of.columns, of.sum_sql(), strict=True)]
        grouped = each.groupBy(SLICE_COLUMN, *(quote(key.name) for key in fragment.keys))
        counts = F.count(F.lit(1)).alias(_COUNT), F.sum(_ROWS).alias(_ROWS)
        return grouped.agg(*counts, *merge_columns(lifted), *summed).toArrow()

    def _count_records(self, records: DataFrame, fragment: Fragment) -> RecordCounts:
        """Return how many records each slice has, however many rows they become."""
        counting = count_records(fragment)
        rows = self.rows(records, counting)
        return _count_per_slice(self._group(rows, counting, aggregates_with_counts(counting, False)))

    def reduce_all(
        self, records: DataFrame, takes: Sequence[Take], rows: int, rule: SamplingRule | None = None, hold: bool = False
    ) -> list[Reduced]:
        pieces = [take.split() for take in takes]
        found = iter(self._reduce_pieces(records, [p for split in pieces for p in split], rows, rule, hold))
        return [merge_pieces([next(found) for _ in split], split) for split in pieces]

    def _reduce_pieces(
        self, records: DataFrame, takes: Sequence[Take], rows: int, rule: SamplingRule | None, hold: bool
    ) -> list[Reduced]:
        many = [i for i, take in enumerate(takes) if fits(take.fragment)]
        small = rows <= ONE_PASS_ROWS * len(many) or any(take.selection.is_sampled for take in takes)
        many = many if small and len(many) > 1 else []
        alone = [i for i in range(len(takes)) if i not in many]
        persists = hold and len(alone) + bool(many) > 1
        held = records.persist() if persists else records
        try:
            found = dict(zip(many, self._together(held, [takes[i] for i in many], rule), strict=True))
            found |= {i: self._alone(held, takes[i], rule) for i in alone}
        finally:
            if persists:
                held.unpersist()
        return [found[i] for i in range(len(takes))]

    def _together(self, records: DataFrame, takes: Sequence[Take], rule: SamplingRule | None) -> list[Reduced]:
        measures = [aggregates_with_counts(t.fragment, t.has_moments) for t in takes]
        cores = records.sparkSession.sparkContext.defaultParallelism
        return [
            to_reduced(lifted.table, take, lifted.seconds / max(min(lifted.tasks, cores), 1))
            for take, lifted in zip(takes, lift_together(records, takes, measures, rule), strict=True)
        ]

    def _alone(self, records: DataFrame, take: Take, rule: SamplingRule | None) -> Reduced:
        records = records.alias(take.fragment.stream)
        selection = take.selection
        if selection.part is not SparedPart.ALL:
            spared = expression(records.sparkSession, selection.sampler.spared_sql)
            records = records.where(spared if selection.part is SparedPart.SPARED else ~spared)
        if selection.is_sampled and rule is not None:
            keep = expression(records.sparkSession, rule.keep_sql(selection.sampler.rate_sql))
            records = records.where(keep if selection.side is Side.KEPT else ~keep)
        return self._reduce(records, take)

    def rows(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        rows = self._look_up(records, fragment)
        return rows.where(expression(records.sparkSession, fragment.where)) if fragment.where else rows

    def _look_up(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        rows = _explode(records.alias(fragment.stream), fragment, 0)
        for number, lookup in enumerate(fragment.lookups, start=1):
            reference = F.broadcast(self.tables[lookup.table]).alias(lookup.alias)
            rows = rows.join(reference, expression(records.sparkSession, lookup.on), lookup.how)
            rows = _explode(rows, fragment, number)
        return rows


def _explode(rows: DataFrame, fragment: Fragment, after: int) -> DataFrame:
    """Return the rows that come of each row by what is exploded after so many look-ups.

    What a row has of an array is a struct in a column, so that its fields are named like the columns of a relation.
    """
    for explode in (e for e in fragment.explodes if e.after == after):
        given = spark_sql(rows.sparkSession, explode.sql)
        place, element = "i", "e"
        parts = [f"{element}.key", f"{element}.value"] if explode.is_map else [element]
        parts = [place, *parts] if explode.has_position else parts
        fields = ", ".join(f"'{name}', {part}" for (name, _), part in zip(explode.columns, parts, strict=True))
        elements = f"map_entries({given})" if explode.is_map else f"({given})"
        verb = "explode_outer" if explode.outer else "explode"
        made = F.expr(f"{verb}(transform({elements}, ({element}, {place}) -> named_struct({fields})))")
        rows = rows.select("*", made.alias(explode.alias))
    return rows


def aggregates_with_counts(fragment: Fragment, moments: bool) -> tuple[Aggregate, ...]:
    """Return what is aggregated for a fragment: the number of records, its aggregates, and the moments of a sample."""
    terms = terms_in(fragment.aggregates)
    lifted = tuple(a for a in fragment.aggregates if a not in terms)
    return (_RECORDS, *lifted, *(_moments(fragment) if moments else ()))


def _totals(fragment: Fragment) -> tuple[RecordTotals, ...]:
    return tuple(t.totals for t in terms_in(fragment.aggregates) if t.totals is not None)


def _moments(fragment: Fragment) -> tuple[Aggregate, ...]:
    return tuple(m for m in (t.moments for t in terms_in(fragment.aggregates)) if m is not None)


def to_reduced(found: pa.Table, take: Take, seconds: float) -> Reduced:
    """Return the aggregated rows of a take as partials, with the terms of its sample."""
    fragment = take.fragment
    rates = take.row_rates(found)
    counts = one_array(found[_COUNT]).cast(pa.int64())
    table = add_terms(found, fragment.aggregates, counts, rates)
    table = table.select(fragment.schema.names).cast(fragment.schema)
    moments = [s.name for m in _moments(fragment) for s in m.states] if take.has_moments else []
    moments += [column for of in _totals(fragment) for column in of.columns]
    sizes = found.select(list(fragment.key_names)).append_column(SIZE, pa.array(np.asarray(counts) / rates))
    return Reduced(table, _count_per_slice(found), sizes, found.select(moments), seconds)


def merge_pieces(pieces: Sequence[Reduced], takes: Sequence[Take]) -> Reduced:
    """Return a take from what its split takes were reduced to."""
    if len(pieces) == 1:
        return pieces[0]
    rest, spared = pieces
    fragment = takes[0].fragment
    keys = [SLICE_COLUMN, *fragment.key_names]
    slices = Counter(dict(rest.records)) + Counter(dict(spared.records))
    return Reduced(
        combine(pa.concat_tables([rest.table, spared.table]), keys, fragment.aggregates),
        tuple(sorted(slices.items())),
        pa.concat_tables([rest.sizes, spared.sizes]),
        pa.concat_tables([rest.moments, spared.moments]),
        rest.seconds + spared.seconds,
        sum(count for _, count in spared.records),
        rest.sizes.num_rows,
        tuple(dict.fromkeys((*rest.looked_up, *spared.looked_up))),
    )


def lift_columns(spark: SparkSession, aggregates: tuple[Aggregate, ...]) -> list[Column]:
    """Return the Spark columns that lift raw records to states."""
    ready = [a if a.argument is None else replace(a, argument=spark_sql(spark, a.argument)) for a in aggregates]
    return [F.expr(sql).alias(s.name) for a in ready for s, sql in zip(a.states, a.lift_sql(), strict=True)]


def merge_columns(aggregates: tuple[Aggregate, ...]) -> list[Column]:
    """Return the Spark columns that merge states."""
    return [F.expr(sql).alias(s.name) for a in aggregates for s, sql in zip(a.states, a.merge_sql(), strict=True)]


def qualify(fragment: Fragment, column: str) -> str:
    """Return a column of the fragment's stream as Spark SQL."""
    return f"`{fragment.stream}`.`{column}`"


def _count_per_slice(table: pa.Table, column: str = _COUNT) -> RecordCounts:
    counts = table.group_by(SLICE_COLUMN).aggregate([(column, "sum")])
    records = pc.cast(counts[f"{column}_sum"], pa.int64())
    return tuple(sorted(zip(counts[SLICE_COLUMN].to_pylist(), records.to_pylist(), strict=True)))
