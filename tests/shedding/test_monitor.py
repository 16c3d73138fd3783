"""When load is shed, how much, and when no more: the monitor driven by virtual batches of a site whose costs are known.

Catches: samplers that come late, oscillate, stay, or do not bring the load down; wrong learning of costs. Cannot
catch: what Spark really costs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.shedding.cost_book import FILTER, FREE_WORK_SHARE, HISTORY, PREPARE
from catchment.shedding.fragment_stats import FragmentStats, SheddableFragment, ValueMoments
from catchment.shedding.load_levels import ENTER_LOAD
from catchment.shedding.monitor import CALM_BATCHES, MAX_MOMENT_ROWS, Arrivals, Decision, LoadMonitor
from catchment.shedding.rate_planner import MAX_SPARED_SHARE, MIN_RATE, SMALL_GROUPS_MAX_COST, TARGET_LOAD
from catchment.shedding.row_cost import COLD_JOBS, MIN_SPREAD_ROWS, PRIOR_ROW_S, CostModel
from tests.worlds.tiers import examples

FRAGMENTS = (
    SheddableFragment("all", (("n", "count"), ("bytes", "sum")), 10.0),
    SheddableFragment("by_page", (("n", "count"),), 60.0),
    SheddableFragment("rare", (("n", "count"),), 10.0),
)
HISTORY_S, PREPARE_S, FILTER_S, FIXED_S = 8e-6, 4e-6, 1e-7, 0.05
WORK_S = {"all": 1e-6, "by_page": 2e-6, "rare": 0.5e-6}
REACHED = {"all": 1.0, "by_page": 1.0, "rare": 0.01}


class World:
    """A site that takes exactly what its costs say, one batch after another, as rows arrive."""

    def __init__(self, fragments: tuple[SheddableFragment, ...] = FRAGMENTS, deferrable: bool = True) -> None:
        self.monitor = LoadMonitor("s", fragments, 0.05, deferrable)
        self.fragments, self.deferrable = fragments, deferrable
        self.interval_s, self.backlog = 0.5, 0.0
        self.capacity = 1.0 / (HISTORY_S + sum(WORK_S[f.name] for f in fragments))

    def batch(self, rows_per_s: float) -> tuple[Decision, float]:
        rows = int(rows_per_s * self.interval_s)
        decision = self.monitor.decide(Arrivals(rows, self.interval_s))
        rates = dict(decision.rates) or {f.name: 1.0 for f in self.fragments}
        work = {f: FIXED_S + rows * rates[f] * WORK_S[f] for f in rates}
        if decision.rates and self.deferrable:
            read = rows * self.monitor.read_share(decision)
            work |= {PREPARE: FIXED_S + read * PREPARE_S, FILTER: rows * FILTER_S}
            self.monitor.learn_sampled(rows, rates, work, int(read))
        else:
            work[HISTORY] = FIXED_S + rows * HISTORY_S
            self.monitor.learn_whole(rows, work)
        for name in rates:
            self.monitor.learn_sizes(name, rows, np.array([rows * REACHED[name]]), self.interval_s)
        lasted = sum(work.values())
        self.interval_s = max(0.5, lasted)
        return decision, lasted


def calm(world: World, batches: int = 10) -> None:
    """Ordinary load, which is never quite even."""
    for place in range(batches):
        world.batch(world.capacity * (0.1 if place % 2 else 0.5))


def test_under_its_capacity_nothing_is_shed() -> None:
    world = World()
    for share in (0.1, 0.5, 0.8):
        for _ in range(10):
            decision, _ = world.batch(world.capacity * share)
            assert not decision.sheds
            assert not world.monitor.shedding


@pytest.mark.parametrize("times", [2, 5, 10, 20])
def test_a_spike_is_shed_in_its_first_batch_and_batches_stay_short(times: int) -> None:
    world = World()
    calm(world)
    lasted = []
    for place in range(20):
        decision, took_s = world.batch(world.capacity * times)
        assert decision.rates, place
        lasted.append(took_s)
    usual = 4 * FIXED_S / (1 - TARGET_LOAD)
    assert max(lasted[2:]) < 2 * max(usual, 0.5)
    assert lasted[-1] <= world.interval_s


def test_a_spike_upon_a_load_that_never_varied_is_shed_by_what_rows_usually_cost() -> None:
    world = World()
    for _ in range(10):
        world.batch(world.capacity * 0.3)
    first, _ = world.batch(world.capacity * 10)
    assert first.sheds


def test_a_query_that_few_records_reach_is_shed_less_than_one_that_all_reach() -> None:
    world = World()
    calm(world)
    for _ in range(10):
        decision, _ = world.batch(world.capacity * 10)
    assert decision.rates["rare"] > decision.rates["by_page"]
    assert decision.errors["rare"] <= max(decision.errors.values())


def test_samplers_go_out_only_after_some_calm_batches() -> None:
    world = World()
    calm(world)
    for _ in range(5):
        world.batch(world.capacity * 5)
    shed = [world.batch(world.capacity * 0.4)[0].rates != {} for _ in range(CALM_BATCHES + 3)]
    assert shed[: CALM_BATCHES - 1] == [True] * (CALM_BATCHES - 1)
    assert not any(shed[CALM_BATCHES + 1 :])


def test_a_load_between_the_thresholds_changes_nothing() -> None:
    for before in (False, True):
        world = World()
        calm(world)
        world.monitor.shedding = before
        for _ in range(10):
            world.batch(world.capacity * (ENTER_LOAD - 0.1))
        assert world.monitor.shedding is before


def test_a_contract_is_not_exceeded_while_another_query_can_give() -> None:
    fragments = (
        SheddableFragment("all", (("n", "count"),), 10.0),
        SheddableFragment("by_page", (("n", "count"),), 10.0, 0.001),
    )
    world = World(fragments)
    calm(world)
    for _ in range(10):
        decision, _ = world.batch(world.capacity * 2.5)
    assert decision.rates["by_page"] > decision.rates["all"]
    assert decision.errors["by_page"] <= 0.001 * 1.01 or decision.rates["all"] == MIN_RATE


def test_what_has_no_bound_is_never_sampled_and_the_rest_gives_all() -> None:
    fragments = (SheddableFragment("all", (), 10.0, fixed=True), *FRAGMENTS[1:])
    world = World(fragments)
    calm(world)
    for _ in range(5):
        decision, _ = world.batch(world.capacity * 20)
    assert decision.rates["all"] == 1.0
    assert decision.rates["by_page"] == MIN_RATE
    assert "no shedding brings the load" in decision.reason


def test_where_history_cannot_wait_only_the_fragments_are_sampled() -> None:
    world = World(deferrable=False)
    calm(world)
    for _ in range(10):
        decision, _ = world.batch(world.capacity * 1.2)
    assert decision.sheds
    assert not World(deferrable=False).monitor.decide(Arrivals(10**6, 1.0)).sheds, "costs are not known yet"


def test_small_batches_are_never_sampled() -> None:
    world = World()
    calm(world)
    world.monitor.shedding = True
    assert not world.monitor.decide(Arrivals(100, 1e-6)).rates


def test_a_backlog_counts_as_load() -> None:
    assert Arrivals(1000, 1.0, 50_000).rows_per_s == pytest.approx(6000)


@settings(max_examples=examples(50))
@given(
    fixed=st.floats(0.01, 1.0),
    each=st.floats(1e-7, 1e-4),
    sizes=st.lists(st.integers(0, 10**6), min_size=30, max_size=60),
)
def test_costs_are_learned_from_batches_of_any_sizes(fixed: float, each: float, sizes: list[int]) -> None:
    model = CostModel()
    for _ in range(COLD_JOBS):
        model.learn(10, 100.0)  # of what is compiled once nothing is learned
    for rows in sizes:
        model.learn(rows, fixed + each * rows)
    if model.known:
        assert model.seconds_per_row == pytest.approx(each, rel=0.01)
    else:
        assert np.ptp(sizes[-10:]) < 10 * MIN_SPREAD_ROWS


def test_a_fragment_whose_records_a_reader_picks_out_is_taken_at_a_rate_of_its_own() -> None:
    """What few records reach is then cheap to take, so that it may have nearly all of them."""
    rates = {}
    for picked in (False, True):
        world = World((*FRAGMENTS[:2], replace(FRAGMENTS[2], filterable=picked)))
        calm(world)
        for _ in range(10):
            decision, _ = world.batch(world.capacity * 10)
        rates[picked] = decision.rates
        assert world.monitor.read_share(decision) < 0.5
    assert rates[True]["rare"] > 2 * rates[True]["all"]
    assert rates[True]["rare"] >= rates[False]["rare"]


def heavy_world() -> World:
    world = World((replace(FRAGMENTS[0], spareable=(("bytes", "`s`.`bytes`"),)), *FRAGMENTS[1:]))
    calm(world)
    world.batch(world.capacity * 10)
    return world


def spread(count: float, mean: float, std: float, mean_of_all: float | None = None) -> ValueMoments:
    return ValueMoments(
        count, mean, mean**2 + std**2, mean if mean_of_all is None else mean_of_all, mean_of_all is not None
    )


def test_values_are_spared_beyond_the_size_at_which_their_records_are_worth_what_they_cost() -> None:
    world = heavy_world()
    assert not any(s.spared for s in world.batch(world.capacity * 10)[0].samplers.values()), (
        "nothing is known of the values yet"
    )
    world.monitor.stats["all"].learn_moments("bytes", spread(1e4, 100.0, 1000.0))
    decision = world.batch(world.capacity * 10)[0]
    ((argument, limit),) = decision.samplers["all"].spared
    assert argument == "`s`.`bytes`"
    assert limit == pytest.approx(np.hypot(100.0, 1000.0) / np.sqrt(decision.rates["all"]))


def test_what_is_spared_makes_the_foreseen_error_smaller() -> None:
    world = heavy_world()
    world.monitor.stats["all"].learn_moments("bytes", spread(1e4, 100.0, 5000.0))
    before = world.batch(world.capacity * 10)[0]
    for _ in range(20):  # half of all bytes are in records that are spared now
        world.monitor.stats["all"].learn_moments("bytes", spread(1e6, 50.0, 100.0, 100.0))
    after = world.batch(world.capacity * 10)[0]
    assert after.errors["all"] < before.errors["all"] / 1.5
    assert after.rates["all"] < before.rates["all"], "others may have what it needs no more"


def test_where_more_is_spared_than_sampled_the_limit_goes_up_by_as_much() -> None:
    world = heavy_world()
    world.monitor.stats["all"].learn_moments("bytes", spread(1e4, 100.0, 1000.0))
    ((_, before),) = world.batch(world.capacity * 10)[0].samplers["all"].spared
    world.monitor.stats["all"].learn_spared(1000, 300)
    decision = world.batch(world.capacity * 10)[0]
    ((_, after),) = decision.samplers["all"].spared
    assert after == pytest.approx(before * 0.3 / decision.rates["all"])


def test_what_is_spared_is_load_that_no_sampler_takes_away_but_half_of_the_load_is_left_to_them() -> None:
    world = heavy_world()
    monitor, rows_per_s = world.monitor, world.capacity * 10
    before = monitor.plan(rows_per_s)
    monitor.stats["all"].learn_spared(1000, 10)
    fewer = monitor.plan(rows_per_s)
    assert monitor.planner.seconds_per_row_at(fewer.samplers) < monitor.planner.seconds_per_row_at(before.samplers)
    monitor.stats["all"].learn_spared(1000, 900)
    least = monitor.plan(rows_per_s)
    room = TARGET_LOAD - rows_per_s * monitor.costs.filtering.seconds_per_row
    assert rows_per_s * monitor.planner.seconds_per_row_at(least.samplers) >= room * (1 - MAX_SPARED_SHARE) * 0.99


def test_what_is_read_for_one_fragment_is_taken_by_all_whose_work_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower rate would save next to nothing, and cost accuracy."""
    monkeypatch.setitem(WORK_S, "by_page", FREE_WORK_SHARE * PREPARE_S / 4)
    monkeypatch.setitem(WORK_S, "rare", FREE_WORK_SHARE * PREPARE_S / 4)
    world = World((FRAGMENTS[0], replace(FRAGMENTS[1], filterable=True), replace(FRAGMENTS[2], filterable=True)))
    calm(world)
    for _ in range(10):
        decision, _ = world.batch(world.capacity * 10)
    assert min(decision.rates.values()) == decision.rates["all"]
    assert decision.rates["by_page"] == decision.rates["all"]
    assert decision.rates["rare"] > 3 * decision.rates["all"]


