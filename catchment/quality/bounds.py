"""Error bounds: how wrong an answer may be, from what a window holds and how it was sampled.

`bound` takes the parts of a window (one per site), each with its size, mean, std and rate, and returns by how much the
scaled answer can be off, except with a chance of at most delta. It takes the best of the inequalities that apply; all
are functions of the same fixed facts, so the best of them misses no more often than each.

- COUNT, SUM: Hoeffding's inequality as in Babcock et al. (equation 2), in the sharper form of Kearns and
  Saul; no range of values is needed, so heavy tails are no exception. Bernstein's where a range is known.
  The binomial distribution itself for a COUNT at one rate.
- AVG is a ratio of two sampled totals, but "too high by t" is one event about the one total of x - mean - t, so it
  costs one inequality: the spread of the values counts, not their size.
- Variance: a ratio about (x - mean)^2, plus the square of what AVG may be off.
- Quantiles: the same ratio about "x is below t", for the one t that matters. `dkw_error` is for all
  quantiles at once.
- Minimum and maximum: how many of the extreme records may all have been missed.
- Distinct counts: none. Any estimator from a sample of records can be off by sqrt(1 / rate) (Charikar et
  al., PODS'00).

The given facts are assumed to be true. Where they are estimates (from the window before, say), so is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from catchment.errors import QualityError
from catchment.quality.populations import (
    AggregateKind,
    SampledPart,
    check_delta,
    parse_aggregate,
    total_count,
    total_mean,
)
from catchment.quality.tails import (
    hoeffding_factor,
    jump_factor,
    largest_root,
    log_term,
    subgaussian_factor,
    variance_factor,
)

_MEAN_SHARE = 0.1  # share of a variance's delta that is spent on the error of the mean, by far the smaller term


class Guarantee(StrEnum):
    """What kind of statement a bound is."""

    EXACT = "exact"  # every record is in the answer
    PROVED = "proved"  # misses with chance at most delta, whatever the distribution
    ESTIMATE = "estimate"  # rests on moments read from the sample, or on the normal limit: may miss more often
    NONE = "none"  # nothing can be said


class Scale(StrEnum):
    """What the error of a bound is a share of."""

    RELATIVE = "relative"  # |answer - truth| / |truth|
    RANK = "rank"  # share of the records between the answer and the true quantile


@dataclass(frozen=True, slots=True)
class Bound:
    """How wrong an answer may be: `error` is exceeded with chance at most delta, if `guarantee` is proved.

    `half_width` says the same in the unit of the answer, where that is possible; it stays finite where the true answer
    is 0 and a relative error can therefore not be bounded.
    """

    error: float
    guarantee: Guarantee
    method: str
    scale: Scale = Scale.RELATIVE
    half_width: float | None = None

    def holds(self, max_error: float) -> bool:
        """Return whether the bound keeps a contract's error."""
        return self.error <= max_error


def no_bound(why: str, scale: Scale = Scale.RELATIVE) -> Bound:
    """Return the bound of an answer of which nothing can be said."""
    return Bound(math.inf, Guarantee.NONE, why, scale)


def exact_answer(scale: Scale = Scale.RELATIVE) -> Bound:
    """Return the bound of an answer made from every record."""
    return Bound(0.0, Guarantee.EXACT, "exact", scale, 0.0)


def bound(aggregate: str, parts: SampledPart | Sequence[SampledPart], delta: float) -> Bound:
    """Return how wrong the scaled answer of `aggregate` over all parts may be, each sampled at its own rate."""
    kind = parse_aggregate(aggregate)
    given = (parts,) if isinstance(parts, SampledPart) else tuple(parts)
    check_delta(delta)
    scale = Scale.RANK if kind.law in ("quantile", "extreme") else Scale.RELATIVE
    if not given:
        raise QualityError("a bound was asked for over no parts at all")
    if all(part.rate == 1.0 for part in given):
        return exact_answer(scale)
    filled = tuple(part for part in given if part.population.count > 0)
    if not filled:
        return no_bound("no records are expected", scale)
    if any(part.rate == 0.0 for part in filled):
        return no_bound("a part is shed wholly", scale)
    if all(part.rate == 1.0 for part in filled):
        return exact_answer(scale)
    return LAWS[kind.law](kind, filled, delta)


def hoeffding_error(aggregate: str, part: SampledPart, delta: float) -> float:
    """Return the error of COUNT or SUM at one rate by equation 2 of Babcock et al."""
    population = part.population
    law = parse_aggregate(aggregate).law
    if law not in ("count", "sum"):
        raise QualityError(f"equation 2 is about count and sum, not {aggregate!r}")
    spread = 1.0 if law == "count" else relative_to(math.sqrt(population.second_moment), population.mean)
    proxy = float(hoeffding_factor(part.rate)) if part.rate > 0 else math.inf
    return relative_to(spread * math.sqrt(2.0 * proxy * log_term(delta)), math.sqrt(population.count))


