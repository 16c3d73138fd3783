"""What was kept at different rates becomes one answer with one bound, and the bound holds.

The bounds here know only the sample: what the sites sent, never what was shed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.shedding.rate_classes import Answers, Kept, RateClass, combine, combine_many, normal_estimate
from catchment.errors import QualityError
from catchment.quality.bounds import Guarantee, Scale, bound
from catchment.quality.populations import Population, SampledPart
from tests.worlds.quality_worlds import WORLDS, Trials

SIZE, TRIALS, DELTA = 400, 1200, 0.05


def rng(*key: object) -> np.random.Generator:
    return np.random.default_rng([sum(map(ord, str(part))) for part in key])


def kept_by(trials: Trials) -> Kept:
    """Each trial as a group, each of its rates as a rate class."""
    rows = [_class_of(trials, trials.rates == rate) for rate in np.unique(trials.rates)]
    rates, counts, means, m2s = (np.concatenate(column) for column in zip(*rows, strict=True))
    size = len(trials.kept)
    groups = np.tile(np.arange(size), len(rows)).astype(np.intp)
    return Kept(groups, rates, counts, means, m2s, size, float(trials.rates.min()))


def _class_of(trials: Trials, where: NDArray[np.bool_]) -> tuple[NDArray[np.float64], ...]:
    kept, values = trials.kept[:, where], trials.values[where]
    counts = kept.sum(1).astype(float)
    means = kept @ values / np.maximum(counts, 1)
    m2s = (kept * (values - means[:, None]) ** 2).sum(1)
    return np.full(len(kept), trials.rates[where][0]), counts, means, m2s


def misses(trials: Trials, aggregate: str, answers: Answers) -> float:
    return trials.misses(aggregate, answers.half_widths, answers.values)


@pytest.mark.parametrize("world", WORLDS)
def test_no_proved_answer_of_several_sites_misses_more_than_delta(world: str) -> None:
    values = WORLDS[world](rng(world), SIZE)
    limits = (float(values.min()), float(values.max()))
    for low in (0.05, 0.3, 0.7):
        rates = np.repeat([low, min(1.0, 2 * low), 0.5, 1.0], SIZE // 4)
        trials = Trials.draw(rng(world, low), values, rates, TRIALS)
        kept = kept_by(trials)
        for aggregate in ("count", "sum", "avg"):
            answers = combine_many(aggregate, kept, DELTA, limits)
            assert answers.guarantee is Guarantee.PROVED
            assert misses(trials, aggregate, answers) <= DELTA, (aggregate, low)


@pytest.mark.parametrize("world", ["lognormal", "pareto 1.5", "pareto 1.1", "one huge", "mostly zeros"])
def test_large_values_that_are_never_shed_prove_the_bound_of_a_heavy_tail(world: str) -> None:
    values = WORLDS[world](rng(world, "tail"), 3_000)
    limit = float(np.quantile(np.abs(values), 0.99))
    rates = np.where(np.abs(values) > limit, 1.0, 0.2)
    trials = Trials.draw(rng(world, "large"), values, rates, 500)
    kept = kept_by(trials)
    for aggregate in ("sum", "avg"):
        answers = combine_many(aggregate, kept, DELTA, (-limit, limit))
        assert answers.guarantee is Guarantee.PROVED
        assert misses(trials, aggregate, answers) <= DELTA
        unclipped = combine_many(aggregate, kept, DELTA, (float(values.min()), float(values.max())))
        assert np.all(answers.half_widths <= unclipped.half_widths * (1 + 1e-9))


@pytest.mark.parametrize("world", ["normal", "uniform", "bimodal", "both signs", "small integers"])
def test_an_estimate_without_a_range_holds_where_tails_are_light(world: str) -> None:
    values = WORLDS[world](rng(world), SIZE)
    trials = Trials.draw(rng(world, "light"), values, np.repeat([0.4, 0.8], SIZE // 2), TRIALS)
    for aggregate in ("sum", "avg"):
        answers = combine_many(aggregate, kept_by(trials), DELTA)
        assert answers.guarantee is Guarantee.ESTIMATE
        assert misses(trials, aggregate, answers) <= DELTA


def test_an_estimate_may_miss_a_huge_record_and_is_therefore_not_called_proved() -> None:
    values = WORLDS["one huge"](rng("huge"), SIZE)
    trials = Trials.draw(rng("huge", 1), values, 0.3, TRIALS)
    estimated = combine_many("sum", kept_by(trials), DELTA)
    assert misses(trials, "sum", estimated) > DELTA
    assert estimated.guarantee is Guarantee.ESTIMATE


def test_scaled_answers_are_unbiased_whatever_the_rates() -> None:
    values = WORLDS["lognormal"](rng("bias"), SIZE)
    trials = Trials.draw(rng("bias", 2), values, np.repeat([0.1, 0.5, 0.9, 1.0], SIZE // 4), 6_000)
    kept = kept_by(trials)
    for aggregate in ("count", "sum"):
        found = combine_many(aggregate, kept, DELTA).values
        assert abs(found.mean() - trials.truth(aggregate)) < 4 * found.std() / math.sqrt(len(found))
        np.testing.assert_allclose(found, trials.answers(aggregate))


@pytest.mark.parametrize("aggregate", ["variance", "stddev"])
def test_a_variance_is_scaled_and_its_bound_estimated_only_with_a_range(aggregate: str) -> None:
    values = WORLDS["uniform"](rng("var"), SIZE)
    trials = Trials.draw(rng("var", 1), values, np.repeat([0.3, 0.9], SIZE // 2), TRIALS)
    kept = kept_by(trials)
    ranged = combine_many(aggregate, kept, DELTA, (0.0, 1.0))
    np.testing.assert_allclose(ranged.values, trials.answers(aggregate))
    assert ranged.guarantee is Guarantee.ESTIMATE
    assert misses(trials, aggregate, ranged) <= DELTA
    assert combine_many(aggregate, kept, DELTA).guarantee is Guarantee.NONE


def test_relative_errors_are_relative_to_the_truth_not_to_the_answer() -> None:
    values = WORLDS["lognormal"](rng("rel"), SIZE)
    trials = Trials.draw(rng("rel", 1), values, 0.5, TRIALS)
    answers = combine_many("sum", kept_by(trials), DELTA, (0.0, float(values.max())))
    off = np.abs(answers.values - values.sum()) / values.sum()
    assert np.mean(off > answers.errors) <= DELTA


def test_one_bound_for_ten_sites_is_tighter_than_ten_bounds_added() -> None:
    classes = [RateClass(rate, 500 * rate, 10.0, 500 * rate * 4) for rate in np.linspace(0.1, 0.9, 10)]
    _, together = combine("sum", classes, 0.01, (0.0, 20.0))
    apart = [combine("sum", [c], 0.01 / 10, (0.0, 20.0))[1].half_width or 0.0 for c in classes]
    assert together.half_width is not None
    assert together.half_width < 0.5 * sum(apart)


def test_everything_kept_is_exact_and_one_site_that_sheds_is_not() -> None:
    whole, shed = RateClass(1.0, 100, 5.0, 20.0), RateClass(0.5, 50, 5.0, 10.0)
    value, stated = combine("sum", [whole, whole], 0.05)
    assert (value, stated.error, stated.guarantee) == (1000.0, 0.0, Guarantee.EXACT)
    value, stated = combine("sum", [whole, shed], 0.05, (0.0, 10.0))
    assert value == 1000.0
    assert stated.guarantee is Guarantee.PROVED
    assert stated.error > 0


def test_a_site_that_kept_nothing_of_a_group_still_widens_its_bound() -> None:
    seen = [RateClass(0.5, 50, 5.0, 10.0)]
    known = combine("sum", seen, 0.05, (0.0, 10.0))[1].half_width
    silent = combine("sum", seen, 0.05, (0.0, 10.0), lowest_rate=0.01)[1].half_width
    assert known is not None
    assert silent is not None
    assert silent > known
    only_whole = combine("count", [RateClass(1.0, 50)], 0.05, lowest_rate=0.2)[1]
    assert only_whole.guarantee is Guarantee.PROVED
    assert only_whole.error > 0


def test_a_sketch_is_bounded_by_the_sizes_that_the_sample_shows() -> None:
    value, stated = combine("median", [RateClass(0.5, 500), RateClass(0.25, 250)], 0.05)
    assert math.isnan(value)
    assert stated.scale is Scale.RANK
    assert stated.guarantee is Guarantee.ESTIMATE
    expected = bound("median", [SampledPart(Population(1000), 0.5), SampledPart(Population(1000), 0.25)], 0.05)
    assert stated.error == expected.error
    assert combine("distinct", [RateClass(0.5, 500)], 0.05)[1].guarantee is Guarantee.NONE


def test_many_groups_at_once_equal_each_alone() -> None:
    r, rows = rng("groups"), 60
    groups = r.integers(0, 10, rows).astype(np.intp)
    rates, counts = r.choice([0.2, 0.5, 1.0], rows), r.integers(0, 40, rows).astype(float)
    means, m2s = r.normal(5, 2, rows), r.random(rows) * 30
    kept = Kept(groups, rates, counts, means, m2s, 10, 0.2)
    for aggregate in ("count", "sum", "avg", "variance", "stddev"):
        together = combine_many(aggregate, kept, DELTA, (-20.0, 20.0))
        for group in range(10):
            mine = [
                RateClass(*row) for row in zip(*(c[groups == group] for c in (rates, counts, means, m2s)), strict=True)
            ]
            value, stated = combine(aggregate, mine, DELTA, (-20.0, 20.0), 0.2)
            assert value == pytest.approx(together.values[group], nan_ok=True)
            assert stated.half_width == pytest.approx(together.half_widths[group])


def test_a_group_without_records_has_no_average_and_no_bound() -> None:
    value, stated = combine("avg", [RateClass(0.5, 0, 0.0, 0.0)], 0.05, (0.0, 1.0))
    assert math.isnan(value)
    assert stated.error == math.inf


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(QualityError, match="rates are above 0"):
        combine("sum", [RateClass(rate, 10)], 0.05)
    with pytest.raises(QualityError, match="lowest rate"):
        combine("sum", [RateClass(0.5, 10)], 0.05, lowest_rate=rate)
    with pytest.raises(QualityError, match="cannot be scaled"):
        combine_many("median", Kept(*(np.zeros(0, dtype=np.intp), *[np.zeros(0)] * 4), size=1), 0.05)


def test_the_normal_figure_is_called_an_estimate() -> None:
    part = SampledPart(Population(10_000, 10, 5), 0.1)
    for aggregate in ("count", "sum", "avg"):
        figure = normal_estimate(aggregate, part, 0.05)
        assert figure.guarantee is Guarantee.ESTIMATE
        assert figure.error <= bound(aggregate, part, 0.05).error * (1 + 1e-9) or aggregate == "count"
    assert normal_estimate("median", part, 0.05).guarantee is Guarantee.NONE
