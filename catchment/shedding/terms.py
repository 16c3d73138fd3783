"""What travels with a partial so that load can be shed, bounded and repaired by adding alone.

The state of an aggregate is that of the sampled records, unscaled. Beside it travel sums over the records that were
sampled at a rate p below 1: how many there are (`kept`), what scaling adds to the state (1/p - 1 of each), and the
terms of the bound (see `catchment.quality.tails`). All are sums, so partials of any sites, rates and times merge as
partials always do, and ten sites that shed differently have one bound.

The repair of a batch sends the records that were left out, and the same sums with the other sign. `kept` is an integer
and so returns to exactly 0: where it is 0 the sums are ignored, and the answer is that of the state alone, free of
their rounding errors.

Where a record becomes several rows they are in a sample together, and everything above is about record totals: what a
record has in a group is one value, and the terms are made of the squares of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catchment.aggregates import Aggregate
from catchment.aggregates.grouped import floats_of
from catchment.aggregates.partials import one_array
from catchment.aggregates.shed_terms import RecordTotals, ShedTerms, shed_terms, terms_in
from catchment.arrays import Floats
from catchment.quality.laws import BoundLaw
from catchment.quality.published import BoundTerms
from catchment.quality.tails import subgaussian_factor, variance_factor


def add_terms(partials: pa.Table, aggregates: Sequence[Aggregate], records: pa.Array, rate: float | Floats) -> pa.Table:
    """Return partials of records that passed at a rate, with the terms that must travel with them.

    There is one rate for all rows or one per row. Below a rate of 1, `partials` has the states of the terms' `moments`;
    `records` counts the raw records of each row.
    """
    for terms in terms_in(aggregates):
        if not isinstance(rate, float) or rate < 1.0:
            kept = np.where(np.asarray(rate) < 1.0, np.asarray(one_array(records)), 0).astype(np.int64)
            columns = [pa.array(kept), *map(pa.array, _sums(partials, terms, rate))]
        else:
            columns = terms.lift(None, np.zeros(0, dtype=np.intp), partials.num_rows)
        for state, column in zip(terms.states, columns, strict=True):
            partials = partials.append_column(pa.field(state.name, state.type), column)
    return partials


def negate_terms(partials: pa.Table, aggregates: Sequence[Aggregate]) -> pa.Table:
    """Return what cancels the terms of sampled partials: states of no record, and every term negated."""
    none = np.zeros(0, dtype=np.intp)
    for aggregate in aggregates:
        if isinstance(aggregate, ShedTerms):
            columns = [pa.array(-np.asarray(one_array(partials[s.name]))) for s in aggregate.states]
        else:
            empty = None if aggregate.argument is None else pa.array([], aggregate.argument_type)
            columns = aggregate.lift(empty, none, partials.num_rows)
        for state, column in zip(aggregate.states, columns, strict=True):
            place = partials.column_names.index(state.name)
            partials = partials.set_column(place, partials.schema.field(place), column.cast(state.type))
    return partials


def scale_answers(
    partials: pa.Table,
    aggregate: Aggregate,
    delta: float,
    lowest_rate: float | Floats,
    terms: ShedTerms | None = None,
) -> tuple[pa.Array, Floats]:
    """Return the value of each row, scaled where its records were sampled, and its relative error at 1 - delta.

    An error is infinite where there is no bound. `lowest_rate` is the lowest rate at which any site sampled the window,
    or each row of it: a row that lost all its records at a site does not show that.
    """
    terms = terms or shed_terms(aggregate)
    values, sampled = scale_values(partials, aggregate, lowest_rate, terms)
    made = BoundTerms(law_of_sample(terms), _doubles(values), np.zeros(len(values)), sampled=sampled)
    return values, made.errors(delta)


def law_of_sample(terms: ShedTerms) -> BoundLaw:
    """Return the law that bounds a sampled aggregate: how many rows a record has is a value, as that of a sum is."""
    if not terms.bounded:
        return BoundLaw.UNBOUNDED
    return BoundLaw.SUM if terms.clustered and terms.of == "count" else BoundLaw(terms.of)


def scale_values(
    partials: pa.Table, aggregate: Aggregate, lowest_rate: float | Floats, terms: ShedTerms
) -> tuple[pa.Array, Floats]:
    """Return the value of each row, scaled where its records were sampled, and the terms of its bound.

    The terms are those of `catchment.quality.sample_bounds.sample_widths`; they are NaN for rows that lost no record,
    and infinite for rows of which nothing can be said.
    """
    states = [one_array(partials[s.name]) for s in aggregate.states]
    plain = aggregate.lower(states)
    # It is negative where the repair is in and what it repairs is still on its way.
    kept = np.asarray(one_array(partials[terms.states[0].name])) > 0
    lowest = np.broadcast_to(np.asarray(lowest_rate, float), len(kept))
    touched = kept | (lowest < 1.0)
    if not terms.bounded:
        return plain, np.where(touched, np.inf, np.nan)[:, np.newaxis]
    sums = [np.where(kept, floats_of(one_array(partials[s.name])), 0.0) for s in terms.sums]
    values, found = _scale(aggregate, states, sums, lowest)
    if law_of_sample(terms) is not BoundLaw.COUNT:
        found[touched & ~kept] = np.inf  # no sampled record shows what the lost ones may have been worth
    found[~touched] = np.nan
    return _to_answer_type(values, plain, kept), found


def _sums(partials: pa.Table, terms: ShedTerms, rate: float | Floats) -> list[Floats]:
    moments = terms.moments
    more = 1.0 / rate - 1.0
    g = subgaussian_factor(rate) / rate
    if terms.totals is not None:
        _, c, x, cc, cx, xx = _totals(partials, terms.totals)
        return [more * c, g * cc] if terms.of == "count" else [more * c, more * x, g * cc, g * cx, g * xx]
    if moments is None:
        return []
    v = variance_factor(rate) / rate
    states = [floats_of(one_array(partials[s.name])) for s in moments.states]
    if terms.of == "count":
        (n,) = states
        return [more * n, g * n, v * n]
    n, mean, m2 = states
    total = n * mean
    return [more * n, more * total, g * n, g * total, g * (m2 + total * mean)]


def _totals(partials: pa.Table, totals: RecordTotals) -> list[Floats]:
    return [floats_of(one_array(partials[column])) for column in totals.columns]


def record_moments(partials: pa.Table, terms: ShedTerms) -> list[Floats]:
    """Return number, mean and sum of squared deviations of what a record adds to an answer, from record totals.

    That is its rows for a COUNT and its sum for a SUM. An AVG m is off by what x - m c sums up to, relative to the x.
    """
    assert terms.totals is not None
    n, c, x, cc, cx, xx = _totals(partials, terms.totals)
    total, squares = (c, cc) if terms.of == "count" else (x, xx)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0.0, total / n, 0.0)
        ratio = np.where(c > 0.0, x / c, 0.0)
    around = xx - 2.0 * ratio * cx + ratio**2 * cc if terms.of == "avg" else squares - total * mean
    return [n, mean, np.maximum(around, 0.0)]


def _scale(
    aggregate: Aggregate, states: Sequence[pa.Array], sums: Sequence[Floats], lowest: Floats
) -> tuple[Floats, Floats]:
    """Return values and the terms of their bounds."""
    if aggregate.function == "count":
        more, g, *v = (np.maximum(s, 0.0) for s in sums)
        return floats_of(states[0]) + more, np.column_stack([g, *v, lowest] if v else [g])
    more, more_x, g, g_x, g_xx = sums
    g = np.maximum(g, 0.0)  # a repair may leave rounding errors
    g_xx = np.maximum(g_xx, 0.0)
    if aggregate.function == "sum":
        squares = np.where(np.isnan(g_xx), np.inf, g_xx)
        return _doubles(aggregate.lower(states)) + more_x, squares[:, np.newaxis]
    count = floats_of(states[-1])
    size = count + more
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (np.where(count > 0, _doubles(aggregate.lower(states)) * count, 0.0) + more_x) / size
        around = np.maximum(g_xx - 2 * mean * g_x + mean**2 * g, 0.0)
        found = np.column_stack([around, g_x - mean * g, g, size])
    found[~np.isfinite(found).all(axis=1)] = np.inf  # sums that do not fit tell nothing; NaN would say that all is in
    return mean, found


def _doubles(values: pa.Array) -> Floats:
    return np.nan_to_num(floats_of(values.cast(pa.float64(), safe=False)), nan=0.0)


def _to_answer_type(values: Floats, plain: pa.Array, kept: NDArray[np.bool_]) -> pa.Array:
    """Return the scaled values in the type of the answer; rows of which nothing was sampled keep their own."""
    if pa.types.is_integer(plain.type):
        found = pa.array(np.rint(np.nan_to_num(values)).astype(np.int64)).cast(plain.type)
    elif pa.types.is_decimal(plain.type):
        found = pc.round(pa.array(values), plain.type.scale).cast(plain.type, safe=False)
    else:
        found = pa.array(values).cast(plain.type)
    return pc.if_else(pa.array(kept & ~np.asarray(plain.is_null())), found, plain)
