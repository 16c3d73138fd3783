"""Skewness and kurtosis, from the central sums m2, m3 and m4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.central_sums import add_by_group, fold_sql, mean_sql, means, unless_infinite
from catchment.aggregates.grouped import floats_of, nullable, sum_integers, valid_rows
from catchment.aggregates.totals import check_number
from catchment.arrays import Floats
from catchment.storage.codec import stored

_SUMS = ("m2", "m3", "m4")
# What a part adds to each central sum of the whole, in Spark SQL; d is the distance of its mean from that of the whole.
_D = "(b.mean - a.mean)"
_TERMS_SQL = {
    "m2": f"b.m2 + b.n * {_D} * {_D}",
    "m3": f"b.m3 + 3D * {_D} * b.m2 + b.n * {_D} * {_D} * {_D}",
    "m4": f"b.m4 + 4D * {_D} * b.m3 + 6D * {_D} * {_D} * b.m2 + b.n * {_D} * {_D} * {_D} * {_D}",
}


@stored()
@dataclass(frozen=True)
class Shape(Aggregate):
    """The skewness or the excess kurtosis of a population; null for no values, and where all are equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)

    @property
    def sums(self) -> tuple[str, ...]:
        """The central sums that it needs."""
        return _SUMS if self.function == "kurtosis" else _SUMS[:2]

    @property
    def states(self) -> tuple[StateColumn, ...]:
        doubles = (self.column(name, pa.float64()) for name in ("mean", *self.sums))
        return (self.column("n", pa.int64()), *doubles)

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def lift_sql(self) -> tuple[str, ...]:
        x = f"CAST(({self.argument}) AS DOUBLE)"
        n = f"CAST(count({x}) AS DOUBLE)"
        m2 = f"(var_pop({x}) * {n})"
        sums = {
            "m2": m2,
            "m3": f"IF({m2} = 0D, 0D, skewness({x}) * {m2} * sqrt({m2} / {n}))",
            "m4": f"IF({m2} = 0D, 0D, (kurtosis({x}) + 3D) * {m2} * ({m2} / {n}))",
        }
        return (f"count({x})", f"coalesce(avg({x}), 0D)", *(f"coalesce({sums[s]}, 0D)" for s in self.sums))

    def merge_sql(self) -> tuple[str, ...]:
        n, mean, *sums = (state.sql for state in self.states)
        named = ", ".join(f"'{name}', {sql}" for name, sql in zip(self.sums, sums, strict=True))
        part = f"named_struct('n', CAST({n} AS DOUBLE), 'mean', {mean}, {named})"
        centre = {"mean": mean_sql(n, mean)}
        folded = (fold_sql(part, centre, f"({_TERMS_SQL[s]})") for s in self.sums)
        return (f"coalesce(sum({n}), 0L)", centre["mean"], *folded)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        valid = valid_rows(values)
        numbers, groups = floats_of(values)[valid], groups[valid]
        mean = means(numbers, np.ones(len(numbers)), groups, size)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = numbers - mean[groups]
            sums = [add_by_group(distance**power, groups, size) for power in range(2, 2 + len(self.sums))]
        count = pa.array(np.bincount(groups, minlength=size).astype(np.int64))
        return [count, pa.array(mean), *(pa.array(unless_infinite(s, mean)) for s in sums)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        n, mean, *sums = (floats_of(state) for state in states)
        centre = means(mean, n, groups, size)
        with np.errstate(invalid="ignore", over="ignore"):
            d = mean - centre[groups]
            terms = _terms(n, d, sums)
        merged = [unless_infinite(add_by_group(t, groups, size), centre) for t in terms]
        return [sum_integers(states[0], groups, size).fill_null(0), pa.array(centre), *map(pa.array, merged)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        n, _, m2, *higher = (floats_of(state) for state in states)
        missing = (n == 0) | (m2 == 0)
        spread = np.where(missing, 1.0, m2)
        if self.function == "kurtosis":
            return nullable(n * higher[1] / (spread * spread) - 3.0, missing)
        return nullable(np.sqrt(n) * higher[0] / (spread * np.sqrt(spread)), missing)


def _terms(n: Floats, d: Floats, sums: Sequence[Floats]) -> list[Floats]:
    """Return what each part adds to the central sums of the whole."""
    m2, m3, *rest = sums
    terms = [m2 + n * d**2, m3 + 3 * d * m2 + n * d**3]
    return [*terms, *(m4 + 4 * d * m3 + 6 * d**2 * m2 + n * d**4 for m4 in rest)]
