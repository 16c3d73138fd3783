"""Which event times are believed, against the definition written out: reachable without crossing a gap alone.

Catches: a far-away record that drags a stream's clock with it, or a good one that is put aside. Cannot catch: what the
pipeline does with the verdict; `test_pipelines.py` runs that.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.site.agreed_time import TimeBucket
from catchment.site.plausible import MAX_AGE_US, count_far, far_us, find_plausible_times, needs_check
from catchment.timeline import SECOND_US
from tests.worlds.tiers import examples

JUMP = 100
DAY_US = 86400 * SECOND_US
NOW_FAR = 10**15  # a wall clock that is near no event time of these tests

TIMES = st.lists(st.integers(-3000, 3000), min_size=1, max_size=25)


def buckets(times: list[int], jump: int = JUMP) -> Counter[int]:
    return Counter(t // jump for t in times)


def reachable(times: list[int], home: int) -> set[int]:
    """By the definition: buckets that a walk from `home` reaches, stepping only onto neighbours that hold records."""
    held, reached = set(buckets(times)), {home}
    while True:
        more = {b for b in held if b - 1 in reached or b + 1 in reached} - reached
        if not more:
            return reached
        reached |= more


def goes_on_in(times: list[int], home: int) -> int:
    """By the definition: where two records (a tenth of 25 at most is under three) or all lie beyond the gap."""
    counts = buckets(times)
    need = max(2, -(-max(counts.values()) // 10))
    agreed = [b for b in counts if sum(t // JUMP >= b for t in times) >= need]
    if agreed and max(agreed) > home:
        return max(agreed)
    if min(counts) > home:
        return min(b for b, n in counts.items() if n == max(counts.values()))
    return home


@settings(max_examples=examples(200))
@given(TIMES, st.integers(-3000, 3000))
def test_ahead_of_a_running_stream_a_walk_begins_where_the_stream_is_or_where_enough_records_are(
    times: list[int], newest: int
) -> None:
    limits = find_plausible_times(buckets(times), newest, NOW_FAR, JUMP)
    last = max(reachable(times, goes_on_in(times, newest // JUMP)))
    for time in times:
        if time > newest:
            assert limits.holds(time) == (time // JUMP <= last), time


def test_no_number_of_records_is_believed_ahead_of_the_wall_clock() -> None:
    for newest in (None, 150):
        limits = find_plausible_times({1: 3, 90: 50}, newest, 1000, JUMP)
        assert limits.holds(120)
        assert not limits.holds(9_050)
    assert not find_plausible_times({90: 50}, None, 1000, JUMP).holds(9_050)
    assert needs_check(9_050, 9_050, None, 1000, JUMP), "a first batch is compared with the wall clock"


def test_old_data_are_believed_however_old_they_are() -> None:
    assert not needs_check(5, 95, None, NOW_FAR, JUMP)
    assert find_plausible_times({0: 9}, None, NOW_FAR, JUMP).holds(50)


def test_a_gap_is_far_from_a_day_on_in_whole_jumps() -> None:
    hour = 3600 * SECOND_US
    assert far_us(hour) == DAY_US
    assert far_us(7 * hour) == 28 * hour
    assert far_us(60 * DAY_US) == 60 * DAY_US
    assert count_far({0: TimeBucket(2, 5), 23: TimeBucket(1, 5), 24: TimeBucket(4, 5)}, hour) == {0: 3, 1: 4}


@settings(max_examples=examples(200))
@given(TIMES)
def test_a_first_batch_is_believed_around_its_fullest_bucket(times: list[int]) -> None:
    counts = buckets(times)
    fullest = max(counts.values())
    home = min(b for b, n in counts.items() if n == fullest)
    limits = find_plausible_times(counts, None, NOW_FAR, JUMP)
    reached = reachable(times, home)
    assert [t for t in times if limits.holds(t)] == [t for t in times if t // JUMP in reached]


@settings(max_examples=examples(200))
@given(TIMES, st.one_of(st.none(), st.integers(-3000, 3000)), st.integers(-4000, 4000))
def test_times_near_the_wall_clock_are_always_believed(times: list[int], newest: int | None, now: int) -> None:
    limits = find_plausible_times(buckets(times), newest, now, JUMP)
    assert all(limits.holds(now + d) for d in (-JUMP, 0, JUMP))


@settings(max_examples=examples(200))
@given(st.integers(0, 2000), st.lists(st.integers(0, 99), min_size=1, max_size=20), st.integers(2, 10**6))
def test_a_far_future_record_never_raises_the_low_mark(newest: int, steps: list[int], far: int) -> None:
    """The stream's clock after a batch is the same with and without the record."""
    good = [newest + step for step in steps]
    liar = (max(good) // JUMP + far) * JUMP  # at least one whole bucket is empty in between
    assert clock_after([*good, liar], newest) == clock_after(good, newest) == max(good)
    assert clock_after([*good, liar], None) == max(good), "nor in a first batch, where the fullest bucket decides"


def clock_after(times: list[int], newest: int | None) -> int:
    """The newest event time of a stream after a batch, as the site pipeline computes it."""
    believed = times
    if needs_check(min(times), max(times), newest, NOW_FAR, JUMP):
        limits = find_plausible_times(buckets(times), newest, NOW_FAR, JUMP)
        believed = [t for t in times if limits.holds(t)]
    return max([*believed, *([] if newest is None else [newest])])


@settings(max_examples=examples(200))
@given(st.integers(0, 400), st.lists(st.integers(0, JUMP), min_size=1, max_size=6), st.booleans())
def test_where_the_quick_check_sees_no_need_nothing_would_be_put_aside(
    base: int, steps: list[int], running: bool
) -> None:
    times, newest = [base + step for step in steps], base if running else None
    assert not needs_check(min(times), max(times), newest, NOW_FAR, JUMP)
    limits = find_plausible_times(buckets(times), newest, NOW_FAR, JUMP)
    assert all(limits.holds(t) for t in times)


def test_the_past_is_believed_for_a_year_and_a_day_behind_a_running_stream() -> None:
    newest, jump = 500 * DAY_US, DAY_US
    limits = find_plausible_times({500: 1}, newest, NOW_FAR, jump)
    assert limits.holds(newest - MAX_AGE_US)
    assert not limits.holds(newest - MAX_AGE_US - 1)
    assert needs_check(newest - MAX_AGE_US - 1, newest, newest, NOW_FAR, jump)
    assert not needs_check(newest - MAX_AGE_US, newest + jump, newest, NOW_FAR, jump)


def test_the_sql_form_says_what_the_core_says() -> None:
    limits = find_plausible_times({0: 3, 1: 1, 40: 1}, None, 10_000, JUMP)
    for time in (-1, 0, 99, 199, 200, 4000, 9_899, 9_900, 10_100, 10_101):
        sql = limits.sql(str(time)).replace("L", "").replace("AND", "and").replace("OR", "or")
        assert eval(sql) == limits.holds(time), time


def test_a_stream_that_was_silent_for_days_goes_on_at_the_wall_clock_or_where_all_its_records_are() -> None:
    newest, now = 100 * DAY_US, 130 * DAY_US
    again = now - SECOND_US
    assert find_plausible_times({100: 99, 129: 1}, newest, now, DAY_US).holds(again)
    assert not find_plausible_times({100: 99, 129: 1}, newest, NOW_FAR, DAY_US).holds(again)
    for records in (1, 5):
        assert find_plausible_times({129: records}, newest, NOW_FAR, DAY_US).holds(again)
