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

from catchment.site.cost_model import CostModel
from catchment.site.overload import (
    CALM_BATCHES,
    ENTER,
    FEW_SPARED,
    FREE_WORK,
    KEEP,
    LEAST_RATE,
    MORE,
    MOST_SPARED,
    PICKED_ABOVE,
    PREPARE,
    SPARE_STDS,
    TARGET,
    Arrivals,
    Decision,
    LoadMonitor,
    Sheddable,
)

FRAGMENTS = (
    Sheddable("all", (("n", "count"), ("bytes", "sum")), 10.0),
    Sheddable("by_page", (("n", "count"),), 60.0),
    Sheddable("rare", (("n", "count"),), 10.0),
)
KEEP_S, PREPARE_S, FIXED_S = 8e-6, 4e-6, 0.05
WORK_S = {"all": 1e-6, "by_page": 2e-6, "rare": 0.5e-6}
REACHED = {"all": 1.0, "by_page": 1.0, "rare": 0.01}


class World:
    """A site that takes exactly what its costs say, one batch after another, as rows arrive."""

    def __init__(self, fragments: tuple[Sheddable, ...] = FRAGMENTS, deferrable: bool = True) -> None:
        self.monitor = LoadMonitor("s", fragments, 0.05, deferrable)
        self.fragments, self.deferrable = fragments, deferrable
        self.interval_s, self.backlog = 0.5, 0.0
        self.capacity = 1.0 / (KEEP_S + sum(WORK_S[f.name] for f in fragments))

    def batch(self, rows_per_s: float) -> tuple[Decision, float]:
        rows = int(rows_per_s * self.interval_s)
        decision = self.monitor.decide(Arrivals(rows, self.interval_s))
        rates = dict(decision.rates) or {f.name: 1.0 for f in self.fragments}
        work = {f: FIXED_S + rows * rates[f] * WORK_S[f] for f in rates}
        if decision.rates and self.deferrable:
            work[PREPARE] = FIXED_S + rows * max(rates.values()) * PREPARE_S
            self.monitor.learn_sampled(rows, rates, work)
        else:
            work[KEEP] = FIXED_S + rows * KEEP_S
            self.monitor.learn_whole(rows, work)
        for name in rates:
            self.monitor.learn_shape(name, rows, np.array([rows * REACHED[name]]), self.interval_s)
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
    usual = 4 * FIXED_S / (1 - TARGET)
    assert max(lasted[2:]) < 2 * max(usual, 0.5)
    assert lasted[-1] <= world.interval_s


def test_a_spike_upon_a_load_that_never_varied_costs_one_whole_batch() -> None:
    world = World()
    for _ in range(10):
        world.batch(world.capacity * 0.3)
    first, second = (world.batch(world.capacity * 10)[0] for _ in range(2))
    assert not first.rates
    assert second.sheds


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
            world.batch(world.capacity * (ENTER - 0.1))
        assert world.monitor.shedding is before


def test_a_contract_is_not_exceeded_while_another_query_can_give() -> None:
    fragments = (Sheddable("all", (("n", "count"),), 10.0), Sheddable("by_page", (("n", "count"),), 10.0, 0.001))
    world = World(fragments)
    calm(world)
    for _ in range(10):
        decision, _ = world.batch(world.capacity * 2.5)
    assert decision.rates["by_page"] > decision.rates["all"]
    assert decision.errors["by_page"] <= 0.001 * 1.01 or decision.rates["all"] == LEAST_RATE


def test_what_has_no_bound_is_never_sampled_and_the_rest_gives_all() -> None:
    fragments = (Sheddable("all", (), 10.0, fixed=True), *FRAGMENTS[1:])
    world = World(fragments)
    calm(world)
    for _ in range(5):
        decision, _ = world.batch(world.capacity * 20)
    assert decision.rates["all"] == 1.0
    assert decision.rates["by_page"] == LEAST_RATE
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


@settings(max_examples=50, deadline=None)
@given(
    fixed=st.floats(0.01, 1.0),
    each=st.floats(1e-7, 1e-4),
    sizes=st.lists(st.integers(0, 10**6), min_size=30, max_size=60),
)
def test_costs_are_learned_from_batches_of_any_sizes(fixed: float, each: float, sizes: list[int]) -> None:
    model = CostModel()
    model.learn(10, fixed)
    for rows in sizes:
        model.learn(rows, fixed + each * rows)
    if any(rows >= 100_000 and each * rows >= 0.2 * fixed for rows in sizes[-10:]):
        assert model.seconds_per_row == pytest.approx(each, rel=0.5)


