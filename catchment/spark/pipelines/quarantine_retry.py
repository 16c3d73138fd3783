"""Another try for records that fragments have set aside: those on which a fragment no longer fails are taken in.

It runs in the thread that reads the past, when that has nothing to read: some batches at a time, each chunk one entry
of the journal (`catchment.site.retry` says why that is exactly once). What is taken in is merged as late records are.
What the fragment fails on again stays in quarantine, in the folder of this try. While more may be set aside of the same
batches (`SiteCore.ready_retries`), the fragment waits.

Bounds: `CHUNK_BATCHES` batches per entry, and nothing while the link is blocked.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import functions as F

from catchment.log_fields import about
from catchment.query.fragment import Fragment
from catchment.query.sql.statements import Stream
from catchment.site.backfill import CHUNK_BATCHES
from catchment.site.core import SiteCore
from catchment.site.events import Event
from catchment.site.retry import RecordsRetried, Retry
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS, Reduced
from catchment.spark.evaluation.failures import is_data_error, reason_of_data_error, split_failing
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.micro_batch import StreamState
from catchment.spark.pipelines.record_quarantine import RecordQuarantine, SliceCounts
from catchment.spark.sources.history import BatchFolder
from catchment.spark.sources.streams import RAW, ddl
from catchment.wire.messages import LookedUp

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NextRetry:
    """A fragment whose records are being tried again, its stream, and how far that is."""

    stream: Stream
    fragment: Fragment
    retry: Retry


@dataclass(frozen=True)
class QuarantineRetries:
    """Tries what the fragments of a site have set aside again, where that was asked for."""

    quarantine: RecordQuarantine
    look: Callable[[Callable[[], NextRetry | None]], NextRetry | None]  # while nothing changes the core
    core: SiteCore
    states: Callable[[], Sequence[StreamState]]
    submit: Callable[[list[Event]], int]  # journals what was tried
    stopping: threading.Event

    def next_retry(self) -> NextRetry | None:
        """Return a fragment of which something is to be tried again, if it can be now."""
        return self.look(self._find)

    def _find(self) -> NextRetry | None:
        streams = {state.stream.name: state.stream for state in self.states()}
        for name in self.core.ready_retries:
            fragment = self.core.running(name).fragment
            if fragment.stream in streams:
                return NextRetry(streams[fragment.stream], fragment, self.core.retry_of(name))
        return None

    def retry_next(self) -> bool:
        """Try some batches again; return whether there were any."""
        found = self.next_retry()
        if found is None or self.stopping.is_set() or self.core.full:
            return False
        event, looked_up = self._try(found)
        self.submit([event, *looked_up])
        self._forget(found)
        taken = sum(count for _, count in event.released)
        of = about(site=self.quarantine.reducer.site, stream=found.stream.name, fragment=event.fragment)
        _log.info("%d records that %s had set aside are taken in after all", taken, event.fragment, extra=of)
        return True

    def _try(self, found: NextRetry) -> tuple[RecordsRetried, tuple[LookedUp, ...]]:
        """Evaluate the next records that were set aside, and write down those on which the fragment fails again."""
        retry = found.retry
        first = retry.next_batch
        stream, fragment = found.stream.name, found.fragment
        kept_in = sorted(
            (number, path)
            for attempt, number, path in self.quarantine.batches_of(stream, fragment.name)
            if first <= number < retry.end and retry.is_current(attempt, number)
        )
        chosen = kept_in[:CHUNK_BATCHES]
        end = chosen[-1][0] + 1 if len(chosen) < len(kept_in) else retry.end
        left = BatchFolder(self.quarantine.folder_of(stream, fragment.name, retry.attempt))
        left.remove(first)  # of the same chunk, before a crash
        files = [file for _, path in chosen for file in sorted(path.glob("*.parquet"))]
        empty = fragment.schema.empty_table()
        taken, failure = Reduced(empty, (), empty, empty), ""
        released: SliceCounts = ()
        if files:
            taken, released, failure = self._evaluate(found, files, left.folder)
        event = RecordsRetried(fragment.name, retry.attempt, first, end, taken.table, taken.records, released, failure)
        return event, taken.looked_up

    def _evaluate(self, found: NextRetry, files: Sequence[Path], left: Path) -> tuple[Reduced, SliceCounts, str]:
        fragment = found.fragment
        evaluator = self.quarantine.reducer.evaluator
        spark = self.quarantine.reducer.spark
        number = found.retry.next_batch
        records = spark.read.schema(f"{ddl(found.stream)}, `{RAW}` STRING").parquet(*map(str, files))
        with split_failing(evaluator, records, fragment) as (bad, kept):
            try:
                good = kept.drop(RAW)
                (reduced,) = evaluator.reduce_all(good, [Take(fragment)], UNKNOWN_ROWS)
                slice_us = F.expr(fragment.slicing.sql(f"unix_micros(`{fragment.event_time}`)"))
                counted = good.groupBy(slice_us.alias("slice")).count().collect()
            except Exception as failure:  # what is no record's fault is raised
                if not is_data_error(failure):
                    raise
                self.quarantine.write(found.stream, fragment, records, left, number)
                empty = fragment.schema.empty_table()
                return Reduced(empty, (), empty, empty), (), reason_of_data_error(failure)
            failing = bad.count()
            if failing:
                self.quarantine.write(found.stream, fragment, bad, left, number)
        told = f"{failing} records still fail" if failing else ""
        return reduced, tuple(sorted((row["slice"], row["count"]) for row in counted)), told

    def forget_tried(self) -> None:
        """Remove what does not count any more and was left by a crash, before anything is read."""
        streams = {state.stream.name: state.stream for state in self.states()}
        for fragment in self.core.definitions:
            retry = self.core.retry_of(fragment.name)
            if retry.attempt and fragment.stream in streams:
                self._forget(NextRetry(streams[fragment.stream], fragment, retry))

    def _forget(self, found: NextRetry) -> None:
        """Remove what does not count any more."""
        for attempt, number, path in self.quarantine.batches_of(found.stream.name, found.fragment.name):
            if not found.retry.is_current(attempt, number):
                shutil.rmtree(path, ignore_errors=True)