@pytest.mark.parametrize("times", [2, 5, 10, 20])
def test_the_load_of_what_is_decided_is_the_target(times: int) -> None:
    for picked in (False, True):
        world = World(
            (FRAGMENTS[0], replace(FRAGMENTS[1], filterable=picked), replace(FRAGMENTS[2], filterable=picked))
        )
        calm(world)
        for _ in range(5):
            world.batch(world.capacity * times)
        rows_per_s = world.capacity * times
        load = rows_per_s * (
            FILTER_S + world.monitor.planner.seconds_per_row_at(world.monitor.plan(rows_per_s).samplers)
        )
        assert 0.9 * TARGET_LOAD < load <= 1.05 * TARGET_LOAD, "work that is little is counted with the reading"


def test_to_look_at_every_row_that_comes_is_load_that_no_sampler_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    calm(world)
    rows_per_s = 20 * world.capacity
    for filter_s in (1e-8, 2.5e-7):  # a part of the target each: 0.02 and 0.43
        monkeypatch.setitem(globals(), "FILTER_S", filter_s)
        for _ in range(8):
            world.batch(rows_per_s)
        rest = rows_per_s * world.monitor.planner.seconds_per_row_at(world.monitor.plan(rows_per_s).samplers)
        assert rest == pytest.approx(TARGET_LOAD - rows_per_s * filter_s, rel=0.1)


