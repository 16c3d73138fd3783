"""Event time follows what the records of a stream agree on; a stray record ahead makes nothing late for good.

Site and center cores run on real hosts and boxes, the marks are raised as the site pipeline raises them, and every
answer is compared with recomputation from the records. Catches: a stray record that closes or finalises windows before
their records are in, a legitimate gap that is never crossed. Cannot catch: what Spark observes of a micro-batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from catchment.center.query import CenterQuery
from catchment.cli.progress import status_table
from catchment.project.sections import Defaults
from catchment.site.agreed_time import AgreedTime, BatchTimes, TimeBucket
from catchment.site.core import SiteCore
from catchment.site.events import LowMarkRaised
from catchment.storage.codec import decode, encode
from catchment.timeline import END_OF_TIME_US, SECOND_US, ManualClock, WindowSpec
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, deliver_some, make_fragment, naive

WINDOW = WindowSpec.tumbling(10)
HORIZON = 100
SLACK = 5
NOW = 10**9  # a wall clock that is after every event time of these tests
HOUR_US = 3600 * SECOND_US


def times_of(times: Sequence[int], jump: int, *, counted: bool) -> BatchTimes:
    buckets = {b: [t for t in times if t // jump == b] for b in {t // jump for t in times}}
    found = {b: TimeBucket(len(inside), max(inside)) for b, inside in buckets.items()}
    return BatchTimes(len(times), min(times), max(times), found if counted else None)


def follow(clock: AgreedTime, times: Sequence[int], now: int = NOW) -> int | None:
    """As the pipeline does: records are counted in buckets only where it is needed."""
    counted = clock.needs_buckets(times_of(times, clock.jump_us, counted=False), now)
    clock.follow(times_of(times, clock.jump_us, counted=counted), now)
    return clock.newest_us


@dataclass
class OneSite:
    """A stream that is born at one site, without a contract."""

    folder: Path
    jump: int = HORIZON
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = ManualClock()
        fragment = make_fragment(WINDOW)
        self.center = Center(self.folder / "center", CenterQuery("q", fragment, WINDOW, ("a",), HORIZON, None), clock)
        self.site = Site(self.folder / "a", "a", fragment, "streaming", clock)
        self.agreed_time = AgreedTime(self.jump)
        self.low_mark = 0

    def read(self, times: Sequence[int]) -> None:
        records = [(time, "k", 1) for time in times]
        self.records += records
        newest = follow(self.agreed_time, times)
        self._send(records, 0 if newest is None else newest - SLACK)

    def end(self) -> None:
        self._send([], END_OF_TIME_US)
        self.center.tick()

    def _send(self, records: list[Record], mark: int) -> None:
        self.low_mark = max(self.low_mark, mark)
        self.site.batch(records, self.low_mark)
        deliver_some(self.site, self.center, random.Random(0), all_of_it=True)
        self.center.consume()


def read_a_day_with_one_stray(world: OneSite) -> None:
    for start in range(0, 600, 15):  # batches end in the middle of windows
        stray = [start + 2000] if start == 45 else []
        world.read([*range(start, start + 15), *stray])
    world.end()


def test_one_record_far_ahead_makes_no_record_late_for_good(tmp_path: Path) -> None:
    world = OneSite(tmp_path)
    read_a_day_with_one_stray(world)
    assert not world.center.tables.expired
    assert world.center.tables.answer() == naive(WINDOW, world.records), "the stray record is in its own window"
    assert world.agreed_time.held_records == 1
    assert world.agreed_time.newest_us == 599


def test_a_jump_longer_than_the_repair_horizon_is_asked_for_at_ones_own_risk(tmp_path: Path) -> None:
    """The fault that the rule mends, and a proof that these tests would see it."""
    world = OneSite(tmp_path, jump=5000)
    read_a_day_with_one_stray(world)
    assert world.center.tables.expired


@st.composite
def streams_with_strays(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Micro-batches within slack of order, each with fewer stray records than would be enough."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    now = chance.randrange(500)
    batches = []
    for _ in range(draw(st.integers(1, 12))):
        size = chance.choice([2, 3, 8, 60, 90])
        pace = chance.choice([0.1, 0.5, 3.0])
        good = []
        for _ in range(size):
            now += chance.random() < pace and max(1, int(pace))
            good.append(now - chance.randrange(SLACK))
        fullest = max(sum(t // HORIZON == b for t in good) for b in {t // HORIZON for t in good})
        enough = max(2, -(-fullest // 10))
        ahead = chance.choice([30, 90, 150, 700, 5000])
        strays = [now + chance.randrange(1, ahead) for _ in range(chance.randrange(enough))]
        batches.append((good, strays))
    return batches


@settings(max_examples=examples(30), deadline=None)
@given(streams_with_strays())
def test_answers_are_those_without_strays_while_these_are_fewer_than_would_be_enough(
    batches: list[tuple[list[int], list[int]]],
) -> None:
    with TemporaryDirectory() as folder:
        world = OneSite(Path(folder))
        for good, strays in batches:
            world.read([*good, *strays])
        world.end()
        assert not world.center.tables.expired
        answer = world.center.tables.answer()
    assert answer == naive(WINDOW, world.records)
    odd = {t // WINDOW.size_us * WINDOW.size_us for _, strays in batches for t in strays}
    clean = naive(WINDOW, [(t, "k", 1) for good, _ in batches for t in good])
    assert {p: a for p, a in answer.items() if p[0] not in odd} == {p: a for p, a in clean.items() if p[0] not in odd}


@settings(max_examples=examples(200))
@given(streams_with_strays())
def test_event_time_stands_at_most_a_jump_ahead_of_the_true_records(batches: list[tuple[list[int], list[int]]]) -> None:
    clock = AgreedTime(HORIZON)
    newest_true = 0
    for good, strays in batches:
        newest_true = max(newest_true, *good)
        stands = follow(clock, [*good, *strays])
        assert stands is None or stands <= newest_true + HORIZON


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 30), min_size=2, max_size=40), st.integers(1, 6))
def test_without_strays_and_long_gaps_event_time_is_the_newest_record(steps: list[int], size: int) -> None:
    clock = AgreedTime(HORIZON)
    times = [sum(steps[: i + 1]) for i in range(len(steps))]
    for first in range(0, len(times) - 1, size):
        follow(clock, times[first : first + size])
    assert clock.newest_read_us() == max(times[: first + size])


def test_a_stream_that_was_silent_goes_on_with_the_first_batch_that_is_wholly_beyond_the_gap() -> None:
    clock = AgreedTime(HORIZON)
    follow(clock, list(range(50)))
    assert follow(clock, [90_000, 90_003]) == 90_003
    assert clock.held_records == 0


def test_a_stream_of_one_record_per_batch_goes_on_with_the_second_record_beyond_the_gap() -> None:
    clock = AgreedTime(HORIZON)
    assert [follow(clock, [t]) for t in (1, 2, 3)] == [None, 2, 3]
    assert follow(clock, [90_000]) == 3
    assert follow(clock, [90_050]) == 90_050
    assert follow(clock, [190_000]) == 90_050
    assert follow(clock, [390_000]) == 190_000, "a stream whose every gap is long is one record behind"


def test_one_stray_record_in_each_of_many_batches_is_no_agreement() -> None:
    clock = AgreedTime(HORIZON)
    for start in range(0, 200, 10):
        follow(clock, [*range(start, start + 10), 5000 + start])
    assert clock.newest_us == 199
    assert clock.held_records == 20


def test_stray_records_within_a_jump_do_not_add_up() -> None:
    clock = AgreedTime(HORIZON)
    for ahead in range(90, 2000, 90):
        follow(clock, [1, 2, 3, 4, ahead])
    assert clock.newest_us is not None
    assert clock.newest_us <= 4 + HORIZON


@pytest.mark.parametrize(("times", "newest"), [([5], None), ([5, 6], 6), ([5, 6, 7, 900], 7), ([900, 901], 901)])
def test_a_first_batch_is_compared_with_the_wall_clock(times: list[int], newest: int | None) -> None:
    clock = AgreedTime(HORIZON)
    assert follow(clock, times, now=10) == newest


def test_at_the_end_of_reading_a_held_record_counts_unless_it_is_ahead_of_the_wall_clock() -> None:
    for now, end in ((NOW, 4000), (300, 9)):
        clock = AgreedTime(HORIZON)
        follow(clock, [*range(10), 4000], now)
        assert clock.newest_us == 9
        assert clock.newest_read_us() == end


def test_after_a_restart_it_is_known_which_records_a_new_fragment_has_missed() -> None:
    """A held record was read, and no fragment that begins after it has it, whatever process read it."""
    core = SiteCore()
    core.handle(LowMarkRaised("s", 10 - SLACK, read_us=40), 0)
    core.handle(LowMarkRaised("s", 12 - SLACK, read_us=12), 1)
    again = SiteCore()
    again.restore(decode(encode(core.snapshot())))
    assert again.newest_read_us("s") == 40
    clock = AgreedTime(20)
    clock.resume(10, again.newest_read_us("s"))
    assert (clock.newest_us, clock.newest_read_us()) == (10, 40)


def test_after_a_restart_the_stream_goes_on_where_it_stood() -> None:
    clock = AgreedTime(HORIZON)
    clock.resume(1000)
    assert follow(clock, [995, 1001, 1003]) == 1003
    clock.resume(1000)
    assert follow(clock, [*range(1001, 1011), 1090, 1500]) == 1090


@pytest.mark.parametrize(
    ("horizon_us", "chosen_us", "declared_us", "jump_us"),
    [
        (HOUR_US, None, None, HOUR_US),
        (0, None, None, SECOND_US),
        (500 * HOUR_US, None, None, 24 * HOUR_US),
        (HOUR_US, 30 * HOUR_US, None, 30 * HOUR_US),
        (HOUR_US, 30 * HOUR_US, 2 * HOUR_US, 2 * HOUR_US),
    ],
)
def test_by_default_one_record_moves_event_time_no_further_than_the_repair_horizon(
    horizon_us: int, chosen_us: int | None, declared_us: int | None, jump_us: int
) -> None:
    defaults = Defaults(repair_horizon_us=horizon_us, max_jump_us=chosen_us)
    assert defaults.resolve_jump_us(declared_us) == jump_us


def test_the_operator_is_told_how_many_records_were_far_from_their_stream() -> None:
    site = {"rows": 9, "newest_event_us": 5, "bytes_sent": 1, "pending_rows": 0, "connected": True, "last_error": None}
    for count, is_told in ((0, False), (1234, True)):
        console = Console(record=True, width=120, file=StringIO())
        console.print(status_table({"sites": {"eu": {**site, "implausible_times": count}}, "center": None}))
        assert ("eu: 1,234 records with event times far from their stream" in console.export_text()) == is_told
