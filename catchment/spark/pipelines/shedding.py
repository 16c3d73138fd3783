"""Shedding at one stream of a site: what a micro-batch costs, how it is sampled, and what is then owed.

`LoadMonitor` decides; this is the Spark side. A stream whose records can be read again (a replayed log, a topic of
Kafka, lines of files) is sampled in the tasks that read it, and its history waits until the batch is repaired; any
other stream is written to history first and sampled from there, and so is one that slack controllers watch: they
observe every record, before sampling. The sampling rule is the same. What was decided is journalled with the partials
that follow from it: a batch that Spark
replays is decided again, a batch in the journal never again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame

from catchment.aggregates.partials import group_codes
from catchment.aggregates.shed_terms import terms_in
from catchment.arrays import Floats
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.files.watch import FilePiece
from catchment.query.fragment import Fragment
from catchment.query.sql.view_options import NEVER
from catchment.shedding.conditions import condition_of, read_requests
from catchment.shedding.cost_book import FILTER, HISTORY, PREPARE
from catchment.shedding.debts import BatchShed, EventTimeLimits, FragmentSample, LackingRecords, ShedDebt
from catchment.shedding.fragment_stats import SheddableFragment, ValueMoments
from catchment.shedding.monitor import Arrivals, Decision, LoadMonitor
from catchment.shedding.places import SamplingRule, history_rule, source_rule
from catchment.shedding.reader_filter import Condition
from catchment.shedding.sampler import TAKE_ALL, Selection
from catchment.shedding.sheddable import VisibleColumns, sheddable_fragment
from catchment.shedding.terms import record_moments
from catchment.site.events import Event
from catchment.spark.evaluation.evaluator import SIZE, Evaluator, RecordCounts, Reduced
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.sources.reread import BatchRows
from catchment.spark.sources.streams import OpenedStream
from catchment.timeline import Clock, Slicing
from catchment.wire.frames.limits import MAX_STRATA

IDLE_S = 3.0  # a stream without a micro-batch for this long has room for repairs
WARM_UP_ROWS = 100_000  # rows of a warm-up sample, before sampling
WARM_UP_RATE = 0.5
MAX_LACKING_SLICES = 2_000  # slices that one fact names; beyond the bound, the newest
MakeMonitor = Callable[[str, Sequence[SheddableFragment], float, bool], LoadMonitor]


@dataclass(frozen=True)
class BatchSample:
    """How one micro-batch is sampled: from its records in the source, or from history (`source` is None)."""

    decision: Decision
    batch: int
    source: BatchRows | None = None

    @property
    def is_deferred(self) -> bool:
        """Whether its history is written only when it is repaired."""
        return self.source is not None

    def rule(self, stream: str) -> SamplingRule:
        return sampling_rule(stream, self.batch, self.source)

    def selection(self, fragment: str) -> Selection:
        return Selection(self.decision.sampler(fragment))


def sampling_rule(stream: str, batch: int, source: BatchRows | None) -> SamplingRule:
    """Return the rule by which a batch is sampled: by row numbers of its source, or within the batch."""
    return history_rule(stream, batch) if source is None or source.place else source_rule(stream)


def source_of(debt: ShedDebt) -> BatchRows | None:
    """Return where the source has the records of a batch that is owed; None if they are in history only."""
    return None if debt.source_rows is None else BatchRows(debt.batch, *debt.source_rows, debt.source_place)


@dataclass
class BatchTimer:
    """The times of one stream's micro-batches, and the seconds that the parts of the current one took."""

    trigger_s: float
    lasted_s: float = 0.0  # duration of the last micro-batch
    interval_s: float | None = None  # seconds in which the current batch arrived; None for the first one
    spent_s: dict[str, float] = field(default_factory=dict)
    is_busy: bool = False
    _began: float | None = None
    _idle_since: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        now = time.monotonic()
        waited_s = None if self._began is None else now - self._began
        self.interval_s = None if waited_s is None else min(waited_s, max(self.trigger_s, self.lasted_s))
        self._began = now
        self.is_busy = True
        self.spent_s = {}

    def finish(self) -> None:
        self._idle_since = time.monotonic()
        self.is_busy = False
        if self._began is not None:
            self.lasted_s = self._idle_since - self._began

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do for a while."""
        return not self.is_busy and time.monotonic() - self._idle_since > IDLE_S


@dataclass
class StreamShedding:
    """The shedding of one stream. `repaired` says of each fragment whether what it loses will be repaired."""

    stream: str
    monitor: LoadMonitor
    opened: OpenedStream
    evaluator: Evaluator
    checkpoint: Path
    clock: Clock
    timer: BatchTimer
    repaired: Mapping[str, bool]
    conditions: Mapping[str, Condition | None]  # the part of each fragment's condition that the reader can evaluate
    is_paced: bool = True  # False: the stream is read as fast as possible, and no arrival rate is too high
    backlog_rows: int = 0
    shed_rows: int = 0
    shed_batches: int = 0
    _rows_end: int = field(default=0, init=False)  # end of the source rows of the newest batch
    _is_warm: bool = field(default=False, init=False)
    _defers: bool = field(default=False, init=False)  # whether history of the batch that is read may wait
    _numbering_s: float = field(default=0.0, init=False)  # that it took to find the records of this batch

    def has_room(self) -> bool:
        """Return whether repairs may run beside the stream: it is calm, or has had nothing to do for a while."""
        return self.monitor.has_room or self.timer.is_idle

    def follow(self, plans: Sequence[FragmentPlan], make_monitor: MakeMonitor) -> None:
        """Change to other fragments; what is known of those that stay is kept."""
        known = self.monitor
        self.conditions = _reader_conditions(self.opened, plans)
        self.monitor = _make_monitor(self.stream, plans, self.conditions, self.opened, make_monitor)
        self.monitor.adopt(known)
        self.repaired = _whether_repaired(plans)

    def status(self, owed_batches: int) -> dict[str, object]:
        """Return what is shed, how much and why."""
        monitor = self.monitor
        decision = monitor.last if monitor.shedding else None
        return {
            "shedding": monitor.shedding,
            "load": monitor.load,
            "rates": {} if decision is None else decision.rates,
            "expected_errors": {} if decision is None else _finite(decision.errors),
            "reason": "" if decision is None else decision.reason,
            "backlog_rows": self.backlog_rows,
            "micro_batch_s": self.timer.lasted_s,
            "shed_batches": self.shed_batches,
            "shed_rows": self.shed_rows,
            "owed_batches": owed_batches,
        }

    # --- deciding -----------------------------------------------------------------------------------------

    def begin_batch(self, number: int, pieces: Sequence[FilePiece] = (), may_defer: bool = True) -> BatchSample | None:
        """Begin a micro-batch; return how it is sampled, if its rows are known beforehand and it must be shed.

        `pieces` are those of files that it has. Where some fragment needs all records, history is not deferred.
        """
        self.timer.begin()
        began = time.monotonic()
        rows = self._find_rows(number, pieces) if self.monitor.deferrable and may_defer else None
        self._defers = rows is not None
        self._numbering_s = time.monotonic() - began
        if rows is None:
            return None
        if not rows.place:
            self._rows_end = rows.end
        decision = self._decide(rows.end - rows.start, rows.end)
        if decision is None:
            self.record_history_time(self._numbering_s)
            return None
        return BatchSample(decision, number, rows)

    def _find_rows(self, number: int, pieces: Sequence[FilePiece]) -> BatchRows | None:
        """Return which records of the source a batch has; of files that takes a pass over their lines."""
        if self.opened.files is not None:
            is_decided = self.is_paced and self.timer.interval_s is not None  # else nothing is shed
            return self.opened.files.number_rows(number, pieces) if is_decided else None
        return self.opened.batch_rows(self.checkpoint, number)

    def sample_history(self, number: int, rows: int) -> BatchSample | None:
        """Return how a batch of this many rows is sampled that is in history, if it must be shed."""
        if self._defers:
            return None
        decision = self._decide(rows, None)
        return BatchSample(decision, number) if decision is not None and decision.sheds else None

    def _decide(self, rows: int, end: int | None) -> Decision | None:
        arrived = self.opened.arrived_rows(self.clock.now_us())
        self.backlog_rows = 0 if arrived is None or end is None else max(arrived - end, 0)
        if self.timer.interval_s is None or not self.is_paced:
            return None
        decision = self.monitor.decide(Arrivals(rows, self.timer.interval_s, self.backlog_rows))
        return decision if decision.samplers else None

    def warm_up_sample(self) -> BatchSample | None:
        """Return one warm-up sample per process, so that JIT compilation does not hit the first real burst."""
        has_read = self._rows_end > 0 and self.timer.lasted_s > 0
        if self._is_warm or not has_read or not self.is_paced or not self.has_room():
            return None
        self._is_warm = True
        rows = BatchRows(0, max(self._rows_end - WARM_UP_ROWS, 0), self._rows_end)
        return BatchSample(self.monitor.dry_run(WARM_UP_RATE), 0, rows)

    # --- the parts of a micro-batch -------------------------------------------------------------------------

    def reread_rows(self, sample: BatchSample) -> DataFrame:
        """Return the records of a batch that some fragment takes, as far as the reader can tell."""
        assert self.opened.reread_rows is not None
        assert sample.source is not None
        wanted = [
            request
            for name, condition in self.conditions.items()
            for request in read_requests(condition, sample.decision.sampler(name))
        ]
        return self.opened.reread_rows(sample.source, wanted)

    def record_history_time(self, seconds: float) -> None:
        """Record how long reading, parsing, writing or observing the raw records took."""
        self.timer.spent_s[HISTORY] = self.timer.spent_s.get(HISTORY, 0.0) + seconds

    def reduce(
        self, good: DataFrame, fragments: Sequence[Fragment], sample: BatchSample | None, rows: int
    ) -> list[Reduced]:
        """Return the partials of every fragment as decided, of a batch of this many rows, and time its parts."""
        spent_s = self.timer.spent_s
        began = time.monotonic()
        filter_began_s = self.opened.filter_cpu_s()
        found = self.evaluate(good, fragments, sample, rows)
        spent_s |= {f.name: reduced.seconds for f, reduced in zip(fragments, found, strict=True)}
        shared_s = time.monotonic() - began - sum(reduced.seconds for reduced in found)
        if sample is not None and sample.is_deferred:
            filter_s = self.opened.filter_cpu_s() - filter_began_s
            spent_s[FILTER] = filter_s + self._numbering_s
            spent_s[PREPARE] = max(shared_s - filter_s, 0.0)
        else:
            spent_s[HISTORY] = spent_s.get(HISTORY, 0.0) + max(shared_s, 0.0)
        return found

    def evaluate(
        self, good: DataFrame, fragments: Sequence[Fragment], sample: BatchSample | None, rows: int
    ) -> list[Reduced]:
        """Return the partials of every fragment as decided, of a batch of this many rows."""
        if sample is None:
            with_moments = self.monitor.wants_moments(rows)
            return self.evaluator.reduce_all(good, [Take(f, with_moments=with_moments) for f in fragments], rows)
        takes = [Take(f, sample.selection(f.name)) for f in fragments]
        share = self.monitor.read_share(sample.decision) if sample.is_deferred else 1.0
        return self.evaluator.reduce_all(
            good, takes, round(rows * share), sample.rule(self.stream), hold=sample.is_deferred
        )

    def learn(self, fragments: Sequence[Fragment], found: Sequence[Reduced], rows: int, span_s: float) -> None:
        """Learn from what a batch of this many rows, over a span of event time, was reduced to."""
        for fragment, reduced in zip(fragments, found, strict=True):
            self.learn_fragment(fragment, reduced, rows, span_s)

    def learn_fragment(self, fragment: Fragment, reduced: Reduced, rows: int, span_s: float) -> None:
        """Learn sizes, groups and moments of one fragment."""
        stats = self.monitor.stats[fragment.name]
        codes, keys = group_codes(reduced.sizes, fragment.key_names)
        groups = np.bincount(codes, weights=np.asarray(reduced.sizes[SIZE])).astype(np.float64)
        if len(fragment.keys) == 1 and len(groups) <= MAX_STRATA:
            named = zip(keys[fragment.key_names[0]].to_pylist(), groups.tolist(), strict=True)
            stats.learn_groups({value: size for value, size in named if value is not None})
        self.monitor.learn_sizes(fragment.name, rows, groups, span_s)
        stats.learn_spared(rows, reduced.spared)
        for terms in terms_in(fragment.aggregates) if reduced.moments.num_columns else ():
            if terms.totals is not None:
                stats.learn_moments(terms.name, moments_of(reduced, record_moments(reduced.moments, terms)))
            elif terms.moments is not None and len(terms.moments.states) > 1:
                columns = [reduced.moments[s.name] for s in terms.moments.states]
                stats.learn_moments(
                    terms.name, moments_of(reduced, [np.asarray(column, dtype=np.float64) for column in columns])
                )

    def events(
        self,
        fragments: Sequence[Fragment],
        found: Sequence[Reduced],
        sample: BatchSample | None,
        span_us: tuple[int, int],
        limits: EventTimeLimits | None,
    ) -> Iterator[Event]:
        """Yield what the core hears of a batch: its partials, and what is owed of it.

        `span_us` are the least and the greatest event time that were read.
        """
        samples: list[FragmentSample] = []
        for fragment, reduced in zip(fragments, found, strict=True):
            yield from reduced.events(fragment.name)
            sampler = TAKE_ALL if sample is None else sample.decision.sampler(fragment.name)
            if sampler.sheds:
                lacking = lacking_records(fragment.slicing, reduced.records, sampler.rate, span_us)
                is_repaired = self.repaired.get(fragment.name, True)
                samples.append(FragmentSample(fragment.name, sampler, lacking, is_repaired))
        if sample is not None and (samples or sample.is_deferred):
            rows, place = (None, "") if sample.source is None else (sample.source.rows, sample.source.place)
            yield BatchShed(self.stream, sample.batch, tuple(samples), rows, limits, place)

    def finish_batch(self, rows: int, rows_read: int, sample: BatchSample | None) -> None:
        """Finish a batch, `rows_read` of whose rows were read, and learn from what its parts took."""
        self.timer.finish()
        spent_s = self.timer.spent_s
        if sample is None:
            self.monitor.learn_whole(rows, spent_s)
            return
        if sample.is_deferred:
            self.monitor.learn_sampled(rows, sample.decision.rates, spent_s, rows_read)
        else:
            self.monitor.learn_whole(rows, {HISTORY: spent_s.pop(HISTORY)})
            self.monitor.learn_sampled(rows, sample.decision.rates, spent_s)
        if sample.decision.sheds:
            self.shed_batches += 1
            self.shed_rows += rows


def stream_shedding(
    stream: str,
    plans: Sequence[FragmentPlan],
    opened: OpenedStream,
    evaluator: Evaluator,
    checkpoint: Path,
    clock: Clock,
    trigger_s: float,
    is_paced: bool,
    make_monitor: MakeMonitor = LoadMonitor,
) -> StreamShedding:
    """Return the shedding of one stream with these fragments."""
    conditions = _reader_conditions(opened, plans)
    monitor = _make_monitor(stream, plans, conditions, opened, make_monitor)
    timer = BatchTimer(trigger_s)
    return StreamShedding(
        stream, monitor, opened, evaluator, checkpoint, clock, timer, _whether_repaired(plans), conditions, is_paced
    )


def _reader_conditions(opened: OpenedStream, plans: Sequence[FragmentPlan]) -> dict[str, Condition | None]:
    """Return the part of each fragment's condition that the reader can evaluate."""
    columns = opened.columns
    return {p.fragment.name: None if columns is None else condition_of(p.fragment, columns) for p in plans}