def group_rates(decision: Decision, fragment: str) -> dict[int | str, float]:
    groups = decision.samplers[fragment].groups
    assert groups is not None
    return dict(groups.rates)


def grouped_world(groups: dict[int | str, float]) -> World:
    world = World((replace(FRAGMENTS[1], group_key="`s`.`page`"),))
    calm(world)
    world.monitor.stats["by_page"].learn_groups(groups)
    return world


def test_groups_have_rates_of_their_own_that_make_their_errors_equal() -> None:
    groups: dict[int | str, float] = {"a": 9e5, "b": 4e5, "c": 2e5}
    world = grouped_world(groups)
    decision, _ = world.batch(world.capacity * 10)
    rates = group_rates(decision, "by_page")
    errors = {g: np.sqrt((1 - rates[g]) / (rates[g] * groups[g])) for g in groups}
    assert max(errors.values()) == pytest.approx(min(errors.values()), rel=0.01)
    kept = sum(rates[g] * groups[g] for g in groups) / sum(groups.values())
    assert decision.rates["by_page"] == pytest.approx(kept)


def test_very_many_small_groups_do_not_take_it_all() -> None:
    """They would need every record; the groups that carry most of the records rule, and the small ones have the rate of
    the smallest of these."""
    large: dict[int | str, float] = {f"large{i}": 1e5 for i in range(9)}
    groups = large | {f"small{i}": 100.0 for i in range(900)}
    world = grouped_world(groups)
    decision, _ = world.batch(world.capacity * 10)
    rates = group_rates(decision, "by_page")
    assert len({rates[g] for g in groups}) == 1
    few = grouped_world(large | {f"small{i}": 100.0 for i in range(3)})
    some, _ = few.batch(few.capacity * 10)
    rates = group_rates(some, "by_page")
    assert min(rates[g] for g in rates if str(g).startswith("small")) > 5 * rates["large0"]
    assert some.errors["by_page"] < SMALL_GROUPS_MAX_COST * decision.errors["by_page"]


