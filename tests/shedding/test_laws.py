"""Load divided by the variance of answers: the law against samples that are really drawn, the planner against linear
programs and random rates, readers that pick against tuples that are counted one by one.

The oracles write the formulas out again or draw; they share no code with the planner. They cannot catch a load equation
that is wrong in both.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.quality.bounds import bound
from catchment.quality.needs import Need
from catchment.quality.populations import Population, SampledPart
from catchment.shedding.forest import WHOLE, OperatorNode, QueryNode, ShedForest, StreamNode
from catchment.shedding.laws import Law, VarianceNeed, make_need, spare_limit
from catchment.shedding.planner import load_at, make_plan, shed_load, targets, wanted_share
from catchment.shedding.strata import rates_within, size_classes
from tests.worlds.shed_support import DELTA, least_load_by_lp, random_forest
from tests.worlds.tiers import examples

Z = {0.05: 1.959964, 0.01: 2.575829}


def spread_of(query: QueryNode) -> float:
    """c, written out again."""
    x = query.population
    return math.sqrt((1.0 if query.aggregate == "count" else (x.std**2 + x.mean**2) / x.mean**2) / x.count)


def rate_for(query: QueryNode, error: float, delta: float) -> float:
    square = (Z[delta] * spread_of(query)) ** 2
    return square / (square + error**2)


@pytest.mark.parametrize("aggregate", ["count", "sum", "avg", "median", "quantile:0.9", "variance", "stddev"])
@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_about_delta_of_samples_are_off_by_more_than_the_law_says(aggregate: str, rate: float) -> None:
    chance = np.random.default_rng([7, len(aggregate), int(100 * rate)])
    values = chance.normal(10.0, 3.0, 4_000)
    need = VarianceNeed(aggregate, Population(len(values), float(values.mean()), float(values.std())), 0.05)
    off = [abs(_error(aggregate, values, chance.random(len(values)) < rate, rate)) for _ in range(1_500)]
    assert 0.02 < np.mean(np.array(off) > need.error(rate)) < 0.09


def _error(aggregate: str, values: np.ndarray, kept: np.ndarray, rate: float) -> float:
    sample = values[kept]
    if aggregate in ("median", "quantile:0.9"):
        q = 0.5 if aggregate == "median" else 0.9
        return float(np.mean(values <= np.quantile(sample, q)) - q)
    answers = {
        "count": (len(sample) / rate, len(values)),
        "sum": (sample.sum() / rate, values.sum()),
        "avg": (sample.mean(), values.mean()),
        "variance": (sample.var(), values.var()),
        "stddev": (sample.std(), values.std()),
    }
    found, true = answers[aggregate]
    return float(found / true - 1.0)


@settings(max_examples=examples(200))
@given(
    aggregate=st.sampled_from(["count", "sum", "avg", "median", "variance", "stddev", "max"]),
    count=st.floats(1, 1e9),
    mean=st.floats(0.1, 1e3),
    std=st.floats(0, 1e4),
    error=st.floats(1e-4, 50),
)
def test_the_rate_falls_as_the_error_grows_and_the_error_is_its_inverse(
    aggregate: str, count: float, mean: float, std: float, error: float
) -> None:
    need = VarianceNeed(aggregate, Population(count, mean, std), 0.05)
    rate = need.rate(error)
    assert 0.0 < rate <= 1.0
    assert need.rate(1.1 * error) <= rate
    assert need.rate(0.0) == 1.0
    assert need.rate(math.inf) == 0.0
    assert need.error(1.0) == 0.0
    assert need.error(0.0) == math.inf
    if aggregate != "max" and rate < 1.0 - 1e-9:
        assert need.error(rate) == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize(
    ("aggregate", "population"),
    [
        ("count", Population(0)),
        ("sum", Population(100, 0.0, 1.0)),
        ("avg", Population(100, 0.0, 1.0)),
        ("distinct", Population(100)),
        ("top_k", Population(100)),
    ],
)
def test_where_no_rate_says_anything_nothing_is_shed(aggregate: str, population: Population) -> None:
    need = make_need(Law.VARIANCE, aggregate, population, 0.05)
    assert need.needs_every_record
    assert need.rate(1e9) == need.promised_rate(1e9) == 1.0
    assert need.error(0.99) == math.inf
    operators = (OperatorNode("A", "S", 1.0, 1e-3), OperatorNode("B", "S", 1.0, 1e-3))
    queries = (QueryNode("q", "A", aggregate, population), QueryNode("r", "B", "count", Population(100)))
    plan = shed_load(ShedForest(1.5, DELTA, (StreamNode("S", 1000),), operators, queries, law=Law.VARIANCE))
    assert plan.effective_rates == {"q": 1.0, "r": pytest.approx(0.5)}


@settings(max_examples=examples(40))
@given(
    aggregate=st.sampled_from(["count", "sum", "avg"]),
    count=st.floats(100, 1e6),
    std=st.floats(0, 10),
    max_error=st.floats(0.01, 0.5),
)
def test_a_contract_asks_for_the_rate_at_which_the_stated_bound_keeps_it(
    aggregate: str, count: float, std: float, max_error: float
) -> None:
    population = Population(count, 2.0, std)
    rate = VarianceNeed(aggregate, population, 0.05).promised_rate(max_error)
    assert bound(aggregate, SampledPart(population, rate), 0.05).error <= max_error * (1 + 1e-9)
    assert rate <= Need(aggregate, population, 0.05).rate(max_error) + 1e-9


@pytest.mark.parametrize("part", range(4))
def test_no_rates_of_the_same_load_have_a_smaller_worst_error(part: int) -> None:
    """Whatever would be a little less wrong needs more than there is, by a linear program."""
    for seed in range(part * 60, part * 60 + 60):
        forest = replace(random_forest(seed), law=Law.VARIANCE)
        plan = shed_load(forest)
        assert plan.load_after <= forest.capacity * (1 + 1e-9)
        assert all(0.0 < rate <= 1.0 for rate in plan.effective_rates.values())
        better = {q.name: rate_for(q, 0.99 * plan.max_error, DELTA) for q in forest.queries}
        if max(plan.load_after, 0.0) < forest.capacity * (1 - 1e-6):
            continue  # only what nobody reads costs anything
        assert least_load_by_lp(forest, better) > forest.capacity * (1 - 1e-9)
        for query in forest.queries:
            shown = plan.effective_rates[query.name]
            assert plan.errors[query.name] == pytest.approx(
                Z[DELTA] * spread_of(query) * math.sqrt((1 - shown) / shown), rel=1e-5, abs=1e-12
            )


def test_one_query_gets_all_that_fits_and_under_the_capacity_nothing_is_shed() -> None:
    def planned(capacity: float) -> dict[str, float]:
        queries = (QueryNode("q", "A", "sum", Population(50, 3.0, 9.0)),)
        operators = (OperatorNode("A", "S", 1.0, 1e-3),)
        return dict(
            shed_load(
                ShedForest(capacity, DELTA, (StreamNode("S", 1000),), operators, queries, law=Law.VARIANCE)
            ).effective_rates
        )

    assert planned(0.25) == {"q": pytest.approx(0.25)}
    assert planned(1.0) == {"q": 1.0}


def test_at_low_rates_a_query_of_few_records_gets_more_than_by_hoeffding() -> None:
    """A tenth of the records: 3.2 times the error by Hoeffding at one rate, and so 3.2 times the rate; by the variance
    it takes nearly 10 times."""
    queries = (QueryNode("many", "A", "count", Population(1e6)), QueryNode("few", "B", "count", Population(1e5)))
    operators = (OperatorNode("A", "S", 1.0, 1e-3), OperatorNode("B", "S", 1.0, 1e-4))
    forest = ShedForest(0.02, DELTA, (StreamNode("S", 1000),), operators, queries)
    by = {law: shed_load(replace(forest, law=law)).effective_rates for law in Law}
    assert by[Law.HOEFFDING]["few"] / by[Law.HOEFFDING]["many"] == pytest.approx(math.sqrt(10))
    assert 8 < by[Law.VARIANCE]["few"] / by[Law.VARIANCE]["many"] < 10


@settings(max_examples=examples(150))
@given(
    picking=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12)), min_size=1, max_size=6),
    others=st.lists(st.floats(0, 1), max_size=3),
)
def test_what_somebody_wants_is_counted_tuple_by_tuple(picking: list[tuple[float, int]], others: list[float]) -> None:
    """2,000 places x 20 kinds of tuples; each picking reader wants some kinds that no other does."""
    places, kinds = (np.arange(2_000) + 0.5) / 2_000, 20
    wanted, first = np.zeros((2_000, kinds), dtype=bool), 0
    for rate, size in picking:
        wanted[:, first : first + size] |= (places < rate)[:, None]
        first += size
    for rate in others:
        wanted |= (places < rate)[:, None]
    share = wanted_share([*((rate, size / kinds) for rate, size in picking), *((rate, 1.0) for rate in others)])
    if first <= kinds:
        assert share == pytest.approx(wanted.mean(), abs=0.002)
    else:
        assert share >= wanted.mean() - 0.002


def picking_forest(seed: int) -> ShedForest:
    """A preparation that all share, two readers of everything and some that pick, each with work of its own."""
    r = np.random.default_rng([seed, 11])
    shares = r.dirichlet(np.ones(5))[:4]
    operators = [OperatorNode("prepare", "S", 1.0, 1e-5)]
    operators += [OperatorNode(f"all{i}", "prepare", 1.0, float(r.uniform(0, 3e-6))) for i in range(2)]
    operators += [
        OperatorNode(f"some{i}", "prepare", 1.0, float(r.uniform(0, 3e-6)), float(s)) for i, s in enumerate(shares)
    ]
    queries = tuple(
        QueryNode(f"q{i}", o.name, "sum", Population(float(1e5 * o.picks + 1), 1.0, float(r.uniform(0, 5))))
        for i, o in enumerate(operators[1:])
    )
    probe = ShedForest(1.0, DELTA, (StreamNode("S", 1e5),), tuple(operators), queries, law=Law.VARIANCE)
    return replace(probe, capacity=probe.load / float(r.uniform(1.5, 20)))


@pytest.mark.parametrize("seed", range(12))
def test_with_readers_that_pick_no_random_rates_of_the_same_load_are_less_wrong(seed: int) -> None:
    forest = picking_forest(seed)
    plan, chance = shed_load(forest), np.random.default_rng(seed)
    assert plan.load_after == pytest.approx(forest.capacity)
    assert plan.max_error == pytest.approx(min(e for e in plan.errors.values() if e > 0), rel=1e-6)
    for _ in range(400):
        factors = np.exp(chance.normal(0, chance.choice([0.02, 0.2, 1.0]), len(forest.queries)))
        wanted = {
            (q.name, WHOLE): min(1.0, plan.effective_rates[q.name] * f)
            for q, f in zip(forest.queries, factors, strict=True)
        }
        rates = targets(forest, wanted)
        if load_at(forest, rates) <= forest.capacity:
            assert make_plan(forest, rates).max_error >= plan.max_error * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_anyway_is_free_for_readers_without_work_of_their_own(seed: int) -> None:
    forest = picking_forest(seed)
    idle = replace(
        forest,
        operators=tuple(replace(o, seconds_per_tuple=0.0) if o.name != "prepare" else o for o in forest.operators),
    )
    plain, spared = shed_load(idle), shed_load(idle, spare_free=True)
    assert spared.load_after == pytest.approx(plain.load_after)
    assert all(spared.errors[q] <= plain.errors[q] * (1 + 1e-9) for q in plain.errors)
    assert spared.effective_rates["q0"] == spared.effective_rates["q1"] == min(spared.effective_rates.values())


def test_two_groups_have_the_rates_of_the_best_point_of_a_grid() -> None:
    groups = {"large": Population(9_000), "small": Population(1_000)}
    error, rates = rates_within("count", groups, 0.1, DELTA, law=Law.VARIANCE)
    best = math.inf
    for small in np.linspace(0.001, 0.999, 2_000):
        large = (0.1 * 10_000 - small * 1_000) / 9_000
        if large > 0:
            off = max(math.sqrt((1 - p) / (p * n)) for p, n in ((large, 9_000), (small, 1_000)))
            best = min(best, Z[DELTA] * off)
    assert error == pytest.approx(best, rel=2e-3)
    assert (rates["large"] * 9_000 + rates["small"] * 1_000) == pytest.approx(1_000)


@settings(max_examples=examples(100))
@given(sizes=st.lists(st.floats(1, 1e6), min_size=1, max_size=60), mass=st.floats(0.5, 1.0))
def test_groups_of_about_one_size_share_a_class_and_small_ones_are_with_the_smallest(
    sizes: list[float], mass: float
) -> None:
    groups: dict[int | str, float] = dict(enumerate(sizes))
    classes = size_classes(groups, mass)
    assert sorted(n for c in classes for n in c.names) == sorted(groups)
    assert math.fsum(c.share for c in classes) == pytest.approx(1.0)
    total = math.fsum(sizes)
    for found in classes:
        assert max(groups[n] for n in found.names) <= math.sqrt(2) * found.least_share * total * (1 + 1e-9)
    assert all(a.least_share > b.least_share for a, b in pairwise(classes))
    everyone = size_classes(groups, 1.0)
    assert min(c.least_share for c in everyone) == pytest.approx(min(sizes) / total)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.2])
@pytest.mark.parametrize("aggregate", ["sum", "avg"])
def test_the_size_to_spare_from_is_that_of_the_best_split_between_whole_and_sampled(
    aggregate: str, rate: float
) -> None:
    """For the same number of records read, no other limit gives a smaller variance, to what a grid tells."""
    values = np.sort(np.random.default_rng(5).lognormal(0, 2, 20_000))
    centre = values.mean() if aggregate == "avg" else 0.0
    budget, off = rate * len(values), np.abs(values - centre)

    def variance(limit: float) -> float:
        rest = off <= limit - (centre if aggregate == "avg" else 0.0)
        kept = (budget - (~rest).sum()) / rest.sum()
        return float((off[rest] ** 2).sum() * (1 - kept) / kept) if kept > 0 else math.inf

    best = min(variance(limit) for limit in values[len(values) // 2 :: 20])
    limit = math.inf
    for _ in range(60):
        rest = values[values <= limit]
        kept = max((budget - (values > limit).sum()) / len(rest), 1e-3)
        limit = spare_limit(aggregate, float(np.mean((rest - centre) ** 2)), float(values.mean()), kept)
    assert variance(limit) <= 1.1 * best
    assert (values > limit).mean() <= rate
    assert spare_limit(aggregate, 0.0, 1.0, rate) == math.inf
