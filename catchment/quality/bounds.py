"""From what a window holds and how it was sampled, to how wrong its answer may be.

`bound` is given the parts of a window (one a site), each with its size, mean, std and rate, and says by
how much the scaled answer can be off, but for a chance of at most delta. It takes the best of the
inequalities that apply; all are functions of the same fixed facts, so the best of them misses no more
often than each.

- COUNT, SUM: Hoeffding's inequality as in Babcock et al. (equation 2), in the sharper form of Kearns and
  Saul; no range of values is needed, so heavy tails are no exception. Bernstein's where a range is known.
  The binomial distribution itself for a COUNT at one rate.
- AVG is a ratio of two sampled totals, but the event "too high by t" is one event about the one total of
  x - mean - t, so it costs one inequality: the spread counts, not the size, of the values.
- Variance: a ratio about (x - mean)^2, plus the square of what AVG may be off.
- Quantiles: the same ratio about "x is below t", for the one t that matters. `dkw_error` is for all
  quantiles at once.
- Minimum and maximum: how many of the extreme records may all have been missed.
- Distinct counts: none. Any estimator from a sample of records can be off by sqrt(1 / rate) (Charikar et
  al., PODS'00).

The facts given are taken for true. Where they are estimates (from the window before, say), so is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from catchment.errors import QualityError
from catchment.quality.kinds import (
    Bound,
    Guarantee,
    Part,
    Scale,
    check_delta,
    exact_answer,
    no_bound,
    parse_aggregate,
    total_count,
    total_mean,
)
from catchment.quality.laws import LAWS, relative_to, spread_about
from catchment.quality.tails import hoeffding_factor, log_term, variance_factor


def bound(aggregate: str, parts: Part | Sequence[Part], delta: float) -> Bound:
    """How wrong the scaled answer may be: `aggregate` over all parts, each sampled at its own rate."""
    kind, given = parse_aggregate(aggregate), (parts,) if isinstance(parts, Part) else tuple(parts)
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


def hoeffding_error(aggregate: str, part: Part, delta: float) -> float:
    """The error of COUNT or SUM as the paper's equation 2 has it, for one rate: the shed planner's
    measure."""
    population, law = part.population, parse_aggregate(aggregate).law
    if law not in ("count", "sum"):
        raise QualityError(f"equation 2 is about count and sum, not {aggregate!r}")
    spread = 1.0 if law == "count" else relative_to(math.sqrt(population.second_moment), population.mean)
    proxy = float(hoeffding_factor(part.rate)) if part.rate > 0 else math.inf
    return relative_to(spread * math.sqrt(2.0 * proxy * log_term(delta)), math.sqrt(population.count))


def dkw_error(kept: float, delta: float) -> float:
    """Rank error that holds for all quantiles at once, from `kept` sampled records
    (Dvoretzky-Kiefer-Wolfowitz).

    Massart's constant is for draws with replacement. A sample of a window is drawn without; convex
    ordering (Hoeffding 1963, theorem 4) then costs a factor of about e: P(D >= d) <= 2 exp(-2 n a^2) / (4
    n a (d - a)) for every a < d.
    """
    if kept < 1:
        return math.inf
    low, high = 0.5 / math.sqrt(kept), 1.0
    if _dkw_chance(kept, high) > delta:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _dkw_chance(kept, middle) <= delta else (middle, high)
    return high


def _dkw_chance(kept: float, distance: float) -> float:
    # The best a solves a quadratic; this one is within a hair of it and always allowed.
    a = distance - 1.0 / (4.0 * kept * distance)
    return 2.0 * math.exp(-2.0 * kept * a * a) / (4.0 * kept * a * (distance - a)) if a > 0 else math.inf


def estimate(aggregate: str, parts: Part | Sequence[Part], delta: float) -> Bound:
    """The normal limit's figure for COUNT, SUM and AVG: an estimate, not a guarantee, and named so."""
    law, given = parse_aggregate(aggregate).law, (parts,) if isinstance(parts, Part) else tuple(parts)
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
