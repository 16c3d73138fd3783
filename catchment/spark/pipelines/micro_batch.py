"""One micro-batch of a stream at its site: raw history, quarantine, and the partials of every fragment.

Where history is written, implausible event times are found by what was observed while writing, before anything is
reduced: the batch is then written once more without them. Where it is not (a stream without history, or a sample whose
history is deferred), they are observed only while the records are reduced, and such a batch, which is rare, is reduced
twice: to judge first would cost another pass over every batch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.project.config import Project
from catchment.query.fragment import Fragment
from catchment.query.sql.statements import Stream
from catchment.shedding.debts import EventTimeLimits
from catchment.shedding.reader_filter import ROW
from catchment.site.events import Absorbed, Event, Observed
from catchment.site.plausible import PlausibleTimes, find_plausible_times, needs_check
from catchment.site.slack import watched_values
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS, Evaluator, Reduced
from catchment.spark.evaluation.observe import observe_sources
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.shedding import BatchSample, StreamShedding
from catchment.spark.sources.history import BatchFolder, number_rows
from catchment.spark.sources.records import BatchStats, bad_records, mark_implausible, observe_good_records, stats_of
from catchment.spark.sources.streams import OpenedStream, ddl
from catchment.timeline import END_OF_TIME_US, Clock

SMALL_BATCH_ROWS = 100_000  # smaller batches are grouped faster on one partition, without an exchange

Result = TypeVar("Result")


@dataclass
class StreamState:
    """One stream at this site as it runs."""

    stream: Stream
    opened: OpenedStream
    plans: Sequence[FragmentPlan]  # all that are deployed at the site
    newest_us: int | None = None
    rows: int = 0
    quarantined: int = 0
    last_rows: int = 0
    query: StreamingQuery | None = None
    is_finished: bool = False
    batch_lock: threading.Lock = field(default_factory=threading.Lock)  # held during a batch, and to change fragments
    shedding: StreamShedding | None = None

    @property
    def own_plans(self) -> list[FragmentPlan]:
        """Return the plans of the fragments of this stream."""
        return [plan for plan in self.plans if plan.fragment.stream == self.stream.name]

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return tuple(plan.fragment for plan in self.own_plans)

    def add(self, stats: BatchStats) -> None:
        """Count a batch that was reduced."""
        self.rows += stats.rows
        self.quarantined += stats.bad
        self.last_rows = stats.rows
        if stats.high_us is not None:
            self.newest_us = stats.high_us if self.newest_us is None else max(self.newest_us, stats.high_us)

    @property
    def has_ended(self) -> bool:
        """Whether its query has stopped, or has read the stream to a final end."""
        assert self.query is not None
        return not self.query.isActive or self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the stream has been read to an end that is final."""
        progress = self.query.lastProgress if self.query is not None else None
        if progress is None or progress["sources"][0]["endOffset"] is None:
            return False
        offset = progress["sources"][0]["endOffset"]
        return self.opened.is_over(json.loads(offset) if isinstance(offset, str) else offset)

    @property
    def end_mark_us(self) -> int:
        """Return the low mark of the ended stream, which closes its windows.

        A stream that is over has no more records; one that was read once may get more later.
        """
        if self.is_over:
            return END_OF_TIME_US
        sizes = [w.size_us for f in self.fragments for w in f.windows]
        return (self.newest_us or 0) + max(sizes, default=0)


@dataclass(frozen=True)
class ReducedBatch:
    """The events that follow from a micro-batch, and what was observed of its records."""

    events: list[Event]
    stats: BatchStats


