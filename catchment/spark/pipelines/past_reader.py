"""The past of fragments that begin in it: read from history beside the stream, a few micro-batches at a time.

One fragment at a time, in a thread of its own, so that neither the stream nor the ticks of the site wait. A chunk of
batches is one entry of the journal (`catchment.site.backfill`); only partials leave the site.

Bounds: nothing is read while the link is blocked or `MAX_QUEUED_BYTES` wait for it, and no faster than the link's
`backfill_bandwidth` allows. What fails is tried again later, but for a batch on which an expression of the fragment
fails: its view sets the failing records aside, if it asks for that, as for live ones; else the batch is passed over,
and its event times are lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.errors import StorageError
from catchment.files.references import FilesLostError
from catchment.log_fields import about
from catchment.project.sections import Link
from catchment.query.fragment import Fragment
from catchment.site.backfill import (
    Backfill,
    BackfillPace,
    EventSpan,
    PastAbsorbed,
    PastBatch,
    PastChunk,
    add_span,
    choose_chunk,
    drop_before,
)
from catchment.site.core import SiteCore
from catchment.site.events import Event
from catchment.spark.evaluation.evaluator import Reduced
from catchment.spark.evaluation.failures import FragmentFailure, is_data_error
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.micro_batch import BatchReducer, StreamState
from catchment.spark.pipelines.record_quarantine import RecordQuarantine
from catchment.spark.sources.history import BatchFolder
from catchment.spark.sources.streams import ddl
from catchment.spark.streaming import reason_of
from catchment.storage.batch_times import RemovedBatches
from catchment.timeline import END_OF_TIME_US
from catchment.wire.messages import LookedUp

_log = logging.getLogger(__name__)
NO_TIMES: EventSpan = (0, 0)
MAX_QUEUED_BYTES = 8 * 2**20  # that may wait for the link while more of the past is read


@dataclass(frozen=True)
class NextPast:
    """A fragment whose past is to be read, and how far that is."""

    state: StreamState
    fragment: Fragment
    backfill: Backfill


@dataclass
class PastReader:
    """Reads the past of the fragments of a site."""

    reducer: BatchReducer
    quarantine: RecordQuarantine
    look: Callable[[Callable[[], NextPast | None]], NextPast | None]  # while nothing changes the core
    core: SiteCore
    states: Callable[[], Sequence[StreamState]]
    queued_bytes: Callable[[], int]
    submit: Callable[[list[Event]], int]  # journals what was read, and returns the bytes that follow from it
    stopping: threading.Event
    pace: BackfillPace
    max_queued_bytes: int = MAX_QUEUED_BYTES

    def next_past(self) -> NextPast | None:
        """Return a fragment that has something to read, if it may be read; suspended ones wait until they resume."""
        return self.look(self._find)

    def _find(self) -> NextPast | None:
        for name, backfill in self.core.backfills.items():
            fragment = self.core.running(name).fragment
            state = next((s for s in self.states() if s.stream.name == fragment.stream), None)
            if state is not None and name not in self.core.suspended:
                return NextPast(state, fragment, backfill)
        return None

    def read_next(self) -> bool:
        """Read some batches, if the link allows; return whether there were any."""
        clock = self.reducer.clock
        if self.stopping.is_set() or not self.pace.may_read(clock.now_us()):
            return False
        found = self.next_past()
        if found is None or self.core.full or self.queued_bytes() > self.max_queued_bytes:
            return False
        chunk = self._choose(found)
        if chunk.is_empty:
            return False
        sent_bytes = self.submit(self._read(found, chunk))
        self.pace.note_sent(chunk.rows, sent_bytes, clock.now_us())
        return True

    def _choose(self, found: NextPast) -> PastChunk:
        stream = found.state.stream
        history = self.reducer.history_of(stream)
        unwritten = {debt.batch for debt in self.core.debts.of(stream.name) if not debt.is_in_history}
        return choose_chunk(
            found.backfill,
            partial(_find_batch, history, stream.event_time),
            partial(_find_lost, history),
            self.pace.chunk_rows,
            unwritten=unwritten,
        )

    def _read(self, found: NextPast, chunk: PastChunk) -> list[Event]:
        """Return what a fragment makes of past batches; those that it fails on are lost, each as a whole."""
        fragment = found.fragment
        from_us = found.backfill.past[0].from_us
        try:
            past = self._reduce(found, chunk.batches, chunk.rows)
        except Exception as failure:  # what is no fragment's fault is raised
            if not is_data_error(failure):
                raise
            return self._read_one_by_one(found, chunk)
        partials, counts = drop_before(past.table, past.records, from_us)
        absorbed = PastAbsorbed(fragment.name, chunk.first, chunk.end, partials, counts, chunk.lost)
        return [absorbed, *_from(past.looked_up, from_us)]

    def _records(self, found: NextPast, batches: Sequence[int]) -> DataFrame:
        stream = found.state.stream
        past = found.backfill.past[0]
        span = past.from_us, past.until_us if past.is_bounded else END_OF_TIME_US
        return self.reducer.history_of(stream).batches(self.reducer.spark, batches, ddl(stream), span)

    def _reduce(self, found: NextPast, batches: Sequence[int], rows: int) -> Reduced:
        if not batches:
            nothing = found.fragment.schema.empty_table()
            return Reduced(nothing, (), nothing, nothing)
        return self._evaluate(found, batches, rows, self._records(found, batches))

    def _evaluate(self, found: NextPast, batches: Sequence[int], rows: int, records: DataFrame) -> Reduced:
        reduced = self.reducer.evaluator.reduce_all(records, [Take(found.fragment)], rows)[0]
        history = self.reducer.history_of(found.state.stream)
        for number in batches:
            history.check(number)  # files that it refers to may have been changed while they were read
        return reduced

    def _set_aside(self, found: NextPast, number: int, chunk: PastChunk, end: int) -> list[Event] | None:
        """Return what a fragment makes of a batch but for the records that it fails on, if it may set them aside."""
        fragment = found.fragment
        plan = next((p for p in found.state.plans if p.fragment.name == fragment.name), None)
        if plan is None or plan.max_errors is None:
            return None
        past = found.backfill.past[0]
        slice_us = F.expr(fragment.slicing.sql(f"unix_micros(`{fragment.event_time}`)"))
        wanted = slice_us >= past.from_us
        wanted = wanted & (slice_us < past.until_us) if past.is_bounded else wanted
        records = self._records(found, [number]).where(wanted)
        evaluate = partial(self._evaluate, found, [number], chunk.rows)
        result = self.quarantine.set_aside(found.state.stream, plan, records, records, number, evaluate)
        if isinstance(result, FragmentFailure):
            return None
        taken, aside = result
        absorbed = PastAbsorbed(
            fragment.name, chunk.first, end, taken.table, taken.records, chunk.lost, quarantined=aside
        )
        return [absorbed, *taken.looked_up]

    def _read_one_by_one(self, found: NextPast, chunk: PastChunk) -> list[Event]:
        """Return what a fragment makes of the first of some batches, and whether it fails on that one.

        One batch is an entry of its own then: what can be taken in is, and the rest is read together again.
        """
        fragment = found.fragment
        stream = found.state.stream
        number = chunk.batches[0]
        end = number + 1 if len(chunk.batches) > 1 else chunk.end
        try:
            past = self._reduce(found, [number], chunk.rows)
        except Exception as failure:
            if not is_data_error(failure):
                raise
            kept = self._set_aside(found, number, chunk, end)
            if kept is not None:
                return kept
            times = self.reducer.history_of(stream).times(number, stream.event_time)
            span = () if times is None or times.span is None else (times.span,)
            lost = reduce(add_span, span, chunk.lost)
            empty = fragment.schema.empty_table()
            of = about(site=self.reducer.site, stream=fragment.stream, fragment=fragment.name)
            told = "%s fails on batch %d of its past: %s"
            _log.warning(told, fragment.name, number, reason_of(str(failure)), extra=of)
            return [PastAbsorbed(fragment.name, chunk.first, end, empty, (), lost, reason_of(str(failure)))]
        from_us = found.backfill.past[0].from_us
        partials, counts = drop_before(past.table, past.records, from_us)
        absorbed = PastAbsorbed(fragment.name, chunk.first, end, partials, counts, chunk.lost)
        return [absorbed, *_from(past.looked_up, from_us)]


def _from(facts: Sequence[LookedUp], from_us: int) -> Iterator[LookedUp]:
    """Yield what was looked up in slices from an instant on."""
    for fact in facts:
        slices = tuple(slice_us for slice_us in fact.slices if slice_us >= from_us)
        if slices:
            yield replace(fact, slices=slices)


def pace_of(link: Link) -> BackfillPace:
    """Return how fast the past may be sent over a link: as is declared, else at half of its bandwidth."""
    if link.backfill_bandwidth_bytes_per_s is not None:
        return BackfillPace(link.backfill_bandwidth_bytes_per_s)
    return BackfillPace(None if link.bandwidth_bytes_per_s is None else link.bandwidth_bytes_per_s / 2)


def _find_batch(history: BatchFolder, event_time: str, number: int) -> PastBatch | None:
    """Return what is known of a batch; None if it is not in history, or its files are damaged, or gone elsewhere."""
    try:
        times = history.times(number, event_time)
        history.check(number)
    except (pa.ArrowInvalid, ValueError, StorageError, FilesLostError) as damage:
        _log.warning("batch %d in %s cannot be read, and counts as lost: %s", number, history.folder, damage)
        return None
    return None if times is None else PastBatch(times.rows, times.span)


def _find_lost(history: BatchFolder, number: int) -> EventSpan | None:
    """Return which event times a batch had that cannot be read; None if nobody knows."""
    with suppress(StorageError):  # a damaged reference says nothing
        reference = history.reference(number)
        if reference is not None:
            return reference.times.span or NO_TIMES
    removed = RemovedBatches.read(history.folder)
    is_known, span = (False, None) if removed is None else removed.find_times(number)
    return (span or NO_TIMES) if is_known else None
