"""Micro-batches of files or of a topic, reduced by one pass where that is possible, and by Spark SQL where it is not.

The pass does everything at once: it finds bad event times, writes history and lifts the fragments. What of a batch it
cannot do is left to Spark SQL: some fragments, or all of them, or the whole batch where the files or their values call
for it. Fragments are evaluated by Spark SQL on the records that the pass has written: history, or for lines of text
without history, files that are removed with the end of the batch. The bad records themselves are put into quarantine by
Spark SQL, which is rare.

While a batch is committed, the passes over the files of the next ones run already (`scan_ahead.py`). Of a topic Spark
decides where each batch ends, and a pass reads its records in Spark's place.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from pyspark import InheritableThread
from pyspark.sql import DataFrame

from catchment.files.watch import FilePiece
from catchment.log_fields import about
from catchment.query.sql.statements import Stream
from catchment.site.events import Event
from catchment.site.plausible import PlausibleTimes
from catchment.spark.evaluation.evaluator import Evaluator
from catchment.spark.evaluation.file_scan import FileScanner, add_judged, events_of_scan, is_small, stats_of_scan
from catchment.spark.pipelines.micro_batch import BatchReducer, Records, ReducedBatch, StreamState, times_of
from catchment.spark.session import is_local
from catchment.spark.sources.files import FileSource
from catchment.spark.sources.history import BatchFolder
from catchment.spark.sources.records import good_records, mark_implausible
from catchment.spark.sources.streams import ddl
from catchment.spark.sources.topic import TopicSource
from catchment.vectorised.choose import ScanChoice, StreamScans
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.parts import TopicPart
from catchment.vectorised.scan import ScanFindings
from catchment.vectorised.scan_ahead import ScanAhead
from catchment.vectorised.scan_pool import shared_pool

Pieces = Sequence[FilePiece] | Sequence[TopicPart]  # where the records of a batch are
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScannedFiles:
    """What a pass has found in the files of a batch, and the folder of the records that it has written."""

    found: ScanFindings
    attempt: Path | None = None

    def remove(self) -> None:
        """Remove what was written: it is not wanted."""
        if self.attempt is not None:
            shutil.rmtree(self.attempt, ignore_errors=True)


@dataclass
class ScanningReducer:
    """Reduces the micro-batches of a site by a pass over their files, or else by Spark SQL (`native`)."""

    native: BatchReducer
    _scans: dict[str, StreamScans] = field(default_factory=dict)  # by the name of the stream
    _ahead: dict[str, ScanAhead[ScannedFiles]] = field(default_factory=dict)  # by the name of the stream
    _cleared: set[str] = field(default_factory=set)  # streams of which nothing is left from before

    def __post_init__(self) -> None:
        context = self.native.spark.sparkContext
        pool = shared_pool(context.defaultParallelism) if is_local(context.master) else None
        self.scanner = FileScanner(self.native.spark, self.native.folder / "scratch", pool)

    @property
    def evaluator(self) -> Evaluator:
        return self.native.evaluator

    def written_history(self, state: StreamState, number: int) -> DataFrame | None:
        """Return the records of a batch in history; None where they are not kept, or not yet."""
        return self.native.written_history(state, number)

    def scans_of(self, stream: Stream) -> StreamScans:
        """Return what is scanned of a stream, and why the last pass failed if it did."""
        return self._scans.setdefault(stream.name, StreamScans(self.native.project))

    def reduce(self, state: StreamState, batch: Records, number: int) -> ReducedBatch:
        """Return what follows from a micro-batch."""
        scans = self.scans_of(state.stream)
        source = state.opened.files or state.opened.topic
        choice = None
        pieces: Pieces | None = None
        if source is not None:
            topic = source.options if isinstance(source, TopicSource) else None
            choice = scans.choose(state.stream, source.header, state.active_plans, state.skipping, topic)
            pieces = source.pieces(number) if isinstance(source, TopicSource) else state.pieces
        if source is not None and choice is not None and pieces is not None:
            try:
                found = self._scan(state, source, choice, pieces, batch, number)
            except NotVectorisedError as reason:
                scans.note_failure(reason.message)
                stream = state.stream.name
                of = about(site=self.native.site, stream=stream)
                _log.warning("batch %d of %s is left to Spark SQL: %s", number, stream, reason.message, extra=of)
            else:
                scans.note_success()
                return found
        self.discard_ahead(state.stream)
        return self.native.reduce(state, batch(), number)

    def discard_ahead(self, stream: Stream) -> None:
        """Forget what was scanned of the next batches of a stream, once nothing is scanned any more."""
        self._ahead_of(stream).discard()

    def end_passes(self, stream: Stream) -> None:
        """Let the passes over files of a stream end soon: what they find is not wanted."""
        self.scanner.end_passes(stream.name)

    def _ahead_of(self, stream: Stream) -> ScanAhead[ScannedFiles]:
        self._remove_leftovers(stream)
        return self._ahead.setdefault(stream.name, ScanAhead(_spawn, ScannedFiles.remove))

    def _remove_leftovers(self, stream: Stream) -> None:
        """Remove, once, what passes of a process that was killed have written of a stream."""
        if stream.name not in self._cleared:
            self._cleared.add(stream.name)
            for folder in (self.native.history_of(stream), self._handed_of(stream)):
                folder.remove_attempts()

    def _handed_of(self, stream: Stream) -> BatchFolder:
        """Return where records wait for Spark SQL that are not kept."""
        return BatchFolder(self.native.folder / "handed" / stream.name)

    def _scan(
        self,
        state: StreamState,
        source: FileSource | TopicSource,
        choice: ScanChoice,
        pieces: Pieces,
        batch: Records,
        number: int,
    ) -> ReducedBatch:
        native = self.native
        if choice.scan.heard is not None:
            heard = choice.scan.heard.after(state.statements)
            choice = replace(choice, scan=replace(choice.scan, heard=heard))
        scanned = self._scan_batch(state, source, choice, pieces, None)
        found = scanned.found
        checked = native.check_times(state, lambda: found.buckets, stats_of_scan(found))
        if checked.limits is not None:
            bad = found.bad
            scanned.remove()
            scanned = self._scan_batch(state, source, choice, pieces, checked.limits)
            state.far_records += scanned.found.bad - bad
        is_copied = native.copies_history(state.stream)
        if is_copied and scanned.attempt is not None:
            native.history_of(state.stream).commit_attempt(scanned.attempt, scanned.found.history, number)
        native.refer_to_files(state, stats_of_scan(scanned.found), checked.limits, number)
        try:
            events = self._events_of(state, source, choice, scanned, checked.limits, batch, number)
        finally:
            if not is_copied:
                scanned.remove()
        stats = stats_of_scan(scanned.found)
        return ReducedBatch(events, stats, times_of(stats, checked))

    def _events_of(
        self,
        state: StreamState,
        source: FileSource | TopicSource,
        choice: ScanChoice,
        scanned: ScannedFiles,
        limits: PlausibleTimes | None,
        batch: Records,
        number: int,
    ) -> list[Event]:
        """Return what follows from a batch that was scanned, and write its quarantine."""
        native = self.native
        stream = state.stream
        found = scanned.found
        if found.bad:
            suspects = source.judge(found.doubtful) if found.doubtful and limits is None else batch()
            native.write_quarantine(stream, mark_implausible(suspects, stream.event_time, limits), number)
        events = events_of_scan(choice, found, number)
        if choice.leaves_records:
            rest = self._left_records(stream, scanned, limits, batch, number)
            events += native.reduce_fragments(state, rest, number, choice.native, choice.native_skipping)
        if found.heard is not None:
            events.append(native.state_progress(state, found.heard))
        return events

    def _left_records(
        self, stream: Stream, scanned: ScannedFiles, limits: PlausibleTimes | None, batch: Records, number: int
    ) -> DataFrame:
        """Return the good records of a batch for Spark SQL: as the pass has written them, if it has."""
        native = self.native
        if native.copies_history(stream):
            return native.read_history(stream, number)
        if scanned.attempt is not None:
            files = (str(scanned.attempt / name) for name in scanned.found.history)
            return native.spark.read.schema(ddl(stream)).parquet(*files)
        return good_records(mark_implausible(batch(), stream.event_time, limits))

    def _scan_batch(
        self,
        state: StreamState,
        source: FileSource | TopicSource,
        choice: ScanChoice,
        pieces: Pieces,
        limits: PlausibleTimes | None,
    ) -> ScannedFiles:
        """Return what is in the pieces of a batch; lines that are doubtful are judged by Spark."""
        self._remove_leftovers(state.stream)
        is_ahead = limits is None and isinstance(source, FileSource)  # Spark says of a topic only where a batch ends
        scanned = self._take_ahead(state, choice) if is_ahead else None
        if scanned is None:
            scanned = self._scan_pieces(state.stream, choice, limits, pieces)
        if not scanned.found.doubtful:
            return scanned
        try:
            judged = source.judge(scanned.found.doubtful).toArrow()
            found = add_judged(choice.scan, scanned.found, judged, limits, scanned.attempt)
        except BaseException:
            scanned.remove()
            raise
        return replace(scanned, found=found)

    def _take_ahead(self, state: StreamState, choice: ScanChoice) -> ScannedFiles | None:
        """Return what the pass over the files of a batch has found, with passes over those of the next ones under way.

        Where sources state their progress, a pass begins with what the batch before it has heard, so it must wait. A
        small batch is scanned by this process, which is busy.
        """
        plan = choice.scan
        ahead = self._ahead_of(state.stream)
        if is_small(state.pieces):
            return ahead.take(plan, state.pieces)
        following = takewhile(lambda pieces: pieces and not is_small(pieces), state.following)
        batches = [state.pieces, *([] if plan.heard is not None else following)]
        ahead.begin(plan, batches, partial(self._scan_pieces, state.stream, choice, None))
        return ahead.take(plan, state.pieces)

    def _scan_pieces(
        self,
        stream: Stream,
        choice: ScanChoice,
        limits: PlausibleTimes | None,
        pieces: Pieces,
        on_under_way: Callable[[], None] = lambda: None,
    ) -> ScannedFiles:
        """Return what is in pieces of a stream."""
        is_copied = self.native.copies_history(stream)
        folder = self.native.history_of(stream) if is_copied else self._handed_of(stream)
        attempt = folder.begin_attempt() if is_copied or choice.hands_over else None
        try:
            found = self.scanner.scan(choice.scan, pieces, limits, attempt, stream.name, on_under_way, syncs=is_copied)
        except BaseException:
            if attempt is not None:
                shutil.rmtree(attempt, ignore_errors=True)
            raise
        return ScannedFiles(found, attempt)


def _spawn(work: Callable[[], None]) -> threading.Thread:
    """Start a thread whose jobs are cancelled with those of this thread."""
    thread: threading.Thread = InheritableThread(target=work, name="scan-ahead", daemon=True)
    thread.start()
    return thread
