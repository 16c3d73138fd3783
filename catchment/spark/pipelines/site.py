"""A site: its streams through Spark into the site core, and what the core sends onto the link.

Each stream is one Structured Streaming query whose every micro-batch is, in this order: kept raw in history, with
bad records in quarantine; reduced to partials per fragment; journalled; absorbed by the core; put into the outbox.
The journal entry is the commit: before it, the batch is replayed by Spark; after it, it is skipped.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.reconcile import site_changes
from catchment.deploy.requests import asked_repairs, forget_repairs
from catchment.progress.events import Ticked
from catchment.project.config import Project
from catchment.project.folders import site_folder
from catchment.project.routes import Routes, first_link
from catchment.query.fragment import Fragment
from catchment.query.sql.statements import Stream
from catchment.shedding.debts import Debt
from catchment.shedding.monitor import LoadMonitor
from catchment.shedding.places import SamplingRule
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, Action, Event, LinkMeasured, LowMarkRaised, Observed
from catchment.site.meter import SiteMeter
from catchment.site.plausible import PlausibleTimes, find_plausible_times, needs_check
from catchment.site.slack import watched_values
from catchment.spark.evaluation.evaluator import NOT_KNOWN_ROWS, Evaluator
from catchment.spark.evaluation.observe import observe_sources
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.shed_repair import Repairer, repair_events
from catchment.spark.pipelines.shedding import (
    WARM_ROWS,
    MakeMonitor,
    Sample,
    StreamShedding,
    again_whole,
    shed_event,
    stream_shedding,
)
from catchment.spark.sources.history import BatchFolder
from catchment.spark.sources.records import Seen, bad_rows, file_by_file, good_records, judged, placed, seen_by
from catchment.spark.sources.reread import ROW
from catchment.spark.sources.streams import PROBLEM, OpenedStream, ddl, open_stream
from catchment.spark.streaming import make_offsets_durable, start_query, stopped
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Clock
from catchment.wire.link_meter import WireSizes
from catchment.wire.messages import Message, Repaired, Shed, Standing, Updates, newest_progress, segments_of
from catchment.wire.outbox import Outbox
from catchment.wire.sender import Sender

_log = logging.getLogger(__name__)

ROOM_CHECK_S = 0.2
SMALL_BATCH_ROWS = 100_000  # below it a group-by is faster on one partition, without an exchange


@dataclass
class StreamState:
    """One stream at this site as it runs."""

    stream: Stream
    opened: OpenedStream
    fragments: tuple[Fragment, ...]
    deployed: Sequence[FragmentPlan]  # those that the fragments are of
    newest_us: int | None = None
    rows: int = 0
    quarantined: int = 0
    last_rows: int = 0
    query: StreamingQuery | None = None
    finished: bool = False
    between: threading.Lock = field(default_factory=threading.Lock)  # held during a batch, and to change fragments
    shedding: StreamShedding | None = None


@dataclass
class SitePipeline:
    """Everything that runs at one site."""

    spark: SparkSession
    project: Project
    site: str
    streams: Sequence[Stream]
    plans: Sequence[FragmentPlan]
    evaluator: Evaluator
    make_sender: Callable[[Outbox], Sender]
    clock: Clock
    make_monitor: MakeMonitor = LoadMonitor
    _states: dict[str, StreamState] = field(default_factory=dict, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _sizes: WireSizes = field(default_factory=WireSizes, init=False)
    _once: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.folder = site_folder(self.project, self.site)
        self.link = first_link(self.project, self.site)
        to = Routes.of(self.project).next_inbox(self.site)
        self.outbox = Outbox(self.folder / "outbox", self.site, to, self.link.outbox_max_bytes)
        self.sender = self.make_sender(self.outbox)
        self.meter = SiteMeter()
        self.core = SiteCore()
        journal = Journal(self.folder / "journal")
        self.host: Host[Event, Action] = Host(self.core, journal, self._enact, self.clock)
        self.host.recover()
        for stream in {f.stream for f in self.core.definitions} | {s.name for s in self.streams}:
            self._bring(stream, self._newest_read(stream))
        self.repairer = Repairer(self._repair_one)

    # --- life -----------------------------------------------------------------------------------------------

    def start(self, *, once: bool = False) -> None:
        """Begin to read. With `once`, read what is there now, close its windows and stop."""
        self.sender.start()
        self._once = once
        for stream in self.streams:
            self._start_stream(stream, once)
        if any(s.shed for s in self.streams):
            self.repairer.start()

    def deploy(self, streams: Sequence[Stream], plans: Sequence[FragmentPlan]) -> None:
        """Run these fragments from the next micro-batch of their streams on; end the streams that nobody reads."""
        self.streams, self.plans = tuple(streams), tuple(plans)
        wanted = {s.name for s in streams}
        for name in [n for n in self._states if n not in wanted]:
            self._end_stream(name)
        for stream in (s for s in streams if s.name not in self._states):
            self._bring(stream.name, self._newest_read(stream.name))
            self._start_stream(stream, self._once)

    def _bring(self, stream: str, newest_us: int | None) -> None:
        events = list(site_changes(self.core, stream, self.plans, newest_us))
        if events:
            self.host.submit("deploy", events)

    def _refresh(self, state: StreamState) -> None:
        """Bring a stream to what is deployed; called between its batches."""
        if state.deployed is not self.plans:
            plans = self.plans
            self._bring(state.stream.name, state.newest_us)
            state.fragments = tuple(p.fragment for p in plans if p.fragment.stream == state.stream.name)
            state.deployed = plans
            if state.shedding is not None:
                state.shedding.follow([p for p in plans if p.fragment.stream == state.stream.name], self.make_monitor)

    def _end_stream(self, name: str) -> None:
        query = self._states.pop(name).query
        if query is not None:
            query.stop()
        self._bring(name, None)

    def _newest_read(self, stream: str) -> int | None:
        """The newest event time that was read in an earlier life."""
        mark = self.core.low_mark_us(stream)
        declared = next((s for s in self.streams if s.name == stream), None)
        known = declared is not None and START_OF_TIME_US < mark < END_OF_TIME_US
        return mark + self._slack_us(declared) if declared is not None and known else None

    def _start_stream(self, stream: Stream, once: bool) -> None:
        jump_us, spools = self._jump_us(stream), self.folder / "spool"
        opened = open_stream(self.spark, stream, self.site, self.project.folder, spools, jump_us)
        fragments = tuple(p.fragment for p in self.plans if p.fragment.stream == stream.name)
        state = StreamState(stream, opened, fragments, self.plans)
        state.newest_us = self._newest_read(stream.name)
        if stream.shed:
            plans = [p for p in self.plans if p.fragment.stream == stream.name]
            state.shedding = stream_shedding(
                stream.name, plans, opened, self.evaluator, self.folder / "checkpoints" / stream.name, self.clock,
                self.project.defaults.trigger_us / 1e6, not once, self.make_monitor,
            )  # fmt: skip
        self._states[stream.name] = state
        writer = (
            opened.records.writeStream.queryName(f"{self.site}.{stream.name}")
            .option("checkpointLocation", str(self.folder / "checkpoints" / stream.name))
            .foreachBatch(lambda batch, number: self._on_batch(state, batch, number))
        )
        interval = f"{self.project.defaults.trigger_us // 1000} milliseconds"
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)
        state.query = start_query(writer)

    def tick(self) -> None:
        """Let time pass: find ended streams, feed the link's measurements back, let the policy send."""
        self.repairer.check()
        for state in self._states.values():
            self._raise_if_failed(state)
            if state.deployed is not self.plans and state.between.acquire(blocking=False):
                try:
                    self._refresh(state)  # an idle stream has no batch that would do it
                finally:
                    state.between.release()
            if not state.finished and self._has_ended(state):
                state.finished = True
                ended = LowMarkRaised(state.stream.name, self._end_mark(state), ended=True)
                self.host.submit(state.stream.name, [ended])
        self.meter.link(self.sender.snapshot(), self.outbox.size_bytes, self.clock.now_us())
        measured = self._measure()
        waiting = self.host.look(lambda: self.core.is_waiting(self.clock.now_us()))
        if self.core.pending_rows or measured.blocked or waiting:
            self.host.submit("tick", [measured, Ticked()])

    @property
    def finished(self) -> bool:
        """Whether every stream has ended and everything it led to has been acknowledged."""
        ended = all(s.finished for s in self._states.values())
        return ended and not self.next_debt() and not self.core.pending_rows and not self.outbox.pending()

    def stop(self) -> None:
        """Stop reading and sending; what is not sent yet waits in the outbox."""
        self._stopping.set()
        for state in self._states.values():
            if state.query is not None:
                state.query.stop()
        self.repairer.stop()
        self.sender.stop()
        self.host.journal.close()

    # --- a micro-batch ----------------------------------------------------------------------------------------

    def _on_batch(self, state: StreamState, batch: DataFrame, number: int) -> None:
        with state.between:
            self._refresh(state)
            self._take_batch(state, batch, number)

    def _take_batch(self, state: StreamState, batch: DataFrame, number: int) -> None:
        name = state.stream.name
        if self.host.committed(name, number):
            return
        self._wait_for_room()
        small = 0 < state.last_rows < SMALL_BATCH_ROWS
        records, sample = batch.coalesce(1) if small else batch, None
        if state.shedding is not None:
            sample = state.shedding.begin(number)
            if sample is not None:
                records = state.shedding.again(sample)
        events, seen = self._reduce(state, records, number, None, sample)
        if seen.rows and seen.low_us is not None and seen.high_us is not None:
            limits = self._implausible(state, records, seen)
            if limits is not None:
                events, seen = self._reduce(state, records, number, limits, sample)
        self._note(state, seen)
        span = None if seen.low_us is None or state.newest_us is None else (seen.low_us, state.newest_us)
        self.meter.batch(name, seen.rows, state.fragments, events, self.clock.now_us(), span)
        mark = (
            [LowMarkRaised(name, state.newest_us - self._slack_us(state.stream))] if state.newest_us is not None else []
        )
        make_offsets_durable(self.folder / "checkpoints" / name, number)
        self.host.submit(name, [*events, *mark, self._measure()], batch=number)
        self.sender.notify()

    def _reduce(
        self, state: StreamState, records: DataFrame, number: int, limits: PlausibleTimes | None, sample: Sample | None
    ) -> tuple[list[Event], Seen]:
        """Keep the batch and reduce it to partials; what was seen on the way."""
        records = judged(records, state.stream.event_time, limits)
        watch, good = good_records(records, state.stream.event_time)
        if state.shedding is not None:
            events, seen = self._reduce_shedding(state, state.shedding, good, watch, number, limits, sample)
        else:
            if self._keeps(state.stream):
                # What is aggregated is what was kept: one read of the source, however many fragments there are.
                good = self._keep(state.stream, good, number)
            events = self._taken(state, good)
            seen = seen_by(watch)
        if seen.bad and sample is None:
            self._quarantine(state.stream).write(bad_rows(records, self.site), number)
        return events, seen

    def _reduce_shedding(
        self, state: StreamState, shedding: StreamShedding, good: DataFrame, watch: Observation, number: int,
        limits: PlausibleTimes | None, sample: Sample | None,
    ) -> tuple[list[Event], Seen]:  # fmt: skip
        """The same where load may be shed: what a part of the work takes is measured, and a sample may be taken."""
        if sample is not None:
            rows = (sample.end or 0) - (sample.start or 0)
        else:
            began = time.monotonic()
            good = self._keep(state.stream, good, number)
            shedding.kept(time.monotonic() - began)
            rows = seen_by(watch).rows
            sample = shedding.after_history(rows)
            if sample is not None:
                sample = replace(sample, by_size=self._history(state.stream).differ_in_size(number))
                good = self._placed(state.stream, number, sample.by_size)
        found = shedding.reduce(good, state.fragments, sample, rows)
        seen, newest_us = seen_by(watch), state.newest_us or 0
        span = (newest_us if seen.low_us is None else seen.low_us, newest_us if seen.high_us is None else seen.high_us)
        events, taken = shedding.absorb(found, sample, rows, span)
        believed = None if limits is None else (limits.start_us, limits.end_us, limits.now_us, limits.jump_us)
        events += shed_event(state.stream.name, number, taken, sample, believed)
        shedding.ended(rows, seen.rows, sample)
        return events, replace(seen, rows=rows, bad=seen.bad if sample is None or not sample.deferred else 0)

    def _keeps(self, stream: Stream) -> bool:
        return self.project.defaults.history if stream.history is None else stream.history

    def _keep(self, stream: Stream, good: DataFrame, number: int) -> DataFrame:
        """Write the records of a batch to history, and read them from there."""
        history = self._history(stream)
        history.write(good, number)
        return history.batch(self.spark, number, ddl(stream))

    def _placed(self, stream: Stream, number: int, by_size: bool) -> DataFrame:
        """The records of a batch in history, each with its place."""
        return placed(self._history(stream).batch(self._by_file, number, ddl(stream)), number, by_size)

    def _history(self, stream: Stream) -> BatchFolder:
        return BatchFolder(self.folder / "history" / stream.name)

    @cached_property
    def _by_file(self) -> SparkSession:
        return file_by_file(self.spark)

    def _taken(self, state: StreamState, records: DataFrame) -> list[Event]:
        """The partials of each fragment, and what the controllers of its queries are told."""
        takes, rows = [Take(f) for f in state.fragments], state.last_rows or NOT_KNOWN_ROWS
        events: list[Event] = []
        for fragment, found in zip(state.fragments, self.evaluator.reduce_all(records, takes, rows), strict=True):
            events.append(Absorbed(fragment.name, found.table, found.records))
            for watch in (w for p in state.deployed if p.fragment.name == fragment.name for w in p.watches):
                values = watched_values(watch.slack)
                table = observe_sources(self.evaluator, records, watch.fragment, state.stream.source, values)
                events.append(Observed(fragment.name, watch.slack.query, table))
        return events

    # --- repairs ----------------------------------------------------------------------------------------------

    def next_debt(self) -> tuple[StreamState, Debt, tuple[Fragment, ...]] | None:
        """The oldest batch of which something is to be made good."""
        asked = asked_repairs(self.folder)
        wanted = {p.fragment.name for p in self.plans if p.shed.is_repaired(asked)}
        for state in list(self._states.values()):
            for debt in self.core.debts.of(state.stream.name) if state.shedding is not None else ():
                names = wanted & {name for name, _ in debt.rates}
                if names or not debt.in_history:
                    return state, debt, tuple(f for f in state.fragments if f.name in names)
        return None

    def _repair_one(self) -> bool:
        """Make one batch good, if the load allows; whether there was one."""
        found = self.next_debt()
        if found is None and asked_repairs(self.folder):
            forget_repairs(self.folder)  # every stream is up, and nothing that was asked for is owed
        if found is None or self._stopping.is_set():
            self._warm_up()
            return False
        state, debt, fragments = found
        if not (state.finished or (state.shedding is not None and state.shedding.has_room())):
            return False
        rows = self._whole_batch(state, debt)
        try:
            events = repair_events(state.stream.name, debt, rows, fragments, self.evaluator)
        finally:
            rows.unpersist()
        self.host.submit("repair", [*events, self._measure()])
        self.sender.notify()
        return True

    def _warm_up(self) -> None:
        """Let no burst wait for what Spark compiles once."""
        for state in (s for s in list(self._states.values()) if not (s.finished or self._stopping.is_set())):
            sample = None if state.shedding is None else state.shedding.warming()
            if state.shedding is not None and sample is not None:
                try:
                    _, good = good_records(state.shedding.again(sample), state.stream.event_time)
                    state.shedding.partials(good, state.fragments, sample, WARM_ROWS)
                except Exception:  # noqa: BLE001 - nothing depends on it; what is wrong shows in a batch
                    _log.warning("the samplers of %s were not warmed up", state.stream.name, exc_info=True)

    def _whole_batch(self, state: StreamState, debt: Debt) -> DataFrame:
        """All good records of a batch with their places; they are in history when this returns."""
        stream = state.stream
        if debt.start is None:
            return self._placed(stream, debt.batch, debt.by_size)
        limits = None if debt.limits is None else PlausibleTimes(*debt.limits)
        records = judged(again_whole(state.opened, debt), stream.event_time, limits)
        watch, rows = good_records(records, stream.event_time)
        rows.persist()
        rows.count()
        seen = seen_by(watch)
        further = None if limits is not None or seen.low_us is None else self._implausible(state, records, seen)
        if further is not None:  # among what was left out is what nobody believes
            records = judged(records, stream.event_time, further)
            highest = 1.0 if debt.groups else max((r for _, r in debt.rates), default=1.0)
            taken = F.expr(SamplingRule(stream.name, (ROW,)).keep_sql(highest))
            believed = F.expr(further.sql(f"unix_micros(`{stream.event_time}`)"))
            rows = rows.where(believed | taken)
            seen = replace(seen, bad=records.where(F.col(PROBLEM).isNotNull()).count())
        self._keep(stream, rows.drop(ROW), debt.batch)
        state.quarantined += seen.bad
        if seen.bad:
            self._quarantine(stream).write(bad_rows(records.drop(ROW), self.site), debt.batch)
        return rows

    def _implausible(self, state: StreamState, records: DataFrame, seen: Seen) -> PlausibleTimes | None:
        """The limits of belief, if the batch has event times beyond them."""
        jump = self._jump_us(state.stream)
        assert seen.low_us is not None
        assert seen.high_us is not None
        if not needs_check(seen.low_us, seen.high_us, state.newest_us, jump):
            return None
        bucket = F.expr(f"floor(unix_micros(`{state.stream.event_time}`) / {jump}L)").cast("long")
        counts = records.where(F.col(PROBLEM).isNull()).groupBy(bucket.alias("bucket")).count().collect()
        limits = find_plausible_times(
            {r["bucket"]: r["count"] for r in counts}, state.newest_us, self.clock.now_us(), jump
        )
        return None if limits.holds(seen.low_us) and limits.holds(seen.high_us) else limits

    def _note(self, state: StreamState, seen: Seen) -> None:
        state.rows += seen.rows
        state.quarantined += seen.bad
        state.last_rows = seen.rows
        if seen.high_us is not None:
            state.newest_us = seen.high_us if state.newest_us is None else max(state.newest_us, seen.high_us)

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        """Segments of every update, none too large for the wire, then what was shed, and the newest progress."""
        sent = [m for action in actions for m in action.messages]
        newest: list[Message] = [m for m in sent if isinstance(m, Shed | Repaired | Standing)]
        newest += newest_progress(sent)
        segments = segments_of((m for m in sent if isinstance(m, Updates)), newest)
        for place, messages in enumerate(segments):
            stored = self.outbox.append(number + place, messages)
            self._sizes.note(messages, stored)
        return len(segments)

    # --- helpers ----------------------------------------------------------------------------------------------

    def _measure(self) -> LinkMeasured:
        counters = self.sender.snapshot()
        goodput, queued = counters.goodput_bytes_per_s, self.outbox.size_bytes
        return LinkMeasured(goodput, queued, self.outbox.full, self._sizes.ratio, self._sizes.frame_bytes)

    def _wait_for_room(self) -> None:
        """At the bound of the cache nothing more is read until the link has taken something away."""
        while self.core.full and not self._stopping.wait(ROOM_CHECK_S):
            self.host.submit("tick", [self._measure(), Ticked()])

    def _has_ended(self, state: StreamState) -> bool:
        assert state.query is not None
        return not state.query.isActive or _is_over(state)

    def _end_mark(self, state: StreamState) -> int:
        """A stream that is over has no more to say; one that was read once may get more later: its windows close."""
        if _is_over(state):
            return END_OF_TIME_US
        sizes = [w.size_us for f in state.fragments for w in f.windows]
        return (state.newest_us or 0) + max(sizes, default=0)

    def _raise_if_failed(self, state: StreamState) -> None:
        failure = state.query.exception() if state.query is not None else None
        if failure is not None:
            raise stopped(f"stream {state.stream.name!r} at site {self.site!r}", failure, self.folder) from failure

    def _quarantine(self, stream: Stream) -> BatchFolder:
        return BatchFolder(self.folder / "quarantine" / stream.name)

    def _slack_us(self, stream: Stream) -> int:
        return self.project.defaults.slack_us if stream.slack_us is None else stream.slack_us

    def _jump_us(self, stream: Stream) -> int:
        return self.project.defaults.max_jump_us if stream.max_jump_us is None else stream.max_jump_us

    @property
    def states(self) -> Sequence[StreamState]:
        return tuple(self._states.values())


