"""How far published values may be from the truth: the error of sketches, of what is not in yet, and of sampling.

What is not in is known for whole windows: in a query with keys, a row's bound is unknown while something is missing,
unless the key is the source of the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import ShedTerms, shed_terms
from catchment.arrays import Floats
from catchment.center.events import EARLY, Publish
from catchment.center.results.layout import struct_of
from catchment.query.fragment import Fragment
from catchment.query.plan import QueryPlan
from catchment.shedding.terms import scale_answers

DELTA = 0.05  # the chance that a sampled answer misses its bound, where a query says nothing


def own_errors(plan: QueryPlan) -> tuple[tuple[str, float | None], ...]:
    """Return, per column that aggregates, the error that its sketch has even on all the data; None if unknown."""
    errors = {a.name: 0.0 if a.exact else a.relative_error for a in plan.answer.aggregates}
    copied = {k.name for k in plan.answer.keys} | {"window_start", "window_end"}
    all_exact = all(e == 0.0 for e in errors.values())
    computed = 0.0 if all_exact else None
    return tuple((c.name, errors.get(c.source or "", computed)) for c in plan.columns if c.source not in copied)


def sources_of(plan: QueryPlan) -> tuple[tuple[str, str], ...]:
    """Return the columns that are an aggregate as it is, and which."""
    aggregates = {a.name for a in plan.answer.aggregates}
    return tuple((c.name, c.source) for c in plan.columns if c.source in aggregates and c.source is not None)


@dataclass(frozen=True)
class ResultBounds:
    """Bounds and coverage of the rows of one query."""

    fragment: Fragment
    own: tuple[tuple[str, float | None], ...]  # user's column -> own error of its aggregate, if it has one
    sources: tuple[tuple[str, str], ...]  # user's column -> the aggregate that it is, where it is one
    delta: float
    source_key: str | None

    def scale(self, revision: Publish, lowered: pa.Table) -> tuple[pa.Table, dict[str, Floats]]:
        """Scale up what was sampled; return the values, and by how much each aggregate may therefore be off."""
        terms = {a.name for a in self.fragment.aggregates if isinstance(a, ShedTerms)}
        rates = self._lowest_rates(revision)
        errors = {}
        for aggregate in self.fragment.aggregates:
            if shed_terms(aggregate).name in terms:
                values, errors[aggregate.name] = scale_answers(revision.rows, aggregate, self.delta, rates)
                index = lowered.column_names.index(aggregate.name)
                lowered = lowered.set_column(index, lowered.schema.field(index), values)
        return lowered, errors

    def row_bound(self, revision: Publish, errors: Mapping[str, Floats]) -> pa.Array:
        """Return the bound of each row: as for its window, with what sampling adds to it.

        A column that is computed from several sampled ones has no bound.
        """
        n = revision.rows.num_rows
        worst = np.max([*errors.values()], axis=0) if errors else np.zeros(n)
        computed = np.where(worst > 0.0, np.inf, 0.0)
        sources = dict(self.sources)
        columns = {}
        for column, own in self.own:
            added = errors.get(sources.get(column, ""), computed) + self._late_error_of_rows(column, revision)
            unknown = ~np.isfinite(added) | (own is None or bool(revision.missing_sites))
            columns[column] = pa.array(np.where(unknown, 0.0, added + (own or 0.0)), mask=unknown)
        return struct_of(columns, n)

    def window_bound(self, revisions: Sequence[Publish]) -> pa.Array:
        """Return the error of each column over all rows of a window: of its sketch, and of what is not in yet."""
        columns = {column: [self._error(column, own, r) for r in revisions] for column, own in self.own}
        return struct_of({c: pa.array(errors, pa.float64()) for c, errors in columns.items()}, len(revisions))

    def row_coverage(self, revision: Publish) -> pa.Array:
        """Return the window's coverage; row by row where the key is the source and no site is missing."""
        if self.source_key is None or not revision.sources or revision.missing_sites:
            return pa.array([revision.coverage] * revision.rows.num_rows, pa.float64())
        missing: dict[str, float] = {}
        for _, source, share in revision.sources:
            missing[source] = max(missing.get(source, 0.0), share)
        keys = revision.rows[self.source_key].cast(pa.string()).to_pylist()
        return pa.array([1.0 - missing.get(str(k), 0.0) for k in keys], pa.float64())

    def _lowest_rates(self, revision: Publish) -> float | Floats:
        """Return the lowest rate at which the records of each row were sampled: by group, where rates were."""
        if revision.group_rates is None:
            return revision.lowest_rate
        others, named = revision.group_rates
        groups = partials.one_array(revision.rows[self.fragment.key_names[0]]).cast(pa.string())
        indices = pc.index_in(groups, value_set=pa.array([group for group, _ in named], pa.string()))
        rates = np.array([*(rate for _, rate in named), others])
        return np.asarray(rates[np.asarray(indices.fill_null(len(named)))])

    def _error(self, column: str, own: float | None, revision: Publish) -> float | None:
        """Return the error of the sketch and of late records; None while a site or shed records are missing."""
        if revision.missing_sites or own is None or revision.lowest_rate < 1.0:
            return None
        late = self._late_error(column, revision)
        return None if late is None else own + late

    def _late_error(self, column: str, revision: Publish) -> float | None:
        """Return what the records that are not in yet may change of a column; None where that is not known."""
        if not revision.errors:
            return None if revision.status == EARLY else 0.0
        return dict(revision.errors).get(dict(self.sources).get(column, ""))

    def _late_error_of_rows(self, column: str, revision: Publish) -> Floats:
        """Return the same row by row, infinite where it is not known: in a query with keys only of whole rows."""
        n = revision.rows.num_rows
        if self.fragment.keys and revision.errors:
            whole = self.row_coverage(revision).to_numpy() == 1.0 if self.source_key else np.zeros(n, dtype=bool)
            return np.where(whole, 0.0, np.inf)
        late = self._late_error(column, revision)
        return np.full(n, np.inf if late is None else late)