def test_what_is_foreseen_is_about_the_windows_that_come_not_those_of_the_calm_before() -> None:
    world = World()
    calm(world)
    rows_per_s = world.capacity * 10
    decision, _ = world.batch(rows_per_s)
    for name, in_a_window in (("by_page", rows_per_s * 60), ("rare", rows_per_s * 0.01 * 10)):
        rate = decision.rates[name]
        assert decision.errors[name] == pytest.approx(1.96 * np.sqrt((1 - rate) / (rate * in_a_window)), rel=0.01)


def test_moments_are_looked_at_in_small_batches_and_the_last_count_most() -> None:
    monitor = LoadMonitor("s", FRAGMENTS, 0.05, True)
    assert monitor.wants_moments(MAX_MOMENT_ROWS)
    assert not monitor.wants_moments(MAX_MOMENT_ROWS + 1)
    monitor.stats["all"].learn_moments("bytes", spread(100, 10.0, 1.0))
    monitor.stats["all"].learn_moments("bytes", spread(0, 99.0, 1.0))
    monitor.stats["all"].learn_moments("bytes", ValueMoments(5.0, float("nan"), 1.0, 1.0))
    assert monitor.stats["all"].moments["bytes"].mean == 10.0
    monitor.stats["all"].learn_moments("bytes", spread(100, 20.0, 1.0))
    assert 15.0 < monitor.stats["all"].moments["bytes"].mean < 17.0


