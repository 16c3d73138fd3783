"""The rate that a contract needs is enough, is the least of its kind, and falls as the contract loosens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import QualityError
from catchment.quality.bounds import bound, hoeffding_error
from catchment.quality.needs import Need, needed_rate
from catchment.quality.populations import Population, SampledPart
from tests.worlds.quality_worlds import WORLDS, Trials, population
from tests.worlds.tiers import examples

KNOWN = Population(20_000, 10, 4, (0, 60))
AGGREGATES = ("count", "sum", "avg", "variance", "stddev", "median", "quantile:0.9", "max")
CURVES = ("count", "sum", "avg", "median", "quantile:0.9")


@given(st.sampled_from(AGGREGATES), st.floats(0.003, 0.5), st.sampled_from([0.01, 0.05]))
@settings(max_examples=examples(60))
def test_the_needed_rate_keeps_the_contract_and_a_lower_one_does_not(
    aggregate: str, error: float, delta: float
) -> None:
    rate = needed_rate(aggregate, KNOWN, error, delta)
    assert bound(aggregate, SampledPart(KNOWN, rate), delta).holds(error)
    if 1e-6 < rate < 1.0 and aggregate != "count":  # whole records make the count's bound jagged
        assert not bound(aggregate, SampledPart(KNOWN, rate * 0.999), delta).holds(error) or aggregate == "max"


@pytest.mark.parametrize("aggregate", ["sum", "avg", "variance"])
@pytest.mark.parametrize("world", ["normal", "lognormal", "pareto 1.5", "mostly zeros"])
def test_sampled_at_the_needed_rate_the_contract_is_broken_in_at_most_delta_of_windows(
    world: str, aggregate: str
) -> None:
    r = np.random.default_rng(7)
    values = WORLDS[world](r, 500)
    rate = needed_rate(aggregate, population(values, True), 0.3, 0.05)
    trials = Trials.draw(r, values, rate, 600)
    assert trials.misses(aggregate, 0.3 * abs(trials.truth(aggregate))) <= 0.05


@given(st.sampled_from(CURVES), st.floats(0.01, 1.0), st.floats(100, 1e6), st.floats(0.1, 20), st.floats(0, 20))
@settings(max_examples=examples(150))
def test_a_curve_and_its_inverse_agree(aggregate: str, error: float, count: float, mean: float, std: float) -> None:
    need = Need(aggregate, Population(count, mean, std), 0.05)
    rate = need.rate(error)
    if 1e-9 < rate < 1.0 and not (aggregate == "avg" and std < 1e-6):
        assert need.error(rate) == pytest.approx(error, rel=1e-6)


@given(st.sampled_from(CURVES), st.floats(0.01, 1.0), st.floats(100, 1e6), st.floats(0, 20))
@settings(max_examples=examples(150))
def test_a_curve_is_safe_by_the_bounds_themselves(aggregate: str, error: float, count: float, std: float) -> None:
    known = Population(math.floor(count), 10, std)
    rate = Need(aggregate, known, 0.05).rate(error)
    assert bound(aggregate, SampledPart(known, rate), 0.05).error <= error * (1 + 1e-9)


def test_count_and_sum_follow_equation_2_and_are_capped_at_one() -> None:
    known = Population(1_000, 10, 5)
    for aggregate in ("count", "sum"):
        need = Need(aggregate, known, 0.01)
        assert need.slope is not None
        assert need.rate(0.2) == pytest.approx(need.slope / 0.2)
        assert need.error(0.4) == pytest.approx(hoeffding_error(aggregate, SampledPart(known, 0.4), 0.01))
        assert need.rate(need.slope / 2) == 1.0
    assert Need("avg", known, 0.01).slope is None


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (Need("count", Population(0), 0.01), "no records are expected"),
        (Need("sum", Population(100, 0.0, 5), 0.01), "the mean is 0"),
        (Need("avg", Population(100, 0.0, 5), 0.01), "the mean is 0"),
        (Need("distinct", Population(100), 0.01), "a distinct count has no bound"),
        (Need("variance", Population(100, 5, 2), 0.01), "neither range nor kurtosis is known"),
    ],
)
def test_a_need_of_every_record_is_never_shed(need: Need, why: str) -> None:
    assert need.needs_every_record, why
    assert need.rate(1e9) == 1.0
    assert (need.error(1.0), need.error(0.99)) == (0.0, math.inf)


def test_beside_every_corner_that_needs_every_record_some_are_shed() -> None:
    for need in (
        Need("count", Population(1), 0.01),
        Need("sum", Population(100, 1e-9, 0.0), 0.01),
        Need("variance", Population(100_000, 5, 2, None, 3.0), 0.01),
        Need("distinct_by_key", Population(100), 0.01),
    ):
        assert not need.needs_every_record
        assert need.rate(100.0) < 1.0


def test_contracts_at_their_limits() -> None:
    assert needed_rate("sum", KNOWN, 0.0, 0.05) == 1.0
    assert needed_rate("sum", Population(0), 0.1, 0.05) == 1.0
    assert needed_rate("distinct", KNOWN, 0.5, 0.05) == 1.0
    assert Need("sum", KNOWN, 0.05).rate(0.0) == 1.0
    assert Need("sum", KNOWN, 0.05).rate(math.inf) == 0.0
    assert Need("sum", KNOWN, 0.05).error(0.0) == math.inf
    with pytest.raises(QualityError, match="error is at least 0"):
        needed_rate("sum", KNOWN, -0.1, 0.05)
    with pytest.raises(QualityError, match="delta"):
        Need("sum", KNOWN, 1.0)
    with pytest.raises(QualityError, match="no bound is known"):
        Need("harmonic", KNOWN, 0.05)
