"""What travels with a partial that was made under sampling, and how the center turns it into an answer.

Nothing is added to a partial's states but what a bound needs, and nothing at all where nothing is shed:

- **`shed_rate`**, a key column (DOUBLE): the rate that the partial's records had. Partials merge where
  all keys agree, so those of one rate merge as ever (site cache, wire and center need no new rule), and
  those of different rates stay apart until they are lowered here. Integers stay integers, sketches stay
  sketches: states are of the kept records, unscaled. Stratified rates, and a rate of 1 for large values,
  are just more rates.
- **a spread beside each SUM and AVG** (`companion`): n, mean, m2 of the same argument, the state of a
  variance. A COUNT and a variance have what they need in their own state.
- the lowest rate of the slice, a site at a time: a group that lost every record has no row to say so.

Sketches cannot be scaled: a union of samples is not a sample of one rate. Their rates are kept apart by
the same key; minima, maxima and distinct counts are lowered from all of them together, and only ranks are
bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.partials import group_codes, one_array
from catchment.errors import QualityError
from catchment.quality.combine import Answers, Kept, combine_many
from catchment.quality.tails import Floats

SHED_RATE = "shed_rate"
_SPREAD = "shed"
_COUNTED = ("count",)
_WITH_COMPANION = ("sum", "avg")
_SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")


def companion(aggregate: Aggregate) -> Aggregate | None:
    """The spread that must be carried beside an aggregate so that its scaled value has a bound; None if
    none must."""
    if aggregate.function not in _WITH_COMPANION:
        return None
    name = f"{aggregate.name}__{_SPREAD}"
    return make_aggregate("var_pop", aggregate.argument, aggregate.argument_type, name=name)


def companions(aggregates: Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    """The spreads that a fragment's aggregates need beside them."""
    return tuple(spread for spread in map(companion, aggregates) if spread is not None)


def scaled_answers(
    partials: pa.Table,
    keys: Sequence[str],
    aggregate: Aggregate,
    delta: float,
    value_range: tuple[float, float] | None = None,
    lowest_rate: float = 1.0,
) -> tuple[pa.Table, Answers]:
    """The groups of `partials` (keys but for the rate), and the scaled value of each with its bound.

    `partials` has the columns `keys`, `shed_rate` and the states of the aggregate and its companion.
    """
    if aggregate.function not in (*_COUNTED, *_WITH_COMPANION, *_SPREADS):
        raise QualityError(
            f"{aggregate.function} cannot be scaled from a sample",
            where=aggregate.name,
            hint="its sketch is lowered as it is, and `combine` bounds its rank where it has one",
        )
    groups, distinct = group_codes(partials, keys)
    rates = _doubles(partials, SHED_RATE)
    kept = Kept(groups, rates, *_moments(partials, aggregate), len(distinct), lowest_rate)
    answers = combine_many(aggregate.function, kept, delta, value_range)
    return distinct, _as_declared(answers, kept, partials, aggregate)


def _moments(partials: pa.Table, aggregate: Aggregate) -> tuple[Floats, Floats, Floats]:
    """n, mean and m2 of the kept records of each row."""
    if aggregate.function in _COUNTED:
        counts = _doubles(partials, aggregate.states[0].name)
        return counts, np.ones_like(counts), np.zeros_like(counts)
    spread = companion(aggregate) or aggregate
    n, mean, m2 = (_doubles(partials, state.name) for state in spread.states)
    return n, mean, m2


def _as_declared(answers: Answers, kept: Kept, partials: pa.Table, aggregate: Aggregate) -> Answers:
    """A sum's value from its own, compensated state; a sample variance from the population's."""
    if aggregate.function == "sum":
        own = aggregate.lower([one_array(partials[state.name]) for state in aggregate.states])
        totals = np.asarray(own.cast(pa.float64(), safe=False).fill_null(0.0))
        return replace(answers, values=kept.add(totals / kept.rates))
    if not aggregate.function.endswith("_samp"):
        return answers
    size = kept.add(kept.counts / kept.rates)
    factor = np.where(size > 1.0, size / np.maximum(size - 1.0, 1e-300), np.nan)
    factor = np.sqrt(factor) if aggregate.function.startswith("stddev") else factor
    return replace(answers, values=answers.values * factor, half_widths=answers.half_widths * factor)


def _doubles(partials: pa.Table, column: str) -> Floats:
    return np.asarray(one_array(partials[column]).cast(pa.float64(), safe=False).fill_null(0.0), dtype=np.float64)
