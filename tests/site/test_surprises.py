"""Windows of which nothing was expected to be missing, and that get a record after all: bounds must allow for them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from catchment.quality.contract import Contract, Measure
from catchment.site.slack import SlackController, SlackTask, SourceBatch, parse_slack
from catchment.site.slack.surprises import SHOWN_WINDOWS, Surprises, error_without_a_record
from catchment.storage.codec import decode, encode
from catchment.timeline import SECOND_US, START_OF_TIME_US, Slicing, WindowSpec

WINDOW = WindowSpec(SECOND_US, SECOND_US)
SLICING = Slicing.of([WINDOW])
DELTA = 0.05
RECORDS = 10  # per window


@dataclass
class Watched:
    """A controller over one source whose records come late with some chance, by some windows."""

    late_share: float
    late_windows: int = 2
    records: int = RECORDS
    measure: str = "count"
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    bounds: dict[int, float] = field(default_factory=dict)  # as stated at closing, by the end of the window
    held: dict[int, int] = field(default_factory=dict)  # what was in then
    whole: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        task = SlackTask(WINDOW, Measure.parse(self.measure), Contract(0.1, 1.0 - DELTA))
        self.controller: SlackController = parse_slack("adaptive").build(task)

    def run(self, windows: int) -> Watched:
        waiting: dict[int, list[int]] = {}
        for number in range(windows):
            now_us = (number + 1) * SECOND_US
            events = [number * SECOND_US + i * SECOND_US // self.records for i in range(self.records)]
            if self.chance.random() < self.late_share:
                waiting.setdefault(number + self.late_windows, []).append(events.pop())
            events = [*waiting.pop(number, []), *events]
            self.controller.observe(SourceBatch.of_records(SLICING, ["s"] * len(events), events), now_us)
            for event in events:
                end = event // SECOND_US * SECOND_US + SECOND_US
                self.whole[end] = self.whole.get(end, 0) + 1
            for decision in self.controller.advance(now_us):
                self.bounds[decision.end_us] = decision.bound
                self.held[decision.end_us] = self.whole[decision.end_us]
            self.controller.settle(now_us)
        return self

    def missed(self, first: int = 0) -> float:
        """The share of the windows, from some on, whose bound was smaller than their error turned out to be."""
        ends = sorted(self.bounds)[first : -self.late_windows - 2]
        wrong = [1 - self.held[end] / self.whole[end] > self.bounds[end] + 1e-9 for end in ends]
        return sum(wrong) / len(wrong)


@pytest.mark.parametrize("late_share", [0.04, 0.15, 0.4])
def test_bounds_are_missed_as_rarely_as_they_say_though_a_source_is_out_of_order(late_share: float) -> None:
    watched = Watched(late_share).run(400)
    assert watched.missed() <= 1.5 * DELTA
    surprised = [end for end in watched.bounds if watched.held[end] < watched.whole[end]]
    assert late_share > 0.1 or surprised, "nothing was expected to be missing of windows that lacked a record"


def test_an_answer_that_is_awaited_has_no_bound_of_zero_before_sources_have_shown_their_order() -> None:
    watched = Watched(0.0).run(60)
    bounds = [watched.bounds[end] for end in sorted(watched.bounds)]
    few = round(0.5 / DELTA) - 2
    assert bounds[:few] == [pytest.approx(1 / (RECORDS + 1))] * few, "it may lack a record"
    assert set(bounds[few + 2 :]) == {0.0}


def test_surprises_take_the_bound_of_zero_back_until_windows_have_shown_that_they_are_rare() -> None:
    watched = Watched(0.0).run(40)
    assert watched.bounds[max(watched.bounds)] == 0.0
    for late_s in (5, 6):
        watched.controller.observe(SourceBatch.of_records(SLICING, ["s"], [late_s * SECOND_US]), 40 * SECOND_US)
    assert watched.controller.observations.least_bound(40 * SECOND_US) == pytest.approx(1 / (RECORDS + 1))


def test_windows_settle_later_where_sources_were_not_seen_to_keep_their_order() -> None:
    watched = Watched(0.0).run(int(SHOWN_WINDOWS))
    assert watched.controller.unsettled, "nobody has seen whether something comes late"
    watched = Watched(0.0).run(30)
    assert len(watched.controller.unsettled) <= 1
    assert watched.controller.observations.keeps_order()
    for late_s in (5, 6):
        watched.controller.observe(SourceBatch.of_records(SLICING, ["s"], [late_s * SECOND_US]), 30 * SECOND_US)
    assert not watched.controller.observations.keeps_order(), "two of thirty windows were surprised"


def test_late_records_of_a_window_that_is_known_to_lack_some_are_no_surprise() -> None:
    surprises = Surprises()
    surprises.count_closed(1, DELTA, expected_whole=False)
    surprises.count_closed(2, DELTA, expected_whole=True)
    surprises.count_late([1, 2])
    assert (surprises.closed, surprises.surprised) == (1.0, 1.0)


def test_few_windows_are_bounded_by_the_greatest_error_and_many_by_a_quantile() -> None:
    surprises = Surprises(closed=100.0, surprised=30.0)
    for error in (0.0, 0.3, 0.0):
        surprises.learn(error)
    assert surprises.least_bound(DELTA, 0.1) == 0.3
    for i in range(100):
        surprises.learn(0.2 if i % 10 == 0 else 0.0)
    assert surprises.least_bound(DELTA, 0.1) == 0.2
    assert decode(encode(surprises)) == surprises


def test_counters_follow_changes() -> None:
    surprises = Surprises(closed=799.0, surprised=400.0)
    for end in range(1, 4000):
        surprises.count_closed(end, DELTA, expected_whole=True)
    assert surprises.are_rare(DELTA)


@pytest.mark.parametrize(("measure", "error"), [("count", 0.1), ("quantile:0.75", 0.075), ("sum", 0.25), ("avg", 0.25)])
def test_the_error_of_one_record_is_relative_to_the_answer_with_it(measure: str, error: float) -> None:
    assert error_without_a_record(Measure.parse(measure), 9.0, 15.0, 5.0) == pytest.approx(error)


def test_a_controller_that_begins_in_the_middle_of_a_stream_does_not_call_what_was_before_complete() -> None:
    """Its query has moved, or has another contract: what another controller still awaited may come yet."""
    controller = Watched(0.0).controller
    for number in range(100, 110):
        now_us = (number + 1) * SECOND_US
        events = [number * SECOND_US + i * SECOND_US // RECORDS for i in range(RECORDS)]
        controller.observe(SourceBatch.of_records(SLICING, ["s"] * RECORDS, events), now_us)
        list(controller.advance(now_us))
        controller.settle(now_us)
        settled_us = decode(encode(controller)).settled_until_us
        if number < 100 + SHOWN_WINDOWS:
            assert settled_us == START_OF_TIME_US
    assert settled_us >= 100 * SECOND_US
