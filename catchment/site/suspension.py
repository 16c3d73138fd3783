"""A suspended fragment: one whose expression has failed on a record, and which takes nothing in until it is resumed.

Only the fragment whose expression failed is suspended; whatever else reads the stream goes on. What a suspended
fragment does not take in is counted per slice, and the center is told before any mark that covers these slices. So a
window that lacks records for this reason is never called exact, and it closes when its time has come.

Bound: while the link is blocked, what was skipped is summed per slice, and of the changes only the newest is stated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from catchment.errors import SiteError
from catchment.site.backfill import PastBatches
from catchment.storage.codec import stored
from catchment.timeline import Window, WindowSpec
from catchment.wire.messages import Resumed, Skipped, Suspended

MAX_TEXT = 500  # characters of a reason, an expression or a record that are remembered and sent
MAX_ERROR_SLICES = 10_000  # slices whose quarantined records are counted; older ones are forgotten
SLICES_PER_FACT = 10_000  # slices that one fact names; more go in several


@stored()
@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The record on which an expression failed: its text and, as far as known, its file and its number."""

    text: str
    file: str = ""
    row: int | None = None

    def __str__(self) -> str:
        where = " ".join(part for part in (self.file, "" if self.row is None else f"row {self.row}") if part)
        return f"{where}: {self.text}" if where else self.text


@stored()
@dataclass(frozen=True, slots=True)
class FragmentSuspended:
    """An expression of this fragment has failed on a record of a micro-batch: from this batch on it takes nothing in.

    Slices from `from_us` on may lack records. The expression and the record are unknown where they were not found.
    """

    stream: str
    batch: int
    fragment: str
    from_us: int
    reason: str
    expression: str = ""
    record: RecordPlace | None = None


@stored(version=2, migrations={1: dict})  # version 2 has past
@dataclass(frozen=True, slots=True)
class FragmentResumed:
    """A suspended fragment takes part again from the next micro-batch on; what it has skipped is read from history.

    Without a `past` it is not: those windows stay as they are.
    """

    fragment: str
    past: PastBatches | None = None


@stored()
@dataclass(frozen=True, slots=True)
class BatchSkipped:
    """A suspended fragment has taken nothing of a micro-batch; `records` counts what it would have taken, per slice."""

    fragment: str
    batch: int
    records: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check_counts(self.fragment, self.batch, self.records)


@stored()
@dataclass(frozen=True, slots=True)
class RecordsQuarantined:
    """A fragment has failed on these records of a micro-batch, counted per slice: they are in quarantine."""

    fragment: str
    batch: int
    records: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check_counts(self.fragment, self.batch, self.records)


def _check_counts(fragment: str, batch: int, records: tuple[tuple[int, int], ...]) -> None:
    """Refuse the number of a batch, or counts per slice, below 0."""
    if batch < 0 or any(count < 0 for _, count in records):
        raise SiteError(
            f"batch {batch} counts {records} records per slice; none of these may be negative",
            where=f"fragment {fragment!r}",
        )


def find_window_beyond(
    windows: Iterable[WindowSpec], known: Mapping[int, int], fresh: Mapping[int, int], max_errors: int
) -> Window | None:
    """Return a window that more than `max_errors` records fail in, counted per slice; None if there is none."""
    slices = sorted(known.keys() | fresh.keys())
    touched = {window for spec in windows for slice_us in fresh for window in spec.containing(slice_us)}
    for window in sorted(touched, key=lambda w: (w.end_us, w.start_us)):
        inside = slices[bisect_left(slices, window.start_us) : bisect_left(slices, window.end_us)]
        if sum(known.get(s, 0) + fresh.get(s, 0) for s in inside) > max_errors:
            return window
    return None


