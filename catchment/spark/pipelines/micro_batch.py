"""One micro-batch of a stream at its site: raw history, quarantine, and the partials of every fragment.

Where history is written, implausible event times are found by what was observed while writing, before anything is
reduced: the batch is then written once more without them. Where it is not (a stream without history, or a sample whose
history is deferred), they are observed only while the records are reduced, and such a batch, which is rare, is reduced
twice: to judge first would cost another pass over every batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.processes.history_store import find_stored_history
from catchment.deploy.twins import Twins, find_twins
from catchment.files.references import ReferencedFiles
from catchment.files.watch import FilePiece
from catchment.project.config import Project
from catchment.query.fragment import Fragment, count_only
from catchment.query.sql.statements import Stream
from catchment.records.stored_history import StoredHistory
from catchment.shedding.debts import EventTimeLimits
from catchment.shedding.reader_filter import ROW
from catchment.site.agreed_time import AgreedTime, BatchTimes, Buckets, TimeBucket
from catchment.site.events import Event, Observed
from catchment.site.plausible import PlausibleTimes, count_far, far_us, find_plausible_times, needs_check
from catchment.site.reader import ReaderWatch
from catchment.site.slack import watched_values
from catchment.site.stated_progress import ProgressStated, Statements
from catchment.site.suspension import BatchSkipped
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS, Evaluator, Reduced
from catchment.spark.evaluation.hear import hear_sources
from catchment.spark.evaluation.observe import observe_sources
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.reading import Reading
from catchment.spark.pipelines.shedding import BatchSample, StreamShedding
from catchment.spark.sources.history import BatchFolder, number_rows
from catchment.spark.sources.records import (
    BatchStats,
    bad_records,
    is_bad,
    is_marker,
    mark_implausible,
    observe_good_records,
    stats_of,
)
from catchment.spark.sources.references import ReferencedRecords
from catchment.spark.sources.streams import OpenedStream, ddl, open_referenced, watch_folder
from catchment.storage.batch_times import FileTimes
from catchment.storage.referenced_batches import BatchReference
from catchment.timeline import END_OF_TIME_US, Clock

SMALL_BATCH_ROWS = 100_000  # smaller batches are grouped faster on one partition, without an exchange

Result = TypeVar("Result")
Records = Callable[[], DataFrame]  # makes the records of a batch for Spark SQL, which many batches never need


@dataclass
class StreamState:
    """One stream at this site as it runs."""

    stream: Stream
    opened: OpenedStream
    plans: Sequence[FragmentPlan]  # all that are deployed at the site
    agreed_time: AgreedTime
    rows: int = 0
    read_bytes: int = 0  # of files, as they are; other sources do not say
    quarantined: int = 0
    far_records: int = 0  # quarantined for their event times
    last_rows: int = 0
    reading: Reading | None = None
    pieces: tuple[FilePiece, ...] = ()  # of files, of the batch that is being read
    following: tuple[tuple[FilePiece, ...], ...] = ()  # of the batches after it, as far as they are known
    is_finished: bool = False
    restarts: int = 0  # because a Python worker was too slow to come up
    reader: ReaderWatch = field(default_factory=ReaderWatch)
    is_reading: bool = True  # as the core was told last
    heard_us: int = 0  # when its light site had last been heard, at a moment when the reader waited
    batch_lock: threading.Lock = field(default_factory=threading.Lock)  # held during a batch, and to change fragments
    shedding: StreamShedding | None = None
    suspended: dict[str, str] = field(default_factory=dict)  # suspended fragments, with the expression that failed
    guarded: set[str] = field(default_factory=set)  # fragments that set aside the records which they fail on
    counted_whole: set[str] = field(default_factory=set)  # suspended fragments whose condition fails too
    statements: Statements = field(default_factory=Statements)  # of its sources, before the batch that is being read
    twins: Twins = field(default_factory=dict)  # fragments that are evaluated for others, in the batch that is read

    @property
    def own_plans(self) -> list[FragmentPlan]:
        """Return the plans of the fragments of this stream, without those for which others are evaluated."""
        taken = {name for names in self.twins.values() for name in names}
        mine = (plan for plan in self.plans if plan.fragment.stream == self.stream.name)
        return [plan for plan in mine if plan.fragment.name not in taken]

    def find_twins(self, suspended: Collection[str]) -> None:
        """Find out which fragments are evaluated for others from now on."""
        mine = [plan for plan in self.plans if plan.fragment.stream == self.stream.name]
        self.twins = {} if self.stream.shed else find_twins(mine, suspended)

    @property
    def active_plans(self) -> list[FragmentPlan]:
        """Return the plans of those that are reduced together: neither suspended, nor setting records aside."""
        apart = self.suspended.keys() | self.guarded
        return [plan for plan in self.own_plans if plan.fragment.name not in apart]

    @property
    def guarded_plans(self) -> list[FragmentPlan]:
        """Return the plans of those that set records aside."""
        chosen = self.guarded - self.suspended.keys()
        return [plan for plan in self.own_plans if plan.fragment.name in chosen]

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of this stream that take part in a micro-batch."""
        return tuple(plan.fragment for plan in self.active_plans)

    @property
    def skipping(self) -> tuple[Fragment, ...]:
        """The suspended fragments of this stream, each reduced to a count of what it would take per slice.

        A condition that cannot be trusted, because it failed or its look-up may have, is left out: then every record
        of the stream counts.
        """
        found = (plan.fragment for plan in self.own_plans if plan.fragment.name in self.suspended)
        return tuple(count_only(f, self._trusted_where(f)) for f in found)

    def _trusted_where(self, fragment: Fragment) -> str | None:
        failed = self.suspended[fragment.name]
        is_trusted = failed and failed != fragment.where and fragment.name not in self.counted_whole
        return fragment.where if is_trusted and not (fragment.lookups or fragment.explodes) else None

    def count_all_skipped(self) -> bool:
        """Count every record for the suspended fragments; return whether some were counted by their conditions."""
        fresh = {f.name for f in self.skipping if f.where is not None}
        self.counted_whole |= fresh
        return bool(fresh)

    @property
    def newest_us(self) -> int | None:
        """The newest event time, as far as the records of the stream agree on it."""
        return self.agreed_time.newest_us

    def add(self, batch: ReducedBatch, now_us: int) -> None:
        """Count a batch that was reduced, and advance event time by it."""
        self.rows += batch.stats.rows
        self.read_bytes += sum(piece.end - piece.start for piece in self.pieces)
        self.quarantined += batch.stats.bad
        self.last_rows = batch.stats.rows
        if batch.times is not None:
            self.agreed_time.follow(batch.times, now_us)

    @property
    def has_ended(self) -> bool:
        """Whether its reader has stopped without a failure, or has read the stream to a final end."""
        if self.reading is None or (self.reading.is_active and not self.is_over):
            return False
        return self.reading.failure() is None

    def note_signs(self, now_us: int, heard_us: int | None = None) -> None:
        """Note what the reader shows of itself: what it does, and which batch it is at.

        Where records come from a light site, or from a broker that sends them, that nothing is there to read is a sign
        of life only if that was heard since (`heard_us`): while it is away, its silence means nothing.
        """
        if self.reading is None or not self.reading.is_active:
            return
        signature, is_waiting = self.reading.sign()
        if heard_us is None:
            self.reader.note_sign(signature, is_waiting, now_us)
            return
        if is_waiting:
            self.heard_us = heard_us
        self.reader.note_sign((signature, self.heard_us), False, now_us)

    @property
    def is_over(self) -> bool:
        """Whether the stream has been read to an end that is final."""
        offset = None if self.reading is None else self.reading.end_offset()
        return offset is not None and self.opened.is_over(offset)

    @property
    def end_mark_us(self) -> int:
        """Return the low mark of the ended stream, which closes its windows.

        A stream that is over has no more records; one that was read once may get more later.
        """
        if self.is_over:
            return END_OF_TIME_US
        sizes = [w.size_us for plan in self.own_plans for w in plan.fragment.windows]
        return (self.agreed_time.newest_read_us() or 0) + max(sizes, default=0)