@settings(max_examples=examples(100))
@given(
    rest=st.lists(st.floats(-100, 100), min_size=2, max_size=20),
    spared=st.lists(st.floats(200, 900), max_size=5),
)
def test_the_moments_give_the_variance_of_a_sampled_sum_and_average(rest: list[float], spared: list[float]) -> None:
    values = np.array([*rest, *spared])
    if abs(values.mean()) < 1.0:
        return
    seen = ValueMoments(len(rest), float(np.mean(rest)), float(np.mean(np.square(rest))), float(values.mean()))
    average = seen.population(len(rest), "avg")
    assert average.std == pytest.approx(np.sqrt(np.mean((np.array(rest) - values.mean()) ** 2)), rel=1e-6, abs=1e-6)
    total = seen.population(len(rest), "sum")
    assert total.second_moment == pytest.approx(max(np.mean(np.square(rest)), values.mean() ** 2), rel=1e-6)


@settings(max_examples=examples(30))
@given(each=st.floats(5e-7, 1e-5), seed=st.integers(0, 1000))
def test_small_batches_that_take_different_times_do_not_make_up_a_load(each: float, seed: int) -> None:
    """A second more or less, by chance, over batches of a few ten thousand rows: what is believed of a row stays near
    what rows usually cost, or near the truth once batches are large (eight of them: of the least cost, chance hides
    half in four for one seed of 200)."""
    chance, model = np.random.default_rng(seed), CostModel()
    for rows in chance.integers(20_000, 80_000, 8):
        model.learn(float(rows), 0.8 + each * rows + chance.exponential(0.3))
    low, high = sorted((each, PRIOR_ROW_S))
    assert low / 3 < model.estimate(PRIOR_ROW_S, 1.0) < 3 * high
    for rows in (1e5, 3e6, 2e5, 4e6) * 2:
        model.learn(rows, 0.8 + each * rows + chance.exponential(0.3))
    assert model.estimate(PRIOR_ROW_S, 1.0) == pytest.approx(each, rel=0.5)