def _make_monitor(
    stream: str,
    plans: Sequence[FragmentPlan],
    conditions: Mapping[str, Condition | None],
    opened: OpenedStream,
    make_monitor: MakeMonitor,
) -> LoadMonitor:
    is_watched = any(plan.watches for plan in plans)
    visible = VisibleColumns(opened.columns, are_reread=opened.reread_rows is not None and not is_watched)
    filterable = {name for name, condition in conditions.items() if visible.are_reread and condition is not None}
    fragments = [
        sheddable_fragment(p.fragment, p.shed, visible, filterable=p.fragment.name in filterable) for p in plans
    ]
    delta = min((1.0 - plan.shed.confidence for plan in plans), default=0.05)
    return make_monitor(stream, fragments, delta, visible.are_reread)


def _whether_repaired(plans: Sequence[FragmentPlan]) -> dict[str, bool]:
    return {plan.fragment.name: plan.shed.repair != NEVER for plan in plans}


def _finite(errors: Mapping[str, float]) -> dict[str, float]:
    return {name: error for name, error in errors.items() if error < float("inf")}


def lacking_records(slicing: Slicing, records: RecordCounts, rate: float, span_us: tuple[int, int]) -> LackingRecords:
    """Return the slices that a batch may lack records of.

    These are all that its sample spans, and one to either side, because the outermost records are likely to be lost.
    """
    low_us, high_us = span_us
    sampled = dict(records)
    start = slicing.start_of(slicing.start_of(low_us) - 1)
    found: list[tuple[int, int]] = []
    while start <= high_us or len(found) < 2:
        found.append((start, round(sampled.get(start, 0) * (1 / rate - 1))))
        start = slicing.end_of(start)
    found.append((start, 0))
    return tuple(found[-MAX_LACKING_SLICES:])


def moments_of(reduced: Reduced, states: Sequence[Floats]) -> ValueMoments:
    """Return the moments of the values that may be left out, and the mean of all; `states` are those of a variance."""
    weights = np.asarray(reduced.sizes[SIZE], np.float64)
    _, mean_of_all, _ = _weighted_moments(states, weights)
    rest = slice(None, reduced.spared_from)
    count, mean, square = _weighted_moments([column[rest] for column in states], weights[rest])
    return ValueMoments(count, mean, square, mean_of_all, reduced.spared_from is not None)


def _weighted_moments(states: Sequence[Floats], weights: Floats) -> tuple[float, float, float]:
    """Return number, mean and mean square over rows, each of which stands for this many records."""
    n, mean, m2 = map(np.nan_to_num, states)
    weights = np.where(n > 0, weights, 0.0)
    total = float(weights.sum())
    if not total:
        return 0.0, 0.0, 0.0
    square = m2 / np.maximum(n, 1.0) + mean**2
    return total, float((weights * mean).sum() / total), float((weights * square).sum() / total)
