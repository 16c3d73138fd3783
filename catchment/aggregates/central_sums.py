"""Sums of powers and of products of distances from the mean, by group, and their merges.

With d the distance of the mean of a part from the mean of all parts, the central sums of the whole are

    m2 = sum of (m2 + n d^2)
    m3 = sum of (m3 + 3 d m2 + n d^3)
    m4 = sum of (m4 + 4 d m3 + 6 d^2 m2 + n d^4)
    c  = sum of (c + n dx dy)

over the parts (Pebay, "Formulas for Robust, One-Pass Parallel Computation of Covariances and Arbitrary-Order
Statistical Moments", Sandia 2008). No powers of large numbers are ever subtracted from each other. Sums around a mean
that is not finite are NaN.
"""

from __future__ import annotations

import numpy as np

from catchment.aggregates.base import Groups
from catchment.arrays import Floats


def add_by_group(numbers: Floats, groups: Groups, size: int) -> Floats:
    """Return the sum of each group."""
    return np.asarray(np.bincount(groups, weights=numbers, minlength=size), dtype=np.float64)


def means(numbers: Floats, weights: Floats, groups: Groups, size: int) -> Floats:
    """Return the weighted mean of each group, 0 where it is empty.

    It is taken twice, the second time over the distances from the first, which removes the error of the first sum.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        total = add_by_group(weights, groups, size)
        divisor = np.where(total == 0, 1.0, total)
        rough = add_by_group(weights * numbers, groups, size) / divisor
        off = add_by_group(weights * (numbers - rough[groups]), groups, size) / divisor
    return np.where(np.isfinite(rough), rough + off, rough)


def unless_infinite(sums: Floats, *centres: Floats) -> Floats:
    """Return central sums, NaN where a mean is not finite."""
    finite = np.all([np.isfinite(centre) for centre in centres], axis=0)
    return np.where(finite, sums, np.nan)


def fold_sql(parts: str, centres: dict[str, str], term: str) -> str:
    """Return the Spark SQL of the sum of a term over parts `b`, with the means of the whole as fields of `a`.

    `parts` is the struct of one part; `centres` are aggregates by the names of their fields.
    """
    fields = "".join(f"'{name}', {sql}, " for name, sql in centres.items())
    kept = "".join(f"'{name}', a.{name}, " for name in centres)
    return (
        f"aggregate(collect_list({parts}), named_struct({fields}'total', 0D), "
        f"(a, b) -> named_struct({kept}'total', a.total + {term}), a -> a.total)"
    )


def mean_sql(n: str, mean: str) -> str:
    """Return the Spark SQL of the mean of parts, 0 for none."""
    return f"coalesce(sum({n} * {mean}) / nullif(sum({n}), 0L), 0D)"