@dataclass(frozen=True)
class ReducedBatch:
    """The events that follow from a micro-batch, and what was observed of its records."""

    events: list[Event]
    stats: BatchStats
    times: BatchTimes | None  # of the good records that were read; None if there are none


@dataclass(frozen=True)
class CheckedTimes:
    """What a look at the event times of a batch has found."""

    limits: PlausibleTimes | None = None  # if the batch has event times beyond them
    buckets: Buckets | None = None  # if they were counted


@dataclass(frozen=True)
class BatchReducer:
    """Reduces the micro-batches of a site, and writes their history and quarantine."""

    spark: SparkSession
    project: Project
    site: str
    folder: Path
    evaluator: Evaluator
    clock: Clock
    _referenced: dict[str, ReferencedRecords] = field(default_factory=dict, init=False, repr=False, compare=False)

    def reduce(self, state: StreamState, batch: DataFrame, number: int) -> ReducedBatch:
        """Return what follows from a micro-batch; where the stream sheds, a sample of it is read in its place."""
        is_small = 0 < state.last_rows < SMALL_BATCH_ROWS
        records = batch.coalesce(1) if is_small else batch
        sample = None
        if state.shedding is not None:
            sample = state.shedding.begin_batch(number, state.pieces, may_defer=not state.guarded_plans)
        if state.shedding is not None and sample is not None:
            return self._reduce_source_sample(state, state.shedding, sample)
        if state.shedding is not None or self.copies_history(state.stream):
            return self._reduce_history(state, records, number)
        return self._reduce_unwritten(state, records, number)

    # --- history and quarantine -----------------------------------------------------------------------------

    def write_history(self, stream: Stream, good: DataFrame, number: int) -> None:
        """Write the good records of a batch to history, with a number for each."""
        self.history_of(stream).write(number_rows(good), number)

    def read_history(self, stream: Stream, number: int, *, numbered: bool = False) -> DataFrame:
        """Return the records of a batch in history, with their numbers if these are needed."""
        columns = f"{ddl(stream)}, `{ROW}` BIGINT" if numbered else ddl(stream)
        return self.history_of(stream).batch(self.spark, number, columns)

    def write_quarantine(self, stream: Stream, records: DataFrame, number: int) -> None:
        """Write the bad ones of the records of a batch to quarantine."""
        BatchFolder(self.folder / "quarantine" / stream.name).write(bad_records(records, self.site), number)

    def written_history(self, state: StreamState, number: int) -> DataFrame | None:
        """Return the records of a batch in history; None where they are not kept, or not yet."""
        is_written = self.history_of(state.stream).has(number)
        return self.read_history(state.stream, number) if is_written else None

    def history_of(self, stream: Stream) -> BatchFolder:
        """Return the raw history of a stream."""
        folder = self.folder / "history" / stream.name
        return BatchFolder(folder, self.stored_history(stream.name), partial(self._referenced_of, stream))

    def _referenced_of(self, stream: Stream) -> ReferencedRecords | None:
        """Return what reads the files that history refers to; None where a stream reads no such files."""
        known = self._referenced.get(stream.name)
        if known is None or known.stream != stream:
            watched = watch_folder(stream, self.site, self.project.folder.absolute())
            if watched is None:
                return None
            files = ReferencedFiles(watched)
            known = ReferencedRecords(stream, files, partial(open_referenced, self.spark, watched))
            self._referenced[stream.name] = known
        return known

    def refer_to_files(self, state: StreamState, stats: BatchStats, limits: PlausibleTimes | None, number: int) -> None:
        """Write which files a batch was read from, and what its good records are, where history is that."""
        stream = state.stream
        if not self.keeps_history(stream) or self.copies_history(stream):
            return
        referenced = self._referenced_of(stream)
        assert referenced is not None, "other streams are refused when they are declared"
        assert state.opened.files is not None
        times = FileTimes()
        if stats.low_us is not None and stats.high_us is not None:
            times = FileTimes(stats.rows - stats.bad, (stats.low_us, stats.high_us + 1))
        reference = BatchReference(
            referenced.files.refer(state.pieces),
            times,
            tuple(column.name for column in stream.columns),
            state.opened.files.header,
            None if limits is None else astuple(limits),
        )
        self.history_of(stream).refer(reference, number)

    @cached_property
    def stored_history(self) -> Callable[[str], StoredHistory | None]:
        """Return the part of a stream's history that is in an object store; None where all of it is on disk."""
        return cache(partial(find_stored_history, self.project, self.site))

    def copies_history(self, stream: Stream) -> bool:
        """Return whether the records of a stream are written to history."""
        return self.project.defaults.copies_history(stream.history)

    def keeps_history(self, stream: Stream) -> bool:
        """Return whether the records of a stream can be read again: from a copy, or from its files."""
        return self.project.defaults.keeps_history(stream.history)

    # --- three ways to reduce a batch ------------------------------------------------------------------------

    def _reduce_history(self, state: StreamState, records: DataFrame, number: int) -> ReducedBatch:
        """Write a batch to history and reduce it from there: one read of the source, however many fragments."""
        stats, checked = self._write_plausible(state, records, number)
        shedding = state.shedding
        heard = self._hear_written(state, records, number, stats)
        if shedding is None:
            events = [*self._reduce_all(state, self.read_history(state.stream, number), number), *heard]
            return ReducedBatch(events, stats, times_of(stats, checked))
        sample = shedding.sample_history(number, stats.rows)
        rows = self.read_history(state.stream, number, numbered=sample is not None)
        began = time.monotonic()
        observed = [event for plan in state.active_plans for event in self._observe(state, rows, plan)]
        shedding.record_history_time(time.monotonic() - began)  # as for history, no sampler saves any of it
        found = shedding.reduce(rows, state.fragments, sample, stats.rows)
        skipped = self._count_skipped(state, rows, number)
        reduced = self._finish(state, shedding, sample, found, skipped, stats, checked)
        return replace(reduced, events=[*reduced.events, *observed, *heard])

    def _write_plausible(self, state: StreamState, records: DataFrame, number: int) -> tuple[BatchStats, CheckedTimes]:
        """Write the good records to history, and the bad ones to quarantine."""
        stats = self._write_good(state, records, number)
        checked = self.check_times(state, lambda: count_times(state, self.read_history(state.stream, number)), stats)
        if checked.limits is not None:
            bad = stats.bad
            records = mark_implausible(records, state.stream.event_time, checked.limits)
            stats = self._write_good(state, records, number)
            state.far_records += stats.bad - bad
        if stats.bad:
            self.write_quarantine(state.stream, records, number)
        return stats, checked

    def _write_good(self, state: StreamState, records: DataFrame, number: int) -> BatchStats:
        began = time.monotonic()
        observation, good = observe_good_records(records, state.stream.event_time)
        self.write_history(state.stream, good, number)
        if state.shedding is not None:
            state.shedding.record_history_time(time.monotonic() - began)
        return stats_of(observation)

    def _reduce_source_sample(self, state: StreamState, shedding: StreamShedding, sample: BatchSample) -> ReducedBatch:
        """Reduce a sample that is read from the source again; its history waits until it is repaired."""
        assert sample.source is not None
        start, end = sample.source.rows
        rows = end - start
        (found, skipped), stats, checked = self._reduce_plausible(
            state,
            shedding.reread_rows(sample),
            lambda good: (
                shedding.reduce(good, state.fragments, sample, rows),
                self._count_skipped(state, good, sample.batch),
            ),
        )
        share = rows / max(stats.rows, 1)
        counted = [replace(e, records=tuple((s, round(n * share)) for s, n in e.records)) for e in skipped]
        return self._finish(state, shedding, sample, found, counted, stats, checked, rows)

    def _reduce_unwritten(self, state: StreamState, records: DataFrame, number: int) -> ReducedBatch:
        """Reduce a batch of which history has no copy."""
        events, stats, checked = self._reduce_plausible(
            state, records, lambda good: self._reduce_all(state, good, number)
        )
        marked = mark_implausible(records, state.stream.event_time, checked.limits)
        self.refer_to_files(state, stats, checked.limits, number)
        if stats.bad:
            self.write_quarantine(state.stream, marked, number)
        if state.stream.progress_column is not None:
            heard = hear_sources(marked.where(~is_bad()), state.stream, state.statements)
            events = [*events, self.state_progress(state, heard)]
        return ReducedBatch(events, stats, times_of(stats, checked))

    def _reduce_plausible(
        self, state: StreamState, records: DataFrame, reduce: Callable[[DataFrame], Result]
    ) -> tuple[Result, BatchStats, CheckedTimes]:
        """Reduce the good records; where some have implausible event times, reduce once more without them."""
        event_time = state.stream.event_time
        observation, good = observe_good_records(records, event_time)
        found = reduce(good)
        stats = stats_of(observation)
        checked = self.check_times(state, lambda: count_times(state, good), stats)
        if checked.limits is not None:
            bad = stats.bad
            observation, good = observe_good_records(mark_implausible(records, event_time, checked.limits), event_time)
            found = reduce(good)
            stats = stats_of(observation)
            state.far_records += stats.bad - bad
        return found, stats, checked

    def _hear_written(
        self, state: StreamState, records: DataFrame, number: int, stats: BatchStats
    ) -> list[ProgressStated]:
        """Return what the sources of a batch state: its records are in history, and its markers are not."""
        if state.stream.progress_column is None:
            return []
        written = self.read_history(state.stream, number)
        heard = [hear_sources(written, state.stream, state.statements)]
        if stats.markers:
            heard.append(hear_sources(records.where(is_marker()), state.stream, state.statements))
        return [self.state_progress(state, pa.concat_tables(heard))]

    def state_progress(self, state: StreamState, heard: pa.Table) -> ProgressStated:
        """Return what the sources of a batch state, to be believed as far as the clock and `max_jump` allow."""
        return ProgressStated(state.stream.name, heard, self.clock.now_us() + state.agreed_time.jump_us)

    # --- parts of them -----------------------------------------------------------------------------------------

    def check_times(self, state: StreamState, count: Callable[[], Buckets], stats: BatchStats) -> CheckedTimes:
        """Return the limits of plausible event times, if the batch has event times beyond them.

        The times of the good records are counted only where the observed event times call for it, which is rare: where
        the batch goes further than `max_jump` beyond what the stream has agreed on.
        """
        times = times_of(stats, CheckedTimes())
        if times is None:
            return CheckedTimes()
        jump_us = state.agreed_time.jump_us
        now_us = self.clock.now_us()
        is_far = needs_check(times.low_us, times.high_us, state.newest_us, now_us, far_us(jump_us))
        if not is_far and not state.agreed_time.needs_buckets(times, now_us):
            return CheckedTimes()
        buckets = count()
        if not is_far:
            return CheckedTimes(None, buckets)
        limits = find_plausible_times(count_far(buckets, jump_us), state.newest_us, now_us, far_us(jump_us))
        if limits.holds(times.low_us) and limits.holds(times.high_us):
            return CheckedTimes(None, buckets)
        return CheckedTimes(limits, {n: b for n, b in buckets.items() if limits.holds(b.newest_us)})

    def _reduce_all(self, state: StreamState, records: DataFrame, number: int) -> list[Event]:
        """Return what all fragments of the stream make of a batch."""
        return self.reduce_fragments(state, records, number, state.active_plans, state.skipping)

    def reduce_fragments(
        self,
        state: StreamState,
        records: DataFrame,
        number: int,
        plans: Sequence[FragmentPlan],
        skipping: Sequence[Fragment],
    ) -> list[Event]:
        """Return the partials of each fragment, and what the slack controllers of its queries observe.

        Of those that are suspended (`skipping`) only the records are counted that they would have taken.
        """
        takes = [*(Take(plan.fragment) for plan in plans), *(Take(f) for f in skipping)]
        if not takes:
            records.count()  # every fragment sets records aside; what is observed is known after an action
        found = self.evaluator.reduce_all(records, takes, state.last_rows or UNKNOWN_ROWS)
        events: list[Event] = [
            BatchSkipped(f.name, number, counted.records)
            for f, counted in zip(skipping, found[len(plans) :], strict=True)
        ]
        for plan, reduced in zip(plans, found[: len(plans)], strict=True):
            events += reduced.events(plan.fragment.name)
            events += self._observe(state, records, plan)
        return events

    def _observe(self, state: StreamState, records: DataFrame, plan: FragmentPlan) -> list[Event]:
        """Return what the slack controllers of a fragment's queries observe of all records, sampled or not."""
        events: list[Event] = []
        for watch in plan.watches:
            values = watched_values(watch.slack)
            table = observe_sources(self.evaluator, records, watch.fragment, state.stream.source, values)
            events.append(Observed(plan.fragment.name, watch.slack.query, table))
        return events

    def _count_skipped(self, state: StreamState, records: DataFrame, number: int) -> list[BatchSkipped]:
        """Return what the suspended fragments of a stream that may be shed do not take of a batch."""
        takes = [Take(f) for f in state.skipping]
        found = self.evaluator.reduce_all(records, takes, state.last_rows or UNKNOWN_ROWS) if takes else []
        return [BatchSkipped(t.fragment.name, number, c.records) for t, c in zip(takes, found, strict=True)]

    def _finish(
        self,
        state: StreamState,
        shedding: StreamShedding,
        sample: BatchSample | None,
        found: Sequence[Reduced],
        skipped: Sequence[BatchSkipped],
        stats: BatchStats,
        checked: CheckedTimes,
        rows: int | None = None,
    ) -> ReducedBatch:
        """Learn from a batch that may have been sampled; `rows` are those that arrived, if not all were read."""
        arrived = stats.rows if rows is None else rows
        newest_us = state.newest_us or 0
        low_us = newest_us if stats.low_us is None else stats.low_us
        high_us = newest_us if stats.high_us is None else stats.high_us
        shedding.learn(state.fragments, found, arrived, (high_us - low_us) / 1e6)
        limits: EventTimeLimits | None = None if checked.limits is None else astuple(checked.limits)
        events = [*skipped, *shedding.events(state.fragments, found, sample, (low_us, high_us), limits)]
        shedding.finish_batch(arrived, stats.rows, sample)
        is_deferred = rows is not None  # the bad records of a sample are counted when its batch is repaired
        counted = replace(stats, rows=arrived, bad=0 if is_deferred else stats.bad)
        return ReducedBatch(events, counted, times_of(stats, checked))


def times_of(stats: BatchStats, checked: CheckedTimes) -> BatchTimes | None:
    """Return the event times of the good records of a batch."""
    if stats.low_us is None or stats.high_us is None:
        return None
    return BatchTimes(stats.rows - stats.bad, stats.low_us, stats.high_us, checked.buckets)


def count_times(state: StreamState, records: DataFrame) -> Buckets:
    """Return how many of the records are in each stretch of `max_jump`."""
    event_time = state.stream.event_time
    jump_us = state.agreed_time.jump_us
    micros = F.expr(f"unix_micros(`{event_time}`)")
    bucket = F.expr(f"floor(unix_micros(`{event_time}`) / {jump_us}L)").cast("long")
    counted = records.groupBy(bucket.alias("bucket")).agg(
        F.count(F.lit(1)).alias("count"), F.max(micros).alias("newest")
    )
    return {row["bucket"]: TimeBucket(row["count"], row["newest"]) for row in counted.collect()}


def slack_us(project: Project, stream: Stream) -> int:
    """Return how far the low mark of a stream stays behind its newest event time."""
    return project.defaults.slack_us if stream.slack_us is None else stream.slack_us
