"""One pass over files: event times checked, history written, every fragment lifted, every source observed.

A task is given parts of files and returns what it found; it holds one batch of records and the partials so far. Pure
but for the files: it runs in Spark's workers, or wherever the files are. Lines of text of which only Spark can say what
they are (`doubtful`) are handed back, within a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from catchment.arrays import Ints
from catchment.shedding.reader_filter import ROW
from catchment.site.agreed_time import Buckets, TimeBucket
from catchment.site.plausible import PlausibleTimes
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.csv_lines import CsvLineParser
from catchment.vectorised.fragments import EvaluatedRecords, TableCollector, Taken, VectorFragment, VectorWatch
from catchment.vectorised.heard import HeardSources
from catchment.vectorised.json_lines import JsonLineParser
from catchment.vectorised.lines import read_blocks
from catchment.vectorised.parquet import read_part
from catchment.vectorised.parsed_lines import ParsedLines
from catchment.vectorised.parts import FilePart, TopicPart
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.topic import TopicScan

_PART_BITS = 33  # of a row's number within its part, as Spark numbers rows within partitions
HISTORY_COMPRESSION = "lz4"
MAX_DOUBTFUL_BYTES = 2 << 20  # of the lines that one task may hand back; beyond it, Spark parses all


@dataclass(frozen=True)
class ScanPlan:
    """What a pass over the records of a stream computes.

    `columns` are the declared ones; of Parquet files only those that are needed are read. `jump_us` is the length of
    the stretches in which event times are counted. `lines` reads text; None if the files are Parquet. `topic` reads the
    records of a topic, and then there are no files. `heard` is for streams whose sources state their progress.
    """

    columns: pa.Schema
    event_time: str
    jump_us: int
    fragments: tuple[VectorFragment, ...] = ()
    watches: tuple[VectorWatch, ...] = ()
    lines: JsonLineParser | CsvLineParser | None = None
    heard: HeardSources | None = None
    topic: TopicScan | None = None

    @property
    def taken(self) -> tuple[Taken, ...]:
        """Everything that is taken of the records: fragments, then watches."""
        return (*self.fragments, *self.watches)

    def read_columns(self, with_history: bool) -> pa.Schema:
        """Return the columns to read: all of text, where records are written to history, and to tell markers."""
        if with_history or self.lines is not None or self.topic is not None or self.heard is not None:
            return self.columns
        evaluated = [e for taken in self.taken for e in taken.expressions]
        needed = {self.event_time, *(name for e in evaluated for name in e.reads)}
        return pa.schema([column for column in self.columns if column.name in needed])


@dataclass(frozen=True)
class ScanFindings:
    """What a task, or all of them, found in a micro-batch.

    `tables` are the partials of each fragment of the plan and the observations of each watch, None where no record
    came, and `records` says how many records of each slice they are of. `history` are the files that were written.
    `doubtful` are lines that are not among all this until Spark has judged them. `heard` says which sources were heard,
    and what they state of their progress.
    """

    rows: int = 0
    bad: int = 0
    low_us: int | None = None
    high_us: int | None = None
    buckets: Buckets = field(default_factory=dict)
    tables: tuple[pa.Table | None, ...] = ()
    records: tuple[Counter[int], ...] = ()
    history: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    heard: pa.Table | None = None


def scan(
    plan: ScanPlan,
    parts: Sequence[FilePart | TopicPart],
    limits: PlausibleTimes | None,
    history: Path | None,
    check_wanted: Callable[[], None] = lambda: None,
) -> ScanFindings:
    """Return what is in some parts of files or of a topic.

    With `history`, the good records are written to this file, not durably yet. `check_wanted` is called now and then,
    and raises what ends the pass.
    """
    columns = plan.read_columns(history is not None)

    def read() -> Iterator[tuple[int, ParsedLines]]:
        for part in parts:
            for parsed in _read(plan, part, columns):
                check_wanted()
                yield part.number, parsed

    return _scan(plan, columns, read(), limits, history)


def scan_records(
    plan: ScanPlan, records: RecordColumns, number: int, limits: PlausibleTimes | None, history: Path | None
) -> ScanFindings:
    """Return what is in some records that have all columns; their number is that of a part. See `scan`."""
    return _scan(plan, plan.columns, [(number, ParsedLines(records, []))], limits, history)


def _read(plan: ScanPlan, part: FilePart | TopicPart, columns: pa.Schema) -> Iterator[ParsedLines]:
    """Yield what is in a part of a file or of a topic."""
    if isinstance(part, TopicPart):
        assert plan.topic is not None
        yield from plan.topic.read(part)
        return
    if plan.lines is None:
        yield from (ParsedLines(records, []) for records in read_part(part, columns))
        return
    is_first = part.start == 0
    for block in read_blocks(part):
        yield plan.lines.parse(block, is_first)
        is_first = False


def _scan(
    plan: ScanPlan,
    columns: pa.Schema,
    numbered: Iterable[tuple[int, ParsedLines]],
    limits: PlausibleTimes | None,
    history: Path | None,
) -> ScanFindings:
    """Return what is in records, which come with the number of their part."""
    collectors = [TableCollector(taken) for taken in plan.taken]
    found = ScanFindings()
    doubtful: list[str] = []
    heard: list[pa.Table] = []
    positions: Counter[int] = Counter()  # how many rows of each part came so far
    writer = None if history is None else HistoryWriter(history, columns)
    try:
        for part, parsed in numbered:
            doubtful += _bound(doubtful, parsed.doubtful)
            records = parsed.records
            numbers = np.arange(positions[part], positions[part] + records.rows) + (part << _PART_BITS)
            positions[part] += records.rows
            markers = None
            if plan.heard is not None:
                is_marker = plan.heard.find_markers(records)
                markers = records.filter(pa.array(is_marker))
                records = records.filter(pa.array(~is_marker))
                numbers = numbers[~is_marker]
            good, numbers = select_good(records, numbers, plan.event_time, limits)
            if plan.heard is not None and markers is not None:
                heard.append(plan.heard.hear(good, markers))
            found = count_records(found, records.rows, good, plan)
            if not good.rows:
                continue
            if writer is not None:
                writer.write(good, numbers)
            evaluated = EvaluatedRecords(good)
            for collector in collectors:
                collector.add(evaluated)
    finally:
        files = () if writer is None else writer.close()
    tables = tuple(collector.result() for collector in collectors)
    counts = tuple(collector.records for collector in collectors)
    return replace(
        found,
        tables=tables,
        records=counts,
        history=files,
        doubtful=tuple(doubtful),
        heard=_merge_heard(plan, heard),
    )


def _merge_heard(plan: ScanPlan, tables: Sequence[pa.Table]) -> pa.Table | None:
    return plan.heard.merge(tables) if plan.heard is not None and tables else None


def _bound(known: Sequence[str], more: list[str]) -> list[str]:
    if more and sum(map(len, known)) + sum(map(len, more)) > MAX_DOUBTFUL_BYTES:
        raise NotVectorisedError("many lines are no plain records, such as lines with quotes")
    return more


def select_good(
    records: RecordColumns, numbers: Ints, event_time: str, limits: PlausibleTimes | None
) -> tuple[RecordColumns, Ints]:
    """Return the records whose event time is there and within the limits, and their numbers."""
    times = records.columns[event_time]
    if times.null_count == 0 and limits is None:
        return records, numbers
    is_good = np.asarray(times.is_valid())
    if limits is not None:
        is_good = is_good & limits.hold(np.asarray(times.cast(pa.int64()).fill_null(0)))
    if is_good.all():
        return records, numbers
    return records.filter(pa.array(is_good)), numbers[is_good]


def count_records(found: ScanFindings, rows: int, good: RecordColumns, plan: ScanPlan) -> ScanFindings:
    """Return the findings with some more records, of which these are good."""
    found = replace(found, rows=found.rows + rows, bad=found.bad + rows - good.rows)
    if not good.rows:
        return found
    micros = np.asarray(good.columns[plan.event_time].cast(pa.int64()))
    low_us = int(micros.min())
    high_us = int(micros.max())
    return replace(
        found,
        low_us=low_us if found.low_us is None else min(found.low_us, low_us),
        high_us=high_us if found.high_us is None else max(found.high_us, high_us),
        buckets=add_buckets(found.buckets, count_times(micros, low_us, high_us, plan.jump_us)),
    )


def count_times(micros: Ints, low_us: int, high_us: int, jump_us: int) -> Buckets:
    """Return how many of some event times are in each stretch of `jump_us`, and the newest of each."""
    if low_us // jump_us == high_us // jump_us:
        return {low_us // jump_us: TimeBucket(len(micros), high_us)}
    numbers, codes = np.unique(micros // jump_us, return_inverse=True)
    newest = np.full(len(numbers), low_us, dtype=np.int64)
    np.maximum.at(newest, codes, micros)
    counts = np.bincount(codes, minlength=len(numbers))
    return {int(n): TimeBucket(int(c), int(t)) for n, c, t in zip(numbers, counts, newest, strict=True)}


def add_buckets(left: Buckets, right: Buckets) -> Buckets:
    """Return the buckets of two sets of records as those of both."""
    both = dict(left)
    for number, bucket in right.items():
        known = both.get(number)
        if known is not None:
            bucket = TimeBucket(known.count + bucket.count, max(known.newest_us, bucket.newest_us))
        both[number] = bucket
    return both


def merge_findings(plan: ScanPlan, found: Sequence[ScanFindings]) -> ScanFindings:
    """Return what all tasks found as one."""
    low = [f.low_us for f in found if f.low_us is not None]
    high = [f.high_us for f in found if f.high_us is not None]
    buckets: Buckets = {}
    for findings in found:
        buckets = add_buckets(buckets, findings.buckets)

    def merge(number: int, taken: Taken) -> pa.Table | None:
        present = [table for f in found if (table := f.tables[number]) is not None]
        return taken.merge(present) if present else None

    return ScanFindings(
        sum(f.rows for f in found),
        sum(f.bad for f in found),
        min(low, default=None),
        max(high, default=None),
        buckets,
        tuple(merge(number, taken) for number, taken in enumerate(plan.taken)),
        tuple(sum((f.records[number] for f in found), Counter()) for number in range(len(plan.taken))),
        tuple(name for f in found for name in f.history),
        tuple(line for f in found for line in f.doubtful),
        _merge_heard(plan, [f.heard for f in found if f.heard is not None]),
    )


class HistoryWriter:
    """Writes good records and their numbers to one Parquet file; whoever has it written makes it durable."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self._path = path
        self._schema = columns.append(pa.field(ROW, pa.int64()))
        self._writer = self._open()

    def write(self, records: RecordColumns, numbers: Ints) -> None:
        columns = [records.columns[name] for name in self._schema.names[:-1]]
        batch = pa.record_batch([*columns, pa.array(numbers)], schema=self._schema)
        self._writer.write_batch(batch, row_group_size=batch.num_rows)

    def close(self) -> tuple[str, ...]:
        """Finish the file; return its name."""
        self._writer.close()
        return (self._path.name,)

    def _open(self) -> pq.ParquetWriter:
        """Open the file; whole numbers are stored as differences, which is small and fast for times and numbers."""
        texts = [f.name for f in self._schema if not _is_whole_or_time(f.type) and not pa.types.is_floating(f.type)]
        whole = {f.name: "DELTA_BINARY_PACKED" for f in self._schema if _is_whole_or_time(f.type)}
        return pq.ParquetWriter(
            self._path,
            self._schema,
            compression=HISTORY_COMPRESSION,
            use_dictionary=texts or False,
            column_encoding=whole or None,
        )


def _is_whole_or_time(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_int32(type_) or types.is_int64(type_) or types.is_timestamp(type_) or types.is_date32(type_))
