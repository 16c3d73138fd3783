"""Where the event time of a stream stands: as far as its records agree, not as far as one of them says.

Invariant: `newest_us` is at most `max_jump` ahead of an event time that enough records have reached. Enough is a tenth
of the records in the fullest stretch of `max_jump` of their micro-batch, two at least: the share that a contract asks
of the sources (`catchment.site.slack.sources`). While `max_jump` is at most the repair horizon, stray records can make
windows close early, but no window final before its records are in. A micro-batch of one record is judged together with
the one before it, so that a sparse stream moves on with the second record that agrees.

A record ahead of all that is held: it is an ordinary record of its own window, which waits until event time gets there;
it moves no mark. Quarantine would lose the first records after every long pause of a stream; holding loses nothing, and
the answers stay those of a batch query over the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

AGREEING_SHARE = 0.1  # of the records in the fullest bucket must lie beyond a gap for event time to cross it
MIN_AGREEING = 2  # records, however few there are


@dataclass(frozen=True, slots=True)
class TimeBucket:
    """How many records of a micro-batch have event times in one stretch of `max_jump`, and the newest of these."""

    count: int
    newest_us: int


Buckets = Mapping[int, TimeBucket]  # by event time // max_jump


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The event times of the good records of a micro-batch; buckets only where they are needed."""

    records: int
    low_us: int
    high_us: int
    buckets: Buckets | None = None


@dataclass
class AgreedTime:
    """The event time of one stream at its site."""

    jump_us: int
    newest_us: int | None = None  # the newest event time that is accepted
    agreed_us: int | None = None  # enough records were at least this new
    held_us: int | None = None  # the newest held record that is not ahead of the wall clock
    held_records: int = 0  # that were further ahead of the stream than `max_jump` when they came
    _lone_us: int | None = None  # the record of the last micro-batch, if it was the only one

    def resume(self, newest_us: int | None, read_us: int | None = None) -> None:
        """Go on where the stream stood before a restart; that may be `max_jump` ahead of what was agreed on.

        `read_us` is the newest event time that had been read: records beyond `newest_us` were held.
        """
        self.newest_us = newest_us
        self.held_us = read_us
        self.agreed_us = None if newest_us is None else newest_us - self.jump_us

    def needs_buckets(self, batch: BatchTimes, now_us: int) -> bool:
        """Return whether the extremes of a batch do not suffice to follow it."""
        if batch.records == 1:
            return False
        if self.agreed_us is None:
            return batch.high_us - batch.low_us > self.jump_us or batch.high_us > now_us + self.jump_us
        return batch.high_us > max(self.agreed_us, batch.low_us) + self.jump_us

    def follow(self, batch: BatchTimes, now_us: int) -> None:
        """Advance by a micro-batch, as far as its records agree."""
        agreed_us = self._find_agreed_us(batch, now_us)
        self._lone_us = batch.high_us if batch.records == 1 else None
        if agreed_us is not None:
            self.agreed_us = _later(self.agreed_us, agreed_us)
            self.newest_us = _later(self.newest_us, self.agreed_us)
        buckets = batch.buckets or {0: TimeBucket(batch.records, batch.high_us)}
        for number in sorted(buckets):
            self._take(buckets[number], now_us)

    def newest_read_us(self) -> int | None:
        """Return the newest event time that was read, held records included unless they are ahead of the wall clock.

        It is where reading has ended, when nothing can contradict held records any more, and what a fragment that is
        added now has missed.
        """
        return self.newest_us if self.held_us is None else _later(self.newest_us, self.held_us)

    def _find_agreed_us(self, batch: BatchTimes, now_us: int) -> int | None:
        """Return an event time that enough records of a batch have reached, if there are enough."""
        if batch.records == 1:
            return None if self._lone_us is None else min(self._lone_us, batch.high_us)
        if batch.buckets is None:
            return batch.low_us
        counts: Mapping[int, int] = {number: bucket.count for number, bucket in batch.buckets.items()}
        if self.agreed_us is None:
            counts = _without_future(counts, (now_us + self.jump_us) // self.jump_us)
        agreed = find_agreed_bucket(counts)
        return None if agreed is None else max(agreed * self.jump_us, batch.low_us)

    def _take(self, bucket: TimeBucket, now_us: int) -> None:
        """Accept the records of a bucket, or hold them."""
        newest_us = bucket.newest_us
        if self.agreed_us is not None and newest_us <= self.agreed_us + self.jump_us:
            self.newest_us = _later(self.newest_us, newest_us)
            return
        if self.newest_us is not None and newest_us > self.newest_us + self.jump_us:
            self.held_records += bucket.count
        if newest_us <= now_us + self.jump_us:
            self.held_us = _later(self.held_us, newest_us)


def _later(known_us: int | None, instant_us: int) -> int:
    return instant_us if known_us is None else max(known_us, instant_us)


def find_agreed_bucket(counts: Mapping[int, int]) -> int | None:
    """Return the highest bucket such that enough records lie in it or above; None if there are too few at all."""
    if not counts:
        return None
    need = max(MIN_AGREEING, ceil(AGREEING_SHARE * max(counts.values())))
    above = 0
    for bucket in sorted(counts, reverse=True):
        above += counts[bucket]
        if above >= need:
            return bucket
    return None


def _without_future(counts: Mapping[int, int], last: int) -> Mapping[int, int]:
    """Return the buckets up to the last that the wall clock allows; all, if all records lie beyond it."""
    return {bucket: count for bucket, count in counts.items() if bucket <= last} or counts