def test_a_fragment_whose_records_a_reader_picks_out_is_taken_at_a_rate_of_its_own() -> None:
    """What few records reach is then cheap to take, so that it may have nearly all of them."""
    rates = {}
    for picked in (False, True):
        world = World((*FRAGMENTS[:2], replace(FRAGMENTS[2], picked=picked)))
        calm(world)
        for _ in range(10):
            decision, _ = world.batch(world.capacity * 10)
        rates[picked] = decision.rates
        assert world.monitor.read_share(decision.rates) < 0.5
    assert rates[True]["rare"] > 2 * rates[True]["all"]
    assert rates[True]["rare"] >= rates[False]["rare"]


def heavy_world() -> World:
    world = World((replace(FRAGMENTS[0], spareable=(("bytes", "`s`.`bytes`"),)), *FRAGMENTS[1:]))
    calm(world)
    world.batch(world.capacity * 10)
    return world


def test_large_values_are_spared_once_a_sample_has_shown_that_they_matter() -> None:
    world = heavy_world()
    world.monitor.learn_moments("all", "bytes", 100.0, 120.0)
    assert world.batch(world.capacity * 10)[0].spares == {}
    world.monitor.learn_moments("all", "bytes", 100.0, 1000.0)
    first = world.batch(world.capacity * 10)[0]
    assert first.spares == {"all": (("`s`.`bytes`", 100.0 + SPARE_STDS * 1000.0),)}
    world.monitor.learn_moments("all", "bytes", 60.0, 90.0)  # of what may be left out now
    second = world.batch(world.capacity * 10)[0]
    assert second.spares == first.spares, "what is left is even"
    assert second.errors["all"] < first.errors["all"]


def test_the_limit_of_large_values_goes_down_until_enough_of_them_are_spared() -> None:
    world = heavy_world()
    world.monitor.learn_moments("all", "bytes", 100.0, 1000.0)
    world.monitor.learn_moments("all", "bytes", 60.0, 300.0)
    assert world.batch(world.capacity * 10)[0].spares["all"][0][1] == 60.0 + SPARE_STDS * 300.0
    world.monitor.learn_spared("all", 1000, int(1000 * FEW_SPARED))
    world.monitor.learn_moments("all", "bytes", 50.0, 100.0)
    assert world.batch(world.capacity * 10)[0].spares["all"][0][1] == 60.0 + SPARE_STDS * 300.0


def test_what_is_read_for_one_fragment_is_taken_by_all_whose_work_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower rate would save next to nothing, and cost accuracy."""
    monkeypatch.setitem(WORK_S, "by_page", FREE_WORK * PREPARE_S / 2)
    monkeypatch.setitem(WORK_S, "rare", FREE_WORK * PREPARE_S / 2)
    world = World((FRAGMENTS[0], replace(FRAGMENTS[1], picked=True), replace(FRAGMENTS[2], picked=True)))
    calm(world)
    for _ in range(10):
        decision, _ = world.batch(world.capacity * 10)
    assert min(decision.rates.values()) == decision.rates["all"]
    assert decision.rates["rare"] == 1.0, "few records concern it: all of them are little beside what is read"
    load = world.capacity * 10 * world.monitor._work_s(decision.rates)
    assert TARGET / MORE**2 < load <= TARGET * (1.0 + PICKED_ABOVE)


def test_a_limit_that_spares_too_many_is_raised() -> None:
    world = heavy_world()
    world.monitor.learn_moments("all", "bytes", 100.0, 1000.0)
    ((_, before),) = world.batch(world.capacity * 10)[0].spares["all"]
    world.monitor.learn_spared("all", 1000, int(1000 * MOST_SPARED))
    assert world.batch(world.capacity * 10)[0].spares["all"][0][1] == before
    world.monitor.learn_spared("all", 1000, int(1000 * MOST_SPARED) + 1)
    assert world.batch(world.capacity * 10)[0].spares["all"][0][1] == 2 * before


def test_what_is_spared_is_load_that_no_sampler_takes_away() -> None:
    world = heavy_world()
    before = world.batch(world.capacity * 10)[0].rates
    world.monitor.learn_spared("all", 1000, 30)
    assert world.monitor._plan(world.capacity * 10).rates["all"] < before["all"]
