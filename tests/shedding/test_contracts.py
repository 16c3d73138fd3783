"""Beyond the paper: weights, contracts, strata, and aggregates whose curves have no closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from catchment.quality.populations import Population
from catchment.shedding.demand import ordinary_demands
from catchment.shedding.forest import OperatorNode, QueryNode, ShedForest, StreamNode
from catchment.shedding.planner import load_at, shed_load, targets
from catchment.shedding.strata import (
    group_rates,
    kept_share,
    largest_groups,
    rates_within,
    single_rate,
)
from catchment.shedding.water_filling import Piece, solve_by_bisection, solve_capacity
from tests.worlds.shed_support import DELTA, least_load_by_lp, random_forest, slope_of
from tests.worlds.tiers import seeds


def side_by_side(capacity: float, *queries: QueryNode, strata: tuple[tuple[str, float], ...] = ()) -> ShedForest:
    """One operator of load 1 for each query, all on one stream."""
    operators = tuple(OperatorNode(q.input, "S", 1.0, 1e-3) for q in queries)
    return ShedForest(capacity, DELTA, (StreamNode("S", 1000, strata),), operators, queries)


def with_terms(forest: ShedForest, seed: int) -> ShedForest:
    """The same forest, its queries with random weights and contracts."""
    r = np.random.default_rng([seed, 3])
    queries = []
    for q in forest.queries:
        weight = float(r.uniform(0.2, 5)) if r.random() < 0.5 else 1.0
        slope = slope_of(q, DELTA)
        contract = float(slope * r.uniform(1.2, 30)) if r.random() < 0.4 else None
        queries.append(QueryNode(q.name, q.input, q.aggregate, q.population, weight, contract))
    return ShedForest(forest.capacity, DELTA, forest.streams, forest.operators, tuple(queries))


def test_a_query_worth_twice_as_much_is_half_as_wrong() -> None:
    same = Population(1000)
    plan = shed_load(
        side_by_side(1.2, QueryNode("q", "A", "count", same, weight=2.0), QueryNode("r", "B", "count", same))
    )
    assert plan.errors["q"] == pytest.approx(plan.errors["r"] / 2)
    assert plan.effective_rates == {"q": pytest.approx(0.8), "r": pytest.approx(0.4)}


def test_a_contract_is_kept_while_another_query_can_give() -> None:
    same = Population(100_000)
    q = QueryNode("q", "A", "count", same, max_error=0.02)
    for capacity in (1.9, 1.2, 0.6, 0.3):
        plan = shed_load(side_by_side(capacity, q, QueryNode("r", "B", "count", same)))
        assert plan.errors["q"] <= 0.02 * (1 + 1e-12)
        assert plan.load_after == pytest.approx(capacity)
    assert plan.errors["r"] > 0.02


def test_contracts_that_cannot_all_be_kept_are_exceeded_by_one_factor_after_the_others_gave_everything() -> None:
    same = Population(100_000)
    forest = side_by_side(
        0.4,
        QueryNode("strict", "A", "count", same, max_error=0.01),
        QueryNode("loose", "B", "count", same, max_error=0.03),
        QueryNode("free", "C", "count", same),
    )
    plan = shed_load(forest)
    assert plan.errors["strict"] / 0.01 == pytest.approx(plan.errors["loose"] / 0.03)
    assert plan.errors["strict"] > 0.01
    assert (plan.effective_rates["free"], plan.errors["free"]) == (0.0, math.inf)
    assert plan.load_after == pytest.approx(0.4)


def test_a_contract_met_anyway_changes_nothing() -> None:
    for seed in seeds(100):
        forest = random_forest(seed)
        plan = shed_load(forest)
        if plan.max_error == 0.0:
            continue
        loose = tuple(
            QueryNode(q.name, q.input, q.aggregate, q.population, max_error=plan.max_error * 1.5)
            for q in forest.queries
        )
        again = shed_load(ShedForest(forest.capacity, DELTA, forest.streams, forest.operators, loose))
        assert again.max_error == pytest.approx(plan.max_error)


def test_weighted_errors_under_contracts_are_least_on_300_forests() -> None:
    """Against the linear program: with the shared error a little smaller, no placement fits."""
    seen = {"kept": 0, "broken": 0}
    for seed in range(300):
        forest = with_terms(random_forest(seed), seed)
        plan = shed_load(forest)
        assert plan.load_after <= forest.capacity * (1 + 1e-9)
        floors = {q.name: min(1.0, slope_of(q, DELTA) / q.max_error) if q.max_error else 0.0 for q in forest.queries}
        if least_load_by_lp(forest, floors) <= forest.capacity * (1 - 1e-9):
            seen["kept"] += 1
            assert all(plan.errors[q.name] <= q.max_error * (1 + 1e-9) for q in forest.queries if q.max_error)
            _assert_least(forest, plan.errors, floors)
        else:
            seen["broken"] += 1
            assert all(plan.effective_rates[q.name] == 0.0 for q in forest.queries if q.max_error is None)
    assert min(seen.values()) > 10


def _assert_least(forest: ShedForest, errors: Mapping[str, float], floors: dict[str, float]) -> None:
    slopes = {q.name: slope_of(q, DELTA) for q in forest.queries}
    free = [errors[q.name] * q.weight for q in forest.queries if q.max_error is None]
    shared = max(free, default=0.0)
    if shared > 0.0:
        smaller = {
            q.name: min(1.0, max(floors[q.name], slopes[q.name] * q.weight / (shared * (1 - 1e-5))))
            for q in forest.queries
        }
        assert least_load_by_lp(forest, smaller) > forest.capacity


@pytest.mark.parametrize("aggregate", ["avg", "median", "quantile:0.95", "max", "variance"])
def test_other_aggregates_share_the_worst_error_with_a_sum(aggregate: str) -> None:
    known = Population(50_000, 10, 4, (0, 40))
    forest = side_by_side(
        0.3, QueryNode("q", "A", aggregate, known), QueryNode("r", "B", "sum", Population(5_000, 10, 4))
    )
    plan = shed_load(forest)
    assert plan.load_after == pytest.approx(0.3, rel=1e-2)  # a maximum's curve has steps
    assert plan.load_after <= 0.3 * (1 + 1e-9)
    assert plan.effective_rates["q"] < 1.0
    assert plan.errors["q"] == pytest.approx(plan.errors["r"], rel=1e-2)


def test_an_average_is_shed_further_than_a_sum_of_the_same_values() -> None:
    steady = Population(10_000, 100, 5)
    plan = shed_load(side_by_side(0.5, QueryNode("q", "A", "avg", steady), QueryNode("r", "B", "sum", steady)))
    assert plan.effective_rates["q"] < plan.effective_rates["r"] / 5


def test_an_overload_beyond_any_promise_is_still_brought_down() -> None:
    few = Population(20, 10, 4)
    plan = shed_load(side_by_side(0.01, QueryNode("q", "A", "avg", few), QueryNode("r", "B", "median", few)))
    assert plan.load_after == pytest.approx(0.01)
    assert plan.max_error == math.inf


def test_the_closed_form_and_the_halving_agree() -> None:
    for seed in seeds(150):
        forest = random_forest(seed)
        demands = ordinary_demands(forest)
        assert demands.linear
        exact = shed_load(forest).max_error
        halved = solve_by_bisection(lambda e, f=forest, d=demands: load_at(f, targets(f, d.rates(e))), forest.capacity)
        assert halved == pytest.approx(exact, rel=1e-9)


def test_filling_meets_the_capacity_from_every_side() -> None:
    pieces = [Piece(1.0, 2.0, 0.1), Piece(2.0, 0.5), Piece(3.0, 0.0, 0.2), Piece(1.0, 4.0, 1.0)]

    def load(pressure: float) -> float:
        return sum(p.weight * p.rate(pressure) for p in pieces)

    floors, full = load(0.0), load(math.inf)
    assert solve_capacity(pieces, floors * 0.999) is None
    assert solve_capacity(pieces, full) == math.inf
    for capacity in np.linspace(floors, full * 0.999, 25):
        pressure = solve_capacity(pieces, float(capacity))
        assert pressure is not None
        assert load(pressure) == pytest.approx(capacity)


# Groups ---------------------------------------------------------------------------------------------------


def zipf(groups: int = 200, records: float = 1e6) -> dict[str, Population]:
    shares = np.arange(1, groups + 1) ** -1.2
    return {f"g{i:03d}": Population(round(records * s / shares.sum()), 10, 5) for i, s in enumerate(shares)}


def test_the_smallest_group_no_longer_forbids_shedding() -> None:
    groups = zipf()
    one = single_rate("sum", groups, 0.1, DELTA)
    each = group_rates("sum", groups, 0.1, DELTA)
    assert one == max(each.values()) > 0.8
    assert kept_share(groups, each) < 0.25


def test_a_contract_on_the_groups_that_carry_the_mass_keeps_less_still() -> None:
    groups = zipf()
    chosen = largest_groups(groups, 0.9)
    assert sum(groups[g].count for g in chosen) >= 0.9 * sum(g.count for g in groups.values())
    assert sum(groups[g].count for g in chosen[:-1]) < 0.9 * sum(g.count for g in groups.values())
    full, part = (group_rates("sum", groups, 0.1, DELTA, mass) for mass in (1.0, 0.9))
    assert kept_share(groups, part) < 0.8 * kept_share(groups, full)
    assert all(part[g] == full[g] for g in chosen)
    assert all(part[g] == full[chosen[0]] for g in groups if g not in chosen)


@pytest.mark.parametrize("aggregate", ["sum", "avg"])
def test_rates_within_a_share_fill_it_with_the_least_worst_error(aggregate: str) -> None:
    groups = zipf()
    error, rates = rates_within(aggregate, groups, 0.15, DELTA)
    assert kept_share(groups, rates) == pytest.approx(0.15)
    tighter = group_rates(aggregate, groups, error * 0.999, DELTA)
    assert kept_share(groups, tighter) > 0.15


def test_a_stratified_stream_is_sampled_group_by_group() -> None:
    groups = {"big": Population(90_000), "small": Population(400)}
    strata = (("big", 0.995), ("small", 0.005))
    query = QueryNode("q", "A", "count", Population(90_400), groups=tuple(groups.items()))
    apart, together = shed_load(side_by_side(0.2, query, strata=strata)), shed_load(side_by_side(0.2, query))
    assert apart.load_after == pytest.approx(0.2)
    assert together.load_after == pytest.approx(0.2)
    assert apart.max_error < together.max_error / 5
    (sampler,) = apart.samplers
    rates = {name: rate for name, rate, _ in sampler.strata}
    assert rates["small"] > rates["big"]
    assert sampler.rate == pytest.approx(0.995 * rates["big"] + 0.005 * rates["small"])
    assert together.samplers[0].strata == ()


def test_stratified_rates_are_least_by_the_linear_program_of_a_forest_a_stratum() -> None:
    """A stratum is a stream of its own: the same forest written out once a stratum has the same answer."""
    strata = (("a", 0.7), ("b", 0.2), ("c", 0.1))
    sizes = {"a": 40_000, "b": 3_000, "c": 200}
    operators = (OperatorNode("P", "S", 1.0, 1e-3), OperatorNode("A", "P", 0.5, 2e-3))
    grouped = QueryNode("q", "A", "count", Population(1), groups=tuple((g, Population(n)) for g, n in sizes.items()))
    plain = QueryNode("r", "P", "sum", Population(9_000, 5, 9))
    plan = shed_load(ShedForest(0.6, DELTA, (StreamNode("S", 1000, strata),), operators, (grouped, plain)))

    streams = tuple(StreamNode(f"S{g}", 1000 * share) for g, share in strata)
    written = tuple(
        OperatorNode(o.name + g, o.input + g, o.selectivity, o.seconds_per_tuple) for o in operators for g in sizes
    )
    queries = [QueryNode(f"q{g}", f"A{g}", "count", Population(n)) for g, n in sizes.items()]
    queries += [QueryNode(f"r{g}", f"P{g}", "sum", Population(9_000, 5, 9)) for g in sizes]
    apart = shed_load(ShedForest(0.6, DELTA, streams, written, tuple(queries)))
    assert plan.max_error == pytest.approx(apart.max_error)
    assert plan.load_after == pytest.approx(apart.load_after)
    for g, _ in strata:
        assert plan.rates["q", g] == pytest.approx(apart.effective_rates[f"q{g}"])


def test_a_stratum_that_a_grouped_query_does_not_read_is_left_to_the_others() -> None:
    query = QueryNode("q", "A", "count", Population(500), groups=(("a", Population(500)),))
    plan = shed_load(side_by_side(0.3, query, strata=(("a", 0.5), ("b", 0.5))))
    assert plan.rates["q", "b"] == 0.0
    assert plan.rates["q", "a"] == pytest.approx(0.6)
