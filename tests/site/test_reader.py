"""The states of a reader, on a clock that tests move: reading, waiting, standing still and dying are told apart.

Catches: a stalled reader that is taken for an idle one, restarts without pause or end, windows that close because
nobody reads. Cannot catch: what Spark shows of a query that stands still.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.site.reader import (
    ENDED,
    FAILED,
    FIRST_PAUSE_US,
    IDLE,
    IDLE_AFTER_US,
    LONGEST_PAUSE_US,
    MAX_RESTARTS,
    NEVER_STARTED,
    RETRYING,
    RUNNING,
    STALLED,
    STALLED_AFTER_US,
    STALLED_BATCHES,
    ReaderWatch,
    ReadingPaused,
    ReadingResumed,
)
from catchment.timeline import SECOND_US, ManualClock
from tests.worlds.contract_site import FRAGMENT, ContractSite, Row


def test_a_reader_without_records_is_idle_as_long_as_it_says_that_it_waits() -> None:
    reader = ReaderWatch()
    assert reader.state(0) == NEVER_STARTED
    reader.note_started(0)
    reader.note_batch(5, 100, SECOND_US)
    assert reader.state(SECOND_US + IDLE_AFTER_US) == RUNNING
    for now_us in range(SECOND_US, 3 * STALLED_AFTER_US, SECOND_US):
        reader.note_sign("waiting", True, now_us)
    assert reader.state(3 * STALLED_AFTER_US) == IDLE
    reader.ended = True
    assert reader.state(3 * STALLED_AFTER_US) == ENDED


def test_a_reader_that_shows_the_same_for_too_long_is_stalled_and_any_sign_ends_that() -> None:
    reader = ReaderWatch()
    reader.note_started(0)
    for now_us in range(0, 2 * STALLED_AFTER_US, SECOND_US):
        reader.note_sign("listing files", False, now_us)
    assert reader.state(STALLED_AFTER_US) != STALLED
    assert reader.state(2 * STALLED_AFTER_US) == STALLED
    reader.note_sign("reading", False, 2 * STALLED_AFTER_US)
    assert reader.state(2 * STALLED_AFTER_US + 1) == IDLE


def test_a_reader_whose_batches_take_long_is_given_longer() -> None:
    reader = ReaderWatch()
    reader.note_started(0)
    reader.note_batch(1, STALLED_AFTER_US, 0)
    assert reader.state(STALLED_BATCHES * STALLED_AFTER_US) != STALLED
    assert reader.state(STALLED_BATCHES * STALLED_AFTER_US + 1) == STALLED


def die(reader: ReaderWatch, now_us: int, is_outage: bool) -> int | None:
    """The pause before it is started again."""
    reader.note_started(now_us)
    reader.note_death("gone", is_outage, now_us)
    return None if reader.next_start_us is None else reader.next_start_us - now_us


def test_a_reader_that_dies_is_started_again_after_growing_pauses_and_fails_in_the_end() -> None:
    reader = ReaderWatch()
    pauses = [die(reader, 0, is_outage=False) for _ in range(MAX_RESTARTS)]
    assert pauses == [min(FIRST_PAUSE_US * 2**i, LONGEST_PAUSE_US) for i in range(MAX_RESTARTS)]
    assert reader.state(0) == RETRYING
    assert not reader.is_due(FIRST_PAUSE_US)
    assert reader.is_due(LONGEST_PAUSE_US)
    assert die(reader, 0, is_outage=False) is None
    assert (reader.state(0), reader.status(0)["reason"]) == (FAILED, "gone")


def test_a_batch_between_two_deaths_starts_the_count_anew() -> None:
    reader = ReaderWatch()
    for _ in range(3 * MAX_RESTARTS):
        assert die(reader, 0, is_outage=False) == FIRST_PAUSE_US
        reader.note_started(0)
        reader.note_batch(0, 1, 0)
    assert reader.restarts == 3 * MAX_RESTARTS


def test_an_outage_is_waited_for_without_end() -> None:
    reader = ReaderWatch()
    for _ in range(10 * MAX_RESTARTS):
        pause = die(reader, 0, is_outage=True)
    assert (pause, reader.state(0)) == (LONGEST_PAUSE_US, RETRYING)


def rows_of(second: int, sources: str) -> list[Row]:
    return [(source, second * SECOND_US + i * SECOND_US // 10, 1) for source in sources for i in range(10)]


@pytest.mark.parametrize("is_paused", [False, True])
def test_no_window_is_closed_by_silence_while_nobody_reads(tmp_path: Path, is_paused: bool) -> None:
    """One source is behind when the reader stands still: by the clock alone its windows would close without it."""
    clock = ManualClock()
    site = ContractSite(tmp_path / "s", "site0", FRAGMENT, "batching", clock)
    for second in range(30):
        site.take(rows_of(second, "ab" if second < 29 else "a"))
        clock.advance(SECOND_US)
    before_us = mark(site)
    if is_paused:
        site.host.submit("reader", [ReadingPaused("s")])
    site.crash()
    for _ in range(150):
        clock.advance(SECOND_US)
        site.tick()
    assert (mark(site) == before_us) == is_paused
    if is_paused:
        site.host.submit("reader", [ReadingResumed("s")])
        site.tick()
        assert mark(site) > before_us, "when it reads again, time counts again"


def mark(site: ContractSite) -> int:
    return site.core.low_mark_us(f"s/{FRAGMENT.name}")
