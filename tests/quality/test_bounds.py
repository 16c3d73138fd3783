"""The bounds hold: what is promised to miss at most delta is sampled thousands of times and misses no
more.

The simulation can catch a bound that is too tight anywhere it looks. It cannot show that a bound is as
tight as it could be; comparisons with the normal limit and with each other do that.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from catchment.errors import QualityError
from catchment.quality.bounds import Guarantee, Scale, bound, dkw_error, hoeffding_error
from catchment.quality.populations import Population, SampledPart, parse_aggregate
from catchment.quality.tails import hoeffding_factor, subgaussian_factor, variance_factor
from tests.worlds.quality_worlds import WORLDS, Trials, parts_of, population
from tests.worlds.tiers import examples

SIZE, TRIALS = 300, 1500
RATES = (0.05, 0.3, 0.5, 0.9)
VALUED = ("count", "sum", "avg", "variance", "stddev")
RANKED = ("median", "quantile:0.05", "quantile:0.9", "quantile:0.99")


def rng(*key: object) -> np.random.Generator:
    return np.random.default_rng([sum(map(ord, str(part))) for part in key])


@pytest.mark.parametrize("world", WORLDS)
def test_no_proved_bound_misses_more_than_delta(world: str) -> None:
    values = WORLDS[world](rng(world), SIZE)
    proved = Counter[str]()
    for rate in RATES:
        trials = Trials.draw(rng(world, rate), values, rate, TRIALS)
        for aggregate in ("sum", "avg", "variance", "stddev"):
            answers = trials.answers(aggregate)
            for ranged, delta in product((False, True), (0.05, 0.2)):
                stated = bound(aggregate, SampledPart(population(values, ranged), rate), delta)
                if stated.guarantee is Guarantee.PROVED:
                    proved[aggregate] += 1
                    assert stated.half_width is not None
                    assert trials.misses(aggregate, stated.half_width, answers) <= delta, (aggregate, rate)
    assert set(proved) == {"sum", "avg", "variance", "stddev"}, "each has proved bounds"


@given(st.integers(1, 3_000), st.floats(0.01, 0.99), st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=examples(100))
def test_a_count_misses_with_a_chance_of_at_most_delta_by_the_binomial_itself(
    size: int, rate: float, delta: float
) -> None:
    width = bound("count", SampledPart(Population(size), rate), delta).half_width
    assert width is not None
    kept = np.arange(size + 1)
    missed = np.abs(kept / rate - size) > width + 1e-9 * size
    assert stats.binom.pmf(kept, size, rate)[missed].sum() <= delta + 1e-12


@pytest.mark.parametrize("world", WORLDS)
def test_no_rank_bound_misses_more_than_delta(world: str) -> None:
    values, delta = WORLDS[world](rng(world), SIZE), 0.05
    for rate in RATES:
        trials = Trials.draw(rng(world, rate), values, rate, TRIALS)
        part = SampledPart(population(values, False), rate)
        for aggregate in RANKED:
            stated, q = bound(aggregate, part, delta), parse_aggregate(aggregate).quantile
            assert q is not None
            assert stated.scale is Scale.RANK
            assert np.mean(trials.rank_errors(q) > stated.error + 1e-9) <= delta


@given(st.integers(1, 100_000), st.floats(0.001, 0.99), st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=examples(100))
def test_an_extreme_is_missed_by_more_records_than_stated_with_a_chance_of_at_most_delta(
    size: int, rate: float, delta: float
) -> None:
    passed_over = round(bound("max", SampledPart(Population(size), rate), delta).error * size)
    assume(passed_over < size)
    assert (1 - rate) ** (passed_over + 1) <= delta * (1 + 1e-9) < (1 - rate) ** passed_over * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_sites_with_different_rates_have_one_right_bound(seed: int) -> None:
    r, names, delta = rng("sites", seed), list(WORLDS), 0.05
    sites = [WORLDS[names[r.integers(len(names))]](r, int(r.integers(20, 250))) for _ in range(4)]
    rates = [float(x) for x in r.choice([0.1, 0.25, 0.5, 0.8, 1.0], 4)]
    everything = np.concatenate(sites)
    each = np.concatenate([np.full(len(v), p) for v, p in zip(sites, rates, strict=True)])
    trials = Trials.draw(r, everything, each, TRIALS)
    proved = Counter[str]()
    for ranged in (False, True):
        parts = parts_of(sites, rates, ranged)
        for aggregate in VALUED:
            stated = bound(aggregate, parts, delta)
            if stated.guarantee is Guarantee.PROVED:
                proved[aggregate] += 1
                assert trials.misses(aggregate, stated.half_width or 0.0) <= delta, (aggregate, ranged)
        for q in (0.1, 0.5, 0.95):
            assert np.mean(trials.rank_errors(q) > bound(f"quantile:{q}", parts, delta).error + 1e-9) <= delta
    assert set(proved) == set(VALUED), "each has proved bounds"


def test_ten_sites_are_bounded_as_tightly_as_one() -> None:
    whole = SampledPart(Population(10_000, 5, 2), 0.2)
    tenth = SampledPart(Population(1_000, 5, 2), 0.2)
    for aggregate in ("count", "sum", "avg", "median"):
        assert bound(aggregate, [tenth] * 10, 0.01).error == pytest.approx(bound(aggregate, whole, 0.01).error)


def test_a_site_that_sheds_nothing_adds_no_error() -> None:
    shed, whole = SampledPart(Population(500, 5, 2), 0.3), SampledPart(Population(9_500, 5, 2), 1.0)
    alone = bound("sum", shed, 0.05).half_width
    assert bound("sum", [shed, whole], 0.05).half_width == pytest.approx(alone)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_all_quantiles_at_once_stay_within_the_dkw_distance(rate: float) -> None:
    delta, r = 0.1, rng("dkw", rate)
    kept = r.random((TRIALS, SIZE)) < rate
    distance = np.abs(np.cumsum(kept, 1) / kept.sum(1, keepdims=True) - np.arange(1, SIZE + 1) / SIZE).max(1)
    stated = np.array([dkw_error(n, delta) for n in range(SIZE + 1)])[kept.sum(1)]
    assert np.mean(distance > stated) <= delta
    assert dkw_error(0, delta) == math.inf


def test_hoeffding_is_equation_2_of_the_paper() -> None:
    part = SampledPart(Population(1_000, 10, 5), 0.25)
    expected = math.sqrt((5**2 + 10**2) / (2 * 1_000 * 10**2) * math.log(2 / 0.01)) / 0.25
    assert hoeffding_error("sum", part, 0.01) == pytest.approx(expected)
    counted = math.sqrt(math.log(2 / 0.01) / (2 * 1_000)) / 0.25
    assert hoeffding_error("count", part, 0.01) == pytest.approx(counted)


@given(st.floats(1e-6, 1.0))
def test_the_proxy_lies_between_the_variance_and_hoeffding(rate: float) -> None:
    assert variance_factor(rate) <= subgaussian_factor(rate) * (1 + 1e-9) + 1e-12
    assert subgaussian_factor(rate) <= hoeffding_factor(rate) * (1 + 1e-9)


@given(st.floats(1.0, 1e7), st.floats(0.1, 50), st.floats(0, 50), st.floats(1e-4, 0.999), st.floats(1e-3, 0.3))
@settings(max_examples=examples(150))
def test_the_stated_bound_is_never_worse_than_hoeffding(
    count: float, mean: float, std: float, rate: float, delta: float
) -> None:
    part = SampledPart(Population(count, mean, std), rate)
    for aggregate in ("count", "sum"):
        assert bound(aggregate, part, delta).error <= hoeffding_error(aggregate, part, delta) * (1 + 1e-9)


@given(st.sampled_from([*VALUED, *RANKED, "min"]), st.floats(0.001, 0.99), st.floats(1.001, 3.0))
@settings(max_examples=examples(150))
def test_a_higher_rate_is_never_promised_less(aggregate: str, rate: float, factor: float) -> None:
    known = Population(5_000, 10, 4, (0, 50))
    low, high = (bound(aggregate, SampledPart(known, min(p, 1.0)), 0.05).error for p in (rate, rate * factor))
    rounding = 2 / (known.count * rate) if aggregate in ("count", "min") else 0.0  # whole records are kept
    assert high <= low * (1 + 1e-9) + rounding


def test_bernstein_is_used_where_it_is_better_and_only_with_a_range() -> None:
    narrow, unknown = Population(100_000, 10, 3, (0, 20)), Population(100_000, 10, 3)
    assert bound("sum", SampledPart(narrow, 0.01), 0.01).method == "bernstein"
    assert bound("sum", SampledPart(unknown, 0.01), 0.01).method == "kearns-saul"
    tailed = Population(100_000, 10, 3, (0, 1e9))
    assert bound("sum", SampledPart(tailed, 0.01), 0.01).method == "kearns-saul"


def test_avg_needs_no_more_than_its_spread() -> None:
    steady = SampledPart(Population(10_000, 100, 1), 0.1)
    assert bound("avg", steady, 0.01).error < bound("sum", steady, 0.01).error / 50


def test_what_cannot_be_bounded_is_said_to_have_no_bound() -> None:
    part = SampledPart(Population(1_000, 10, 5), 0.5)
    for aggregate in ("distinct", "approx_count_distinct", "top_k", "moments", "variance"):
        assert bound(aggregate, part, 0.05).guarantee is Guarantee.NONE
        assert bound(aggregate, part, 0.05).error == math.inf
    assert bound("distinct_by_key", part, 0.05).guarantee is Guarantee.PROVED


def test_everything_kept_is_exact_for_every_aggregate() -> None:
    for aggregate in (*VALUED, *RANKED, "min", "distinct", "top_k"):
        stated = bound(aggregate, SampledPart(Population(1_000, 10, 5), 1.0), 0.05)
        assert (stated.error, stated.guarantee) == (0.0, Guarantee.EXACT)


def test_nothing_kept_and_nothing_there_promise_nothing() -> None:
    assert bound("sum", SampledPart(Population(100, 10, 5), 0.0), 0.05).guarantee is Guarantee.NONE
    assert bound("count", SampledPart(Population(0), 0.5), 0.05).guarantee is Guarantee.NONE
    assert bound("count", SampledPart(Population(0), 1.0), 0.05).guarantee is Guarantee.EXACT
    assert bound("count", [SampledPart(Population(0), 0.5), SampledPart(Population(9), 1.0)], 0.05).error == 0.0


def test_a_mean_of_zero_has_a_half_width_but_no_relative_error() -> None:
    stated = bound("sum", SampledPart(Population(1_000, 0.0, 5), 0.5), 0.05)
    assert stated.error == math.inf
    assert stated.half_width is not None
    assert 0 < stated.half_width < 1_000
    nearby = bound("sum", SampledPart(Population(1_000, 1e-9, 5), 0.5), 0.05)
    assert nearby.half_width == pytest.approx(stated.half_width)


def test_too_few_kept_records_give_an_average_no_bound() -> None:
    assert bound("avg", SampledPart(Population(20, 10, 5), 0.05), 0.01).guarantee is Guarantee.NONE
    assert bound("avg", SampledPart(Population(2_000, 10, 5), 0.5), 0.01).guarantee is Guarantee.PROVED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Population(-1), "finite number of records"),
        (lambda: Population(10, 1, -2), "std is at least 0"),
        (lambda: Population(10, 5, 1, (0, 4)), "outside the value range"),
        (lambda: Population(10, 5, 1, None, 0.5), "kurtosis"),
        (lambda: Population(10, math.nan, 1), "mean is finite"),
        (lambda: SampledPart(Population(10), 1.5), "between 0 and 1"),
        (lambda: bound("sum", SampledPart(Population(10), 0.5), 0.0), "delta"),
        (lambda: bound("sum", [], 0.05), "no parts"),
        (lambda: bound("geomean", SampledPart(Population(10), 0.5), 0.05), "no bound is known"),
        (lambda: bound("quantile:1.5", SampledPart(Population(10), 0.5), 0.05), "names no quantile"),
        (lambda: bound("quantile", SampledPart(Population(10), 0.5), 0.05), "names no quantile"),
        (lambda: hoeffding_error("avg", SampledPart(Population(10), 0.5), 0.05), "count and sum"),
    ],
)
def test_impossible_numbers_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(QualityError, match=message):
        make()
