"""Which event times of a stream can be true: one wrong record must not drag its clock years ahead.

Event times are counted in buckets of `max_jump`. Starting from where the stream is (the newest event time so
far, or, in its first batch, the fullest bucket), buckets are plausible as long as no gap longer than
`max_jump` must be crossed to reach them. Times near the wall clock are always plausible: a stream may fall
silent for days and go on. The past is judged more kindly (`MAX_AGE_US`): a very late record is repaired, it
moves no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from catchment.timeline import SECOND_US

MAX_AGE_US = 366 * 86400 * SECOND_US


@dataclass(frozen=True, slots=True)
class PlausibleTimes:
    """Event times in [start, end) are believed, and those near `now`."""

    start_us: int
    end_us: int
    now_us: int
    jump_us: int

    def sql(self, micros: str) -> str:
        """A Spark SQL condition on a BIGINT expression of microseconds."""
        near = f"abs({micros} - {self.now_us}L) <= {self.jump_us}L"
        return f"(({micros} >= {self.start_us}L AND {micros} < {self.end_us}L) OR {near})"

    def holds(self, instant_us: int) -> bool:
        near = abs(instant_us - self.now_us) <= self.jump_us
        return near or self.start_us <= instant_us < self.end_us


def needs_check(low_us: int, high_us: int, newest_us: int | None, jump_us: int) -> bool:
    """Whether the extremes of a batch are far enough apart, or from the stream, to look closer."""
    if newest_us is None:
        return high_us - low_us > jump_us
    return high_us > newest_us + jump_us or low_us < newest_us - MAX_AGE_US


def find_plausible_times(counts: Mapping[int, int], newest_us: int | None, now_us: int, jump_us: int) -> PlausibleTimes:
    """What to believe of a batch whose event times fall into these buckets (number -> records)."""
    buckets = sorted(counts)
    home = newest_us // jump_us if newest_us is not None else max(buckets, key=lambda b: (counts[b], -b))
    top = home
    for bucket in buckets:
        if top < bucket <= top + 1:
            top = bucket
    if newest_us is not None:
        return PlausibleTimes(newest_us - MAX_AGE_US, (top + 1) * jump_us, now_us, jump_us)
    bottom = home
    for bucket in reversed(buckets):
        if bottom - 1 <= bucket < bottom:
            bottom = bucket
    return PlausibleTimes(bottom * jump_us, (top + 1) * jump_us, now_us, jump_us)
