"""How far published values may be from the truth, row by row: what `catchment.quality.published` needs, gathered.

What is late is known of whole windows. A row of a query with keys may lack any of the records that its window lacks: a
COUNT is off by at most so many, a SUM by at most the amount. Ranks and shares of a row need its number of records,
which is known where the query counts them (`count(*)`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.grouped import floats_of
from catchment.aggregates.shed_terms import find_terms
from catchment.arrays import Floats
from catchment.center.events import Publish
from catchment.center.results.layout import struct_of
from catchment.center.statuses import EXACT, FINAL
from catchment.progress.deferred import is_complete
from catchment.quality.laws import BoundLaw, law_of, rank_factor
from catchment.quality.merge_sites import Lateness
from catchment.quality.published import BoundTerms
from catchment.query.fragment import Fragment
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import ViewScan
from catchment.shedding.terms import law_of_sample, scale_values

# Laws by which an error is relative to the value.
_OF_VALUES = (BoundLaw.COUNT, BoundLaw.SUM, BoundLaw.TWO_SIDED, BoundLaw.AVG, BoundLaw.DISTINCT)
DELTA = 0.05  # the chance that an answer misses its bound, where a query says nothing


@dataclass(frozen=True)
class ColumnLaw:
    """By which law a user's column is bounded; `aggregate` is the one that it is, if it is one as it is."""

    column: str
    law: BoundLaw
    aggregate: str | None = None
    sketch: float = 0.0  # the error of its sketch, as its library states it
    factor: float = 1.0  # the most that a missing share moves its rank


def column_laws(plan: QueryPlan) -> tuple[ColumnLaw, ...]:
    """Return the laws of the columns that aggregate.

    A column that is computed from aggregates is exact if they are. What pairs late records make, or rows of `explode`,
    is learned for counts and sums, and not known of others: those are bounded only when nothing is missing. So are the
    columns of a view of a view. Late records raise and lower the counts and sums of an outer join. How many rows
    sampled records have is a sum.
    """
    aggregates = {a.name: a for a in plan.answer.aggregates}
    copied = {k.name for k in plan.answer.keys} | {"window_start", "window_end"}
    sketches = max((a.sketch_error for a in aggregates.values()), default=0.0)
    if plan.lower is not None:
        assert isinstance(plan.scan, ViewScan)
        sketches = max(sketches, plan.scan.sketch_error)
    laws = []
    for column in (c for c in plan.columns if c.source not in copied):
        aggregate = aggregates.get(column.source or "")
        terms = None if aggregate is None else find_terms(aggregate, plan.answer.aggregates)
        if aggregate is None or plan.lower is not None:
            laws.append(ColumnLaw(column.name, BoundLaw.UNBOUNDED, sketch=sketches))
        elif terms is not None:
            laws.append(replace(law_of_aggregate(column.name, aggregate), law=law_of_sample(terms)))
        elif is_indirect(plan) and aggregate.exact and law_of(aggregate) not in (BoundLaw.COUNT, BoundLaw.SUM):
            laws.append(ColumnLaw(column.name, BoundLaw.UNBOUNDED, aggregate.name))
        elif plan.join is not None and plan.join.gives_alone and aggregate.exact:
            laws.append(ColumnLaw(column.name, BoundLaw.TWO_SIDED, aggregate.name))
        else:
            laws.append(law_of_aggregate(column.name, aggregate))
    return tuple(laws)


def is_indirect(plan: QueryPlan) -> bool:
    """Return whether records are not what a view counts: pairs of them are, or rows that are made of them."""
    return plan.join is not None or bool(plan.fragment.explodes)


def law_of_aggregate(column: str, aggregate: Aggregate) -> ColumnLaw:
    """Return the law of a column that is an aggregate as it is."""
    return ColumnLaw(column, law_of(aggregate), aggregate.name, aggregate.sketch_error, rank_factor(aggregate))