def _is_over(state: StreamState) -> bool:
    """Whether the stream has been read to an end that is final."""
    progress = state.query.lastProgress if state.query is not None else None
    if progress is None or progress["sources"][0]["endOffset"] is None:
        return False
    offset = progress["sources"][0]["endOffset"]
    return state.opened.is_over(json.loads(offset) if isinstance(offset, str) else offset)


def site_status(pipeline: SitePipeline) -> dict[str, Any]:
    """Rows read, what is cached, what went over the link."""
    link = pipeline.sender.snapshot()
    return {
        "rows": sum(s.rows for s in pipeline.states),
        "quarantined": sum(s.quarantined for s in pipeline.states),
        "newest_event_us": max((s.newest_us for s in pipeline.states if s.newest_us is not None), default=None),
        "pending_rows": pipeline.core.pending_rows,
        "fragments": pipeline.core.account(),
        "bytes_sent": link.bytes_sent,
        "bytes_by_fragment": dict(link.fragment_bytes),
        "queued_bytes": pipeline.outbox.size_bytes,
        "goodput_bytes_per_s": link.goodput_bytes_per_s,
        "round_trip_s": link.round_trip_s,
        **pipeline.meter.use(pipeline.link.bandwidth_bytes_per_s, link.goodput_bytes_per_s),
        "statistics": pipeline.meter.statistics(),
        "connected": link.connected,
        "last_error": link.last_error,
        "shedding": {
            s.stream.name: s.shedding.status(len(pipeline.core.debts.of(s.stream.name)))
            for s in pipeline.states
            if s.shedding is not None
        },
        "finished": pipeline.finished,
        "contracts": pipeline.host.look(lambda: pipeline.core.contracts(pipeline.clock.now_us())),
    }