def test_chance_does_not_make_rows_free() -> None:
    """A few jobs of nearly one size, the larger ones of which happened to be quick."""
    model = CostModel()
    for rows, seconds in ((1, 9.0), (1, 9.0), (60_000, 2.4), (65_000, 2.0), (80_000, 1.9)):
        model.learn(rows, seconds)
    assert model.seconds_per_row == 0.0
    assert 0.8 * 3e-6 < model.estimate(3e-6) <= 3e-6
    for rows in (600_000, 100_000, 900_000):
        model.learn(rows, 2.0 + 2e-6 * rows)
    assert model.estimate(3e-6) == pytest.approx(2e-6, rel=0.25)
    assert CostModel().estimate(3e-6) == 3e-6


def test_a_view_that_no_record_concerned_so_far_is_whole_where_it_can_be_picked_and_does_not_rule_where_not() -> None:
    for picked in (False, True):
        world = World((*FRAGMENTS[:2], replace(FRAGMENTS[2], filterable=picked)))
        calm(world)
        world.monitor.stats["rare"].reached = world.monitor.stats["rare"].typical = 0.0
        rates = world.batch(world.capacity * 10)[0].rates
        assert (rates["rare"] == 1.0) == picked
        assert rates["all"] > 5 * MIN_RATE


def test_values_that_a_view_has_not_seen_yet_are_taken_to_be_like_those_of_another() -> None:
    spareable = (("bytes", "`s`.`bytes`"),)
    fragments = (
        replace(FRAGMENTS[0], spareable=spareable),
        SheddableFragment("rare", (("bytes", "sum"),), 10.0, filterable=True, spareable=spareable),
    )
    rates = []
    for seen in (False, True):
        world = World(fragments)
        calm(world)
        if seen:
            world.monitor.stats["all"].learn_moments("bytes", spread(1e4, 100.0, 1000.0))
        decision, _ = world.batch(world.capacity * 10)
        rates.append(decision.rates["rare"] / decision.rates["all"])
        assert bool(decision.samplers["rare"].spared) == seen
    assert rates[1] == pytest.approx(rates[0], rel=0.5), "both are over the same values"
    world.monitor.stats["rare"].learn_moments("bytes", spread(1e2, 100.0, 10.0))
    assert world.batch(world.capacity * 10)[0].rates["rare"] < decision.rates["rare"], "its own are known now"


@settings(max_examples=examples(50))
@given(seed=st.integers(0, 1000), sigma=st.floats(0.1, 3.0), rate=st.floats(0.005, 0.5))
def test_what_is_foreseen_of_values_once_large_ones_are_spared_is_no_less_than_it_then_is(
    seed: int, sigma: float, rate: float
) -> None:
    values = np.random.default_rng(seed).lognormal(3, sigma, 5_000)
    mean, square = float(values.mean()), float(np.mean(values**2))
    seen = ValueMoments(5_000, mean, square, mean)
    rest = values[values <= np.sqrt(square / rate)]
    foreseen = seen.once_spared(rate)
    assert np.mean(rest**2) * (1 - 1e-9) <= foreseen.square <= square
    measured = ValueMoments(5_000, float(rest.mean()), float(np.mean(rest**2)), mean, spared=True)
    assert measured.once_spared(rate) == measured
    assert measured.after(seen) == measured, "what was seen of other values is forgotten"
    assert seen.after(measured) == seen


def test_a_view_whose_records_come_in_clumps_is_planned_for_as_if_few_of_them_came() -> None:
    steady, clumped = FragmentStats(), FragmentStats()
    for place in range(8):
        steady.learn_sizes(1e4, np.array([100.0]), 0.9)
        clumped.learn_sizes(1e4, np.array([400.0 if place % 4 == 0 else 0.0]), 0.9)
    assert steady.least_selectivity == pytest.approx(steady.selectivity, rel=0.02)
    assert clumped.least_selectivity < 0.1 * clumped.selectivity
