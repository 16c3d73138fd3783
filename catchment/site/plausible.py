"""Which event times of a stream are plausible: one wrong record must not drag its clock years ahead.

Event times are counted in buckets of `max_jump`. Starting from where the stream is (the newest event time so far, or,
in its first batch, the fullest bucket), buckets are plausible as long as no gap longer than `max_jump` must be crossed
to reach them. Times near the wall clock are always plausible: a stream may fall silent for days and go on. The past has
a wider limit (`MAX_AGE_US`): a very late record is repaired, it moves no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from catchment.timeline import SECOND_US

MAX_AGE_US = 366 * 86400 * SECOND_US  # how far behind the newest event time a record may be


@dataclass(frozen=True, slots=True)
class PlausibleTimes:
    """Event times in [start, end) are plausible, and those within `jump_us` of `now_us`."""

    start_us: int
    end_us: int
    now_us: int
    jump_us: int

    def sql(self, micros: str) -> str:
        """Return a Spark SQL condition on a BIGINT expression of microseconds."""
        near = f"abs({micros} - {self.now_us}L) <= {self.jump_us}L"
        return f"(({micros} >= {self.start_us}L AND {micros} < {self.end_us}L) OR {near})"

    def holds(self, instant_us: int) -> bool:
        """Return whether an event time is plausible."""
        near = abs(instant_us - self.now_us) <= self.jump_us
        return near or self.start_us <= instant_us < self.end_us


def needs_check(low_us: int, high_us: int, newest_us: int | None, jump_us: int) -> bool:
    """Return whether the extremes of a batch are so far apart, or so far from the stream, that it must be looked at."""
    if newest_us is None:
        return high_us - low_us > jump_us
    return high_us > newest_us + jump_us or low_us < newest_us - MAX_AGE_US


def find_plausible_times(counts: Mapping[int, int], newest_us: int | None, now_us: int, jump_us: int) -> PlausibleTimes:
    """Return the plausible times of a batch whose event times fall into these buckets (number -> records)."""
    buckets = sorted(counts)
    if newest_us is not None:
        end_us = (_reach_up(buckets, newest_us // jump_us) + 1) * jump_us
        return PlausibleTimes(newest_us - MAX_AGE_US, end_us, now_us, jump_us)
    fullest = max(buckets, key=lambda b: (counts[b], -b))
    end_us = (_reach_up(buckets, fullest) + 1) * jump_us
    return PlausibleTimes(_reach_down(buckets, fullest) * jump_us, end_us, now_us, jump_us)


def _reach_up(buckets: list[int], start: int) -> int:
    """Return the last of the buckets that follow each other without a gap from the start on."""
    reached = start
    for bucket in buckets:
        if bucket == reached + 1:
            reached = bucket
    return reached


def _reach_down(buckets: list[int], start: int) -> int:
    """Return the first of the buckets that lead to the start without a gap."""
    reached = start
    for bucket in reversed(buckets):
        if bucket == reached - 1:
            reached = bucket
    return reached