@dataclass(frozen=True)
class RowBounds:
    """The bounds of some rows, what kind of statement each is, and the terms that it is made of: structs by column."""

    bound: pa.Array
    kind: pa.Array
    terms: pa.Array

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns of a result table about bounds."""
        return {"bound": self.bound, "bound_kind": self.kind, "bound_terms": self.terms}


@dataclass(frozen=True)
class ResultBounds:
    """Bounds and coverage of the rows of one query.

    `late_delta` is the part of delta that is the chance of more being late than is stated.
    """

    fragment: Fragment
    laws: tuple[ColumnLaw, ...]
    delta: float
    late_delta: float
    source_key: str | None
    is_indirect: bool = False  # whether records are not what its rows count

    def scale(self, revision: Publish, lowered: pa.Table) -> tuple[pa.Table, dict[str, Floats]]:
        """Scale up what was sampled; return the values, and the terms of each aggregate that may have been sampled."""
        rates = self._lowest_rates(revision)
        sampled = {}
        for aggregate in self.fragment.aggregates:
            terms = find_terms(aggregate, self.fragment.aggregates)
            if terms is not None:
                values, sampled[aggregate.name] = scale_values(revision.rows, aggregate, rates, terms)
                index = lowered.column_names.index(aggregate.name)
                lowered = lowered.set_column(index, lowered.schema.field(index), values)
        return lowered, sampled

    def row_bounds(self, revision: Publish, lowered: pa.Table, sampled: Mapping[str, Floats]) -> RowBounds:
        """Return the bounds of the rows of a revision, from their lowered values and the terms of their samples."""
        n = lowered.num_rows
        any_sampled = _any_sampled(sampled, n)
        other_deferred, deferred = self._deferred_of_rows(revision)
        terms = {}
        for law in self.laws:
            own = sampled.get(law.aggregate or "", any_sampled if law.aggregate is None else None)
            waiting = other_deferred if self.is_indirect else deferred.get(self._law_of_missing(law), other_deferred)
            late = self._late_of_rows(law, revision, lowered) + waiting
            terms[law.column] = BoundTerms(
                law.law,
                _sizes(law, lowered),
                late,
                self.late_delta,
                revision.late.is_counted if revision.late is not None else revision.deferred is not None,
                own,
                self._sketch_of_rows(law, revision),
                is_awaited=_is_awaited(revision),
            )
        return self._state(terms, n)

    def needs_signs(self, revision: Publish) -> bool:
        """Return whether the bounds of a row depend on the signs of the others."""
        late = revision.late
        if late is None or revision.missing_sites or not (late.records or any(c.amount for c in late.columns)):
            return False
        return any(law.law is BoundLaw.SUM for law in self.laws)

    def find_signs(self, lowered: pa.Table) -> dict[str, frozenset[int]]:
        """Return the signs that rows have in each column that is a sum, by its aggregate."""
        sums = (law for law in self.laws if law.law is BoundLaw.SUM and law.aggregate is not None)
        return {law.aggregate or "": _signs(_sizes(law, lowered)) for law in sums}

    def _deferred_of_rows(self, revision: Publish) -> tuple[Floats, Mapping[BoundLaw, Floats]]:
        """Return the most that each row lacks because partials were deferred: by other laws, and where records count.

        Complete rows lack nothing. Of the others it is known how many records they lack at most, and no amount.
        """
        deferred = revision.deferred
        n = revision.rows.num_rows
        if deferred is None:
            return np.zeros(n), {}
        is_whole = np.ones(n, dtype=bool)
        for keys, share in deferred.shares:
            columns = [partials.one_array(revision.rows[key]) for key in keys]
            is_whole &= is_complete(columns, share) if keys else False
        counted = np.where(is_whole, 0.0, _or_infinite(deferred.records))
        return np.where(is_whole, 0.0, np.inf), dict.fromkeys((BoundLaw.COUNT, BoundLaw.DISTINCT), counted)

    def _sketch_of_rows(self, law: ColumnLaw, revision: Publish) -> Floats:
        """Return the error of each row's sketch; 0 where the row is still exact, as a small distinct count is."""
        aggregate = next((a for a in self.fragment.aggregates if a.name == law.aggregate), None)
        if aggregate is None or not law.sketch:
            return np.full(revision.rows.num_rows, law.sketch)
        states = [partials.one_array(revision.rows[s.name]) for s in aggregate.states]
        return np.where(aggregate.are_estimates(states), law.sketch, 0.0)

    def window_bounds(self, revisions: Sequence[Publish]) -> RowBounds:
        """Return the bounds of each column over all rows of a window, as far as the window itself tells."""
        terms = {law.column: self._window_terms(law, revisions) for law in self.laws}
        return self._state(terms, len(revisions))

    def row_coverage(self, revision: Publish) -> pa.Array:
        """Return the window's coverage; row by row where the key is the source and no site is missing."""
        if self.source_key is None or not revision.sources or revision.missing_sites:
            return pa.repeat(pa.scalar(revision.coverage, pa.float64()), revision.rows.num_rows)
        missing: dict[str, float] = {}
        for _, source, share in revision.sources:
            missing[source] = max(missing.get(source, 0.0), share)
        keys = revision.rows[self.source_key].cast(pa.string()).to_pylist()
        return pa.array([1.0 - missing.get(str(k), 0.0) for k in keys], pa.float64())

    def _state(self, terms: Mapping[str, BoundTerms], n: int) -> RowBounds:
        bounds = {}
        kinds = {}
        for column, column_terms in terms.items():
            errors = column_terms.errors(self.delta)
            unknown = ~np.isfinite(errors)
            bounds[column] = pa.array(np.where(unknown, 0.0, errors), mask=unknown)
            kinds[column] = column_terms.kinds(errors)
        columns = {column: column_terms.to_arrow() for column, column_terms in terms.items()}
        return RowBounds(struct_of(bounds, n), struct_of(kinds, n), struct_of(columns, n))

    def _lowest_rates(self, revision: Publish) -> float | Floats:
        """Return the lowest rate at which the records of each row were sampled: by group, where rates were."""
        if revision.group_rates is None:
            return revision.lowest_rate
        others, named = revision.group_rates
        groups = partials.one_array(revision.rows[self.fragment.key_names[0]]).cast(pa.string())
        indices = pc.index_in(groups, value_set=pa.array([group for group, _ in named], pa.string()))
        rates = np.array([*(rate for _, rate in named), others])
        return np.asarray(rates[np.asarray(indices.fill_null(len(named)))])

    @cached_property
    def _counts(self) -> str | None:
        """The aggregate that counts the records of a row, if there is one."""
        return next((a.name for a in self.fragment.aggregates if a.function == "count" and a.argument is None), None)

    def _late_of_rows(self, law: ColumnLaw, revision: Publish, lowered: pa.Table) -> Floats:
        """Return the most that each row lacks because records are late, as its law counts; infinite if unknown."""
        n = lowered.num_rows
        if revision.missing_sites:
            return np.full(n, np.inf)
        if revision.late is None:
            return np.zeros(n)
        late = revision.late
        if law.law is BoundLaw.UNBOUNDED or (law.law is BoundLaw.AVG and self.fragment.keys):
            return np.full(n, 0.0 if late.records == 0.0 else np.inf)
        if self.is_indirect:
            return self._learned_of_rows(law, revision, late, lowered)
        if self._law_of_missing(law) in (BoundLaw.COUNT, BoundLaw.DISTINCT):
            return np.full(n, _or_infinite(late.records))
        if law.law in (BoundLaw.SUM, BoundLaw.AVG):
            return self._missing_of_values(law, revision, late, lowered)
        return law.factor * _missing_share(late, self._records_of_rows(late, lowered))

    def _law_of_missing(self, law: ColumnLaw) -> BoundLaw:
        """Return the law of what is missing of a column: a count lacks records, also where its sample is one of sums.

        Where look-ups find several rows for a record, what is counted as late are these rows.
        """
        is_count = any(a.name == law.aggregate and a.function == "count" for a in self.fragment.aggregates)
        return BoundLaw.COUNT if law.law is BoundLaw.SUM and is_count else law.law

    def _learned_of_rows(self, law: ColumnLaw, revision: Publish, late: Lateness, lowered: pa.Table) -> Floats:
        """Return the most that each row lacks of pairs, or of rows of `explode`: what its window is said to lack."""
        n = lowered.num_rows
        if late.records == 0.0:
            return np.zeros(n)
        if law.law in (BoundLaw.COUNT, BoundLaw.TWO_SIDED):
            return np.full(n, _or_infinite(late.of(law.aggregate or "").amount))
        if law.law is BoundLaw.SUM:
            return self._missing_of_values(law, revision, late, lowered)
        return np.full(n, np.inf)

    def _missing_of_values(self, law: ColumnLaw, revision: Publish, late: Lateness, lowered: pa.Table) -> Floats:
        """Return the most that is missing of a sum, or the error of an average.

        Rows of both signs show that values have both signs: then one row may lack more than the window lacks in all.
        """
        known = late.of(law.aggregate or "")
        sizes = _sizes(law, lowered)
        if late.records == 0.0:
            return np.zeros(len(sizes))
        has_both_signs = law.aggregate in revision.mixed_signs or len(_signs(sizes)) > 1
        if law.law is BoundLaw.SUM and has_both_signs:
            return np.full(len(sizes), np.inf)
        return np.full(len(sizes), _or_infinite(known.amount if law.law is BoundLaw.SUM else known.error))

    def _records_of_rows(self, late: Lateness, lowered: pa.Table) -> Floats:
        """Return how many records each row holds at least; 0 where that is not known."""
        if not self.fragment.keys:
            return np.full(lowered.num_rows, late.received)
        if self._counts is None:
            return np.zeros(lowered.num_rows)
        return floats_of(partials.one_array(lowered[self._counts]))

    def _window_terms(self, law: ColumnLaw, revisions: Sequence[Publish]) -> BoundTerms:
        late = np.array([self._late_of_window(law, r) for r in revisions], dtype=np.float64)
        sampled = np.where([[r.lowest_rate < 1.0] for r in revisions], np.inf, np.nan)
        counted = all(r.late is None or r.late.is_counted for r in revisions)
        n = len(revisions)
        awaited = np.array([_is_awaited(r) for r in revisions], dtype=bool)
        sketch = np.full(n, law.sketch)
        return BoundTerms(law.law, np.ones(n), late, self.late_delta, counted, sampled, sketch, awaited)

    def _late_of_window(self, law: ColumnLaw, revision: Publish) -> float:
        """Return the same for all rows of a window together, whose value counts as 1."""
        late = revision.late
        if revision.missing_sites or revision.deferred is not None:
            return np.inf
        if late is None or revision.status in (EXACT, FINAL):
            return 0.0
        if law.law is BoundLaw.UNBOUNDED:
            return 0.0 if late.records == 0.0 else np.inf
        if self.is_indirect:
            return 0.0 if late.records == 0.0 else _learned_of_window(law, late)
        if law.law is BoundLaw.DISTINCT:
            return np.inf  # relative to how many distinct values there are, which the window does not tell
        if self._law_of_missing(law) is BoundLaw.SUM:
            return _ratio(late.of(law.aggregate or "").error)
        if law.law is BoundLaw.AVG:
            return _or_infinite(late.of(law.aggregate or "").error)
        share = float(_missing_share(late, np.array([late.received]))[0])
        return _ratio(share) if self._law_of_missing(law) is BoundLaw.COUNT else law.factor * share


