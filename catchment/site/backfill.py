"""The past of a fragment: which micro-batches it still has to read from history, and what is known of them.

A site journals between which two micro-batches of its stream a fragment was added. Everything before is its past, if it
begins there, and is read from history in order, some batches at a time; everything after comes to it live. What it has
skipped while it was suspended is read in the same way once it is resumed. So each batch is taken in exactly once,
whatever its event times are. One journal entry holds the partials of a few past batches and the position after them: a
crash before it reads them again, a crash after it goes on behind them.

Law: once a backfill is over, a fragment has taken in what it would have, had it been there and well from the beginning,
as far as history still holds it and its expressions do not fail on it. Event times of which something is missing
(`lost`) are told to the center.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.errors import SiteError
from catchment.query.fragment import SLICE_COLUMN
from catchment.storage.codec import stored
from catchment.wire.messages import Backfilled, Backfilling

CHUNK_ROWS = 1_000_000  # records that are read together; one batch is read whole, however large it is
CHUNK_BATCHES = 256
MAX_LOST_SPANS = 64
FIRST_CHUNK_ROWS = 1_000  # while nobody knows what a record costs on the link
CHUNK_S = 2.0  # of its part of the link that one chunk may take

EventSpan = tuple[int, int]  # event times [low, high)


@stored(2, {1: dict})
@dataclass(frozen=True, slots=True)
class PastBatches:
    """The micro-batches [first, end) were read before a fragment was added, or while it was suspended.

    Their records before `from_us` are not wanted; at `until_us` or after there are hardly any, because that is behind
    the newest event time that had been read, or they are not wanted either (`is_bounded`).
    """

    end: int
    from_us: int
    until_us: int
    first: int = 0
    is_bounded: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end or self.from_us >= self.until_us:
            raise SiteError(
                f"a past of the batches [{self.first}, {self.end}), of event times [{self.from_us}, {self.until_us}), "
                "is empty"
            )

    def wants(self, times: EventSpan) -> bool:
        """Return whether a batch of these event times may have records that are wanted."""
        return times[1] > self.from_us and not (self.is_bounded and times[0] >= self.until_us)


@stored(2, {1: dict})  # version 2 has quarantined
@dataclass(frozen=True, slots=True)
class PastAbsorbed:
    """The partials of the past batches [first, end) of a fragment; `records` counts raw records per slice.

    `lost` are the event times of these batches of which history lacks something, or on which the fragment fails;
    `failure` says why, if it does. `quarantined` counts, per slice, the records that it has set aside instead.
    """

    fragment: str
    first: int
    end: int
    partials: pa.Table = field(repr=False)
    records: tuple[tuple[int, int], ...] = ()
    lost: tuple[EventSpan, ...] = ()
    failure: str = ""
    quarantined: tuple[tuple[int, int], ...] = ()


@stored()
@dataclass
class Backfill:
    """How far the past of one fragment has been read."""

    past: list[PastBatches]  # what is left of it, in the order in which it is read
    batches: int  # that it had in all
    records: int = 0  # that were taken in
    lost: tuple[EventSpan, ...] = ()
    failure: str = ""  # why it could not take in a batch, the last time
    is_begin_stated: bool = False
    is_end_stated: bool = False

    @classmethod
    def of(cls, past: PastBatches) -> Backfill:
        """Return a backfill of which nothing was read yet."""
        return cls([past], past.end - past.first)

    @property
    def is_over(self) -> bool:
        """Whether everything was read."""
        return not self.past

    @property
    def next_batch(self) -> int | None:
        """The batch that is read next; None if there is none."""
        return self.past[0].first if self.past else None

    def add(self, past: PastBatches) -> None:
        """Read more, behind what is to be read already; what is still lacking is stated anew."""
        if self.is_over:
            self.lost = ()
        self.past.append(past)
        self.batches += past.end - past.first
        self.is_begin_stated = False
        self.is_end_stated = False

    def advance(self, event: PastAbsorbed) -> None:
        """Go on behind batches that were taken in."""
        current = self.past[0]
        self.past[:1] = [] if event.end >= current.end else [replace(current, first=event.end)]
        self.records += sum(count for _, count in event.records)
        for span in event.lost:
            self.lost = add_span(self.lost, span)
        self.failure = event.failure or self.failure

    def take_begin(self, fragment: str) -> Iterator[Backfilling]:
        """Yield that the past is yet to come, once."""
        if self.past and not self.is_begin_stated:
            self.is_begin_stated = True
            low_us = min(past.from_us for past in self.past)
            yield Backfilling(fragment, low_us, max(past.until_us for past in self.past))

    def take_end(self, fragment: str) -> Iterator[Backfilled]:
        """Yield that the past has been sent, once, when it has."""
        if self.is_over and not self.is_end_stated:
            self.is_end_stated = True
            yield Backfilled(fragment, self.lost)

    def status(self) -> dict[str, Any]:
        """Return how far it is, as plain JSON."""
        left = sum(past.end - past.first for past in self.past)
        return {
            "batches": self.batches,
            "read_batches": self.batches - left,
            "records": self.records,
            "lost_us": self.lost,
            "failure": self.failure or None,
        }


@dataclass(frozen=True, slots=True)
class PastBatch:
    """What history says of one micro-batch without reading its records; `times` is None where it has none."""

    rows: int
    times: EventSpan | None


@dataclass(frozen=True, slots=True)
class PastChunk:
    """Past batches that are read together: those in [first, end) that have something to read, and what is lost."""

    first: int
    end: int
    batches: tuple[int, ...]
    rows: int = 0
    lost: tuple[EventSpan, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it gets the backfill no further."""
        return self.first == self.end


