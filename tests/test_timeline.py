"""The time line: slices tile windows, SQL and numpy agree with a plain definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import TimelineError
from catchment.timeline import ManualClock, Slicing, Window, WindowSpec

specs = st.builds(
    lambda slide, extra, offset: WindowSpec(slide + extra, slide, offset),
    st.integers(1, 24),
    st.integers(0, 30),
    st.integers(0, 30),
)
instants = st.integers(-10_000, 10_000)


@given(specs, instants)
def test_a_window_contains_an_instant_if_and_only_if_it_is_listed(spec: WindowSpec, instant: int) -> None:
    listed = list(spec.containing(instant))
    starts = range(instant - 2 * spec.size_us - spec.slide_us, instant + 1)
    expected = [s for s in starts if (s - spec.offset_us) % spec.slide_us == 0 and s <= instant < s + spec.size_us]
    assert [w.start_us for w in listed] == expected


@given(st.lists(specs, min_size=1, max_size=3), instants)
def test_slices_tile_every_window_of_every_spec(chosen: list[WindowSpec], instant: int) -> None:
    slicing = Slicing.of(chosen)
    for window in (w for spec in chosen for w in spec.containing(instant)):
        slices = list(slicing.within(window))
        ends = [slicing.end_of(s) for s in slices]
        assert slices[0] == window.start_us
        assert ends[-1] == window.end_us
        assert slices[1:] == ends[:-1]


@given(st.lists(specs, min_size=1, max_size=3), instants)
def test_no_coarser_slicing_would_do(chosen: list[WindowSpec], instant: int) -> None:
    slicing = Slicing.of(chosen)
    start = slicing.start_of(instant)
    boundaries = {e for spec in chosen for w in spec.containing(start) for e in (w.start_us, w.end_us)}
    before = {e for spec in chosen for w in spec.containing(start - 1) for e in (w.start_us, w.end_us)}
    assert start in boundaries | before


@given(st.lists(specs, min_size=1, max_size=3), st.lists(instants, min_size=1))
def test_vectorised_and_single_starts_agree_and_contain_the_instant(chosen: list[WindowSpec], at: list[int]) -> None:
    slicing = Slicing.of(chosen)
    starts = slicing.starts_of(np.array(at, dtype=np.int64)).tolist()
    assert starts == [slicing.start_of(i) for i in at]
    assert all(s <= i < slicing.end_of(s) for s, i in zip(starts, at, strict=True))


@given(st.lists(specs, min_size=1, max_size=3), instants)
def test_the_number_of_a_slice_is_one_more_than_that_of_the_slice_before(chosen: list[WindowSpec], at: int) -> None:
    slicing = Slicing.of(chosen)
    start = slicing.start_of(at)
    following = slicing.end_of(start)
    numbers = slicing.numbers_of(np.array([start, at, following - 1, following], dtype=np.int64))
    assert (numbers - numbers[0]).tolist() == [0, 0, 0, 1]
    assert slicing.starts_of_numbers(numbers).tolist() == [start, start, start, following]


def test_queries_with_fitting_windows_share_few_slices() -> None:
    slicing = Slicing.of([WindowSpec(60, 10), WindowSpec.tumbling(30)])
    assert (slicing.period_us, slicing.cuts_us) == (30, (0, 10, 20))


def test_impossible_windows_are_refused() -> None:
    with pytest.raises(TimelineError, match="longer than the window"):
        WindowSpec(10, 20)
    with pytest.raises(TimelineError, match="positive"):
        WindowSpec(0, 0)
    with pytest.raises(TimelineError, match="is empty"):
        Window(5, 5)
    with pytest.raises(TimelineError, match="multiples of each other"):
        Slicing.of([WindowSpec.tumbling(999_983), WindowSpec.tumbling(1_000_003)])


def test_a_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock(5)
    clock.advance(10)
    assert clock.now_us() == 15
