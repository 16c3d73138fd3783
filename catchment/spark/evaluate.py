"""How a fragment's partial aggregation is evaluated on a batch of records.

One small interface, so that another evaluator (vectorised in the reading tasks) can take the place of native
Spark SQL where an expression allows it. All evaluators give equal partials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from catchment.aggregates import Aggregate
from catchment.aggregates.shed_terms import terms_in
from catchment.partials import one_array
from catchment.quality.shed_terms import add_terms
from catchment.query.fragment import SLICE_COLUMN, Fragment

_RECORDS = "_records"

Records = tuple[tuple[int, int], ...]  # (slice, how many raw records)


class Reduced(NamedTuple):
    """The partials of some records per (slice, keys), how many records each slice had, and how many each row; of a
    sample also the moments that its terms were made of."""

    table: pa.Table
    records: Records
    counts: pa.Array
    moments: pa.Table


class Evaluator(Protocol):
    """Evaluates fragments on the records of one micro-batch."""

    def partials(self, records: DataFrame, fragment: Fragment) -> tuple[pa.Table, Records]:
        """The partials of the records per (slice, keys), and how many records each slice had."""

    def reduce(self, records: DataFrame, fragment: Fragment, rate: float = 1.0) -> Reduced:
        """The same of records that passed a sampler of this rate, with what must travel with them."""

    def rows(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        """The records that a fragment takes, with what it looks up."""


class NativeEvaluator:
    """Native Spark SQL: look-ups, filter, and one group-by on the executors."""

    def __init__(self, tables: Mapping[str, DataFrame]) -> None:
        self.tables = tables

    def partials(self, records: DataFrame, fragment: Fragment) -> tuple[pa.Table, Records]:
        reduced = self.reduce(records, fragment)
        return reduced.table, reduced.records

    def reduce(self, records: DataFrame, fragment: Fragment, rate: float = 1.0) -> Reduced:
        rows = self.rows(records, fragment)
        micros = f"unix_micros({qualified(fragment, fragment.event_time)})"
        keys = [F.expr(fragment.slicing.sql(micros)).alias(SLICE_COLUMN)]
        keys += [F.expr(key.sql).alias(key.name) for key in fragment.keys]
        terms = terms_in(fragment.aggregates)
        lifted = tuple(a for a in fragment.aggregates if a not in terms)
        moments = tuple(m for m in (t.moments for t in terms) if m is not None) if rate < 1.0 else ()
        measures = [F.count(F.lit(1)).alias(_RECORDS), *lift_columns((*lifted, *moments))]
        found = rows.groupBy(*keys).agg(*measures).toArrow()
        counts = one_array(found[_RECORDS]).cast(pa.int64())
        table = add_terms(found, fragment.aggregates, counts, rate)
        table = table.select(fragment.schema.names).cast(fragment.schema)
        return Reduced(table, _per_slice(found), counts, found.select([s.name for m in moments for s in m.states]))

    def rows(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        rows = self._joined(records, fragment)
        return rows.where(F.expr(fragment.where)) if fragment.where else rows

    def _joined(self, records: DataFrame, fragment: Fragment) -> DataFrame:
        rows = records.alias(fragment.stream_alias or fragment.stream)
        for lookup in fragment.lookups:
            reference = F.broadcast(self.tables[lookup.table]).alias(lookup.alias)
            rows = rows.join(reference, F.expr(lookup.on), lookup.how)
        return rows


def lift_columns(aggregates: tuple[Aggregate, ...]) -> list[Column]:
    """The Spark columns that lift raw records to states."""
    return [F.expr(sql).alias(s.name) for a in aggregates for s, sql in zip(a.states, a.lift_sql(), strict=True)]


def merge_columns(aggregates: tuple[Aggregate, ...]) -> list[Column]:
    """The Spark columns that merge states."""
    return [F.expr(sql).alias(s.name) for a in aggregates for s, sql in zip(a.states, a.merge_sql(), strict=True)]


def qualified(fragment: Fragment, column: str) -> str:
    """A column of the fragment's stream, as Spark SQL."""
    return f"`{fragment.stream_alias or fragment.stream}`.`{column}`"


def _per_slice(table: pa.Table) -> Records:
    counts = table.group_by(SLICE_COLUMN).aggregate([(_RECORDS, "sum")])
    records = pc.cast(counts[f"{_RECORDS}_sum"], pa.int64())
    return tuple(sorted(zip(counts[SLICE_COLUMN].to_pylist(), records.to_pylist(), strict=True)))