@dataclass(frozen=True)
class BatchReducer:
    """Reduces the micro-batches of a site, and writes their history and quarantine."""

    spark: SparkSession
    project: Project
    site: str
    folder: Path
    evaluator: Evaluator
    clock: Clock

    def reduce(self, state: StreamState, batch: DataFrame, number: int) -> ReducedBatch:
        """Return what follows from a micro-batch; where the stream sheds, a sample of it is read in its place."""
        is_small = 0 < state.last_rows < SMALL_BATCH_ROWS
        records = batch.coalesce(1) if is_small else batch
        sample = None if state.shedding is None else state.shedding.begin_batch(number)
        if state.shedding is not None and sample is not None:
            return self._reduce_source_sample(state, state.shedding, sample)
        if state.shedding is not None or self._writes_history(state.stream):
            return self._reduce_history(state, records, number)
        return self._reduce_unwritten(state, records, number)

    # --- history and quarantine -----------------------------------------------------------------------------

    def write_history(self, stream: Stream, good: DataFrame, number: int) -> None:
        """Write the good records of a batch to history, with a number for each."""
        self._history(stream).write(number_rows(good), number)

    def read_history(self, stream: Stream, number: int, *, numbered: bool = False) -> DataFrame:
        """Return the records of a batch in history, with their numbers if these are needed."""
        columns = f"{ddl(stream)}, `{ROW}` BIGINT" if numbered else ddl(stream)
        return self._history(stream).batch(self.spark, number, columns)

    def write_quarantine(self, stream: Stream, records: DataFrame, number: int) -> None:
        """Write the bad ones of the records of a batch to quarantine."""
        BatchFolder(self.folder / "quarantine" / stream.name).write(bad_records(records, self.site), number)

    def _history(self, stream: Stream) -> BatchFolder:
        return BatchFolder(self.folder / "history" / stream.name)

    def _writes_history(self, stream: Stream) -> bool:
        return self.project.defaults.history if stream.history is None else stream.history

    # --- three ways to reduce a batch ------------------------------------------------------------------------

    def _reduce_history(self, state: StreamState, records: DataFrame, number: int) -> ReducedBatch:
        """Write a batch to history and reduce it from there: one read of the source, however many fragments."""
        stats, limits = self._write_plausible(state, records, number)
        shedding = state.shedding
        if shedding is None:
            return ReducedBatch(self._reduce_fragments(state, self.read_history(state.stream, number)), stats)
        sample = shedding.sample_history(number, stats.rows)
        rows = self.read_history(state.stream, number, numbered=sample is not None)
        found = shedding.reduce(rows, state.fragments, sample, stats.rows)
        return self._finish(state, shedding, sample, found, stats, limits)

    def _write_plausible(
        self, state: StreamState, records: DataFrame, number: int
    ) -> tuple[BatchStats, PlausibleTimes | None]:
        """Write the good records to history, and the bad ones to quarantine."""
        stats = self._write_good(state, records, number)
        limits = self.find_limits(state, lambda: self.read_history(state.stream, number), stats)
        if limits is not None:
            records = mark_implausible(records, state.stream.event_time, limits)
            stats = self._write_good(state, records, number)
        if stats.bad:
            self.write_quarantine(state.stream, records, number)
        return stats, limits

    def _write_good(self, state: StreamState, records: DataFrame, number: int) -> BatchStats:
        began = time.monotonic()
        observation, good = observe_good_records(records, state.stream.event_time)
        self.write_history(state.stream, good, number)
        if state.shedding is not None:
            state.shedding.record_history_time(time.monotonic() - began)
        return stats_of(observation)

    def _reduce_source_sample(self, state: StreamState, shedding: StreamShedding, sample: BatchSample) -> ReducedBatch:
        """Reduce a sample that is read from the source again; its history waits until it is repaired."""
        assert sample.source_rows is not None
        start, end = sample.source_rows
        rows = end - start
        found, stats, limits = self._reduce_plausible(
            state, shedding.reread_rows(sample), lambda good: shedding.reduce(good, state.fragments, sample, rows)
        )
        return self._finish(state, shedding, sample, found, replace(stats, bad=0), limits, rows)

    def _reduce_unwritten(self, state: StreamState, records: DataFrame, number: int) -> ReducedBatch:
        """Reduce a batch that is not written to history."""
        events, stats, limits = self._reduce_plausible(state, records, lambda good: self._reduce_fragments(state, good))
        if stats.bad:
            self.write_quarantine(state.stream, mark_implausible(records, state.stream.event_time, limits), number)
        return ReducedBatch(events, stats)

    def _reduce_plausible(
        self, state: StreamState, records: DataFrame, reduce: Callable[[DataFrame], Result]
    ) -> tuple[Result, BatchStats, PlausibleTimes | None]:
        """Reduce the good records; where some have implausible event times, reduce once more without them."""
        event_time = state.stream.event_time
        observation, good = observe_good_records(records, event_time)
        found = reduce(good)
        stats = stats_of(observation)
        limits = self.find_limits(state, lambda: good, stats)
        if limits is not None:
            observation, good = observe_good_records(mark_implausible(records, event_time, limits), event_time)
            found = reduce(good)
            stats = stats_of(observation)
        return found, stats, limits

    # --- parts of them -----------------------------------------------------------------------------------------

    def find_limits(
        self, state: StreamState, read_good: Callable[[], DataFrame], stats: BatchStats
    ) -> PlausibleTimes | None:
        """Return the limits of plausible event times, if the batch has event times beyond them.

        The good records are read only where the observed event times call for it, which is rare.
        """
        if stats.low_us is None or stats.high_us is None:
            return None
        jump_us = max_jump_us(self.project, state.stream)
        if not needs_check(stats.low_us, stats.high_us, state.newest_us, jump_us):
            return None
        bucket = F.expr(f"floor(unix_micros(`{state.stream.event_time}`) / {jump_us}L)").cast("long")
        counts = read_good().groupBy(bucket.alias("bucket")).count().collect()
        buckets = {r["bucket"]: r["count"] for r in counts}
        limits = find_plausible_times(buckets, state.newest_us, self.clock.now_us(), jump_us)
        return None if limits.holds(stats.low_us) and limits.holds(stats.high_us) else limits

    def _reduce_fragments(self, state: StreamState, records: DataFrame) -> list[Event]:
        """Return the partials of each fragment, and what the slack controllers of its queries observe."""
        plans = state.own_plans
        takes = [Take(plan.fragment) for plan in plans]
        found = self.evaluator.reduce_all(records, takes, state.last_rows or UNKNOWN_ROWS)
        events: list[Event] = []
        for plan, reduced in zip(plans, found, strict=True):
            name = plan.fragment.name
            events.append(Absorbed(name, reduced.table, reduced.records))
            for watch in plan.watches:
                values = watched_values(watch.slack)
                table = observe_sources(self.evaluator, records, watch.fragment, state.stream.source, values)
                events.append(Observed(name, watch.slack.query, table))
        return events

    def _finish(
        self,
        state: StreamState,
        shedding: StreamShedding,
        sample: BatchSample | None,
        found: Sequence[Reduced],
        stats: BatchStats,
        limits: PlausibleTimes | None,
        rows: int | None = None,
    ) -> ReducedBatch:
        """Learn from a batch that may have been sampled; `rows` are those that arrived, if not all were read."""
        arrived = stats.rows if rows is None else rows
        newest_us = state.newest_us or 0
        low_us = newest_us if stats.low_us is None else stats.low_us
        high_us = newest_us if stats.high_us is None else stats.high_us
        shedding.learn(state.fragments, found, arrived, (high_us - low_us) / 1e6)
        believed: EventTimeLimits | None = None if limits is None else astuple(limits)
        events = list(shedding.events(state.fragments, found, sample, (low_us, high_us), believed))
        shedding.finish_batch(arrived, stats.rows, sample)
        return ReducedBatch(events, replace(stats, rows=arrived))


def max_jump_us(project: Project, stream: Stream) -> int:
    """Return by how much event times of a stream may jump ahead and be plausible."""
    return project.defaults.max_jump_us if stream.max_jump_us is None else stream.max_jump_us


def slack_us(project: Project, stream: Stream) -> int:
    """Return how far the low mark of a stream stays behind its newest event time."""
    return project.defaults.slack_us if stream.slack_us is None else stream.slack_us
