"""Variance and standard deviation, and the first five raw moments.

A spread is carried as (n, mean, m2), m2 being the sum of the squared distances from the mean, and merged by
the rule of Chan, Golub and LeVeque: no squares of large numbers are ever subtracted from each other, so a
spread of 1 around a mean of 1e9 keeps its digits. Raw moments are sums of powers over the count, each power
in a total of doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.grouped import count_rows, floats_of, nullable, sum_integers, valid_rows
from catchment.aggregates.totals import DoubleTotal, check_number
from catchment.arrays import Floats, Ints
from catchment.storage.codec import stored

MOMENTS = 5  # how many raw moments there are


@stored()
@dataclass(frozen=True)
class Spread(Aggregate):
    """The variance or standard deviation; null for no values, and for a single one where a sample needs two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (
            self.column("n", pa.int64()),
            self.column("mean", pa.float64()),
            self.column("m2", pa.float64()),
        )

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def lift_sql(self) -> tuple[str, ...]:
        x = f"CAST(({self.argument}) AS DOUBLE)"
        return (f"count({x})", f"coalesce(avg({x}), 0D)", f"coalesce(var_pop({x}) * count({x}), 0D)")

    def merge_sql(self) -> tuple[str, ...]:
        n, mean, m2 = (state.sql for state in self.states)
        weight = f"sum({n})"
        return (
            f"coalesce({weight}, 0L)",
            f"coalesce(sum({n} * {mean}) / nullif({weight}, 0L), 0D)",
            f"aggregate(collect_list(named_struct('n', CAST({n} AS DOUBLE), 'mean', {mean}, 'm2', {m2})), "
            f"named_struct('n', 0D, 'mean', 0D, 'm2', 0D), (a, b) -> {_CHAN_SQL}, a -> a.m2)",
        )

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        count = count_rows(values, groups, size)
        numbers = floats_of(values)
        if values.null_count:
            valid = valid_rows(values)
            numbers, groups = numbers[valid], groups[valid]
        mean, m2 = _spreads_of(numbers, groups, count)
        return [pa.array(count), pa.array(mean), pa.array(m2)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        n, mean, m2 = (floats_of(state) for state in states)
        _, mean, m2 = merge_spreads(n, mean, m2, groups, size)
        return [sum_integers(states[0], groups, size).fill_null(0), pa.array(mean), pa.array(m2)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        n, m2 = floats_of(states[0]), floats_of(states[2])
        freedom = n - 1 if self.function.endswith("_samp") else n
        missing = freedom <= 0
        variance = m2 / np.where(missing, 1.0, freedom)
        return nullable(np.sqrt(variance) if self.function.startswith("stddev") else variance, missing)


_CHAN_SQL = (
    "CASE WHEN coalesce(b.n, 0D) = 0D THEN a WHEN a.n = 0D THEN b ELSE named_struct("
    "'n', a.n + b.n, "
    "'mean', a.mean + (b.mean - a.mean) * (b.n / (a.n + b.n)), "
    "'m2', a.m2 + b.m2 + (b.mean - a.mean) * (b.mean - a.mean) * (a.n * (b.n / (a.n + b.n)))) END"
)


def _spreads_of(numbers: Floats, groups: Groups, count: Ints) -> tuple[Floats, Floats]:
    """Return mean and m2 of each group of numbers.

    The mean is taken twice, as in `merge_spreads`; the error of the first mean is taken out of m2.
    """

    def add(weights: Floats) -> Floats:
        return np.asarray(np.bincount(groups, weights=weights, minlength=len(count)), dtype=np.float64)

    divisor = np.maximum(count, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        rough = add(numbers) / divisor
        distance = numbers - rough[groups]
        off = add(distance) / divisor
        m2 = np.maximum(add(distance * distance) - divisor * off * off, 0.0)
    finite = np.isfinite(rough)
    return np.where(finite, rough + off, rough), np.where(finite, m2, np.nan)


def merge_spreads(n: Floats, mean: Floats, m2: Floats, groups: Groups, size: int) -> tuple[Floats, Floats, Floats]:
    """Merge n, mean and m2 by group, by Chan's rule: m2 = sum of m2_i + sum of n_i (mean_i - mean)^2.

    The mean is taken twice, the second time over the distances from the first, which removes the rounding error of the
    first sum. A group of one part keeps its mean and m2 as they are. The spread around an infinite mean is unknown: m2
    is NaN, as in Spark.
    """

    def add(weights: Floats) -> Floats:
        return np.asarray(np.bincount(groups, weights=weights, minlength=size), dtype=np.float64)

    with np.errstate(invalid="ignore", over="ignore"):
        total = add(n)
        count = np.where(total == 0, 1.0, total)
        centre = add(n * mean) / count
        centre = centre + add(n * (mean - centre[groups])) / count
        distance = mean - centre[groups]
        spread = add(m2) + add(n * distance * distance)
    alone = (np.bincount(groups, minlength=size) == 1)[groups]
    centre[groups[alone]] = mean[alone]
    spread[groups[alone]] = m2[alone]
    return total, centre, np.where(np.isfinite(centre), spread, np.nan)


@stored()
@dataclass(frozen=True)
class RawMoments(Aggregate):
    """The raw moments E[x], E[x^2], ..., E[x^5], as a list of doubles; null for no values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)

    @cached_property
    def powers(self) -> tuple[DoubleTotal, ...]:
        return tuple(DoubleTotal(f"{self.name}__p{k}") for k in range(1, MOMENTS + 1))

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column("count", pa.int64()), *(s for power in self.powers for s in power.states))

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.float64())

    def lift_sql(self) -> tuple[str, ...]:
        x = f"CAST(({self.argument}) AS DOUBLE)"
        products = (f"({' * '.join([x] * k)})" for k in range(1, MOMENTS + 1))
        sums = (sql for power, product in zip(self.powers, products, strict=True) for sql in power.lift_sql(product))
        return (f"count({x})", *sums)

    def merge_sql(self) -> tuple[str, ...]:
        sums = (sql for power in self.powers for sql in power.merge_sql())
        return (f"coalesce(sum({self.states[0].sql}), 0L)", *sums)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        x = floats_of(values)
        missing = ~valid_rows(values)
        product = np.ones(len(x))
        lifted = [pa.array(count_rows(values, groups, size))]
        for power in self.powers:
            with np.errstate(over="ignore", invalid="ignore"):
                product = product * x
            lifted += power.lift(nullable(product, missing), groups, size)
        return lifted

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        combined = [sum_integers(states[0], groups, size).fill_null(0)]
        for k, power in enumerate(self.powers):
            combined += power.combine(states[1 + 2 * k : 3 + 2 * k], groups, size)
        return combined

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        n = floats_of(states[0])
        sums = [power.lower(states[1 + 2 * k : 3 + 2 * k]) for k, power in enumerate(self.powers)]
        means = np.stack([floats_of(s) for s in sums]) / np.where(n == 0, 1.0, n)
        present = n > 0
        offsets = np.r_[0, np.cumsum(np.where(present, MOMENTS, 0))].astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(means.T[present].ravel()), mask=pa.array(~present))
        return lists.cast(self.result_type)