def dkw_error(kept: float, delta: float) -> float:
    """Return the rank error that holds for all quantiles at once, from `kept` sampled records.

    The inequality is that of Dvoretzky, Kiefer and Wolfowitz. Massart's constant is for draws with replacement. A
    sample of a window is drawn without; convex ordering (Hoeffding 1963, theorem 4) then costs a factor of about e:
    P(D >= d) <= 2 exp(-2 n a^2) / (4 n a (d - a)) for every a < d.
    """
    from scipy.optimize import brentq  # here, because it is slow to import and few processes need it

    if kept < 1 or _dkw_chance(kept, 1.0) > delta:
        return math.inf
    least = 0.5 / math.sqrt(kept)  # the inequality says nothing of smaller distances
    root: float = brentq(lambda distance: _dkw_chance(kept, distance) - delta, least, 1.0)
    return root


def _dkw_chance(kept: float, distance: float) -> float:
    a = distance - 1.0 / (4.0 * kept * distance)  # close to the best a, and always allowed
    return 2.0 * math.exp(-2.0 * kept * a * a) / (4.0 * kept * a * (distance - a)) if a > 0 else math.inf


# The laws. Each takes the parts that hold records, each with a rate above 0, at least one of them below 1.


def bound_count(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    width, method = _total_width([p.population.count for p in parts], [1.0] * len(parts), parts, delta)
    error = width / total_count(parts)
    if len({part.rate for part in parts}) == 1:
        exact = _binomial_error(total_count(parts), parts[0].rate, delta)
        error, method = min((error, method), (exact, "binomial"))
    return Bound(error, Guarantee.PROVED, method, half_width=error * total_count(parts))


def _binomial_error(count: float, rate: float, delta: float) -> float:
    """Return the exact error: the number of kept records is binomial, and delta / 2 is spent on either side."""
    size = max(math.floor(count), 1)
    low = _binomial_quantile(size, rate, delta / 2)
    high = size - _binomial_quantile(size, 1.0 - rate, delta / 2)
    return max(size - low / rate, high / rate - size, 0.0) / size


def _binomial_quantile(size: int, rate: float, chance: float) -> int:
    """Return the smallest k with P(X <= k) > chance; `scipy.stats` has it too, but is slow to import."""
    from scipy import special  # here, because few processes need it

    k: int = max(math.ceil(special.bdtrik(chance, size, rate)), 0)
    return k - 1 if k and special.bdtr(k - 1, size, rate) > chance else k


def bound_sum(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    squares = [p.population.count * p.population.second_moment for p in parts]
    width, method = _total_width(squares, [p.population.furthest(0.0) for p in parts], parts, delta)
    size = total_count(parts) * total_mean(parts)
    return Bound(relative_to(width, size), Guarantee.PROVED, method, half_width=width)


def bound_avg(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    centre = total_mean(parts)
    squares = [p.population.count * spread_about(p, centre) for p in parts]
    drifts = [p.population.count * (p.population.mean - centre) for p in parts]
    width, method = _ratio_width(squares, drifts, [p.population.furthest(centre) for p in parts], parts, delta)
    if math.isinf(width):
        return no_bound("too few records are kept")
    return Bound(relative_to(width, centre), Guarantee.PROVED, method, half_width=width)


def bound_variance(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    centre = total_mean(parts)
    second = [p.population.count * spread_about(p, centre) for p in parts]
    variance = math.fsum(second) / total_count(parts)
    fourth = _fourth_moments(parts, centre, second)
    if fourth is None:
        return no_bound("a variance needs a known kurtosis or value range")
    squares = [
        max(f - 2 * variance * s + variance**2 * p.population.count, 0.0)
        for f, s, p in zip(fourth, second, parts, strict=True)
    ]
    drifts = [s - variance * p.population.count for s, p in zip(second, parts, strict=True)]
    peaks = [max(p.population.furthest(centre) ** 2, variance) for p in parts]
    width, method = _ratio_width(squares, drifts, peaks, parts, delta * (1 - _MEAN_SHARE))
    off_mean = bound_avg(AggregateKind("avg"), parts, delta * _MEAN_SHARE).half_width
    if off_mean is None or math.isinf(width):
        return no_bound("too few records are kept")
    total = width + off_mean**2
    return Bound(relative_to(total, variance), Guarantee.PROVED, method, half_width=total)


def _fourth_moments(parts: tuple[SampledPart, ...], centre: float, second: list[float]) -> list[float] | None:
    """Return the sum of (x - centre)^4 per part: from the kurtosis of a single part, or at most range^2 x second."""
    only = parts[0].population
    if len(parts) == 1 and only.kurtosis is not None:
        return [only.count * only.kurtosis * only.std**4]
    if any(math.isinf(p.population.furthest(centre)) for p in parts):
        return None
    return [p.population.furthest(centre) ** 2 * s for p, s in zip(parts, second, strict=True)]


def bound_stddev(kind: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    of_variance = bound_variance(kind, parts, delta)
    if of_variance.guarantee is Guarantee.NONE:
        return of_variance
    e = of_variance.error
    if e <= 1.0:
        error = 1.0 - math.sqrt(1.0 - e)  # the lower side is the worse one: sqrt(1 + e) - 1 < 1 - sqrt(1 - e)
    else:
        error = max(1.0, math.sqrt(1.0 + e) - 1.0)
    centre = total_mean(parts)
    variance = math.fsum(p.population.count * spread_about(p, centre) for p in parts) / total_count(parts)
    stddev = math.sqrt(variance)
    return Bound(error, of_variance.guarantee, of_variance.method, half_width=error * stddev if stddev else 0.0)


def bound_quantile(kind: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    """Bound the rank error e: that the sample's q-quantile lies beyond the one t of rank q + e.

    That event is: the sum of B / p (1{x <= t} - q) is negative.
    """
    assert kind.quantile is not None
    q = kind.quantile
    count = total_count(parts)
    log = log_term(delta)
    tilt = abs(1.0 - 2.0 * q) * count
    roots = []
    for method, factor in (("kearns-saul", subgaussian_factor), ("bernstein", variance_factor)):
        factors = [float(factor(p.rate)) for p in parts]
        worst = _worst_ranks(q, parts, factors)
        growth = tilt * max(factors)
        jump = max(q, 1.0 - q) * _largest_jump(parts) if method == "bernstein" else 0.0
        root = largest_root(count**2, 2.0 * log * (growth + jump * count / 3.0), 2.0 * log * worst)
        roots.append((float(root), method))
    error, method = min(roots)
    return Bound(min(error, 1.0), Guarantee.PROVED, method, Scale.RANK)


def _worst_ranks(q: float, parts: tuple[SampledPart, ...], factors: list[float]) -> float:
    """Return the most that the sum of factor (1{x <= t} - q)^2 can be when a share q of all records lies below t.

    Which part they lie in is not known, so they are put where they count most.
    """
    below = q * total_count(parts)
    worst = 0.0
    pairs = sorted(zip(factors, parts, strict=True), key=lambda f: f[0], reverse=q < 0.5)
    for factor, part in pairs:
        here = min(below, part.population.count)
        below -= here
        worst += factor * (here * (1 - q) ** 2 + (part.population.count - here) * q**2)
    return worst


def bound_extreme(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    """Bound the rank error: the m most extreme records are all missed with chance at most (1 - lowest rate)^m."""
    lowest = min(part.rate for part in parts)
    missed = 0.0 if lowest == 1.0 else math.ceil(math.log(delta) / math.log1p(-lowest)) - 1
    error = min(missed / total_count(parts), 1.0)
    return Bound(error, Guarantee.PROVED, "order statistics", Scale.RANK)


def bound_distinct(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    return no_bound("a sample of records says little of how many distinct values there are")


def bound_unknown(_: AggregateKind, parts: tuple[SampledPart, ...], delta: float) -> Bound:
    return no_bound("no bound is known for this aggregate under sampling")


LAWS: dict[str, Callable[[AggregateKind, tuple[SampledPart, ...], float], Bound]] = {
    "count": bound_count,
    "sum": bound_sum,
    "avg": bound_avg,
    "variance": bound_variance,
    "stddev": bound_stddev,
    "quantile": bound_quantile,
    "extreme": bound_extreme,
    "distinct": bound_distinct,
    "unbounded": bound_unknown,
}


def _total_width(
    squares: Sequence[float], peaks: Sequence[float], parts: Sequence[SampledPart], delta: float
) -> tuple[float, str]:
    """Return how far a scaled total may be off; `squares` are the sums of y^2 per part, `peaks` the largest |y|."""
    rates = np.array([p.rate for p in parts])
    log = log_term(delta)
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
    parts: Sequence[SampledPart],
    delta: float,
) -> tuple[float, str]:
    """Return how far the ratio of a total to the count may be off, given sums of y^2 and of y = x - mean per part.

    Off by t is the event that the total of y -+ t, which is -+ N t, is estimated with the wrong sign; its squares are
    squares -+ 2 t drifts + t^2 counts.
    """
    rates = np.array([p.rate for p in parts])
    unit = 2.0 * log_term(delta)
    counts = np.array([p.population.count for p in parts])
    total = total_count(parts)
    jumps = jump_factor(rates)
    reach = max(y * j for y, j in zip(peaks, jumps, strict=True) if j > 0.0)
    roots = []
    for method, factors, jumpy in (
        ("kearns-saul", subgaussian_factor(rates), 0.0),
        ("bernstein", variance_factor(rates), unit * total / 3.0),
    ):
        lead = total**2 - unit * float(counts @ factors) - jumpy * float(jumps.max())
        slope = 2.0 * unit * abs(float(np.dot(drifts, factors))) + (jumpy * reach if jumpy else 0.0)
        roots.append((float(largest_root(lead, slope, unit * float(np.dot(squares, factors)))), method))
    return min(roots)


def _largest_jump(parts: Sequence[SampledPart]) -> float:
    return max(float(jump_factor(part.rate)) for part in parts)


def spread_about(part: SampledPart, centre: float) -> float:
    """Return E (x - centre)^2 of a part."""
    return part.population.std**2 + (part.population.mean - centre) ** 2


def relative_to(width: float, size: float) -> float:
    """Return width / |size|; a width of 0 is no error of anything, any other is infinite relative to 0."""
    if width == 0.0:
        return 0.0
    return width / abs(size) if size else math.inf
