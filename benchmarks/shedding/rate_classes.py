"""Scaled answers and their bounds from the moments of kept records, rate by rate: the yardstick of the bounds.

Partials of one rate merge; partials of different rates stay apart until they become one answer here. The engine itself
carries the same sums added up over rates (`catchment.shedding.terms`) and bounds them by the same function
(`catchment.quality.sample_bounds`), so what holds here holds there. Known of each (group, rate) are the number of kept
records, their mean, and the sum of their squared distances from it (m2). `normal_estimate` is the figure of the normal
limit, to which the proved bounds are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Floats
from catchment.errors import QualityError
from catchment.quality.bounds import Bound, Guarantee, bound, exact_answer, no_bound, relative_to, spread_about
from catchment.quality.populations import (
    Population,
    SampledPart,
    check_delta,
    parse_aggregate,
    total_count,
    total_mean,
)
from catchment.quality.sample_bounds import RateFactor, Reach, ScaledSums, bound_widths
from catchment.quality.tails import variance_factor


@dataclass(frozen=True, slots=True)
class RateClass:
    """The kept records of one group that had one rate: their number, their mean, and m2 = sum of (x -
    mean)^2."""

    rate: float
    kept: float
    mean: float = 1.0
    m2: float = 0.0


@dataclass(frozen=True)
class Kept:
    """Many rate classes of many groups, as columns; row i belongs to group `groups[i]` of `size` groups.

    `lowest_rate` is the lowest rate at which any site sampled these windows, whether or not a record of a
    group came through: a group that lost all its records at a site has no row to tell of it.
    """

    groups: NDArray[np.intp]
    rates: Floats
    counts: Floats
    means: Floats
    m2s: Floats
    size: int
    lowest_rate: float = 1.0

    def __post_init__(self) -> None:
        if len(self.rates) and not (self.rates.min() > 0.0 and self.rates.max() <= 1.0):
            raise QualityError(f"rates are above 0 and at most 1, not {self.rates.min()} to {self.rates.max()}")
        if not 0.0 < self.lowest_rate <= 1.0:
            raise QualityError(f"the lowest rate is above 0 and at most 1, not {self.lowest_rate!r}")

    def add(self, rows: Floats) -> Floats:
        """The sums of a column by group."""
        return np.asarray(np.bincount(self.groups, weights=rows, minlength=self.size), dtype=np.float64)

    def lowest(self) -> Floats:
        """The lowest rate of each group."""
        found = np.full(self.size, self.lowest_rate)
        np.minimum.at(found, self.groups, self.rates)
        return found

    def with_ones(self) -> Kept:
        """The same records, each with the value 1."""
        ones = np.ones_like(self.counts)
        return Kept(self.groups, self.rates, self.counts, ones, ones * 0.0, self.size, self.lowest_rate)


@dataclass(frozen=True)
class Answers:
    """One value per group, and its bound. `half_widths` are in the unit of the values, `errors` relative to
    the truth."""

    values: Floats
    half_widths: Floats
    guarantee: Guarantee  # of the groups that are not whole
    method: str
    whole: NDArray[np.bool_]  # groups of which every record is in the answer: exact

    @property
    def errors(self) -> Floats:
        """|value - truth| / |truth|: the truth is no nearer to 0 than the value less its half width."""
        nearest = np.abs(self.values) - self.half_widths
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(nearest > 0.0, self.half_widths / nearest, np.inf)
        return np.where(self.half_widths == 0.0, 0.0, share)

    def bound(self, group: int) -> Bound:
        """The bound of one group."""
        width, error = float(self.half_widths[group]), float(self.errors[group])
        return exact_answer() if self.whole[group] else Bound(error, self.guarantee, self.method, half_width=width)


def combine_many(aggregate: str, kept: Kept, delta: float, value_range: tuple[float, float] | None = None) -> Answers:
    """COUNT, SUM, AVG, variance or stddev of every group, scaled, with its bound."""
    check_delta(delta)
    law = parse_aggregate(aggregate).law
    if law == "count":
        return _total(kept.with_ones(), delta, (1.0, 1.0))
    if law == "sum":
        return _total(kept, delta, value_range)
    if law == "avg":
        return _ratio(kept, delta, value_range)
    if law in ("variance", "stddev"):
        of_variance = _variance(kept, delta, value_range)
        return of_variance if law == "variance" else _square_root(of_variance)
    raise QualityError(f"{aggregate!r} cannot be scaled from its moments", hint="count, sum, avg, variance or stddev")


def combine(
    aggregate: str,
    classes: Sequence[RateClass],
    delta: float,
    value_range: tuple[float, float] | None = None,
    lowest_rate: float = 1.0,
) -> tuple[float, Bound]:
    """One group's scaled value and its bound; the value of a quantile or an extreme is its sketch's: here
    NaN."""
    law = parse_aggregate(aggregate).law
    if law in ("count", "sum", "avg", "variance", "stddev"):
        found = combine_many(aggregate, kept_of(classes, lowest_rate), delta, value_range)
        return float(found.values[0]), found.bound(0)
    sizes = [SampledPart(Population(c.kept / c.rate), c.rate) for c in classes]
    stated = bound(aggregate, sizes, delta)
    kind = Guarantee.ESTIMATE if stated.guarantee is Guarantee.PROVED else stated.guarantee
    return math.nan, Bound(stated.error, kind, stated.method, stated.scale)


def kept_of(classes: Sequence[RateClass], lowest_rate: float = 1.0) -> Kept:
    """The rate classes of one group, as columns."""
    table = np.array([(c.rate, c.kept, c.mean, c.m2) for c in classes], dtype=np.float64).reshape(-1, 4)
    rates, counts, means, m2s = table.T
    return Kept(np.zeros(len(classes), dtype=np.intp), rates, counts, means, m2s, 1, lowest_rate)


def _total(kept: Kept, delta: float, value_range: tuple[float, float] | None) -> Answers:
    """sum of x / p, and how far it may be off."""
    values = kept.add(kept.counts * kept.means / kept.rates)
    squares = kept.m2s + kept.counts * kept.means**2
    none = np.zeros_like(squares)
    reach = None if value_range is None else (max(map(abs, value_range)), 0.0)
    return _bounded(kept, values, (squares, none, none), np.ones(kept.size), delta, reach)


def _ratio(kept: Kept, delta: float, value_range: tuple[float, float] | None) -> Answers:
    """The weighted mean. For each mean m' that it may really be, the total of x - m' is 0, and is
    estimated as off by weight (mean - m'): the m' for which that is too much are ruled out, with their
    own squares read at m' itself."""
    weights = kept.add(kept.counts / kept.rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = kept.add(kept.counts * kept.means / kept.rates) / weights
    distance = np.where(kept.counts > 0, kept.means - values[kept.groups], 0.0)
    terms = (kept.m2s + kept.counts * distance**2, kept.counts * distance, kept.counts)
    if value_range is None:
        return _bounded(kept, values, terms, weights, delta, None)
    furthest = np.maximum(np.abs(value_range[0] - values), np.abs(value_range[1] - values))
    return _bounded(kept, values, terms, weights, delta, (furthest, 1.0))


def _variance(kept: Kept, delta: float, value_range: tuple[float, float] | None) -> Answers:
    """The weighted variance; its fourth moments are at most the range squared times the second, or not
    known."""
    mean = _ratio(kept, delta / 2, None)
    weights = kept.add(kept.counts / kept.rates)
    second = kept.m2s + kept.counts * np.where(kept.counts > 0, kept.means - mean.values[kept.groups], 0.0) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        values = kept.add(second / kept.rates) / weights
    if value_range is None:
        unknown = np.full(kept.size, np.inf)
        return _answers(kept, values, unknown, Guarantee.NONE, "a variance needs a known value range")
    variance = np.nan_to_num(values)[kept.groups]
    fourth = (value_range[1] - value_range[0]) ** 2 * second
    spread = np.maximum(fourth - 2.0 * variance * second + variance**2 * kept.counts, 0.0)
    terms = (spread, second - variance * kept.counts, kept.counts)
    found = _bounded(kept, values, terms, weights, delta / 2, None)
    widths = found.half_widths + mean.half_widths**2
    return _answers(kept, values, widths, Guarantee.ESTIMATE, "moments of the sample")


def _square_root(variance: Answers) -> Answers:
    values = np.sqrt(variance.values)
    low = np.sqrt(np.maximum(variance.values - variance.half_widths, 0.0))
    high = np.sqrt(variance.values + variance.half_widths)
    widths = np.where(np.isfinite(variance.half_widths), np.maximum(values - low, high - values), np.inf)
    return Answers(values, widths, variance.guarantee, variance.method, variance.whole)


def _bounded(
    kept: Kept, values: Floats, terms: ScaledSums, weights: Floats, delta: float, reach: Reach | None
) -> Answers:
    def sums(factor: RateFactor) -> ScaledSums:
        a, b, c = (kept.add(term * factor(kept.rates) / kept.rates) for term in terms)
        return a, b, c

    widths, guarantee, method = bound_widths(sums, weights, kept.lowest(), delta, reach)
    return _answers(kept, values, widths, guarantee, method)


def _answers(kept: Kept, values: Floats, widths: Floats, guarantee: Guarantee, method: str) -> Answers:
    whole = kept.lowest() >= 1.0
    return Answers(values, np.where(whole, 0.0, widths), guarantee, method, whole)


def normal_estimate(aggregate: str, parts: SampledPart | Sequence[SampledPart], delta: float) -> Bound:
    """The normal limit's figure for COUNT, SUM and AVG: an estimate, not a guarantee, and named so."""
    law, given = parse_aggregate(aggregate).law, (parts,) if isinstance(parts, SampledPart) else tuple(parts)
    if law not in ("count", "sum", "avg"):
        return no_bound(f"no normal limit is kept for {aggregate}")
    if total_count(given) == 0:
        return no_bound("no records are expected")
    counts, of_one = [p.population.count for p in given], law == "count"
    centre = total_mean(given) if law == "avg" else 0.0
    squares = [n * (1.0 if of_one else spread_about(p, centre)) for n, p in zip(counts, given, strict=True)]
    variance = math.fsum(y * float(variance_factor(p.rate)) for y, p in zip(squares, given, strict=True))
    width = NormalDist().inv_cdf(1 - delta / 2) * math.sqrt(variance)
    error = relative_to(width, math.fsum(counts) * (1.0 if of_one else total_mean(given)))
    in_unit = width / math.fsum(counts) if law == "avg" else width
    return Bound(error, Guarantee.ESTIMATE, "normal", half_width=in_unit)
