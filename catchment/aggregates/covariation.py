"""Covariance, correlation and linear regression of pairs (x, y): central sums of both and of their product.

The argument is one struct of both numbers, STRUCT(x, y); a record counts where neither is null. Covariances need no
sums of squares, and carry none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate, Groups, StateColumn, fields_of
from catchment.aggregates.central_sums import add_by_group, fold_sql, mean_sql, means, unless_infinite
from catchment.aggregates.grouped import floats_of, nullable, sum_integers, valid_rows
from catchment.aggregates.totals import is_number
from catchment.arrays import Floats, Mask
from catchment.errors import AggregateError
from catchment.storage.codec import stored

X, Y = "x", "y"
COVARIANCES = ("covar_pop", "covar_samp")
# What a part adds to each central sum of the whole: the factors of n, as distances of its means.
_DISTANCES = {"c": (X, Y), "m2x": (X, X), "m2y": (Y, Y)}


@stored()
@dataclass(frozen=True)
class Covariation(Aggregate):
    """A measure of how y goes with x; null where it is not defined, as for no pairs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = fields_of(self.argument_type)
        if set(fields) != {X, Y} or not all(map(is_number, fields.values())):
            raise AggregateError(
                f"{self.function} needs two numbers, and was given {', '.join(map(str, fields.values()))}",
                where=self.name,
                hint=f"convert them: {self.function}(CAST(... AS DOUBLE), CAST(... AS DOUBLE))",
            )

    @property
    def sums(self) -> tuple[str, ...]:
        """The central sums that it needs."""
        return ("c",) if self.function in COVARIANCES else ("c", "m2x", "m2y")

    @property
    def states(self) -> tuple[StateColumn, ...]:
        doubles = (self.column(name, pa.float64()) for name in ("mean_x", "mean_y", *self.sums))
        return (self.column("n", pa.int64()), *doubles)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64() if self.function == "regr_count" else pa.float64()

    def lift_sql(self) -> tuple[str, ...]:
        given = {f: f"CAST(({self.argument}).{f} AS DOUBLE)" for f in (X, Y)}
        x, y = (f"IF(isnull({given[Y if f == X else X]}), NULL, {given[f]})" for f in (X, Y))
        n = f"count({x})"
        sums = {"c": f"covar_pop({x}, {y})", "m2x": f"var_pop({x})", "m2y": f"var_pop({y})"}
        lifted = (f"coalesce({sums[s]} * {n}, 0D)" for s in self.sums)
        return (n, f"coalesce(avg({x}), 0D)", f"coalesce(avg({y}), 0D)", *lifted)

    def merge_sql(self) -> tuple[str, ...]:
        n, mean_x, mean_y, *sums = (state.sql for state in self.states)
        named = ", ".join(f"'{name}', {sql}" for name, sql in zip(self.sums, sums, strict=True))
        part = f"named_struct('n', CAST({n} AS DOUBLE), '{X}', {mean_x}, '{Y}', {mean_y}, {named})"
        centres = {X: mean_sql(n, mean_x), Y: mean_sql(n, mean_y)}
        folded = []
        for name in self.sums:
            distances = " * ".join(f"(b.{f} - a.{f})" for f in _DISTANCES[name])
            folded.append(fold_sql(part, centres, f"(b.{name} + b.n * {distances})"))
        return (f"coalesce(sum({n}), 0L)", *centres.values(), *folded)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        fields = {f: pc.struct_field(values, f) for f in (X, Y)}
        valid = valid_rows(fields[X]) & valid_rows(fields[Y])
        numbers = {f: floats_of(column)[valid] for f, column in fields.items()}
        groups = groups[valid]
        ones = np.ones(len(groups))
        centres = {f: means(numbers[f], ones, groups, size) for f in (X, Y)}
        none = dict.fromkeys(self.sums, np.zeros(len(groups)))
        sums = self._add(ones, numbers, none, centres, groups, size)
        count = pa.array(np.bincount(groups, minlength=size).astype(np.int64))
        return [count, *map(pa.array, centres.values()), *map(pa.array, sums)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        n, mean_x, mean_y, *parts = (floats_of(state) for state in states)
        mean = {X: mean_x, Y: mean_y}
        centres = {f: means(mean[f], n, groups, size) for f in (X, Y)}
        sums = self._add(n, mean, dict(zip(self.sums, parts, strict=True)), centres, groups, size)
        count = sum_integers(states[0], groups, size).fill_null(0)
        return [count, *map(pa.array, centres.values()), *map(pa.array, sums)]

    def _add(
        self,
        n: Floats,
        mean: dict[str, Floats],
        sums: dict[str, Floats],
        centres: dict[str, Floats],
        groups: Groups,
        size: int,
    ) -> list[Floats]:
        """Return the central sums of each group, of parts with these sizes, means and central sums."""
        with np.errstate(invalid="ignore", over="ignore"):
            d = {f: mean[f] - centres[f][groups] for f in (X, Y)}
            terms = [sums[name] + n * d[a] * d[b] for name, (a, b) in _DISTANCES.items() if name in sums]
        used = ([centres[f] for f in set(pair)] for name, pair in _DISTANCES.items() if name in sums)
        return [unless_infinite(add_by_group(t, groups, size), *around) for t, around in zip(terms, used, strict=True)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        if self.function == "regr_count":
            return states[0]
        n, mean_x, mean_y, *sums = (floats_of(state) for state in states)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            values, defined = self._measure(n, mean_x, mean_y, *sums)
        return nullable(values, ~(defined & (n > 0)))

    def _measure(
        self, n: Floats, mean_x: Floats, mean_y: Floats, c: Floats, m2x: Floats | None = None, m2y: Floats | None = None
    ) -> tuple[Floats, Mask]:
        """Return the values, and where they are defined."""
        always = np.ones(len(n), dtype=np.bool_)
        if m2x is None or m2y is None:
            freedom = n - 1 if self.function == "covar_samp" else n
            return c / np.where(freedom <= 0, 1.0, freedom), freedom > 0
        slope = c / m2x
        measures: dict[str, tuple[Floats, Mask]] = {
            "corr": (c / np.sqrt(m2x * m2y), (m2x != 0) & (m2y != 0)),
            "regr_avgx": (mean_x, always),
            "regr_avgy": (mean_y, always),
            "regr_sxx": (m2x, always),
            "regr_syy": (m2y, always),
            "regr_sxy": (c, always),
            "regr_slope": (slope, m2x != 0),
            "regr_intercept": (mean_y - slope * mean_x, m2x != 0),
            "regr_r2": (np.where(m2y == 0, 1.0, c * c / (m2x * m2y)), m2x != 0),
        }
        return measures[self.function]