def choose_chunk(
    backfill: Backfill,
    find_batch: Callable[[int], PastBatch | None],
    find_lost: Callable[[int], EventSpan | None],
    chunk_rows: int = CHUNK_ROWS,
    chunk_batches: int = CHUNK_BATCHES,
    unwritten: Collection[int] = (),
) -> PastChunk:
    """Return the batches that are read next: none from the first one on that is still to be written to history.

    `find_batch` returns None for a batch that is not in history; `find_lost` then says which event times that touches,
    or None where nobody knows.
    """
    past = backfill.past[0]
    number = past.first
    chosen: list[int] = []
    lost: tuple[EventSpan, ...] = ()
    rows = 0
    while number < past.end and number not in unwritten and number - past.first < chunk_batches:
        batch = find_batch(number)
        if batch is None:
            span = _inside(find_lost(number), past)
            lost = lost if span is None else add_span(lost, span)
        elif batch.times is not None and past.wants(batch.times):
            if chosen and rows + batch.rows > chunk_rows:
                break
            chosen.append(number)
            rows += batch.rows
        number += 1
    return PastChunk(past.first, number, tuple(chosen), rows, lost)


def _inside(span: EventSpan | None, past: PastBatches) -> EventSpan | None:
    """Return the part of lost event times that is wanted; all that is wanted, where they are not known."""
    if span is None:
        return past.from_us, past.until_us
    inside = max(span[0], past.from_us), min(span[1], past.until_us)
    return inside if inside[0] < inside[1] else None


def add_span(spans: tuple[EventSpan, ...], span: EventSpan) -> tuple[EventSpan, ...]:
    """Return spans, in order and apart, that hold one more; beyond `MAX_LOST_SPANS` the two that are nearest join."""
    joined: list[EventSpan] = []
    for low_us, high_us in sorted((*spans, span)):
        if joined and low_us <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high_us)
        else:
            joined.append((low_us, high_us))
    while len(joined) > MAX_LOST_SPANS:
        place = min(range(len(joined) - 1), key=lambda n: joined[n + 1][0] - joined[n][1])
        joined[place : place + 2] = [(joined[place][0], joined[place + 1][1])]
    return tuple(joined)


@dataclass(frozen=True)
class NeededBatches:
    """Micro-batches that are still to be read from history: some that are owed, and ranges, which may be long."""

    owed: frozenset[int]
    ranges: tuple[range, ...]

    def __contains__(self, number: object) -> bool:
        return number in self.owed or any(number in span for span in self.ranges)


@dataclass
class BackfillPace:
    """How fast the past may be read: so that what it sends takes no more than its part of a link.

    Chunks are as large as what may be sent in `CHUNK_S`, so that nothing live waits long behind one.
    """

    bytes_per_s: float | None
    next_at_us: int = 0
    bytes_per_row: float | None = None

    def may_read(self, now_us: int) -> bool:
        return now_us >= self.next_at_us

    @property
    def chunk_rows(self) -> int:
        """How many records to read together."""
        if self.bytes_per_s is None:
            return CHUNK_ROWS
        if not self.bytes_per_row:
            return FIRST_CHUNK_ROWS if self.bytes_per_row is None else CHUNK_ROWS
        return max(min(int(CHUNK_S * self.bytes_per_s / self.bytes_per_row), CHUNK_ROWS), 1)

    def note_sent(self, rows: int, sent_bytes: int, now_us: int) -> None:
        """Wait for as long as what was sent takes."""
        if rows:
            self.bytes_per_row = sent_bytes / rows
        if self.bytes_per_s is not None:
            self.next_at_us = now_us + int(sent_bytes / self.bytes_per_s * 1e6)


def drop_before(
    partials: pa.Table, records: tuple[tuple[int, int], ...], from_us: int
) -> tuple[pa.Table, tuple[tuple[int, int], ...]]:
    """Return partials, and records per slice, without the slices that start before an instant."""
    if partials.num_rows:
        partials = partials.filter(pc.greater_equal(partials[SLICE_COLUMN], from_us))
    return partials, tuple((slice_us, count) for slice_us, count in records if slice_us >= from_us)
