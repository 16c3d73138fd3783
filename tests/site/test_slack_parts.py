"""The parts of a slack controller: slice arrivals, violation budget, stall threshold, calibration, risk."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import SiteError
from catchment.quality.contract import Contract, Measure, relative_error
from catchment.quality.missing_part import MissingPart, missing_part, violation_risk
from catchment.sim.order.imputation import imputed_risk
from catchment.site.slack import SlackTask, SourceBatch
from catchment.site.slack.observations import MAX_OUTCOMES, Observations, SettledWindow, UnsettledWindow
from catchment.site.slack.slice_arrivals import MAX_STEPS, SliceArrivals
from catchment.site.slack.violation_budget import Calibration, StallThreshold, ViolationBudget
from catchment.storage.codec import decode, encode
from catchment.timeline import WindowSpec
from tests.worlds.tiers import examples

SPECS = st.sampled_from([WindowSpec(100, 100), WindowSpec(100, 20), WindowSpec(100, 30), WindowSpec(70, 50, 10)])
ARRIVALS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200), st.floats(0.1, 10)), min_size=1, max_size=40)


def filled(spec: WindowSpec, arrivals: list[tuple[int, int, float]]) -> SliceArrivals:
    """The arrivals of records (event, delay, value), each arriving at a front of event + delay."""
    held = SliceArrivals(spec)
    for event, delay, value in sorted(arrivals, key=lambda a: a[0] + a[1]):
        held.record(SourceBatch.of_records(held.slicing, ["s"], [event], [value]), event + delay)
    return held


@settings(max_examples=examples(80))
@given(spec=SPECS, arrivals=ARRIVALS, name=st.sampled_from(["sum", "count", "avg", "median"]))
def test_slice_arrivals_know_what_each_window_holds_and_how_long_it_had_to_wait(
    spec: WindowSpec, arrivals: list[tuple[int, int, float]], name: str
) -> None:
    held, measure = filled(spec, arrivals), Measure.parse(name)
    for window in spec.containing(arrivals[0][0]):
        inside = [a for a in arrivals if window.start_us <= a[0] < window.end_us]
        count, total = held.window_totals(window.end_us)
        assert count == len(inside)
        assert total == pytest.approx(sum(a[2] for a in inside))
        needed = _needed_by_trying(inside, window.end_us, measure)
        assert held.needed_wait_us(window.end_us, measure, 0.1) == pytest.approx(needed)


def _needed_by_trying(inside: list[tuple[int, int, float]], end: int, measure: Measure) -> float:
    """The least slack from which on no front finds the answer wrong, by trying every front."""
    fronts = sorted({e + d for e, d, _ in inside})
    whole = (float(len(inside)), sum(v for *_, v in inside))

    def wrong(front: int) -> bool:
        held = [v for e, d, v in inside if e + d <= front]
        return bool(relative_error(measure, len(held), sum(held), *whole) >= 0.1 - 1e-12)

    bad = [f for f in fronts if wrong(f)]
    right_from = next(f for f in fronts if not bad or f > bad[-1]) if not bad or bad[-1] < fronts[-1] else fronts[-1]
    return max(right_from - end, 0)


def test_a_slice_full_of_steps_makes_waits_look_longer_and_never_shorter() -> None:
    arrivals = [(5, k, 1.0) for k in range(MAX_STEPS + 50)]
    held = filled(WindowSpec(100, 100), arrivals)
    exact = len(arrivals) * 0.9 - 100
    assert held.needed_wait_us(100, Measure("count"), 0.1) >= exact
    assert held.window_totals(100)[0] == len(arrivals)


def test_forgotten_slices_stay_forgotten_and_later_ones_count() -> None:
    held = filled(WindowSpec(100, 50), [(10, 0, 1.0), (120, 0, 1.0)])
    held.forget_before(100)
    assert held.window_totals(100) == (0.0, 0.0)
    held.record(SourceBatch.of_records(held.slicing, ["s", "s"], [20, 130], [1.0, 1.0]), 200)
    assert held.window_totals(100) == (0.0, 0.0)
    assert held.window_totals(200)[0] == 2.0


def test_a_budget_earns_by_window_and_is_charged_first_the_chance_and_then_the_truth() -> None:
    budget = ViolationBudget(0.05)
    for _ in range(40):
        budget.charge(0.0)
    assert budget.balance == pytest.approx(2.0)
    assert budget.can_afford(1.0)
    budget.charge(0.9)
    budget.settle(0.9, violated=True)
    assert budget.balance == pytest.approx(2.0 + 0.05 - 1.0)
    budget.charge(0.9)
    budget.settle(0.9, violated=False)
    assert budget.balance == pytest.approx(2.0 + 0.1 - 1.0)


def test_an_overdrawn_budget_affords_nothing_and_tells_when_it_is_regained() -> None:
    budget = ViolationBudget(0.1)
    budget.charge(1.0)
    assert not budget.can_afford(0.2)
    assert budget.windows_to_regain() == 9
    for _ in range(9):
        budget.charge(0.0)
    assert budget.windows_to_regain() == 0


def test_the_balance_is_bounded_so_that_a_long_calm_cannot_pay_for_a_long_storm() -> None:
    budget = ViolationBudget(0.05)
    for _ in range(30_000):
        budget.charge(0.0)
    assert budget.balance == pytest.approx(0.05 * 10_000)


@settings(max_examples=examples(50))
@given(st.lists(st.floats(0.0, 50.0), max_size=60), st.floats(0.0, 20.0))
def test_the_threshold_is_the_shortest_stall_that_the_budget_covers_with_all_longer_ones(
    needs: list[float], balance: float
) -> None:
    stalls = StallThreshold(1.0, 0.2)
    for need in [*needs, 0.0]:
        stalls.learn(need)
    rows, row = [], []
    for need in [*needs, 0.0]:
        if need > 1.0:
            row.append(need)
        elif row:
            rows.append((max(row), len(row)))
            row = []
    threshold = stalls.threshold_us(balance)
    budget = 0.9 * 0.2 * (len(needs) + 1) + balance
    assert sum(n for longest, n in rows if longest > threshold * 2**0.5) <= budget + 1e-9
    if threshold > 1.0:
        assert sum(n for longest, n in rows if longest >= threshold * (1 - 1e-9)) > budget


def test_calibration_moves_predictions_to_what_came_true_and_leaves_certainty_alone() -> None:
    calibration = Calibration()
    for k in range(400):
        calibration.learn(calibration.bin_of(0.3), violated=k % 10 == 0)
    assert calibration.correct(0.3) == pytest.approx(0.1, abs=0.03)
    assert calibration.correct(0.6) == 0.6
    assert calibration.correct(0.0) == 0.0
    assert decode(encode(calibration)) == calibration


@pytest.mark.parametrize("name", ["sum", "count", "avg"])
@pytest.mark.parametrize("imputed", [False, True])
def test_the_chance_of_an_error_is_that_of_drawing_what_is_missing(name: str, imputed: bool) -> None:
    """Against drawing: sources whose records come as a Poisson stream, each lacking a while."""
    rng = np.random.default_rng(6)
    measure, eps = Measure.parse(name), 0.05
    rates, means = np.array([0.5, 0.3, 0.8]), np.array([2.0, 6.0, 1.0])
    time = np.array([0.0, 120.0, 40.0]) if name != "avg" else np.array([0.0, 60.0, 0.0])
    held = (800.0, 1600.0)
    columns = np.stack([rates, rates * means, rates * 2 * means**2], axis=1)
    what = missing_part(measure, held, columns, time, np.zeros(3))
    off = 0
    for _ in range(3000):
        numbers = rng.poisson(rates * time)
        total = sum(rng.exponential(m, n).sum() for m, n in zip(means, numbers, strict=True))
        count, whole = held[0] + numbers.sum(), held[1] + total
        added = (what.missing_count, what.missing_total) if imputed else (0.0, 0.0)
        total_said, count_said = held[1] + added[1], held[0] + added[0]
        said = {"sum": total_said, "count": count_said, "avg": total_said / count_said}[name]
        truth = {"sum": whole, "count": count, "avg": whole / count}[name]
        off += abs(said - truth) >= eps * truth
    risk = imputed_risk if imputed else violation_risk
    assert risk(measure, eps, what) == pytest.approx(off / 3000, abs=0.04)


def test_nothing_missing_is_no_risk_and_an_empty_window_is_at_risk_of_any_record() -> None:
    assert violation_risk(Measure("sum"), 0.05, MissingPart(10, 10, 0.0, 0.0, 0.0, 0.0)) == 0.0
    assert violation_risk(Measure("sum"), 0.05, MissingPart(0, 0, 0.5, 0.5, 0.5, 1.0)) == pytest.approx(
        1 - np.exp(-0.5)
    )


def test_a_task_with_a_negative_wait_is_refused() -> None:
    with pytest.raises(SiteError, match="not negative"):
        SlackTask(WindowSpec(10, 10), Measure("sum"), Contract(0.1), max_wait_us=-1)


def test_bounds_that_are_not_predicted_are_missed_as_rarely_as_they_say_though_errors_have_seasons() -> None:
    """Errors are ten times as large in every other season, and the truth comes thirty windows late. The plain quantile
    of recent errors, which knows only the season before, is missed too often."""
    chance, missed, plain = np.random.default_rng(5), [], []
    obs = Observations.start(SlackTask(WindowSpec(100, 100), Measure.parse("sum"), Contract(0.05, 0.95)))
    waiting = deque[SettledWindow]()
    errors = [chance.exponential(0.01 if window // 400 % 2 else 0.1) for window in range(2400)]
    for window, error in enumerate(errors):
        bound = obs.recent.quality().bound
        missed.append(error > bound)
        closed = UnsettledWindow(window, 1.0, 1.0, 1.0, 0.0, bound)
        waiting.append(SettledWindow(closed, 1.0, 1.0, error, error >= 0.05, 0.0))
        if len(waiting) > 30:
            obs.learn(waiting.popleft())
        known = errors[max(window - 30 - MAX_OUTCOMES, 0) : max(window - 30, 0)]
        plain.append(bool(known) and bool(error > np.quantile(known, 0.95, method="higher")))
    assert np.mean(missed) <= 0.05 < np.mean(plain)
    assert decode(encode(obs)).recent.quality() == obs.recent.quality()
