"""The laws that bound each aggregate; `catchment.quality.bounds` chooses among them.

Every law is given the parts of a window that hold records, each with a rate above 0, at least one of them
below 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from catchment.quality.kinds import (
    AggregateKind,
    Bound,
    Guarantee,
    Part,
    Scale,
    no_bound,
    total_count,
    total_mean,
)
from catchment.quality.tails import (
    jump_factor,
    largest_root,
    log_term,
    subgaussian_factor,
    variance_factor,
)

# Of a variance's delta, the share spent on the mean being off: that term is the smaller by far.
_MEAN_SHARE = 0.1


def bound_count(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    width, method = _total_width([p.population.count for p in parts], [1.0] * len(parts), parts, delta)
    error = width / total_count(parts)
    if len({part.rate for part in parts}) == 1:
        error, method = min((error, method), (_binomial_error(total_count(parts), parts[0].rate, delta), "binomial"))
    return Bound(error, Guarantee.PROVED, method, half_width=error * total_count(parts))


def _binomial_error(count: float, rate: float, delta: float) -> float:
    """Exact: the kept records are binomial, and their delta/2 quantiles on both sides are the answer's."""
    size = max(math.floor(count), 1)
    low = _binomial_quantile(size, rate, delta / 2)
    high = size - _binomial_quantile(size, 1.0 - rate, delta / 2)
    return max(size - low / rate, high / rate - size, 0.0) / size


def _binomial_quantile(size: int, rate: float, chance: float) -> int:
    """The least k that a binomial number stays strictly below with at most this chance but reaches with
    more."""
    low, high = -1, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if special.bdtr(middle, size, rate) > chance else (middle, high)
    return high


