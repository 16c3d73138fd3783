"""The shed planner against linear programs, brute force and the paper's own example.

The linear program shares no code with the planner: it chooses the rates of all nodes at once and knows
neither segments nor breakpoints. It can catch a placement or an error that is not the best; it cannot
catch a wrong load equation, which the plain recursion over samplers does.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from catchment.errors import PlanError
from catchment.quality.populations import Population
from catchment.shedding.forest import WHOLE, OperatorNode, QueryNode, ShedForest, StreamNode
from catchment.shedding.planner import ShedPlan, load_at, make_plan, set_sampling_rates, shed_load, targets
from tests.worlds.shed_support import (
    DELTA,
    effective_by_samplers,
    least_error_by_milp,
    least_load_by_lp,
    load_by_samplers,
    random_forest,
    slope_of,
)
from tests.worlds.tiers import seeds

FORESTS = 1000


def rates_of(plan: ShedPlan) -> dict[str, float]:
    return {sampler.before: sampler.rate for sampler in plan.samplers}


def example_1() -> ShedForest:
    """Figure 1 of the paper: A feeds B and C, q1 reads B, q2 reads C."""
    return ShedForest(
        1.0,
        DELTA,
        (StreamNode("S", 1000),),
        (OperatorNode("A", "S", 0.9, 1e-3), OperatorNode("B", "A", 0.5, 1e-3), OperatorNode("C", "A", 0.7, 1e-3)),
        (QueryNode("q1", "B", "count", Population(100)), QueryNode("q2", "C", "count", Population(100))),
    )


def test_example_1_of_the_paper_samples_0_8_before_a_and_0_625_before_b() -> None:
    forest = example_1()
    rates = targets(forest, {("q1", WHOLE): 0.5, ("q2", WHOLE): 0.8})
    samplers = {s.before: (s.rate, s.effective) for s in set_sampling_rates(forest, rates)}
    assert samplers == {
        "A": (pytest.approx(0.8), pytest.approx(0.8)),
        "B": (pytest.approx(0.625), pytest.approx(0.5)),
    }


def test_targets_are_capped_at_one_before_they_are_placed() -> None:
    """Uncapped targets 2.0 and 0.5 would become 1 and 0.25."""
    loose, tight = Population(10_000), Population(625)  # C is four times as large
    forest = ShedForest(
        1.0,
        DELTA,
        (StreamNode("S", 1000),),
        (OperatorNode("A", "S", 1.0, 1e-3), OperatorNode("B", "A", 1.0, 1e-3)),
        (QueryNode("q1", "A", "count", tight), QueryNode("q2", "B", "count", loose)),
    )
    slopes = [slope_of(q, DELTA) for q in forest.queries]
    at_half = ShedForest(1.5, DELTA, forest.streams, forest.operators, forest.queries)
    plan = shed_load(at_half)
    assert slopes[0] == pytest.approx(4 * slopes[1])
    assert plan.effective_rates == {"q1": 1.0, "q2": pytest.approx(0.5)}
    assert plan.max_error == pytest.approx(slopes[1] / 0.5)
    assert slopes[0] / plan.max_error == pytest.approx(2.0)
    assert plan.errors["q1"] == 0.0


def test_no_placement_has_a_lower_load_than_set_sampling_rate_on_1000_forests() -> None:
    """Theorem 1, for the planner's own targets and for random ones."""
    for seed in seeds(FORESTS):
        forest = random_forest(seed, query_cost=seed % 2 == 0)
        r = np.random.default_rng(seed)
        wanted = {q.name: float(r.uniform(0.01, 1.0)) for q in forest.queries}
        rates = targets(forest, {(name, WHOLE): rate for name, rate in wanted.items()})
        samplers = {s.before: s.rate for s in set_sampling_rates(forest, rates)}
        load = load_at(forest, rates)
        assert load == pytest.approx(least_load_by_lp(forest, wanted), rel=1e-6, abs=1e-12)
        assert load == pytest.approx(load_by_samplers(forest, samplers), rel=1e-9, abs=1e-12)
        for name, rate in wanted.items():
            assert effective_by_samplers(forest, samplers, name) == pytest.approx(rate)


def test_random_placements_of_the_same_rates_never_cost_less() -> None:
    for seed in seeds(200):
        forest, r = random_forest(seed), np.random.default_rng([seed, 5])
        wanted = {(q.name, WHOLE): float(r.uniform(0.01, 1.0)) for q in forest.queries}
        least = targets(forest, wanted)
        other = dict(least)
        for name in forest.downward:  # any rate between what is needed below and what comes from above
            for child in forest.children[name]:
                if isinstance(forest.nodes[child], OperatorNode):
                    other[child, WHOLE] = float(r.uniform(least[child, WHOLE], other[name, WHOLE]))
        assert load_at(forest, least) <= load_at(forest, other) + 1e-12


