"""Which event times the batches of a folder hold, by the footers of their Parquet files, and which were removed.

A batch is not partitioned by event time, which would sort every record. Footers say what each file holds, so that who
asks for some event times opens only the files that matter. What is removed leaves a note of its event times, because
an answer over them can no longer be whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catchment.errors import StorageError
from catchment.storage.files import read_record, write_record

REMOVED_FILE = "_removed.json"  # Spark and Arrow pass over names that begin so
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TimeSpan = tuple[int, int]  # event times [low, high)


@dataclass(frozen=True, slots=True)
class FileTimes:
    """How many records some files hold, and between which event times; `span` is None where there are none."""

    rows: int = 0
    span: TimeSpan | None = None


def read_times(files: Iterable[Path], column: str) -> FileTimes:
    """Return what the footers of files say; where they say nothing, the column is read."""
    rows = 0
    spans = []
    for file in files:
        footer = pq.read_metadata(file)
        rows += footer.num_rows
        if footer.num_rows:
            spans.append(_span_of(file, footer, column))
    return FileTimes(rows, hull(spans))


def _span_of(file: Path, footer: pq.FileMetaData, column: str) -> TimeSpan:
    index = footer.schema.names.index(column)
    groups = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
    if any(statistics is None or not statistics.has_min_max for statistics in groups):
        times = pq.read_table(file, columns=[column])[column].cast(pa.timestamp("us")).cast(pa.int64())
        found = pc.min_max(times).as_py()
        return found["min"], found["max"] + 1
    return min(_micros(s.min) for s in groups), max(_micros(s.max) for s in groups) + 1


def _micros(instant: datetime) -> int:
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _times_of(batch: Path, column: str, times_of_run: Callable[[Path], FileTimes | None]) -> FileTimes:
    return times_of_run(batch) or read_times(sorted(batch.rglob("*.parquet")), column)


def hull(spans: Iterable[TimeSpan | None]) -> TimeSpan | None:
    """Return the span from the earliest to the latest event time of some spans; None if there are none."""
    known = [span for span in spans if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


@dataclass(frozen=True, slots=True)
class RemovedBatches:
    """What was ever removed of a folder: from the first to the last number, how many, and their event times.

    The span is one for all, and so as wide as the strayest record; None where they had none, or nobody knows.
    """

    first: int
    last: int
    count: int
    is_known: bool  # whether the event times of all of them are
    span: TimeSpan | None = None

    @classmethod
    def read(cls, folder: Path) -> RemovedBatches | None:
        """Return what was removed of a folder; None if nothing was."""
        known = read_record(folder / REMOVED_FILE)
        if known is None:
            return None
        span = None if known["span"] is None else (int(known["span"][0]), int(known["span"][1]))
        return cls(known["first"], known["last"], known["count"], known["is_known"], span)

    def find_times(self, number: int) -> tuple[bool, TimeSpan | None]:
        """Return whether the event times of a batch that is not there are known, and which they may be.

        They are known if it was removed: between the first and the last one nothing was left out.
        """
        has_gaps = self.count != self.last - self.first + 1
        is_known = self.is_known and not has_gaps and self.first <= number <= self.last
        return is_known, self.span if is_known else None

    def add(self, numbers: Sequence[int], times: FileTimes | None) -> RemovedBatches:
        """Return the same with more batches; their event times are None where nobody knows them."""
        span = hull((self.span, None if times is None else times.span))
        first = min([self.first, *numbers])
        last = max([self.last, *numbers])
        return RemovedBatches(first, last, self.count + len(numbers), self.is_known and times is not None, span)


def note_removed(
    folder: Path,
    batches: Mapping[int, Path],
    column: str | None,
    times_of_run: Callable[[Path], FileTimes | None] = lambda path: None,
) -> None:
    """Note, durably, batches that are about to be removed from a folder; without a column nobody knows their times.

    Several of them may be in one folder, as a run, whose manifest says its times (`times_of_run`).
    """
    times = None
    if column is not None:
        with suppress(OSError, ValueError, pa.ArrowException, StorageError):  # then nobody knows
            each = [_times_of(batch, column, times_of_run) for batch in dict.fromkeys(batches.values())]
            times = FileTimes(sum(found.rows for found in each), hull([found.span for found in each]))
    numbers = sorted(batches)
    known = RemovedBatches.read(folder) or RemovedBatches(numbers[0], numbers[0], 0, True)
    write_record(folder / REMOVED_FILE, asdict(known.add(numbers, times)))
