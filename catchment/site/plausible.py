"""Which event times of a stream are so far from it that the records are quarantined: years, not hours.

Event times are counted in buckets of a day, or of `max_jump` where that is longer. Starting from where the stream is
(the newest event time so far, or, in its first batch, the fullest bucket), buckets are plausible as long as no gap
longer than a bucket must be crossed to reach them. A gap may be crossed in two ways: times near the wall clock are
always plausible, because a stream may fall silent for days and go on; and what enough records of a batch say is
plausible (`catchment.site.agreed_time`), or all of them, unless it is ahead of the wall clock. The past has a wider
limit (`MAX_AGE_US`): a very late record is repaired, it moves no clock.

A plausible record may still be a stray one: how far event time follows it is decided by `AgreedTime`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from catchment.arrays import Ints, Mask
from catchment.site.agreed_time import Buckets, find_agreed_bucket
from catchment.timeline import SECOND_US

DAY_US = 86400 * SECOND_US
MAX_AGE_US = 366 * DAY_US  # how far behind the newest event time a record may be


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
        return bool(self.hold(np.array([instant_us], dtype=np.int64))[0])

    def hold(self, instants_us: Ints) -> Mask:
        """Return which event times are plausible."""
        near = (instants_us >= self.now_us - self.jump_us) & (instants_us <= self.now_us + self.jump_us)
        return near | ((instants_us >= self.start_us) & (instants_us < self.end_us))


def far_us(jump_us: int) -> int:
    """Return the length of a gap beyond which a stray record is quarantined: a day at least, in whole jumps."""
    return -(-DAY_US // jump_us) * jump_us


def count_far(buckets: Buckets, jump_us: int) -> Counter[int]:
    """Return how many records lie in each bucket of `far_us`, from those in buckets of `max_jump`."""
    counts: Counter[int] = Counter()
    jumps_per_bucket = far_us(jump_us) // jump_us
    for number, bucket in buckets.items():
        counts[number // jumps_per_bucket] += bucket.count
    return counts


def needs_check(low_us: int, high_us: int, newest_us: int | None, now_us: int, jump_us: int) -> bool:
    """Return whether the extremes of a batch are so far apart, or so far from the stream, that it must be looked at."""
    if newest_us is None:
        return high_us - low_us > jump_us or high_us > now_us + jump_us
    return high_us > newest_us + jump_us or low_us < newest_us - MAX_AGE_US


def find_plausible_times(counts: Mapping[int, int], newest_us: int | None, now_us: int, jump_us: int) -> PlausibleTimes:
    """Return the plausible times of a batch whose event times fall into these buckets (number -> records)."""
    buckets = sorted(counts)
    past = {b: counts[b] for b in buckets if b * jump_us <= now_us + jump_us}
    if newest_us is not None:
        home = _cross_gap(past, newest_us // jump_us)
        end_us = (_reach_up(buckets, home) + 1) * jump_us
        return PlausibleTimes(newest_us - MAX_AGE_US, end_us, now_us, jump_us)
    if not past:  # nothing but the future: only what is near the wall clock is plausible
        return PlausibleTimes(now_us - jump_us, now_us, now_us, jump_us)
    fullest = _find_fullest(past)
    end_us = min((_reach_up(buckets, fullest) + 1) * jump_us, now_us + jump_us)
    return PlausibleTimes(_reach_down(buckets, fullest) * jump_us, end_us, now_us, jump_us)


def _cross_gap(past: Mapping[int, int], home: int) -> int:
    """Return the bucket where a stream goes on that was in `home`: beyond a gap if enough records or all are there."""
    agreed = find_agreed_bucket(past)
    if agreed is not None and agreed > home:
        return agreed
    if past and min(past) > home:
        return _find_fullest(past)
    return home


def _find_fullest(counts: Mapping[int, int]) -> int:
    """Return the bucket with most records, the lowest of several."""
    return max(counts, key=lambda bucket: (counts[bucket], -bucket))


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
