"""Tail inequalities for a sum over a sample, from which every bound is made.

Each record i is kept with its own chance p_i, independently, and kept values are divided by p_i (Horvitz and
Thompson), so the error of a total is sum of y_i (B_i / p_i - 1). Three facts about one term y (B / p - 1):

- it is sub-Gaussian with proxy y^2 g(p), g(p) = (1 - 2p) / (2 p^2 ln((1 - p) / p))  (Kearns and Saul,
  UAI'98); g(p) <= 1 / (4 p^2), which is Hoeffding's, and g(1) = 0, which Hoeffding's is not;
- its variance is y^2 (1 - p) / p;
- it is at most |y| max((1 - p) / p, 1) (Bernstein's inequality needs this, and so a known range of values).

All three add up over records, and so over sites with different rates: that is why one bound for a merged
answer is as tight as one for a single site. Functions take numbers or numpy arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from catchment.arrays import Floats

# Closer than this to 1/2, the quotient in g is 0/0 in floating point; its limit there is 1.
_NEAR_HALF = 1e-5


def log_term(delta: float) -> float:
    """Return ln(2 / delta): each of the two tails may miss with delta / 2."""
    return float(np.log(2.0 / delta))


def subgaussian_factor(rate: ArrayLike) -> Floats:
    """Return g(p), the proxy variance of B / p - 1. Infinite at rate 0, 0 at rate 1."""
    p = np.asarray(rate, dtype=np.float64)
    near = np.abs(p - 0.5) < _NEAR_HALF
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = (1.0 - 2.0 * p) / (2.0 * p * p * np.log((1.0 - p) / p))
    factor = np.where(near, 0.25 / np.maximum(p * p, 1e-300), inside)
    return np.where(p <= 0.0, np.inf, np.where(p >= 1.0, 0.0, factor))


def hoeffding_factor(rate: ArrayLike) -> Floats:
    """Return 1 / (4 p^2), the proxy variance that Hoeffding's inequality uses (Babcock et al., equation 2)."""
    with np.errstate(divide="ignore"):
        return np.asarray(0.25 / np.square(np.asarray(rate, dtype=np.float64)))


def variance_factor(rate: ArrayLike) -> Floats:
    """Return (1 - p) / p, the variance of B / p."""
    p = np.asarray(rate, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray((1.0 - p) / p)


def jump_factor(rate: ArrayLike) -> Floats:
    """Return the largest |B / p - 1|; 0 where everything is kept."""
    p = np.asarray(rate, dtype=np.float64)
    return np.where(p >= 1.0, 0.0, np.maximum(variance_factor(p), 1.0))


def largest_root(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Floats:
    """Return the largest t with a t^2 - b t - c = 0; infinite where a is not positive: then no t is large enough.

    Every bound ends in this form: t is safe once a t^2 >= b t + c.
    """
    lead, slope, rest = (np.asarray(x, dtype=np.float64) for x in (a, b, c))
    with np.errstate(divide="ignore", invalid="ignore"):
        root = (slope + np.sqrt(np.maximum(slope * slope + 4.0 * lead * rest, 0.0))) / (2.0 * lead)
    return np.where((lead > 0.0) & ~np.isnan(root), root, np.inf)


def unseen_moment(step: ArrayLike, chance_log: float) -> Floats:
    """Return h with sqrt(Q) <= sqrt(Q' + h) + sqrt(h), except with chance exp(-chance_log); Q' is the estimate of Q.

    Q = sum of q_i >= 0 is estimated by its scaled sample; `step` is the largest q_i / p_i. The sample of a
    non-negative total falls short by s with chance at most exp(-s^2 / (2 step Q)); this is that, solved for Q.
    """
    return np.asarray(step, dtype=np.float64) * chance_log / 2.0
