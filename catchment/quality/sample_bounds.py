"""Error bounds from the sample alone: what the center can say of scaled answers without knowing what was shed.

Each kept record stands for 1 / rate records (Horvitz and Thompson), and the proxies and variances of its error add up
over records and rates. So ten sites that shed differently give one bound, as tight as one site's would be, not ten
bounds added. Everything is vectorised over groups.

- COUNT, and SUM and AVG whose range of values is known, are proved. The second moments are not taken from the sample as
  they are, but from above: part of delta pays for the chance that the sample shows too little. Only records that may
  have been shed count: where large values are never shed (rate 1), the range is that of the rest.
- SUM and AVG without a range are estimates: a sample cannot know of the one huge record that it missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from catchment.arrays import Floats
from catchment.quality.bounds import Guarantee
from catchment.quality.tails import (
    jump_factor,
    largest_root,
    log_term,
    subgaussian_factor,
    unseen_moment,
    variance_factor,
)

# Sums of squares, of values and of ones: how the spread of x - t depends on t.
ScaledSums = tuple[Floats, Floats, Floats]
# What a rate does to the spread of an error: see `catchment.quality.tails`.
RateFactor = Callable[[ArrayLike], Floats]
# The largest |y| of any record that may have been shed: at t = 0, and by how much it grows with t.
Reach = tuple[Floats | float, float]

_MOMENT_SHARE = 1 / 8  # share of delta for each of the two second moments being larger than in the sample


def bound_widths(
    sums: Callable[[RateFactor], ScaledSums], weights: Floats, lowest: Floats, delta: float, reach: Reach | None
) -> tuple[Floats, Guarantee, str]:
    """Return how far estimates may be off, as half widths, and what kind of statement that is.

    `sums(factor)` are the scaled sums of y^2, y and 1, each times the factor of its rate; `lowest` is the lowest rate
    of each group. Where the reach of y is known, both inequalities are applied to second moments bounded from above;
    else the sub-Gaussian one is applied to the moments that the sample shows.
    """
    if reach is None:
        widths = _solve(sums(subgaussian_factor), weights, 2.0 * log_term(delta))
        return widths, Guarantee.ESTIMATE, "moments of the sample"
    log = log_term(delta * (1 - 2 * _MOMENT_SHARE))
    moment_log = -math.log(delta * _MOMENT_SHARE)
    widths_by_factor = []
    for factor in (subgaussian_factor, variance_factor):
        unseen = unseen_moment(np.where(lowest < 1.0, factor(lowest) / lowest, 0.0), moment_log)
        jump = 2.0 / 3.0 * log * jump_factor(lowest) if factor is variance_factor else 0.0
        shift = np.sqrt(2.0 * log * unseen) + jump
        widths_by_factor.append(_solve(sums(factor), weights, 2.0 * log, unseen, shift, reach))
    return np.minimum(*widths_by_factor), Guarantee.PROVED, "kearns-saul, bernstein"


def sample_widths(of: str, terms: Floats, delta: float) -> Floats:
    """Return the half widths of sampled answers, exceeded with chance at most delta, from the terms of each row.

    COUNT: the scaled sums of the two proxies of a record's error, and the lowest rate. SUM: the scaled sum of squares.
    AVG: the scaled sums of (x - mean)^2, of x - mean and of 1, and the scaled number of records.
    """
    ones = np.ones(len(terms))
    none = np.zeros(len(terms))
    if of == "count":
        g, v, lowest = terms.T
        by_factor: dict[RateFactor, Floats] = {subgaussian_factor: g, variance_factor: v}
        widths, _, _ = bound_widths(lambda f: (by_factor[f], none, none), ones, lowest, delta, (1.0, 0.0))
        return widths
    if of == "sum":
        (squares,) = terms.T
        return bound_widths(lambda f: (squares, none, none), ones, ones, delta, None)[0]
    if of == "avg":
        squares, drifts, counts, size = terms.T
        return bound_widths(lambda f: (squares, drifts, counts), size, ones, delta, None)[0]
    return np.full(len(terms), np.inf)


def _solve(
    sums: ScaledSums,
    weights: Floats,
    square: float,
    unseen: Floats | float = 0.0,
    shift: Floats | float = 0.0,
    reach: Reach = (0.0, 0.0),
) -> Floats:
    """Return the least t with  weight t >= shift r + sqrt(square (A + 2 |B| t + C t^2 + unseen r^2)),  r = reach at t.

    A, B, C are the scaled sums of squares of y, of y, and of 1, where t shifts y.
    """
    a, b, c = sums
    at_zero, grows = reach
    pull = weights - shift * grows
    lead = pull**2 - square * (c + unseen * grows)
    slope = 2.0 * (pull * shift * at_zero + square * (np.abs(b) + unseen * at_zero * grows))
    rest = square * (a + unseen * at_zero**2) - (shift * at_zero) ** 2
    return np.where(pull > 0.0, largest_root(lead, slope, rest), np.inf)
