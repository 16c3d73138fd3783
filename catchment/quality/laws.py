"""Which law bounds the error of an aggregate, and the errors of sketches at any confidence.

The libraries state the errors of their sketches at one confidence:

- Distinct counts (HLL): the library states bounds at 1, 2 and 3 standard deviations. The estimate is close to normal,
  so `standard_error` is the largest of these bounds per deviation, and the error at delta that many times the normal
  quantile. An estimate.
- Distinct counts from the least hashes: exact up to their bound, beyond it close to normal with the stated deviation.
- Medians and percentiles: exact up to their bound, beyond it those of a KLL sketch.
- Quantiles (KLL): the library states the error of rank at 99%, measured. The error is sub-Gaussian (Karnin, Lang and
  Liberty, FOCS'16: a sum of independent, bounded and centred compaction errors), so at delta it is that times
  sqrt(ln(2 / delta) / ln(2 / 0.01)). An estimate, because the constant is measured.
- Frequent items: the library's error is a maximum, at any confidence. Proved.
"""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import NormalDist

from catchment.aggregates import Aggregate
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.quantiles import ApproxPercentile


class BoundLaw(StrEnum):
    """How the errors of a column are composed."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    DISTINCT = "distinct"
    QUANTILE = "quantile"
    EXTREME = "extreme"
    TOP = "top"
    TWO_SIDED = "two_sided"  # a count or a sum that late records may raise and lower, as in an outer join
    UNBOUNDED = "unbounded"  # exact when everything is in, else unknown


_LAW_OF_FUNCTION = {
    "count": BoundLaw.COUNT,
    "sum": BoundLaw.SUM,
    "avg": BoundLaw.AVG,
    "min": BoundLaw.EXTREME,
    "max": BoundLaw.EXTREME,
    "approx_count_distinct": BoundLaw.DISTINCT,
    "count_distinct": BoundLaw.DISTINCT,
    "percentile_approx": BoundLaw.QUANTILE,
    "percentile": BoundLaw.QUANTILE,
    "median": BoundLaw.QUANTILE,
    "approx_top_k": BoundLaw.TOP,
}
RANK_DELTA = 0.01  # the chance at which the library states the error of rank


def distinct_error(standard_error: float, delta: float) -> float:
    """Return the relative error of a distinct count of this standard error, exceeded with chance about delta."""
    if not standard_error:
        return 0.0
    return standard_error * NormalDist().inv_cdf(1.0 - delta / 2.0)


def rank_error(stated: float, delta: float) -> float:
    """Return the error of rank of a quantile, exceeded with chance about delta; `stated` is that at 99%."""
    return stated * math.sqrt(math.log(2.0 / delta) / math.log(2.0 / RANK_DELTA)) if stated else 0.0


def law_of(aggregate: Aggregate) -> BoundLaw:
    """Return the law that bounds the error of an aggregate."""
    return _LAW_OF_FUNCTION.get(aggregate.function, BoundLaw.UNBOUNDED)


def rank_factor(aggregate: Aggregate) -> float:
    """Return the most that a missing share can move the rank of an answer, as a multiple of that share."""
    if not isinstance(aggregate, ApproxPercentile | Percentile):
        return 1.0
    return max(max(rank, 1.0 - rank) for rank in aggregate.ranks)


def sketch_bound(law: BoundLaw, sketch: float, delta: float) -> float:
    """Return the error of a sketch that lacks nothing, by its law."""
    if law is BoundLaw.DISTINCT:
        return distinct_error(sketch, delta)
    return rank_error(sketch, delta) if law is BoundLaw.QUANTILE else sketch