def bound_sum(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    squares = [p.population.count * p.population.second_moment for p in parts]
    width, method = _total_width(squares, [p.population.furthest(0.0) for p in parts], parts, delta)
    size = total_count(parts) * total_mean(parts)
    return Bound(relative_to(width, size), Guarantee.PROVED, method, half_width=width)


def bound_avg(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    centre = total_mean(parts)
    squares = [p.population.count * spread_about(p, centre) for p in parts]
    drifts = [p.population.count * (p.population.mean - centre) for p in parts]
    width, method = _ratio_width(squares, drifts, [p.population.furthest(centre) for p in parts], parts, delta)
    if math.isinf(width):
        return no_bound("too few records are kept")
    return Bound(relative_to(width, centre), Guarantee.PROVED, method, half_width=width)


def bound_variance(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    centre = total_mean(parts)
    second = [p.population.count * spread_about(p, centre) for p in parts]
    variance = math.fsum(second) / total_count(parts)
    fourth = _fourth_moments(parts, centre, second)
    if fourth is None:
        return no_bound("a variance needs a known kurtosis or value range")
    squares = [max(f - 2 * variance * s + variance**2 * p.population.count, 0.0)
               for f, s, p in zip(fourth, second, parts, strict=True)]  # fmt: skip
    drifts = [s - variance * p.population.count for s, p in zip(second, parts, strict=True)]
    peaks = [max(p.population.furthest(centre) ** 2, variance) for p in parts]
    width, method = _ratio_width(squares, drifts, peaks, parts, delta * (1 - _MEAN_SHARE))
    off_mean = bound_avg(AggregateKind("avg"), parts, delta * _MEAN_SHARE).half_width
    if off_mean is None or math.isinf(width):
        return no_bound("too few records are kept")
    total = width + off_mean**2
    return Bound(relative_to(total, variance), Guarantee.PROVED, method, half_width=total)


def _fourth_moments(parts: tuple[Part, ...], centre: float, second: list[float]) -> list[float] | None:
    """Sums of (x - centre)^4 a part: from the kurtosis (of a single part), or at most range^2 times the
    second."""
    if len(parts) == 1 and parts[0].population.kurtosis is not None:
        return [parts[0].population.count * parts[0].population.kurtosis * parts[0].population.std ** 4]
    if any(math.isinf(p.population.furthest(centre)) for p in parts):
        return None
    return [p.population.furthest(centre) ** 2 * s for p, s in zip(parts, second, strict=True)]


def bound_stddev(kind: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    of_variance = bound_variance(kind, parts, delta)
    if of_variance.guarantee is Guarantee.NONE:
        return of_variance
    # sqrt(1 + e) - 1 < 1 - sqrt(1 - e): the lower side is the worse one.
    e = of_variance.error
    error = 1.0 - math.sqrt(1.0 - e) if e <= 1.0 else max(1.0, math.sqrt(1.0 + e) - 1.0)
    spread = math.sqrt(
        math.fsum(p.population.count * spread_about(p, total_mean(parts)) for p in parts) / total_count(parts)
    )
    return Bound(error, of_variance.guarantee, of_variance.method, half_width=error * spread if spread else 0.0)


def bound_quantile(kind: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    """For the one t whose rank is q + e: "the sample's q-quantile lies beyond t" is sum of B/p (1{x <= t}
    - q) < 0."""
    assert kind.quantile is not None
    q, count, log = kind.quantile, total_count(parts), log_term(delta)
    tilt = abs(1.0 - 2.0 * q) * count
    found = []
    for method, factor in (("kearns-saul", subgaussian_factor), ("bernstein", variance_factor)):
        factors = [float(factor(p.rate)) for p in parts]
        worst, grows = _worst_ranks(q, parts, factors), tilt * max(factors)
        jump = max(q, 1.0 - q) * _largest_jump(parts) if method == "bernstein" else 0.0
        root = largest_root(count**2, 2.0 * log * (grows + jump * count / 3.0), 2.0 * log * worst)
        found.append((float(root), method))
    error, method = min(found)
    return Bound(min(error, 1.0), Guarantee.PROVED, method, Scale.RANK)


def _worst_ranks(q: float, parts: tuple[Part, ...], factors: list[float]) -> float:
    """The most that sum of factor (1{x <= t} - q)^2 can be when a share q of all records lies below t:
    which part they lie in is not known, so they are put where they count most."""
    below, worst = q * total_count(parts), 0.0
    pairs = sorted(zip(factors, parts, strict=True), key=lambda f: f[0], reverse=q < 0.5)
    for factor, part in pairs:
        here = min(below, part.population.count)
        below -= here
        worst += factor * (here * (1 - q) ** 2 + (part.population.count - here) * q**2)
    return worst


def bound_extreme(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    """All of the m most extreme records are missed with chance at most (1 - lowest rate)^m."""
    lowest = min(part.rate for part in parts)
    missed = 0.0 if lowest == 1.0 else math.ceil(math.log(delta) / math.log1p(-lowest)) - 1
    error = min(missed / total_count(parts), 1.0)
    return Bound(error, Guarantee.PROVED, "order statistics", Scale.RANK)


def bound_distinct(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    return no_bound("a sample of records says little of how many distinct values there are")


def bound_unknown(_: AggregateKind, parts: tuple[Part, ...], delta: float) -> Bound:
    return no_bound("no bound is known for this aggregate under sampling")


LAWS: dict[str, Callable[[AggregateKind, tuple[Part, ...], float], Bound]] = {
    "count": bound_count, "sum": bound_sum, "avg": bound_avg, "variance": bound_variance,
    "stddev": bound_stddev, "quantile": bound_quantile, "extreme": bound_extreme,
    "distinct": bound_distinct, "unbounded": bound_unknown,
}  # fmt: skip


def _total_width(
    squares: Sequence[float], peaks: Sequence[float], parts: Sequence[Part], delta: float
) -> tuple[float, str]:
    """How far a scaled total may be off; `squares` are the sums of y^2 a part, `peaks` the largest |y|."""
    rates, log = np.array([p.rate for p in parts]), log_term(delta)
    proxy = float(np.dot(squares, subgaussian_factor(rates)))
    variance = float(np.dot(squares, variance_factor(rates)))
    jump = max((y * float(jump_factor(r)) for y, r in zip(peaks, rates, strict=True) if r < 1.0), default=0.0)
    return min(
        (float(largest_root(1.0, 0.0, 2.0 * log * proxy)), "kearns-saul"),
        (float(largest_root(1.0, 2.0 * log * jump / 3.0, 2.0 * log * variance)), "bernstein"),
    )


def _ratio_width(
    squares: Sequence[float],
    drifts: Sequence[float],
    peaks: Sequence[float],
    parts: Sequence[Part],
    delta: float,
) -> tuple[float, str]:
    """How far a ratio of a total to the count may be off, given sums of y^2 and of y = x - mean a part.

    Off by t is the event that the total of y -+ t, which is -+ N t, is estimated with the wrong sign; its
    squares are squares -+ 2 t drifts + t^2 counts.
    """
    rates, unit = np.array([p.rate for p in parts]), 2.0 * log_term(delta)
    counts, total = np.array([p.population.count for p in parts]), total_count(parts)
    jumps = jump_factor(rates)
    reach = max(y * j for y, j in zip(peaks, jumps, strict=True) if j > 0.0)
    found = []
    for method, factors, jumpy in (
        ("kearns-saul", subgaussian_factor(rates), 0.0),
        ("bernstein", variance_factor(rates), unit * total / 3.0),
    ):
        lead = total**2 - unit * float(counts @ factors) - jumpy * float(jumps.max())
        slope = 2.0 * unit * abs(float(np.dot(drifts, factors))) + (jumpy * reach if jumpy else 0.0)
        found.append((float(largest_root(lead, slope, unit * float(np.dot(squares, factors)))), method))
    return min(found)


def _largest_jump(parts: Sequence[Part]) -> float:
    return max(float(jump_factor(part.rate)) for part in parts)


def spread_about(part: Part, centre: float) -> float:
    """E (x - centre)^2 of a part."""
    return part.population.std**2 + (part.population.mean - centre) ** 2


def relative_to(width: float, size: float) -> float:
    """width / |size|; 0 is no error of anything, and all else is infinite relative to 0."""
    if width == 0.0:
        return 0.0
    return width / abs(size) if size else math.inf