def _learned_of_window(law: ColumnLaw, late: Lateness) -> float:
    """Return what may be missing of pairs, or of rows of `explode`, of a window whose value counts as 1."""
    error = late.of(law.aggregate or "").error
    if law.law in (BoundLaw.COUNT, BoundLaw.SUM):
        return _ratio(error)
    if law.law is BoundLaw.TWO_SIDED and error is not None:
        return error / (1.0 + error)  # the error m / (v - m) of a value v that may be off by m
    return np.inf


def _is_awaited(revision: Publish) -> bool:
    """Return whether more of a window may come, by what is known of its sources."""
    late = revision.late
    return late is not None and not late.is_counted and revision.status not in (EXACT, FINAL)


def _any_sampled(sampled: Mapping[str, Floats], n: int) -> Floats | None:
    """Return, as terms of which nothing can be said, which rows have any aggregate that was sampled."""
    if not sampled:
        return None
    touched = np.any([~np.isnan(terms).any(axis=1) for terms in sampled.values()], axis=0)
    return np.where(touched, np.inf, np.nan)[:, np.newaxis]


def _sizes(law: ColumnLaw, lowered: pa.Table) -> Floats:
    """Return the values that relative errors are relative to; 1 where an error is one of rank or share."""
    if law.aggregate is None or law.law not in _OF_VALUES:
        return np.ones(lowered.num_rows)
    values = partials.one_array(lowered[law.aggregate]).cast(pa.float64(), safe=False)
    return np.nan_to_num(floats_of(values), nan=0.0)


def _signs(sizes: Floats) -> frozenset[int]:
    return frozenset(np.unique(np.sign(sizes[sizes != 0.0])).astype(int).tolist())


def _missing_share(late: Lateness, held: Floats) -> Floats:
    """Return the share of the records that may be missing of what holds so many."""
    if late.records is None:
        return np.full(len(held), np.inf)
    if not late.records:
        return np.zeros(len(held))
    return np.where(held > 0.0, late.records / (held + late.records), np.inf)


def _ratio(share: float | None) -> float:
    """Return how much is missing of what counts as 1, from the share of the whole that is."""
    return np.inf if share is None or share >= 1.0 else share / (1.0 - share)


def _or_infinite(value: float | None) -> float:
    return np.inf if value is None else value
