"""A site: its streams through Spark into the site core, and what the core sends onto the link.

Each stream is one Structured Streaming query, or a loop over the files of a folder (`catchment.spark.pipelines.reading`
says why). Every micro-batch is, in this order: written to raw history, with bad records in quarantine; reduced to
partials per fragment (`BatchReducer`); journalled; absorbed by the core; put into the outbox. The journal entry is the
commit: before it, the batch is read again; after it, it is skipped.

A light site, which does not compute, has such a pipeline too: it runs under the name of that site where its records
are evaluated, and reads them from the files in which they arrive. So the states of the site, its event time and what
it lacks are its own, as if it computed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.reconcile import site_changes
from catchment.deploy.reports.requests import (
    forget_resumptions,
    forget_retries,
    requested_resumptions,
    requested_retries,
)
from catchment.deploy.twins import with_twins
from catchment.errors import CatchmentError, EngineError
from catchment.files.watch import DEFAULT_KEEP_US, FolderWatch
from catchment.light.arrivals import RecordArrivals
from catchment.log_fields import about
from catchment.progress.events import Ticked
from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.routings import leads_somewhere, sink_of
from catchment.project.site_orders import SiteOrders
from catchment.query.sql.statements import Stream
from catchment.shedding.monitor import LoadMonitor
from catchment.site.account import BatchAccepted
from catchment.site.agreed_time import AgreedTime
from catchment.site.backfill import NeededBatches, PastBatches
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, Action, Event, LowMarkRaised
from catchment.site.exits import Exit, Exits, MakeSender
from catchment.site.idle_ticks import IdleTicks
from catchment.site.meter import SiteMeter
from catchment.site.plausible import far_us
from catchment.site.reader import NOT_READING, ReaderWatch, ReadingPaused, ReadingResumed
from catchment.site.retry import RetryBegun
from catchment.site.suspension import FragmentResumed, FragmentSuspended
from catchment.spark.evaluation.evaluator import Evaluator
from catchment.spark.pipelines.file_batches import FileBatches, Settle
from catchment.spark.pipelines.isolation import IsolatingReducer
from catchment.spark.pipelines.micro_batch import BatchReducer, Records, StreamState, slack_us
from catchment.spark.pipelines.past_reader import MAX_QUEUED_BYTES, PastReader, pace_of
from catchment.spark.pipelines.quarantine_retry import QuarantineRetries
from catchment.spark.pipelines.reading import FileReading, QueryReading
from catchment.spark.pipelines.record_quarantine import RecordQuarantine
from catchment.spark.pipelines.scanning import ScanningReducer
from catchment.spark.pipelines.shed_repair import RepairThread, ShedRepairs
from catchment.spark.pipelines.shedding import MakeMonitor, StreamShedding, stream_shedding
from catchment.spark.sources.files import FileSource
from catchment.spark.sources.streams import OpenedStream, open_stream
from catchment.spark.streaming import (
    is_hopeless,
    is_outage,
    is_slow_worker,
    make_offsets_durable,
    reason_of,
    refuse_lost_checkpoint,
    refuse_older_journal,
    start_query,
    stopped_error,
)
from catchment.storage.free_space import DiskFullError, FreeSpace
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Clock

MAX_BUSY_RESTARTS = 60  # of one stream, where a busy machine is the only reason that it stopped
RESTARTS_OF_ONE_READING = 2  # where what is there is read once: its end is waited for
DISK_CHECK_S = 1.0  # how often a disk that is nearly full is checked for room
ROOM_CHECK_S = 0.2  # how often a full cache is checked for room
_log = logging.getLogger(__name__)


@dataclass
class SitePipeline:
    """Everything that runs at one site."""

    spark: SparkSession
    project: Project
    site: str
    streams: Sequence[Stream]
    plans: Sequence[FragmentPlan]
    evaluator: Evaluator
    make_sender: MakeSender
    clock: Clock
    make_monitor: MakeMonitor = LoadMonitor
    observer: WindowObserver | None = None
    orders: SiteOrders = field(default_factory=SiteOrders)
    arrivals: RecordArrivals | None = None  # of a light site, whose records are evaluated here
    is_arriving: Callable[[], bool] = lambda: False  # whether more of what is read once is on the way here
    heard_us: Callable[[str, int], int | None] = lambda stream, now_us: None  # when its broker was last connected
    sinks: Mapping[str, Project] = field(default_factory=dict)  # beside the center, with the project as it is to each
    _states: dict[str, StreamState] = field(default_factory=dict, init=False)
    _file_batches: dict[str, FileBatches] = field(default_factory=dict, init=False)  # of streams of files
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _once: bool = field(default=False, init=False)
    failure: CatchmentError | None = field(default=None, init=False)  # why a reader has failed for good
    compact: Callable[[], None] = field(init=False)  # a little of the history of its streams

    def __post_init__(self) -> None:
        self.compact = lambda: None
        self.folder = self.project.site_folder(self.site).absolute()  # tasks run in folders of their own
        self.exits = Exits(self._open_exit)
        self.outbox, self.sender, self.link = self.exits.center.outbox, self.exits.center.sender, self.exits.center.link
        self.meter = SiteMeter()
        self.free_space = FreeSpace(self.folder, self.project.limits.free_disk_bytes, self.clock)
        self.core = SiteCore()
        self._idle_ticks = IdleTicks(self.clock)
        journal = Journal(self.folder / "journal")
        self.host: Host[Event, Action] = Host(self.core, journal, self._enact, self.clock)
        self.exits.recover(self.host, self.orders, lambda: self.core.fragments, self.sinks, self._has_exit)
        for stream in {f.stream for f in self.core.definitions} | {s.name for s in self.streams}:
            self._apply_deployment(stream, self._newest_read_us(stream))
        self.reducer = BatchReducer(self.spark, self.project, self.site, self.folder, self.evaluator, self.clock)
        self.scanning = ScanningReducer(self.reducer)
        quarantine = RecordQuarantine(self.reducer, self._errors_of)
        self.isolating = IsolatingReducer(self.scanning, self._suspended, quarantine)
        self.repairs = ShedRepairs(
            self.reducer,
            quarantine,
            lambda: self.core.debts,
            lambda: self.states,
            lambda: self.plans,
            self._suspended,
            self._submit_repair,
            self._stopping,
        )
        self._repair_thread = RepairThread(self.repairs.repair_next)
        self.past = PastReader(
            self.reducer,
            quarantine,
            self.host.look,
            self.core,
            lambda: self.states,
            lambda: self.exits.size_bytes,
            self._submit_past,
            self._stopping,
            pace_of(self.link),
            min(MAX_QUEUED_BYTES, self.link.outbox_max_bytes // 2),
        )
        self.retries = QuarantineRetries(
            quarantine, self.host.look, self.core, lambda: self.states, self._submit_past, self._stopping
        )
        self._past_thread = RepairThread(self._read_past_or_compact, "past")

    def _open_exit(self, name: str) -> Exit:
        sink = sink_of(name)
        part = self.sinks[sink] if sink else self.project
        declared_end = Routes.declared(part).next_inbox(self.site)
        life = self.orders.lives.get(self.site, 0)
        return Exit.open(self.folder, part, self.site, name, declared_end, life, self.make_sender, self.observer)

    def _has_exit(self, name: str) -> bool:
        """Return whether an exit still leads somewhere."""
        sink = sink_of(name)
        return (not sink or sink in self.sinks) and leads_somewhere(self.project, self.site, name)

    # --- life -----------------------------------------------------------------------------------------------

    def start(self, *, once: bool = False) -> None:
        """Begin to read. With `once`, read what is there now, close its windows and stop."""
        self.exits.start()
        self._once = once
        for stream in self.streams:
            self._start_stream(stream, reads=False)
        self._resume_requested()  # before the first batch is read
        self._retry_requested()
        self.retries.forget_tried()
        for state in self.states:
            self._start_reading(state)
        if any(s.shed for s in self.streams):
            self._repair_thread.start()
        self._past_thread.start()

    def deploy(
        self,
        streams: Sequence[Stream],
        plans: Sequence[FragmentPlan],
        sinks: Mapping[str, Project] = MappingProxyType({}),
    ) -> None:
        """Run these fragments from the next micro-batch of their streams on; end the streams that nobody reads."""
        self.sinks = sinks
        self.streams = tuple(streams)
        self.plans = tuple(plans)
        wanted = {s.name for s in streams}
        for name in [n for n in self._states if n not in wanted]:
            self._end_stream(name)
        for stream in (s for s in streams if s.name not in self._states):
            self._apply_deployment(stream.name, self._newest_read_us(stream.name))
            self._start_stream(stream)

    def tick(self) -> None:
        """Let time pass: find ended streams, feed the link's measurements back, let the policy send."""
        self._repair_thread.raise_failure()
        self._past_thread.raise_failure()
        self._resume_requested()
        self._retry_requested()
        before = self.exits.appended
        for state in self.states:
            self._tick_stream(state)
        self.meter.note_link(self.sender.snapshot(), self.outbox.size_bytes, self.clock.now_us())
        measured = self.exits.measure()
        self._idle_ticks.note_acked(self.exits.acked)
        is_waiting = self.host.look(lambda: self.core.is_waiting(self.clock.now_us()))
        is_blocked = any(link.blocked for link in measured)
        if is_waiting or is_blocked or (self.core.pending_rows and self._idle_ticks.is_due()):
            asked = self.exits.appended
            self.host.submit("tick", [*measured, Ticked()])
            self._idle_ticks.note(self.exits.appended > asked)
        if self.exits.appended > before:
            self.exits.notify()  # or what a tick lets go would wait until the sender looks by itself

    @property
    def finished(self) -> bool:
        """Whether every stream has ended and everything that it led to has been acknowledged."""
        if not all(s.is_finished for s in self.states) or self.repairs.next_repair():
            return False
        if self.past.next_past() or self.retries.next_retry():
            return False
        return not self.core.pending_rows and self.exits.are_empty

    @property
    def repair_failure(self) -> str | None:
        """Why repairs, or reads of history, are tried again and again, if they are."""
        return self._repair_thread.retried or self._past_thread.retried

    @property
    def has_failed(self) -> bool:
        """Whether no reader of this site reads any more, or will be started again."""
        return bool(self._states) and all(s.reader.has_failed for s in self.states)

    @property
    def states(self) -> Sequence[StreamState]:
        return tuple(self._states.values())

    def stop(self) -> None:
        """Stop reading and sending; what is not sent yet waits in the outbox."""
        self._stopping.set()
        for state in self.states:
            if state.reading is not None:
                state.reading.stop()
        self._repair_thread.stop()
        self._past_thread.stop()
        self.exits.stop()
        self.host.journal.close()

    # --- streams ------------------------------------------------------------------------------------------------

    def _start_stream(self, stream: Stream, reads: bool = True) -> None:
        jump_us = self.project.defaults.resolve_jump_us(stream.max_jump_us)
        free_bytes = self.project.limits.free_disk_bytes
        base = self.project.folder.absolute()
        opened = open_stream(self.spark, stream, self.site, base, self.folder, far_us(jump_us), free_bytes)
        watch = ReaderWatch(RESTARTS_OF_ONE_READING) if self._once else ReaderWatch()
        state = StreamState(stream, opened, self.plans, AgreedTime(jump_us), reader=watch)
        state.is_reading = not self.core.is_paused(stream.name)
        state.agreed_time.resume(self._newest_agreed_us(stream.name), self.core.newest_read_us(stream.name))
        if stream.shed:
            state.shedding = self._make_shedding(state, opened)
        if opened.files is not None:
            self._file_batches[stream.name] = self._watch_files(state, opened.files)
        self._states[stream.name] = state
        if reads:
            self._start_reading(state)

    def _start_reading(self, state: StreamState) -> None:
        batches = self._file_batches.get(state.stream.name)
        if batches is None:
            state.reading = self._start_query(state)
        else:
            batches.take_over_checkpoint()
            every_s = max(self.project.defaults.trigger_us / 1e6, batches.source.list_every_s)
            interval_s = None if self._once else every_s
            name = f"{self.site}.{state.stream.name}"
            state.reading = FileReading(
                self.spark,
                name,
                batches.look,
                batches.read,
                interval_s,
                self.is_arriving,
                on_stop=partial(self.scanning.end_passes, state.stream),
                on_end=partial(self.scanning.discard_ahead, state.stream),
            )
        state.reader.note_started(self.clock.now_us())

    def _start_query(self, state: StreamState) -> QueryReading:
        name = state.stream.name
        checkpoint = self.folder / "checkpoints" / name

        def on_batch(batch: DataFrame, number: int) -> None:
            self._on_batch(state, lambda: batch, number, lambda: make_offsets_durable(checkpoint, number))

        assert state.opened.records is not None, "only files are read in another way"
        writer = (
            state.opened.records.writeStream.queryName(f"{self.site}.{name}")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(on_batch)
        )
        refuse_lost_checkpoint(checkpoint, self.host.batches.get(name))
        refuse_older_journal(checkpoint, self.host.batches.get(name))
        interval = f"{self.project.defaults.trigger_us // 1000} milliseconds"
        writer = writer.trigger(availableNow=True) if self._once else writer.trigger(processingTime=interval)
        return QueryReading(start_query(writer), partial(self.scanning.end_passes, state.stream))

    def _watch_files(self, state: StreamState, source: FileSource) -> FileBatches:
        limits = self.project.limits
        horizon_us = self.project.defaults.repair_horizon_us
        keep_us = DEFAULT_KEEP_US if limits.history_keep_us is None else limits.history_keep_us
        if source.removed_when_read:
            keep_us = 0  # its names never come again
        watch = FolderWatch(
            state.stream.name, source.watched, source.growing, keep_us, horizon_us, source.removed_when_read
        )
        if self._once and self.arrivals is None:
            watch.freeze()
        return FileBatches(state, source, watch, self.host, self.core, self.clock, self.folder, self._on_batch)

    def _make_shedding(self, state: StreamState, opened: OpenedStream) -> StreamShedding:
        name = state.stream.name
        return stream_shedding(
            name,
            state.own_plans,
            opened,
            self.evaluator,
            self.folder / "checkpoints" / name,
            self.clock,
            self.project.defaults.trigger_us / 1e6,
            not self._once,
            self.make_monitor,
        )

    def _end_stream(self, name: str) -> None:
        reading = self._states.pop(name).reading
        if reading is not None:
            reading.stop()
        self._file_batches.pop(name, None)
        self._apply_deployment(name, None)

    def _tick_stream(self, state: StreamState) -> None:
        self._watch_reader(state)
        if state.plans is not self.plans and state.batch_lock.acquire(blocking=False):
            try:
                self._refresh(state)  # an idle stream has no batch that would do it
            finally:
                state.batch_lock.release()
        if not state.is_finished and state.has_ended:
            state.is_finished = True
            state.reader.ended = True
            ended = LowMarkRaised(state.stream.name, state.end_mark_us, ended=True)
            self.host.submit(state.stream.name, [ended])

    def _watch_reader(self, state: StreamState) -> None:
        """Start a reader again that has died, and tell the core when its silence means nothing."""
        now_us = self.clock.now_us()
        failure = state.reading.failure() if state.reading is not None else None
        if failure is not None:
            state.reading = None
            self._note_death(state, failure, now_us)
        elif state.reader.is_due(now_us):
            try:
                self._start_reading(state)
            except (EngineError, OSError) as again:
                self._note_death(state, again, now_us)
        heard_us = self.heard_us(state.stream.name, now_us) if self.arrivals is None else self.arrivals.heard_us
        state.note_signs(now_us, heard_us)
        self._note_reading(state, state.reader.state(now_us) not in NOT_READING)

    def _note_reading(self, state: StreamState, is_reading: bool) -> None:
        if is_reading == state.is_reading:
            return
        state.is_reading = is_reading
        name = state.stream.name
        self.host.submit("reader", [ReadingResumed(name) if is_reading else ReadingPaused(name)])
        told = "stream %s is read again" if is_reading else "stream %s is not read for now"
        _log.info(told, name, extra=about(site=self.site, stream=name))

    def _note_death(self, state: StreamState, failure: BaseException, now_us: int) -> None:
        what = f"stream {state.stream.name!r} at site {self.site!r}"
        of = about(site=self.site, stream=state.stream.name)
        if is_slow_worker(failure) and state.restarts < MAX_BUSY_RESTARTS:
            state.restarts += 1
            _log.warning(
                "the machine is busy: %s goes on from its checkpoint (restart %d)", what, state.restarts, extra=of
            )
            self._start_reading(state)
            return
        reader = state.reader
        if is_hopeless(failure):
            reader.max_restarts = 0
        error = stopped_error(what, failure, self.folder)
        if self.host.has_failed or isinstance(error, DiskFullError):
            raise error from failure  # only a new process can go on
        reader.note_death(reason_of(str(failure)), is_outage(failure) and not self._once, now_us)
        if not reader.has_failed:
            _log.warning("%s; it is started again", error.message, extra=of)
            return
        _log.error("%s; it is not started again", error.message, extra=of)
        self.failure = error
        if self._once:
            raise error from failure

    def _refresh(self, state: StreamState) -> None:
        """Change a stream to what is deployed; the caller holds its batch lock."""
        if state.plans is self.plans:
            return
        plans = self.plans
        self._apply_deployment(state.stream.name, state.agreed_time.newest_read_us())
        state.plans = plans
        if state.shedding is not None:
            state.shedding.follow(state.own_plans, self.make_monitor)

    def _apply_deployment(self, stream: str, newest_us: int | None) -> None:
        """Journal what changes for a stream by what is deployed."""
        batches = self.host.batches.get(stream, -1) + 1
        events = list(site_changes(self.core, stream, self.plans, newest_us, batches))
        if events:
            self.host.submit("deploy", events)

    def _newest_read_us(self, stream: str) -> int | None:
        """Return the newest event time that was read before a restart, held records included."""
        known_us = self.core.newest_read_us(stream)
        return self._newest_agreed_us(stream) if known_us is None else known_us

    def _newest_agreed_us(self, stream: str) -> int | None:
        """Return where the event time of a stream stood before a restart."""
        mark_us = self.core.low_mark_us(stream)
        declared = next((s for s in self.streams if s.name == stream), None)
        if declared is None or not START_OF_TIME_US < mark_us < END_OF_TIME_US:
            return None
        return mark_us + slack_us(self.project, declared)

    # --- a micro-batch ----------------------------------------------------------------------------------------

    def _on_batch(self, state: StreamState, batch: Records, number: int, settle: Settle) -> None:
        with state.batch_lock:
            self._refresh(state)
            if not self.host.is_committed(state.stream.name, number):
                self._wait_for_room()
                self._commit_batch(state, batch, number, settle)

    def _commit_batch(self, state: StreamState, batch: Records, number: int, settle: Settle) -> None:
        name = state.stream.name
        began_us = self.clock.now_us()
        state.statements = self.host.look(lambda: self.core.statements_of(name))
        state.find_twins(self._suspended())
        reduced = self.isolating.reduce(state, batch, number)
        settled = settle()
        events = reduced.events
        stats = reduced.stats
        state.add(reduced, self.clock.now_us())
        span_us = None
        if stats.low_us is not None and state.newest_us is not None:
            span_us = (min(stats.low_us, state.newest_us), state.newest_us)
        self.meter.note_batch(name, stats.rows, state.fragments, events, self.clock.now_us(), span_us)
        read_us = state.agreed_time.newest_read_us()
        if read_us is not None:
            mark_us = START_OF_TIME_US
            if state.newest_us is not None:
                mark_us = state.newest_us - slack_us(self.project, state.stream)
            events = [*events, LowMarkRaised(name, mark_us, read_us=read_us)]
        accepted = BatchAccepted(name, number, stats.rows - stats.bad)
        self._show_read(events)
        events = list(with_twins(events, state.twins))
        self._idle_ticks.reset()
        self.host.submit(name, [accepted, *settled, *events, *self.exits.measure()], batch=number)
        self.exits.notify()
        now_us = self.clock.now_us()
        state.reader.note_batch(stats.rows, now_us - began_us, now_us)
        self._log_batch(state, number, stats.rows, events)

    def _show_read(self, events: Sequence[Event]) -> None:
        """Show an observer which slices a batch has records of; before they are absorbed, which may flush them."""
        if self.observer is not None:
            elsewhere = {plan.fragment.name for plan in self.plans if sink_of(plan.exit_name)}
            for event in (e for e in events if isinstance(e, Absorbed) and e.fragment not in elsewhere):
                self.observer.note_read(self.site, event.fragment, (slice_us for slice_us, _ in event.records))

    def _log_batch(self, state: StreamState, number: int, rows: int, events: Sequence[Event]) -> None:
        name = state.stream.name
        _log.debug("batch %d of %s: %d records", number, name, rows, extra=about(site=self.site, stream=name))
        for event in (e for e in events if isinstance(e, FragmentSuspended)):
            of = about(site=self.site, stream=name, fragment=event.fragment)
            told = "%s is suspended from batch %d on: %s, in %s"
            _log.warning(told, event.fragment, number, event.reason, event.expression, extra=of)

    def _wait_for_room(self) -> None:
        """Read nothing more while the cache is full, until the link has taken something away, or the disk nearly is."""
        while self.core.full and not self._stopping.wait(ROOM_CHECK_S):
            self.host.submit("tick", [*self.exits.measure(), Ticked()])
        while self.free_space.is_low():
            if self._once or self._stopping.wait(DISK_CHECK_S):
                raise DiskFullError(self.free_space.describe(), where=f"site {self.site}")

    def _suspended(self) -> Mapping[str, FragmentSuspended]:
        """Return the fragments that take nothing in, and why."""
        return self.host.look(lambda: self.core.suspended)

    def _errors_of(self, fragment: str) -> Mapping[int, int]:
        """Return how many records of each slice a fragment has set aside."""
        return self.host.look(lambda: self.core.errors_of(fragment))

    def _resume_requested(self) -> None:
        """Resume the suspended fragments that somebody has asked to be resumed."""
        requested = requested_resumptions(self.folder)
        if not requested:
            return
        left = {name: event for name, event in self._suspended().items() if name in requested}
        for state in self.states:
            mine = [event for event in left.values() if event.stream == state.stream.name]
            if mine and state.batch_lock.acquire(blocking=False):  # else a batch is under way that skips them still
                try:
                    self.host.submit("resume", [self._resumed(state, event) for event in mine])
                finally:
                    state.batch_lock.release()
                left = {name: event for name, event in left.items() if event not in mine}
                self.exits.notify()
        if not left or not self._states:
            forget_resumptions(self.folder, requested)

    def _resumed(self, state: StreamState, event: FragmentSuspended) -> FragmentResumed:
        """Return that a fragment goes on; what it has skipped is read from history, if that is kept."""
        batches = self.host.batches.get(event.stream, -1) + 1
        newest_us = state.agreed_time.newest_read_us()
        first = self.host.look(lambda: self.core.skipped_from(event.fragment))
        if not self.reducer.keeps_history(state.stream) or first is None or newest_us is None:
            return FragmentResumed(event.fragment)
        past = PastBatches(batches, START_OF_TIME_US + 1, newest_us + 1, first)
        return FragmentResumed(event.fragment, past)

    def _retry_requested(self) -> None:
        """Begin to try again what fragments have set aside, where somebody has asked for it."""
        requested = requested_retries(self.folder)
        if not requested:
            return
        busy = {*self.core.retries}  # what was set aside since is asked for again when that is over
        events = [
            RetryBegun(fragment.name, self.host.batches.get(fragment.stream, -1) + 1)
            for fragment in self.host.look(lambda: self.core.definitions)
            if fragment.name in requested - busy
        ]
        if events:
            self.host.submit("retry", events)
        if not requested <= busy:
            forget_retries(self.folder, requested - busy)

    def _submit_repair(self, events: list[Event]) -> None:
        self.host.submit("repair", [*events, *self.exits.measure()])
        self.exits.notify()

    def _submit_past(self, events: list[Event]) -> int:
        """Journal what was read of the past; return the bytes that go onto the link because of it."""

        def submit() -> int:
            before = self.exits.appended_bytes
            self.host.submit("backfill", [*events, *self.exits.measure()])
            return self.exits.appended_bytes - before

        sent_bytes = self.host.look(submit)
        self.exits.notify()
        return sent_bytes

    def _read_past_or_compact(self) -> bool:
        """Read a little of the past, or try again what was set aside; else compact history, in the same thread."""
        is_busy = self.past.read_next() or self.retries.retry_next()
        if not is_busy and self.past.next_past() is None:
            self.compact()
        return is_busy

    def needed_batches(self, stream: str) -> NeededBatches:
        """Return the batches of a stream that are still to be read from history."""
        owed = frozenset(debt.batch for debt in self.core.debts.of(stream))
        return NeededBatches(owed, tuple(self.host.look(lambda: self.core.past_of(stream))))

    # --- what leaves ----------------------------------------------------------------------------------------------

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        return self.exits.enact(self.host, number, actions)
