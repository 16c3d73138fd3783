"""A site without Spark: the real core, journal and outbox, wired as `catchment.spark.pipelines.site` wires them.

The source is a log of arrivals with the promises of a Spark checkpoint: a planned batch keeps its records, and after a
restart the last planned batch comes again, committed or not. Shed batches are sampled and repaired by the rules that
`catchment.spark.pipelines.shedding` uses; when to shed is the schedule's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import terms_in
from catchment.arrays import Mask
from catchment.deploy.deployment import Deployment
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.reconcile import site_changes
from catchment.progress.events import Ticked
from catchment.project.routes import Routes
from catchment.project.routings import leads_somewhere, sink_of
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.query.sql.statements import Stream
from catchment.query.sql.view_options import NEVER
from catchment.shedding.debts import BatchRepaired, BatchShed, FragmentSample, ShedDebt
from catchment.shedding.places import history_rule
from catchment.shedding.sampler import Sampler
from catchment.shedding.terms import negate_terms
from catchment.site.agreed_time import AgreedTime, BatchTimes, Buckets, TimeBucket
from catchment.site.backfill import PastAbsorbed, PastBatch, PastChunk, choose_chunk, drop_before
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, Action, Event, LowMarkRaised, Observed
from catchment.site.exits import Exit, Exits
from catchment.site.outbox_writer import needs_new_life
from catchment.site.plausible import PlausibleTimes, count_far, far_us, find_plausible_times, needs_check
from catchment.site.stated_progress import ProgressStated
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.testing.simulated.evaluate import FragmentRows, PureEvaluator
from catchment.testing.simulated.network import SimulatedSender
from catchment.testing.simulated.records import ArrivingRecords
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Clock, Slicing
from catchment.vectorised.heard import HeardSources
from catchment.vectorised.records import RecordColumns
from catchment.wire.sending.outbox import Outbox

PAST_ROWS = 60  # records of the past that are read together: few, so that faults come in between
PAST_BATCHES = 16


@dataclass
class SourceLog:
    """What a checkpoint remembers of one stream at one site: where each planned batch ends."""

    arrivals: ArrivingRecords
    ends: list[int] = field(default_factory=list)
    durable: int = 0  # planned batches that survive a power cut
    accepted: Mask = field(init=False)  # the records that were not quarantined, of the batches read so far
    ever_accepted: Mask = field(init=False)  # those of lives whose state was lost or put back too

    def __post_init__(self) -> None:
        self.accepted = np.zeros(len(self.arrivals), dtype=np.bool_)
        self.ever_accepted = self.accepted.copy()

    def start_of(self, batch: int) -> int:
        return self.ends[batch - 1] if batch else 0

    def cut_power(self) -> None:
        del self.ends[self.durable :]

    def copy(self) -> SourceLog:
        """Return what a copy of the checkpoint remembers."""
        copied = SourceLog(self.arrivals, list(self.ends), self.durable)
        copied.accepted = self.accepted.copy()
        return copied

    def put_back(self, copied: SourceLog | None) -> None:
        """Remember what a copy does, or nothing; all that was read since is read again, if the site lives."""
        self.ever_accepted |= self.accepted
        known = copied or SourceLog(self.arrivals)
        self.ends, self.durable, self.accepted = list(known.ends), known.durable, known.accepted.copy()


@dataclass(frozen=True)
class Batch:
    """The records [start, end) of a stream, as one micro-batch."""

    number: int
    start: int
    end: int


@dataclass
class StreamReader:
    """One stream at its site as it runs."""

    stream: Stream
    log: SourceLog
    agreed_time: AgreedTime
    plans: Sequence[FragmentPlan]
    next_batch: int = 0
    is_finished: bool = False

    @property
    def own_plans(self) -> list[FragmentPlan]:
        return [plan for plan in self.plans if plan.fragment.stream == self.stream.name]


@dataclass
class SiteCounts:
    """What a site has read since the simulation began."""

    read: int = 0
    accepted: int = 0
    quarantined: int = 0
    held: int = 0
    replayed_batches: int = 0
    shed_batches: int = 0
    repaired_batches: int = 0
    past_chunks: int = 0
    blocked_ticks: int = 0


@dataclass(frozen=True)
class SiteSurroundings:
    """What a site needs of the world around it."""

    clock: Clock
    evaluator: PureEvaluator
    logs: dict[str, SourceLog]  # by stream
    make_sender: Callable[[Outbox, str], SimulatedSender]  # of an outbox, towards a sink
    now_us: Callable[[], int]  # by which records arrive
    shed_rate: Callable[[], float]  # of the next batch of a stream that may be shed
    is_over: Callable[[], bool]  # whether streams end once all their records are read
    max_batch: Callable[[], int]  # records that the next batch may have
    counts: SiteCounts


class SimulatedSite:
    """Everything that runs at one site."""

    def __init__(self, deployment: Deployment, name: str, around: SiteSurroundings) -> None:
        self.name = name
        self.deployment = deployment
        self.around = around
        self.project = deployment.project
        self.folder = self.project.site_folder(name)
        orders = deployment.deployed.orders
        self.exits = Exits(self._open_exit)
        self.core = SiteCore()
        self.host: Host[Event, Action] = Host(self.core, Journal(self.folder / "journal"), self._enact, around.clock)
        is_there = partial(leads_somewhere, self.project, name)
        self.exits.recover(self.host, orders, lambda: self.core.fragments, deployment.sinks, is_there)
        self.plans = deployment.fragments_at(name)
        self.readers: dict[str, StreamReader] = {}
        streams = deployment.streams_at(name)
        for stream in sorted({f.stream for f in self.core.definitions} | {s.name for s in streams}):
            self._apply_deployment(stream, self._newest_read_us(stream))
        for declared in streams:
            self._start_reader(declared)
        self.exits.start()

    def _open_exit(self, name: str) -> Exit:
        part = self.deployment.part_at(sink_of(name)).project
        declared_end = Routes.declared(part).next_inbox(self.name)
        life = self.deployment.deployed.orders.lives.get(self.name, 0)
        return Exit.open(self.folder, part, self.name, name, declared_end, life, self.around.make_sender)

    @property
    def outbox(self) -> Outbox:
        """What it sends to the center."""
        return self.exits.center.outbox

    # --- what is deployed --------------------------------------------------------------------------------------------

    def deploy(self, deployment: Deployment) -> None:
        """Run what is deployed now from the next batch of each stream on."""
        self.deployment = deployment
        self.plans = deployment.fragments_at(self.name)
        streams = {s.name: s for s in deployment.streams_at(self.name)}
        for name in [n for n in self.readers if n not in streams]:
            del self.readers[name]
            self._apply_deployment(name, None)
        for name, stream in streams.items():
            if name not in self.readers:
                self._apply_deployment(name, self._newest_read_us(name))
                self._start_reader(stream)

    def _start_reader(self, stream: Stream) -> None:
        agreed = AgreedTime(self.project.defaults.resolve_jump_us(stream.max_jump_us))
        agreed.resume(self._newest_agreed_us(stream.name), self.core.newest_read_us(stream.name))
        log = self.around.logs[stream.name]
        reader = StreamReader(stream, log, agreed, self.plans, max(len(log.ends) - 1, 0))
        self.readers[stream.name] = reader

    def _refresh(self, reader: StreamReader) -> None:
        if reader.plans is not self.plans:
            self._apply_deployment(reader.stream.name, reader.agreed_time.newest_read_us())
            reader.plans = self.plans

    def _apply_deployment(self, stream: str, newest_us: int | None) -> None:
        batches = self.host.batches.get(stream, -1) + 1
        events = list(site_changes(self.core, stream, self.plans, newest_us, batches))
        if events:
            self.host.submit("deploy", events)

    def _newest_read_us(self, stream: str) -> int | None:
        known_us = self.core.newest_read_us(stream)
        return self._newest_agreed_us(stream) if known_us is None else known_us

    def _newest_agreed_us(self, stream: str) -> int | None:
        mark_us = self.core.low_mark_us(stream)
        declared = self.deployment.catalog.streams.get(stream)
        if declared is None or not START_OF_TIME_US < mark_us < END_OF_TIME_US:
            return None
        return mark_us + self._slack_us(declared)

    def _slack_us(self, stream: Stream) -> int:
        return self.project.defaults.slack_us if stream.slack_us is None else stream.slack_us

    # --- time passes -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Read what has arrived, repair what was shed, and let the policy send."""
        self.exits.raise_failure()
        for reader in list(self.readers.values()):
            self._refresh(reader)
            self._read(reader)
            self._finish(reader)
        self._read_past()
        measured = self.exits.measure()
        is_blocked = any(link.blocked for link in measured)
        self.around.counts.blocked_ticks += is_blocked or any(self.core.is_blocked(e.name) for e in self.exits)
        if self.core.pending_rows or is_blocked or self.core.is_waiting(self.around.clock.now_us()):
            self.host.submit("tick", [*measured, Ticked()])
        self.core.validate()
        self.exits.notify()

    def end(self) -> None:
        """End the process: what it holds is gone, what it wrote stays."""
        self.exits.stop()

    @property
    def needs_new_life(self) -> bool:
        """Whether it was ordered to be healed since it started."""
        return needs_new_life(self.outbox, self.deployment.deployed.orders)

    @property
    def is_finished(self) -> bool:
        """Whether everything was read, repaired, sent and acknowledged."""
        if not all(r.is_finished for r in self.readers.values()) or self._next_debt() is not None:
            return False
        if self.core.backfills:
            return False
        return not self.core.pending_rows and self.exits.are_empty

    def _read(self, reader: StreamReader) -> None:
        batch = self._next_batch(reader)
        if batch is None:
            return
        if self.host.is_committed(reader.stream.name, batch.number):
            self.around.counts.replayed_batches += 1
        elif self.core.full:
            return
        else:
            self._commit_batch(reader, batch)
        reader.next_batch = batch.number + 1

    def _next_batch(self, reader: StreamReader) -> Batch | None:
        log = reader.log
        number = reader.next_batch
        start = log.start_of(number)
        if number == len(log.ends):
            end = min(log.arrivals.arrived_by(self.around.now_us()), start + self.around.max_batch())
            if end == start:
                return None
            log.ends.append(end)
        return Batch(number, start, log.ends[number])

    def _finish(self, reader: StreamReader) -> None:
        """State the end of a stream that has been read to it; repair what was shed of it."""
        is_read = reader.log.start_of(reader.next_batch) == len(reader.log.arrivals)
        if self.around.is_over() and is_read and not reader.is_finished:
            reader.is_finished = True
            ended = LowMarkRaised(reader.stream.name, END_OF_TIME_US, ended=True)
            self.host.submit(reader.stream.name, [ended])
        if reader.stream.shed and (reader.is_finished or self.around.shed_rate() == 1.0):
            self._repair_next(reader)

    # --- a micro-batch -----------------------------------------------------------------------------------------------

    def _commit_batch(self, reader: StreamReader, batch: Batch) -> None:
        name = reader.stream.name
        taken = np.zeros(len(reader.log.arrivals), dtype=np.bool_)
        taken[batch.start : batch.end] = reader.log.arrivals.are_good[batch.start : batch.end]
        times, limits = self._check_times(reader, taken)
        stated = self._hear(reader, batch, taken)
        rate = self.around.shed_rate() if reader.stream.shed else 1.0
        events = self._reduce(reader, batch, taken, rate, times, limits)
        if times is not None:
            reader.agreed_time.follow(times, self.around.clock.now_us())
        read_us = reader.agreed_time.newest_read_us()
        if read_us is not None:
            newest_us = reader.agreed_time.newest_us
            mark_us = START_OF_TIME_US if newest_us is None else newest_us - self._slack_us(reader.stream)
            events.append(LowMarkRaised(name, mark_us, read_us=read_us))
        reader.log.accepted[batch.start : batch.end] = taken[batch.start : batch.end]
        reader.log.durable = max(reader.log.durable, batch.number + 1)
        self.host.submit(name, [*events, *stated, *self.exits.measure()], batch=batch.number)
        self._count(batch, int(taken.sum()), reader)

    def _hear(self, reader: StreamReader, batch: Batch, taken: Mask) -> list[ProgressStated]:
        """Return what the sources of a batch state, as the pass over files hears it."""
        heard = HeardSources.of(reader.stream)
        if heard is None:
            return []
        heard = heard.after(self.core.statements_of(reader.stream.name))
        inside = slice(batch.start, batch.end)
        records = RecordColumns.of(reader.log.arrivals.table[inside], reader.stream.schema)
        is_marker = heard.find_markers(records)
        good = records.filter(pa.array(taken[inside] & ~is_marker))
        table = heard.hear(good, records.filter(pa.array(is_marker)))
        limit_us = self.around.clock.now_us() + reader.agreed_time.jump_us
        return [ProgressStated(reader.stream.name, table, limit_us)]

    def _check_times(self, reader: StreamReader, taken: Mask) -> tuple[BatchTimes | None, PlausibleTimes | None]:
        """Judge the event times of a batch; records whose times are not plausible are taken out of `taken`."""
        arrivals = reader.log.arrivals
        found = arrivals.times_us[taken]
        if not found.size:
            return None, None
        agreed = reader.agreed_time
        now_us = self.around.clock.now_us()
        times = BatchTimes(found.size, int(found.min()), int(found.max()))
        is_far = needs_check(times.low_us, times.high_us, agreed.newest_us, now_us, far_us(agreed.jump_us))
        if not is_far and not agreed.needs_buckets(times, now_us):
            return times, None
        buckets = _count_times(found.tolist(), agreed.jump_us)
        limits = None
        if is_far:
            far = far_us(agreed.jump_us)
            limits = find_plausible_times(count_far(buckets, agreed.jump_us), agreed.newest_us, now_us, far)
            taken &= np.array([limits.holds(t) for t in arrivals.times_us.tolist()])
            buckets = {n: b for n, b in buckets.items() if limits.holds(b.newest_us)}
            found = arrivals.times_us[taken]
            if not found.size:
                return None, limits
        return BatchTimes(found.size, int(found.min()), int(found.max()), buckets), limits

    def _reduce(
        self,
        reader: StreamReader,
        batch: Batch,
        taken: Mask,
        rate: float,
        times: BatchTimes | None,
        limits: PlausibleTimes | None,
    ) -> list[Event]:
        events: list[Event] = []
        samples: list[FragmentSample] = []
        for plan in reader.own_plans:
            fragment = plan.fragment
            rows = self._rows(reader, fragment, batch, taken)
            sheds = rate < 1.0 and may_shed(plan)
            if sheds and times is not None:
                rows = rows.of_records(_passing(reader.stream.name, batch, taken.size, rate))
            table, records = rows.lift(rate if sheds else 1.0)
            events.append(Absorbed(fragment.name, table, records))
            events += self.around.evaluator.looked_up(reader.log.arrivals, fragment, _inside(batch, taken))
            if sheds and times is not None:
                lacking = _lacking(fragment.slicing, dict(records), rate, (times.low_us, times.high_us))
                samples.append(FragmentSample(fragment.name, Sampler(rate), lacking, plan.shed.repair != NEVER))
            for watch in plan.watches:
                observed = self.around.evaluator.observe(
                    reader.log.arrivals, watch.fragment, watch.slack, batch.start, batch.end, taken
                )
                events.append(Observed(fragment.name, watch.slack.query, observed))
        if samples:
            self.around.counts.shed_batches += 1
            accepted = None if limits is None else astuple(limits)
            events.append(BatchShed(reader.stream.name, batch.number, tuple(samples), limits=accepted))
        return events

    def _rows(self, reader: StreamReader, fragment: Fragment, batch: Batch, taken: Mask) -> FragmentRows:
        rows = self.around.evaluator.rows(reader.log.arrivals, fragment).between(batch.start, batch.end)
        return rows.of_records(taken)

    def _count(self, batch: Batch, accepted: int, reader: StreamReader) -> None:
        counts = self.around.counts
        counts.read += batch.end - batch.start
        counts.accepted += accepted
        counts.quarantined += batch.end - batch.start - accepted
        counts.held += reader.agreed_time.held_records
        reader.agreed_time.held_records = 0

    # --- the repair of what was shed ---------------------------------------------------------------------------------

    def _next_debt(self) -> tuple[StreamReader, ShedDebt] | None:
        for reader in self.readers.values():
            running = {p.fragment.name for p in reader.own_plans}
            for debt in self.core.debts.of(reader.stream.name):
                if debt.fragments & running:
                    return reader, debt
        return None

    def _repair_next(self, reader: StreamReader) -> None:
        found = self._next_debt()
        if found is None or found[0] is not reader:
            return
        debt = found[1]
        batch = Batch(debt.batch, reader.log.start_of(debt.batch), reader.log.ends[debt.batch])
        taken = reader.log.arrivals.are_good.copy()
        if debt.limits is not None:
            limits = PlausibleTimes(*debt.limits)
            taken &= np.array([limits.holds(t) for t in reader.log.arrivals.times_us.tolist()])
        plans = [p for p in reader.own_plans if p.fragment.name in debt.fragments]
        events: list[Event] = [self._repair(reader, p.fragment, debt, batch, taken) for p in plans]
        events.append(BatchRepaired(reader.stream.name, debt.batch, tuple(p.fragment.name for p in plans)))
        self.host.submit("repair", [*events, *self.exits.measure()])
        self.around.counts.repaired_batches += 1

    def _repair(self, reader: StreamReader, fragment: Fragment, debt: ShedDebt, batch: Batch, taken: Mask) -> Absorbed:
        rate = dict(debt.samplers)[fragment.name].rate
        rows = self._rows(reader, fragment, batch, taken)
        passing = _passing(reader.stream.name, batch, taken.size, rate)
        left, records = rows.of_records(~passing).lift()
        kept, _ = rows.of_records(passing).lift(rate)
        both = pa.concat_tables([left, negate_terms(kept, fragment.aggregates)])
        table = partials.combine(both, [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)
        return Absorbed(fragment.name, table, records)

    # --- the past of fragments that begin in it ----------------------------------------------------------------------

    def _read_past(self) -> None:
        """Let one fragment take in the next batches of its past."""
        for fragment in self.core.definitions:
            backfill = self.core.backfills.get(fragment.name)
            reader = self.readers.get(fragment.stream)
            if backfill is None or reader is None or any(link.blocked for link in self.exits.measure()):
                continue
            log = reader.log
            chunk = choose_chunk(backfill, partial(_past_batch, log), lambda number: None, PAST_ROWS, PAST_BATCHES)
            self.host.submit("backfill", self._reduce_past(log, fragment, chunk, backfill.past[0].from_us))
            self.around.counts.past_chunks += 1
            return

    def _reduce_past(self, log: SourceLog, fragment: Fragment, chunk: PastChunk, from_us: int) -> list[Event]:
        inside = np.zeros(len(log.arrivals), dtype=np.bool_)
        for number in chunk.batches:
            inside[log.start_of(number) : log.ends[number]] = True
        inside &= log.accepted
        table, records = self.around.evaluator.rows(log.arrivals, fragment).of_records(inside).lift()
        past = PastAbsorbed(fragment.name, chunk.first, chunk.end, *drop_before(table, records, from_us), chunk.lost)
        from_now_on = inside & (log.arrivals.times_us >= from_us)
        return [past, *self.around.evaluator.looked_up(log.arrivals, fragment, from_now_on)]

    # --- what leaves -------------------------------------------------------------------------------------------------

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        return self.exits.enact(self.host, number, actions)


def _inside(batch: Batch, taken: Mask) -> Mask:
    """Return which of all records are taken of a batch."""
    inside = np.zeros(taken.size, dtype=np.bool_)
    inside[batch.start : batch.end] = taken[batch.start : batch.end]
    return inside


def may_shed(plan: FragmentPlan) -> bool:
    """Return whether the queries of a fragment allow it to be sampled."""
    terms = terms_in(plan.fragment.aggregates)
    is_bounded = plan.shed.any_aggregate or all(t.bounded for t in terms)
    return bool(terms) and not plan.shed.never and is_bounded


def _passing(stream: str, batch: Batch, records: int, rate: float) -> Mask:
    """Return which of all records, by their numbers, pass at a rate; those of other batches do not."""
    within = np.arange(batch.end - batch.start)
    rule = history_rule(stream, batch.number)
    passing = np.zeros(records, dtype=np.bool_)
    passing[batch.start : batch.end] = rule.keep(
        [pa.array(np.full(within.size, batch.number), pa.int64()), pa.array(within)], rate
    )
    return passing


def _lacking(
    slicing: Slicing, sampled: dict[int, int], rate: float, span_us: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """Return the slices that a sample may lack records of: all that the batch spans, and one to either side."""
    low_us, high_us = span_us
    start = slicing.start_of(slicing.start_of(low_us) - 1)
    found: list[tuple[int, int]] = []
    while start <= high_us or len(found) < 2:
        found.append((start, round(sampled.get(start, 0) * (1 / rate - 1))))
        start = slicing.end_of(start)
    return (*found, (start, 0))


def _past_batch(log: SourceLog, number: int) -> PastBatch | None:
    start = log.start_of(number)
    times = log.arrivals.times_us[start : log.ends[number]][log.accepted[start : log.ends[number]]]
    return PastBatch(times.size, (int(times.min()), int(times.max()) + 1) if times.size else None)


def _count_times(times_us: Sequence[int], jump_us: int) -> Buckets:
    counted: dict[int, TimeBucket] = {}
    for time_us in times_us:
        known = counted.get(time_us // jump_us, TimeBucket(0, time_us))
        counted[time_us // jump_us] = TimeBucket(known.count + 1, max(known.newest_us, time_us))
    return counted