def _add_first_batch(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 2 of version 1, in which a suspension began with the batch that it names."""
    current = fields["current"]
    return {**fields, "first_batch": None if current is None else current.batch}


@stored(version=2, migrations={1: _add_first_batch})
@dataclass
class Suspension:
    """Whether one fragment is suspended, what it has skipped, and what the center has not been told of it."""

    current: FragmentSuspended | None = None
    skipped_records: int = 0  # in the fragment's life
    missed: tuple[int, int] | None = None  # the first and the last slice that were skipped in this suspension
    newest_batch: int = -1  # the newest batch that was skipped
    is_unstated: bool = False  # whether the center does not know yet that it is suspended, or that it is not
    unstated: dict[int, int] = field(default_factory=dict)  # slice -> skipped records that the center does not know of
    quarantined_records: int = 0  # that are set aside now
    errors: dict[int, int] = field(default_factory=dict)  # slice -> quarantined records, of the newest slices
    first_batch: int | None = None  # the first batch that was skipped in this suspension

    def suspend(self, event: FragmentSuspended) -> None:
        """Take nothing in from now on; a fragment that is suspended already stays so for its first reason."""
        if self.current is None:
            self.current = event
            self.missed = None
            self.first_batch = None
            self.is_unstated = True

    def resume(self) -> None:
        """Take part again."""
        if self.current is not None:
            self.current = None
            self.is_unstated = True

    def skip(self, event: BatchSkipped) -> None:
        """Count a micro-batch of which nothing was taken in."""
        self.newest_batch = max(self.newest_batch, event.batch)
        self.first_batch = event.batch if self.first_batch is None else self.first_batch
        for slice_us, count in event.records:
            self.skipped_records += count
            self.unstated[slice_us] = self.unstated.get(slice_us, 0) + count
            first_us, last_us = self.missed or (slice_us, slice_us)
            self.missed = min(first_us, slice_us), max(last_us, slice_us)

    def quarantine(self, records: Iterable[tuple[int, int]]) -> None:
        """Count records that were set aside, per slice."""
        for slice_us, count in records:
            self.quarantined_records += count
            self.errors[slice_us] = self.errors.get(slice_us, 0) + count
        for slice_us in sorted(self.errors)[:-MAX_ERROR_SLICES]:
            del self.errors[slice_us]

    def release(self, records: Iterable[tuple[int, int]]) -> None:
        """Count records, per slice, as no longer set aside: they were taken in after all."""
        for slice_us, count in records:
            self.quarantined_records -= count
            if slice_us in self.errors:
                left = self.errors.pop(slice_us) - count
                self.errors |= {slice_us: left} if left > 0 else {}

    def status(self) -> dict[str, Any]:
        """Return why it is suspended, since when, and what it has missed so far, as plain JSON."""
        event = self.current
        counts = {"skipped_records": self.skipped_records, "quarantined_records": self.quarantined_records}
        if event is None:
            return {"suspended": None, **counts}
        suspended = {
            "batch": event.batch,
            "from_us": event.from_us,
            "reason": event.reason,
            "expression": event.expression,
            "record": "" if event.record is None else str(event.record),
            "missed_us": self.missed,
        }
        return {"suspended": suspended, **counts}

    def take_facts(self, fragment: str) -> Iterator[Suspended | Skipped | Resumed]:
        """Yield what the center has not been told, and take it as told."""
        if self.is_unstated and self.current is not None:
            yield _suspended_fact(self.current)
        slices = sorted(self.unstated.items())
        self.unstated = {}
        for start in range(0, len(slices), SLICES_PER_FACT):
            yield Skipped(fragment, self.newest_batch, tuple(slices[start : start + SLICES_PER_FACT]))
        if self.is_unstated and self.current is None:
            yield Resumed(fragment)
        self.is_unstated = False


def _suspended_fact(event: FragmentSuspended) -> Suspended:
    record = "" if event.record is None else str(event.record)
    return Suspended(event.fragment, event.batch, event.from_us, event.reason, event.expression, record)


def shorten(text: str) -> str:
    """Return a text as far as it is remembered."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
