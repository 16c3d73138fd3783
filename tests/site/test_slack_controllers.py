"""Slack controllers as closers of windows: laws of all of them, and what each waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import SiteError
from catchment.site.slack import SourceBatch, parse_slack, slack_names
from catchment.storage.codec import decode, encode
from catchment.timeline import SECOND_US, Slicing
from tests.worlds.slack_support import NAMES, STEP_US, WINDOW, Source, World, batch_of, fleet, stall, task, world
from tests.worlds.tiers import examples

ROWS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2 * SECOND_US, SECOND_US), st.floats(-10, 10)), max_size=6),
    min_size=5,
    max_size=60,
)


@settings(max_examples=examples(30))
@given(name=st.sampled_from(NAMES), steps=ROWS)
def test_the_low_mark_never_falls_and_every_window_closes_once_in_order(name: str, steps: list[Any]) -> None:
    here = world(name)
    for number, rows in enumerate(steps, start=1):
        now = number * 5 * STEP_US
        here.deliver([(now, source, now + off, value) for source, off, value in rows], now)
    assert here.marks == sorted(here.marks)
    ends = [c.end_us for c in here.closings]
    assert ends == sorted(set(ends))
    assert all(c.end_us <= here.controller.low_mark_us and c.close for c in here.closings)
    assert all(0.0 <= c.coverage <= 1.0 and c.bound >= 0.0 and 0.0 <= c.risk <= 1.0 + 1e-9 for c in here.closings)


@settings(max_examples=examples(20))
@given(name=st.sampled_from(NAMES), steps=ROWS, cut=st.floats(0.2, 0.8))
def test_a_controller_that_is_read_back_goes_on_as_the_one_that_was_written(
    name: str, steps: list[Any], cut: float
) -> None:
    whole, first = world(name), world(name)
    half = round(cut * len(steps))
    for number, rows in enumerate(steps, start=1):
        now = number * 5 * STEP_US
        told = [(now, source, now + off, value) for source, off, value in rows]
        whole.deliver(told, now)
        first.deliver(told, now)
        if number == half:
            first.controller = decode(encode(first.controller))
    assert first.closings == whole.closings
    assert encode(first.controller) == encode(whole.controller)


@pytest.mark.parametrize("name", NAMES)
def test_asking_for_a_decision_changes_nothing(name: str) -> None:
    here = world(name).run(fleet(4), 3 * SECOND_US)
    before = encode(here.controller)
    for end in range(0, 6 * SECOND_US, WINDOW.slide_us):
        here.decide(end, 3 * SECOND_US)
    assert encode(here.controller) == before


@pytest.mark.parametrize("name", NAMES)
def test_rows_may_come_in_any_order_and_any_grouping_within_a_micro_batch(name: str) -> None:
    rng = np.random.default_rng(4)
    plain, shuffled = world(name), world(name)
    for number in range(1, 120):
        now = number * STEP_US
        rows = [(now, f"s{s}", now - int(d), float(d)) for s in range(4) for d in rng.integers(0, 9_000, 2)]
        plain.deliver(rows, now)
        batch = batch_of(rows)
        order = rng.permutation(len(batch))
        shuffled.controller.observe(batch.take(order), now)
        shuffled.closings += shuffled.controller.advance(now)
    assert [c.end_us for c in plain.closings] == [c.end_us for c in shuffled.closings]
    assert [c.at_us for c in plain.closings] == [c.at_us for c in shuffled.closings]


def test_the_rows_of_records_are_their_groups_by_source_and_slice() -> None:
    rng = np.random.default_rng(5)
    events, values = rng.integers(0, 3 * SECOND_US, 200), rng.normal(size=200)
    sources = [f"s{k}" for k in rng.integers(0, 5, 200)]
    slicing = Slicing.of([WINDOW])
    batch = SourceBatch.of_records(slicing, sources, events, values)
    groups: dict[tuple[str, int], list[int]] = {}
    for i, (source, event) in enumerate(zip(sources, events.tolist(), strict=True)):
        groups.setdefault((source, slicing.start_of(event)), []).append(i)
    assert len(batch) == len(groups)
    for row in range(len(batch)):
        mine = groups[batch.sources[batch.source_index[row]], int(batch.slice_us[row])]
        assert batch.count[row] == len(mine)
        assert (batch.newest_us[row], batch.oldest_us[row]) == (events[mine].max(), events[mine].min())
        assert batch.total[row] == pytest.approx(values[mine].sum())
        assert batch.square[row] == pytest.approx(np.square(values[mine]).sum())


def test_a_fixed_slack_closes_as_soon_as_the_newest_event_time_is_that_far_beyond() -> None:
    here = world("fixed:0.5").run(fleet(3), 5 * SECOND_US)
    assert here.closings
    for c in here.closings:
        assert 0.5 * SECOND_US <= c.slack_us < 0.5 * SECOND_US + 2 * STEP_US


def test_mp_k_slack_waits_for_the_longest_delay_seen_and_never_less_again() -> None:
    sources = [*fleet(3), Source("slow", delay=stall(2.0, 1.5))]
    here = world("mp-k-slack").run(sources, 9 * SECOND_US)
    before = [c.slack_us for c in here.closings if c.at_us < 2 * SECOND_US]
    after = [c.slack_us for c in here.closings if c.at_us > 4 * SECOND_US]
    assert max(before) < 0.2 * SECOND_US
    assert min(after) >= 1.45 * SECOND_US


def test_pd_waits_longer_when_coverage_falls_short_and_less_when_it_does_not() -> None:
    late = [Source(f"late{i}", delay=lambda e: 400_000 if (e // SECOND_US) % 10 < 5 else 5_000) for i in range(4)]
    here = world("pd").run([*fleet(2), *late[:2]], 20 * SECOND_US)
    rule = here.controller.rule
    assert 0.0 <= rule.alpha < 1.0  # type: ignore[attr-defined]
    slacks = np.array([c.slack_us for c in here.closings])
    assert slacks.max() > 2 * slacks[10:].min()


def test_sources_in_order_let_windows_close_at_once_where_one_slack_for_all_waits() -> None:
    sources = [*fleet(7), Source("slow", delay=stall(3.0, 2.0))]
    ours, theirs = (world(n).run(sources, 14 * SECOND_US) for n in ("adaptive", "mp-k-slack"))
    assert np.median(ours.latencies_s()) <= 0.05
    assert ours.latencies_s().mean() < 0.4 * theirs.latencies_s().mean()


def test_a_window_that_lacks_a_stalled_source_says_so_and_how_much_it_lacks() -> None:
    sources = [*fleet(7), Source("slow", delay=stall(10.0, 5.0))]
    asked = world().run(sources, 12 * SECOND_US).decide(round(11.8 * SECOND_US), 12 * SECOND_US)
    assert not asked.close
    assert asked.missing == ("slow",)
    assert asked.coverage == pytest.approx(7 / 8, abs=0.015)
    assert asked.bound >= 1 / 8


def test_imputing_publishes_what_the_stalled_source_will_send() -> None:
    sources = [*fleet(7), Source("slow", delay=stall(10.0, 5.0))]
    here = world("adaptive:imputed").run(sources, 12 * SECOND_US)
    asked = here.decide(round(11.8 * SECOND_US), 12 * SECOND_US)
    assert asked.imputed_total == pytest.approx(100.0, rel=0.12)
    assert asked.bound < 1 / 8


def test_a_fast_replay_closes_the_same_windows_as_the_live_stream() -> None:
    """Event time may run at any pace against the clock: a replay is a live stream, ten times as fast."""
    live, fast = world(), World(parse_slack("adaptive").build(task(max_ahead_s=3600)))
    for number in range(1, 400):
        rows = [(0, f"s{s}", number * STEP_US - 1_000 * s, 1.0) for s in range(5)]
        live.deliver(rows, number * STEP_US)
        fast.deliver(rows, number * STEP_US // 10)
    assert [c.end_us for c in fast.closings] == [c.end_us for c in live.closings]
    assert np.median([c.slack_us for c in fast.closings]) <= 2 * STEP_US


@pytest.mark.parametrize("text", ["", "magic", "fixed", "fixed:", "fixed:x", "fixed:-1", "fixed:nan", "adaptive:x"])
def test_a_controller_that_does_not_exist_is_refused_with_the_possible_ones(text: str) -> None:
    with pytest.raises(SiteError, match="slack"):
        parse_slack(text)


def test_every_named_controller_can_be_built_and_the_names_are_told() -> None:
    for name in slack_names():
        if name != "fixed:SECONDS":
            assert parse_slack(name).build(task()).low_mark_us < 0


def test_a_batch_whose_columns_do_not_match_is_refused() -> None:
    batch = batch_of([(0, "a", 1, 1.0)])
    with pytest.raises(SiteError, match="2 entries in count"):
        replace(batch, count=np.array([1, 1]))
    with pytest.raises(SiteError, match="do not match"):
        SourceBatch.of_records(Slicing.of([WINDOW]), ["a"], [1, 2])
