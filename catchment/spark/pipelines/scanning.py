"""Micro-batches of files, reduced by one pass over the files where that is possible, and by Spark SQL where it is not.

The pass does everything at once: it finds bad event times, writes history and lifts the fragments. What of a batch it
cannot do is left to Spark SQL: some fragments, or the whole batch where the files or their values call for it. The bad
records themselves are put into quarantine by Spark SQL, which is rare.

While a batch is committed, the pass over the files of the next one runs already (`scan_ahead.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark import InheritableThread
from pyspark.sql import DataFrame

from catchment.log_fields import about
from catchment.query.sql.statements import Stream
from catchment.site.plausible import PlausibleTimes
from catchment.spark.evaluation.evaluator import Evaluator
from catchment.spark.evaluation.file_scan import FileScanner, add_judged, events_of_scan, is_small, stats_of_scan
from catchment.spark.pipelines.micro_batch import BatchReducer, Records, ReducedBatch, StreamState, times_of
from catchment.spark.sources.files import FileSource
from catchment.spark.sources.records import good_records, mark_implausible
from catchment.vectorised.choose import ScanChoice, StreamScans
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.scan import ScanFindings
from catchment.vectorised.scan_ahead import ScanAhead

_log = logging.getLogger(__name__)


@dataclass
class ScanningReducer:
    """Reduces the micro-batches of a site by a pass over their files, or else by Spark SQL (`native`)."""

    native: BatchReducer
    _scans: dict[str, StreamScans] = field(default_factory=dict)  # by the name of the stream
    _ahead: dict[str, ScanAhead] = field(default_factory=dict)  # by the name of the stream

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

    def reduce(self, state: StreamState, batch: Records, number: int) -> ReducedBatch:
        """Return what follows from a micro-batch."""
        scans = self.scans_of(state.stream)
        source = state.opened.files
        choice = None
        if source is not None:
            choice = scans.choose(state.stream, source.header, state.active_plans, state.skipping)
        if source is not None and choice is not None:
            try:
                found = self._scan(state, source, choice, batch, number)
            except NotVectorisedError as reason:
                scans.note_failure(reason.message)
                stream = state.stream.name
                of = about(site=self.native.site, stream=stream)
                _log.warning("batch %d of %s is left to Spark SQL: %s", number, stream, reason.message, extra=of)
            else:
                scans.note_success()
                state.scanned = choice.scan
                return found
        self.discard_ahead(state.stream)
        state.scanned = None
        return self.native.reduce(state, batch(), number)

    def begin_next(self, state: StreamState) -> None:
        """Begin the pass over the files of the batch that follows one which is reduced, where that was a pass too.

        Where sources state their progress, a pass begins with what the batch before it has heard, so it must wait. A
        small batch is scanned by this process, which is busy.
        """
        plan = state.scanned
        pieces = state.following
        if plan is None or plan.heard is not None or is_small(pieces):
            return
        history = self._begin_history(state.stream)
        self._ahead_of(state.stream).start(plan, pieces, lambda: self.scanner.scan(plan, pieces, None, history))

    def discard_ahead(self, stream: Stream) -> None:
        """Forget what was scanned of the next batch of a stream, once nothing is scanned any more."""
        self._ahead_of(stream).discard()

    def _ahead_of(self, stream: Stream) -> ScanAhead:
        return self._ahead.setdefault(stream.name, ScanAhead(_spawn))

    def _scan(
        self, state: StreamState, source: FileSource, choice: ScanChoice, batch: Records, number: int
    ) -> ReducedBatch:
        native = self.native
        stream = state.stream
        if choice.scan.heard is not None:
            heard = choice.scan.heard.after(state.statements)
            choice = replace(choice, scan=replace(choice.scan, heard=heard))
        found = self._scan_files(state, source, choice, None)
        checked = native.check_times(state, lambda: found.buckets, stats_of_scan(found))
        if checked.limits is not None:
            bad = found.bad
            found = self._scan_files(state, source, choice, checked.limits)
            state.far_records += found.bad - bad
        stats = stats_of_scan(found)
        has_history = native.writes_history(stream)
        if has_history:
            native.history_of(stream).commit_attempt(found.history, number)
        if stats.bad:
            suspects = source.judge(found.doubtful) if found.doubtful and checked.limits is None else batch()
            native.write_quarantine(stream, mark_implausible(suspects, stream.event_time, checked.limits), number)
        events = events_of_scan(choice, found, number)
        if choice.native or choice.native_skipping:
            if has_history:
                rest = native.read_history(stream, number)
            else:
                rest = good_records(mark_implausible(batch(), stream.event_time, checked.limits))
            events += native.reduce_fragments(state, rest, number, choice.native, choice.native_skipping)
        if found.heard is not None:
            events.append(native.state_progress(state, found.heard))
        return ReducedBatch(events, stats, times_of(stats, checked))

    def _scan_files(
        self, state: StreamState, source: FileSource, choice: ScanChoice, limits: PlausibleTimes | None
    ) -> ScanFindings:
        """Return what is in the files of a batch; lines that are doubtful are judged by Spark."""
        found = self._ahead_of(state.stream).take(choice.scan, state.pieces) if limits is None else None
        if found is None:
            history = self._begin_history(state.stream)
            found = self.scanner.scan(choice.scan, state.pieces, limits, history)
        else:
            history = self._begun_history(state.stream)
        if not found.doubtful:
            return found
        return add_judged(choice.scan, found, source.judge(found.doubtful).toArrow(), limits, history)

    def _begin_history(self, stream: Stream) -> Path | None:
        """Return an empty folder for the history of a pass; None where none is written."""
        return self.native.history_of(stream).begin_attempt() if self.native.writes_history(stream) else None

    def _begun_history(self, stream: Stream) -> Path | None:
        """Return the folder that the pass ahead has written to."""
        return self.native.history_of(stream).attempt if self.native.writes_history(stream) else None


def _spawn(work: Callable[[], None]) -> threading.Thread:
    """Start a thread whose jobs are cancelled with those of this thread."""
    thread: threading.Thread = InheritableThread(target=work, name="scan-ahead", daemon=True)
    thread.start()
    return thread