def test_the_least_worst_error_is_exact_on_1000_forests() -> None:
    """At the planner's error the load is the capacity; at a smaller one no placement at all fits it."""
    for seed in seeds(FORESTS):
        forest = random_forest(seed, query_cost=seed % 3 == 0)
        plan = shed_load(forest)
        assert plan.load_after <= forest.capacity * (1 + 1e-9)
        if plan.max_error == 0.0:  # what nobody reads was enough to shed
            assert all(rate == 1.0 for rate in plan.effective_rates.values())
            continue
        assert plan.load_after == pytest.approx(forest.capacity, rel=1e-9)
        smaller = plan.max_error * (1 - 1e-5)
        capped = {q.name: min(1.0, slope_of(q, DELTA) / smaller) for q in forest.queries}
        assert least_load_by_lp(forest, capped) > forest.capacity
        stated = {q.name: min(1.0, slope_of(q, DELTA) / plan.max_error) for q in forest.queries}
        assert plan.effective_rates == pytest.approx(stated)
        wrong = [e for q, e in plan.errors.items() if plan.effective_rates[q] < 1.0]
        assert wrong == pytest.approx([plan.max_error] * len(wrong))


@pytest.mark.parametrize("block", range(4))
def test_the_least_worst_error_is_that_of_a_mixed_integer_program(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        forest = random_forest(seed)
        plan = shed_load(forest)
        if plan.max_error > 0.0:
            assert plan.max_error == pytest.approx(least_error_by_milp(forest), rel=1e-5)


def test_no_grid_of_samplers_is_better_on_small_forests() -> None:
    grid = np.linspace(0.05, 1.0, 20)
    for seed in seeds(400):
        forest = random_forest(seed)
        if len(forest.readers) > 3 or len(forest.queries) > 2:
            continue
        plan, names, best = shed_load(forest), [n.name for n in forest.readers], math.inf
        for choice in itertools.product(grid, repeat=len(names)):
            samplers = dict(zip(names, choice, strict=True))
            if load_by_samplers(forest, samplers) <= forest.capacity:
                kept = {q: effective_by_samplers(forest, samplers, q.name) for q in forest.queries}
                best = min(best, max(0.0 if p == 1.0 else slope_of(q, DELTA) / p for q, p in kept.items()))
        assert plan.max_error <= best * (1 + 1e-9)


def test_samplers_stand_only_at_the_starts_of_shared_segments() -> None:
    for seed in seeds(300):
        forest = random_forest(seed)
        readers: dict[str, frozenset[str]] = {}
        for name in reversed(forest.downward):
            own = {name} if isinstance(forest.nodes[name], QueryNode) else set()
            readers[name] = frozenset(own.union(*(readers[c] for c in forest.children[name])))
        for sampler in shed_load(forest).samplers:
            node = forest.nodes[sampler.before]
            assert not isinstance(node, StreamNode)
            above = forest.nodes[node.input]
            assert isinstance(above, StreamNode) or readers[above.name] != readers[node.name] or not readers[node.name]


def test_a_load_under_capacity_is_not_shed_and_one_just_over_is() -> None:
    for seed in seeds(50):
        fits = random_forest(seed, overload=1.0)
        plan = shed_load(fits)
        assert (plan.samplers, plan.max_error) == ((), 0.0)
        assert plan.load_after == plan.load_before
        assert set(plan.effective_rates.values()) == {1.0}
        over = ShedForest(fits.capacity * (1 - 1e-9), DELTA, fits.streams, fits.operators, fits.queries)
        assert shed_load(over).samplers


def test_one_query_alone_is_sampled_at_its_first_operator() -> None:
    forest = ShedForest(
        0.5,
        DELTA,
        (StreamNode("S", 1000),),
        (OperatorNode("A", "S", 0.5, 1e-3), OperatorNode("B", "A", 0.5, 1e-3)),
        (QueryNode("q", "B", "sum", Population(100, 5, 2)),),
    )
    assert rates_of(shed_load(forest)) == {"A": pytest.approx(0.5 / 1.5)}


def test_queries_that_share_nothing_are_sampled_each_at_its_root() -> None:
    forest = ShedForest(
        1.0,
        DELTA,
        (StreamNode("S", 1000), StreamNode("T", 1000)),
        (OperatorNode("A", "S", 1.0, 1e-3), OperatorNode("B", "T", 1.0, 1e-3)),
        (QueryNode("q", "A", "count", Population(100)), QueryNode("r", "B", "count", Population(100))),
    )
    assert rates_of(shed_load(forest)) == {"A": pytest.approx(0.5), "B": pytest.approx(0.5)}


def test_two_branches_of_one_stream_are_sampled_apart() -> None:
    forest = ShedForest(
        1.0,
        DELTA,
        (StreamNode("S", 1000),),
        (OperatorNode("A", "S", 1.0, 1e-3), OperatorNode("B", "S", 1.0, 1e-3)),
        (QueryNode("q", "A", "count", Population(100)), QueryNode("r", "B", "count", Population(900))),
    )
    assert rates_of(shed_load(forest)) == {"A": pytest.approx(0.75), "B": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("rare", "common"),
    [
        (QueryNode("q", "A", "count", Population(0)), QueryNode("q", "A", "count", Population(1))),
        (
            QueryNode("q", "A", "sum", Population(100, 0.0, 3)),
            QueryNode("q", "A", "sum", Population(100, 1e-9, 3e-9)),
        ),
        (QueryNode("q", "A", "avg", Population(100, 0.0, 3)), QueryNode("q", "A", "avg", Population(100, 3.0, 3))),
        (QueryNode("q", "A", "distinct", Population(100)), QueryNode("q", "A", "distinct_by_key", Population(100))),
    ],
    ids=["no tuples expected", "mean 0 of a sum", "mean 0 of an average", "no bound"],
)
def test_a_query_that_nothing_can_be_promised_to_is_whole_and_its_neighbour_gives(
    rare: QueryNode, common: QueryNode
) -> None:
    def planned(query: QueryNode, capacity: float) -> ShedPlan:
        operators = (OperatorNode("A", "S", 1.0, 1e-3), OperatorNode("B", "S", 1.0, 1e-3))
        other = QueryNode("other", "B", "count", Population(1000))
        return shed_load(ShedForest(capacity, DELTA, (StreamNode("S", 1000),), operators, (query, other)))

    plan = planned(rare, 1.5)
    assert (plan.effective_rates["q"], plan.errors["q"]) == (1.0, 0.0)
    assert plan.effective_rates["other"] == pytest.approx(0.5)
    assert math.isfinite(plan.max_error)
    assert planned(common, 0.1).effective_rates["q"] < 1.0
    with pytest.raises(PlanError, match=r"no shedding brings the load of 2 down to the capacity of 0\.9"):
        planned(rare, 0.9)


def test_an_operator_that_no_query_reads_is_shed_first_at_no_error() -> None:
    operators = (
        OperatorNode("A", "S", 1.0, 1e-3),
        OperatorNode("idle", "S", 1.0, 1e-3),
        OperatorNode("idler", "idle", 1.0, 1e-3),
    )
    query = QueryNode("q", "A", "count", Population(100))
    plan = shed_load(ShedForest(1.5, DELTA, (StreamNode("S", 1000),), operators, (query,)))
    assert (rates_of(plan), plan.max_error, plan.load_after) == ({"idle": 0.0}, 0.0, 1.0)


def test_a_query_may_read_a_stream_itself() -> None:
    operators = (OperatorNode("A", "S", 1.0, 1e-3),)
    queries = (QueryNode("all", "S", "count", Population(500)), QueryNode("q", "A", "count", Population(100)))
    plan = shed_load(ShedForest(0.5, DELTA, (StreamNode("S", 1000),), operators, queries))
    assert plan.effective_rates["q"] == pytest.approx(0.5)
    spared = shed_load(ShedForest(0.5, DELTA, (StreamNode("S", 1000),), operators, queries), spare_free=True)
    assert spared.effective_rates["all"] == 1.0


def test_sparing_free_samplers_costs_nothing_and_makes_no_query_worse() -> None:
    for seed in seeds(200):
        forest = random_forest(seed)
        plain, spared = shed_load(forest), shed_load(forest, spare_free=True)
        assert spared.load_after == pytest.approx(plain.load_after)
        assert len(spared.samplers) <= len(plain.samplers)
        assert all(spared.errors[q] <= plain.errors[q] for q in plain.errors)
        assert not {s.before for s in spared.samplers} & {q.name for q in forest.queries}


def test_a_plan_of_given_rates_states_their_errors() -> None:
    forest = example_1()
    plan = make_plan(forest, targets(forest, {("q1", WHOLE): 0.5, ("q2", WHOLE): 1.0}))
    assert plan.errors == {"q1": pytest.approx(slope_of(forest.queries[0], DELTA) / 0.5), "q2": 0.0}
