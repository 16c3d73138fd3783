"""Micro-batches of files, reduced by one pass over the files where that is possible, and by Spark SQL where it is not.

The pass does everything at once: it finds bad event times, writes history and lifts the fragments. What of a batch it
cannot do is left to Spark SQL: some fragments, or the whole batch where the files or their values call for it. The bad
records themselves are put into quarantine by Spark SQL, which is rare.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from catchment.log_fields import about
from catchment.query.sql.statements import Stream
from catchment.site.plausible import PlausibleTimes
from catchment.spark.evaluation.evaluator import Evaluator
from catchment.spark.evaluation.file_scan import FileScanner, events_of_scan, stats_of_scan
from catchment.spark.pipelines.micro_batch import BatchReducer, ReducedBatch, StreamState, times_of
from catchment.spark.sources.records import good_records, mark_implausible
from catchment.vectorised.choose import ScanChoice, StreamScans
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.scan import ScanFindings

_log = logging.getLogger(__name__)


@dataclass
class ScanningReducer:
    """Reduces the micro-batches of a site by a pass over their files, or else by Spark SQL (`native`)."""

    native: BatchReducer
    _scans: dict[str, StreamScans] = field(default_factory=dict)  # by the name of the stream

    def __post_init__(self) -> None:
        self.scanner = FileScanner(self.native.spark, self.native.folder / "scratch")

    @property
    def evaluator(self) -> Evaluator:
        return self.native.evaluator

    def written_history(self, state: StreamState, number: int) -> DataFrame | None:
        """Return the records of a batch in history; None where they are not written, or not yet."""
        return self.native.written_history(state, number)

    def scans_of(self, stream: Stream) -> StreamScans:
        """Return what is scanned of a stream, and why the last pass failed if it did."""
        return self._scans.setdefault(stream.name, StreamScans(self.native.project))

    def reduce(self, state: StreamState, batch: DataFrame, number: int) -> ReducedBatch:
        """Return what follows from a micro-batch."""
        scans = self.scans_of(state.stream)
        choice = scans.choose(state.stream, state.active_plans, state.skipping)
        if choice is not None:
            try:
                found = self._scan(state, choice, batch, number)
            except NotVectorisedError as reason:
                scans.note_failure(reason.message)
                stream = state.stream.name
                of = about(site=self.native.site, stream=stream)
                _log.warning("batch %d of %s is left to Spark SQL: %s", number, stream, reason.message, extra=of)
            else:
                scans.note_success()
                return found
        return self.native.reduce(state, batch, number)

    def _scan(self, state: StreamState, choice: ScanChoice, batch: DataFrame, number: int) -> ReducedBatch:
        native = self.native
        stream = state.stream
        paths = sorted(state.batch_paths)
        found = self._scan_files(stream, choice, paths, None)
        checked = native.check_times(state, lambda: found.buckets, stats_of_scan(found))
        if checked.limits is not None:
            bad = found.bad
            found = self._scan_files(stream, choice, paths, checked.limits)
            state.far_records += found.bad - bad
        stats = stats_of_scan(found)
        has_history = native.writes_history(stream)
        if has_history:
            native.history_of(stream).commit_attempt(found.history, number)
        if stats.bad:
            native.write_quarantine(stream, mark_implausible(batch, stream.event_time, checked.limits), number)
        events = events_of_scan(choice, found, number)
        if choice.native or choice.native_skipping:
            marked = mark_implausible(batch, stream.event_time, checked.limits)
            rest = native.read_history(stream, number) if has_history else good_records(marked)
            events += native.reduce_fragments(state, rest, number, choice.native, choice.native_skipping)
        return ReducedBatch(events, stats, times_of(stats, checked))

    def _scan_files(
        self, stream: Stream, choice: ScanChoice, paths: Sequence[str], limits: PlausibleTimes | None
    ) -> ScanFindings:
        native = self.native
        history = native.history_of(stream).begin_attempt() if native.writes_history(stream) else None
        return self.scanner.scan(choice.scan, paths, limits, history)
