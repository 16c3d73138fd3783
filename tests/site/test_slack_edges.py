"""Sources that are not as they should be: windows still close, nothing is lost, the result says what it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from catchment.site.slack import SourceBatch, parse_slack
from catchment.timeline import SECOND_US
from tests.worlds.slack_support import STEP_US, WINDOW, Source, World, batch_of, fleet, stall, task, world

NEVER = 2**60
WAIT_S = 8.0  # the longest wait of these worlds


def ends(here: World) -> list[int]:
    return [c.end_us for c in here.closings]


def all_ends(until_us: int) -> list[int]:
    """Every window that holds a record of a stream that starts at 0."""
    return list(range(WINDOW.slide_us, until_us, WINDOW.slide_us))


def test_a_source_that_falls_silent_holds_windows_only_for_the_longest_wait_and_is_named() -> None:
    quiet = Source("quiet", stop_us=4 * SECOND_US)
    here = world(max_wait_s=3.0).run([*fleet(5), quiet], 14 * SECOND_US)
    assert ends(here)[: len(all_ends(13 * SECOND_US))] == all_ends(13 * SECOND_US)
    assert here.latencies_s().max() <= 3.5
    assert here.latencies_s()[-10:].max() <= 0.1
    assert here.controller.status(14 * SECOND_US)["idle"] == ("quiet",)
    assert here.closings[-1].idle == ("quiet",)


def test_an_idle_source_that_sends_heartbeats_holds_nothing() -> None:
    here = world()
    for step in range(1, 300):
        now = step * STEP_US
        here.deliver([(now, f"s{i}", now - 3_000, 1.0) for i in range(3)], now)
        if step < 50:
            here.deliver([(now, "quiet", now - 3_000, 1.0)], now)
        else:
            here.controller.heartbeat({"quiet": now - 3_000}, now)
            here.closings += here.controller.advance(now)
    assert here.latencies_s().max() <= 0.1
    assert here.closings[-1].coverage == pytest.approx(1.0, abs=0.03)


def test_a_source_that_stops_in_the_middle_of_a_window_leaves_that_window_a_stated_coverage() -> None:
    stopping = Source("stopping", stop_us=round(6.5 * SECOND_US), value=1.0)
    here = world(max_wait_s=2.0).run([*fleet(3), stopping], 12 * SECOND_US)
    touched = [c for c in here.closings if 6.6 * SECOND_US < c.end_us < 7.4 * SECOND_US]
    assert touched
    for c in touched:
        assert "stopping" in c.missing
        owed = (c.end_us - 6.5 * SECOND_US) / SECOND_US
        assert c.coverage == pytest.approx(4 / (4 + owed) if owed < 1 else 0.75, abs=0.25)
        assert c.coverage < 1.0
        assert c.bound > 0.0


def test_a_source_an_hour_behind_is_not_waited_for_and_every_window_says_that_it_lacks_it() -> None:
    """It is an hour behind all the time: no window can have it in time, and all will be repaired with it."""
    hour = 3600 * SECOND_US
    here = world(max_wait_s=5.0)
    for step in range(1, 500):
        now = hour + step * STEP_US
        rows = [(now, f"s{i}", now - 4_000, 1.0) for i in range(4)]
        here.deliver([*rows, (now, "behind", now - hour, 1.0)], now)
    assert here.controller.status(hour + 500 * STEP_US)["behind"] == ("behind",)
    late = [c for c in here.closings if c.end_us > hour + 2 * SECOND_US]
    assert len(late) > 30
    assert max(c.at_us - c.end_us for c in late) <= 0.2 * SECOND_US
    assert all("behind" in c.missing for c in late)
    assert late[-1].coverage == pytest.approx(0.8, abs=0.02)
    assert here.controller.late_records > 400


@pytest.mark.parametrize("name", ["adaptive", "conformal", "mp-k-slack", "pd", "fixed:0.5"])
def test_a_record_from_the_future_moves_no_mark_and_is_counted(name: str) -> None:
    plain = world(name).run(fleet(4), 5 * SECOND_US)
    odd = world(name).run(fleet(4), 5 * SECOND_US, extra=[(3 * SECOND_US, "s1", 10**6 * SECOND_US)])
    assert ends(odd) == ends(plain)
    assert odd.marks == plain.marks
    assert odd.controller.status(5 * SECOND_US)["future_records"] == 1


@pytest.mark.parametrize("ahead_s", [100, 3600])
def test_a_record_that_is_ahead_of_all_others_moves_no_mark_though_the_clock_would_allow_it(ahead_s: int) -> None:
    """A log of last year: by the clock nothing in it is from the future."""
    ahead = [(3 * SECOND_US, "s1", (3 + ahead_s) * SECOND_US)]
    plain = world(max_ahead_s=1e9).run(fleet(4), 5 * SECOND_US)
    odd = world(max_ahead_s=1e9).run(fleet(4), 5 * SECOND_US, extra=ahead)
    assert odd.marks == plain.marks
    assert odd.controller.status(5 * SECOND_US)["future_records"] == 1


def test_a_jump_is_believed_when_another_source_makes_it_or_nothing_else_comes() -> None:
    for jumping, waits in (("s0", True), ("s1", False)):
        here = world(max_ahead_s=1e9).run(fleet(4), 3 * SECOND_US)
        now = 3 * SECOND_US + STEP_US
        here.deliver([(now, "s0", now + 100 * SECOND_US, 1.0)], now)
        here.deliver([(now, jumping, now + 100 * SECOND_US, 1.0)], now + STEP_US)
        assert (here.controller.observations.sources.newest_us < 100 * SECOND_US) == waits
        later = now + round((WAIT_S + 1) * SECOND_US)
        here.deliver([(later, "s0", later + 100 * SECOND_US, 1.0)], later)
        assert here.controller.observations.sources.newest_us > 100 * SECOND_US


def test_a_source_whose_clock_is_a_little_ahead_is_believed() -> None:
    here = world(max_ahead_s=5.0).run([*fleet(4), Source("ahead", skew_us=2 * SECOND_US)], 8 * SECOND_US)
    assert here.controller.status(8 * SECOND_US)["future_records"] == 0
    assert here.latencies_s()[20:].max() <= 0.1


def test_a_source_whose_clock_is_behind_is_waited_for_as_long_as_it_is_behind() -> None:
    """What it stamps two seconds old belongs to windows that ended two seconds ago: they cannot be right earlier, and
    are not published earlier but for the few that the contract allows to be wrong."""
    skewed = Source("skewed", skew_us=-2 * SECOND_US)
    here = world().run([*fleet(3), skewed], 12 * SECOND_US)
    slacks = [c.slack_us for c in here.closings if c.end_us > 3 * SECOND_US]
    assert len(slacks) > 30
    assert sum(slack <= 1.7 * SECOND_US for slack in slacks) <= 0.05 * len(here.closings)
    assert max(slacks) < 2.2 * SECOND_US


def test_a_source_that_joins_is_waited_for_from_its_first_window_on() -> None:
    joining = Source("joining", begin_us=5 * SECOND_US, delay=stall(7.0, 1.5), pace_us=5_000)
    here = world().run([*fleet(3), joining], 7_600_000)
    assert "joining" not in {name for c in here.closings if c.end_us < 5 * SECOND_US for name in c.missing}
    decision = here.decide(7_400_000, 7_600_000)
    assert not decision.close
    assert "joining" in decision.missing


def test_a_source_that_says_it_leaves_is_expected_no_more() -> None:
    leaving = Source("leaving", stop_us=4 * SECOND_US)
    here = world().run([*fleet(3), leaving], 4 * SECOND_US)
    here.controller.leave("leaving")
    for step in range(201, 400):
        now = step * STEP_US
        here.deliver([(now, f"s{i}", now - 3_000, 1.0) for i in range(3)], now)
    assert max(c.at_us - c.end_us for c in here.closings[-15:]) <= 0.1 * SECOND_US
    assert here.closings[-1].missing == ()


def test_when_everything_falls_silent_windows_close_after_the_longest_wait() -> None:
    here = world(max_wait_s=2.0).run(fleet(3, stop_us=3 * SECOND_US), 9 * SECOND_US)
    assert ends(here)[-1] >= 3 * SECOND_US
    assert here.controller.low_mark_us >= 6 * SECOND_US


def test_a_jump_of_a_year_in_event_time_closes_what_was_open_and_follows_at_once() -> None:
    year = 365 * 86400 * SECOND_US
    here = world(max_ahead_s=1e9).run(fleet(2), 2 * SECOND_US)
    for step in range(101, 140):
        now = step * STEP_US
        here.deliver([(now, f"s{i}", year + now, 1.0) for i in range(2)], now)
    assert here.controller.low_mark_us > year
    assert len(here.closings) < 30


def test_sources_out_of_order_in_themselves_are_found_and_handed_to_the_conformal_rule() -> None:
    rng = np.random.default_rng(8)
    here = world()
    for step in range(1, 1500):
        now = step * STEP_US
        delays = rng.exponential(150_000, 6).astype(int)
        here.deliver([(now, f"s{i % 2}", now - int(d), 1.0) for i, d in enumerate(delays)], now)
    assert not here.controller.rule.trusts_progress  # type: ignore[attr-defined]
    assert here.controller.observations.budget.settled > 100
    assert here.controller.observations.budget.violations <= 0.05 * here.controller.observations.budget.settled


def test_sources_that_rarely_speak_are_handed_to_the_conformal_rule() -> None:
    here = world()
    for step in range(1, 400):
        now = step * STEP_US
        here.deliver([(now, f"s{step % 97}", now - 2_000, 1.0)], now)
    assert not here.controller.rule.trusts_progress  # type: ignore[attr-defined]


def test_a_source_that_falls_silent_among_sources_that_rarely_speak_is_named() -> None:
    here = world()
    for step in range(1, 1500):
        now = step * STEP_US
        name = f"s{step % 97}" if step % 2 else "often"
        if name != "often" or now < 10 * SECOND_US:
            here.deliver([(now, name, now - 2_000, 1.0)], now)
    assert not here.controller.rule.trusts_progress  # type: ignore[attr-defined]
    assert not any(c.idle for c in here.closings if c.end_us < 10 * SECOND_US)
    assert "often" in here.closings[-1].idle
    assert here.controller.status(now)["idle"] == ("often",)


def test_after_delays_change_the_contract_is_overdrawn_and_regained_in_the_number_of_windows_it_tells() -> None:
    """The whole regime changes at once: no controller can foresee it, and this one tells what it owes."""
    rng = np.random.default_rng(9)
    controller = parse_slack("conformal").build(task(confidence=0.8))
    told, closed_at_worst, regained = 0, 0, None
    for step in range(1, 1400):
        now = step * 5 * STEP_US
        delays = rng.exponential(30_000 if step < 300 else 400_000, 20).astype(int)
        controller.observe(batch_of([(now, "s", now - int(d), 1.0) for d in delays]), now)
        controller.advance(now)
        budget = controller.observations.budget
        owed = controller.status(now)["windows_to_regain"]
        if owed > told:
            told, closed_at_worst = owed, budget.windows
        if told and not owed and regained is None:
            regained = budget.windows - closed_at_worst
    assert told > 10
    assert regained is not None
    assert regained <= 2 * told


def test_an_empty_stream_has_no_windows() -> None:
    controller = parse_slack("adaptive").build(task())
    controller.observe(batch_of([]), SECOND_US)
    controller.observe(SourceBatch.heartbeats({"a": SECOND_US}), SECOND_US)
    assert controller.advance(SECOND_US) == []


def test_a_stream_that_has_hardly_begun_closes_nothing_because_the_clock_goes_on() -> None:
    """The first micro-batch holds a record or two, the next is slow to come: the first window is not empty for that."""
    here = world()
    here.deliver([(STEP_US, "s0", 1_000, 1.0), (STEP_US, "s1", 2_000, 1.0)], STEP_US)
    for step in range(2, 250):
        here.deliver([], step * STEP_US)
    assert not here.closings
    now = 250 * STEP_US
    here.deliver([(now, f"s{i % 4}", 10_000 * i, 1.0) for i in range(1, 400)], now)
    for step in range(251, 251 + round(2 * WAIT_S * SECOND_US) // STEP_US):
        here.deliver([], step * STEP_US)
    assert ends(here)[:19] == all_ends(4 * SECOND_US)[:19]
    assert here.controller.low_mark_us >= 4 * SECOND_US, "a stream that has ended is not waited for"


def test_a_record_from_the_future_in_the_first_batch_moves_no_mark_and_is_counted() -> None:
    """A site that starts late reads a minute at once: the odd record comes with all the others."""
    here = world(max_ahead_s=1e9)
    rows = [(0, f"s{i % 4}", 10_000 * i, 1.0) for i in range(1, 6000)]
    here.deliver([*rows, (0, "s1", 3600 * SECOND_US, 1.0)], 60 * SECOND_US)
    sources = here.controller.observations.sources
    assert sources.newest_us == 59_990_000
    assert here.controller.status(60 * SECOND_US)["future_records"] == 1
    now = 60 * SECOND_US + STEP_US
    here.deliver([(0, f"s{i}", now, 1.0) for i in range(4)], now)
    assert sources.newest_us == now
    assert not sources.inversions, "where it was out of belief, it is not out of order"


def test_several_sources_that_jump_take_no_stray_record_along() -> None:
    here = world(max_ahead_s=1e9)
    here.deliver([(0, "s0", 1_000, 1.0)], STEP_US)
    rows = [(0, f"s{i % 4}", 10_000 * i, 1.0) for i in range(1, 2000)]
    here.deliver([*rows, (0, "s1", 3600 * SECOND_US, 1.0)], 2 * STEP_US)
    assert here.controller.observations.sources.newest_us == 19_990_000


def test_of_two_sources_an_hour_apart_the_one_ahead_leads_from_the_first_batch_on() -> None:
    here = world(max_ahead_s=1e9)
    for step in range(1, 200):
        now = step * STEP_US
        here.deliver([(now, "ahead", 3600 * SECOND_US + now, 1.0), (now, "behind", now, 1.0)], now)
    assert here.controller.status(200 * STEP_US)["behind"] == ("behind",)
    assert here.controller.low_mark_us > 3602 * SECOND_US


def test_a_source_that_joins_with_a_record_from_the_future_is_then_followed_like_the_others() -> None:
    here = world(max_ahead_s=1e9)
    for step in range(1, 300):
        now = step * STEP_US
        rows = [(now, f"s{i}", now, 1.0) for i in range(3)]
        here.deliver([*rows, (now, "odd", now + (10**6 * SECOND_US if step < 10 else 0), 1.0)], now)
    assert here.controller.status(300 * STEP_US)["future_records"] == 9
    assert here.controller.observations.sources.inversions <= 1
    assert here.controller.rule.trusts_progress  # type: ignore[attr-defined]


def test_a_stream_is_not_called_sparse_for_a_first_batch_of_one_record() -> None:
    """Micro-batches of a busy machine are few: what the first is taken for holds for long."""
    here = world()
    here.deliver([(0, "s0", 1_000, 1.0)], STEP_US)
    for step in range(1, 4):
        now = step * 5 * SECOND_US
        rows = [(now, f"s{i % 4}", now - 5 * SECOND_US + 10_000 * i, 1.0) for i in range(1, 500)]
        here.deliver(rows, now)
        assert here.controller.rule.trusts_progress  # type: ignore[attr-defined]
    assert here.closings[-1].reason == "covered"
