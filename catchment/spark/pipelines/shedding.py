"""Shedding at one stream of a site: what a micro-batch costs, how it is sampled, and what is then owed.

The decision is `LoadMonitor`'s; here is the Spark side of it. A stream whose records can be read again (a replayed
log) is sampled in the tasks that read it, and its history waits until the batch is repaired; any other is written to
history first and sampled from there. The rule is the same, by a hash of the record's place, and what was decided is
journalled with the partials that follow from it: a batch that is replayed is decided anew, a batch that is in the
journal never again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from catchment.aggregates.base import StateColumn
from catchment.aggregates.partials import group_codes
from catchment.aggregates.shed_terms import terms_in
from catchment.deploy.fragment_plan import ShedChoice
from catchment.query.fragment import Fragment
from catchment.query.sql.view_options import NEVER
from catchment.shedding.conditions import column_of, condition_of
from catchment.shedding.debts import BatchShed, Debt, Lacking, Taken
from catchment.shedding.fragment_stats import Moments, Sheddable
from catchment.shedding.monitor import KEEP, PREPARE, SIFT, Arrivals, Decision, LoadMonitor
from catchment.shedding.places import SamplingRule
from catchment.shedding.reader_filter import Test, Wanted, both, large
from catchment.site.events import Absorbed, Event
from catchment.spark.evaluation.evaluator import SIZE, Evaluator, Records, Reduced
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.sources.reread import ROW
from catchment.spark.sources.streams import OpenedStream
from catchment.spark.streaming import rows_of_batch
from catchment.timeline import Clock, Slicing
from catchment.wire.limits import MAX_STRATA

IDLE_S = 3.0  # without a micro-batch
WARM_ROWS, WARM_RATE = 100_000, 0.5  # of a sample that is taken for nothing
MakeMonitor = Callable[[str, Sequence[Sheddable], float, bool], LoadMonitor]
_NUMBERS = (pa.types.is_integer, pa.types.is_floating)  # columns whose values can be large
_NAMED = (pa.types.is_integer, pa.types.is_string)  # columns whose values name groups
MAX_LACKING = 2_000  # slices that one fact names; beyond it, the newest


@dataclass(frozen=True)
class Sample:
    """How one micro-batch is taken: at which rates, and its rows [start, end) where they are read again later. Else it
    is taken from history, where its files are told apart by their sizes or by their numbers."""

    decision: Decision
    start: int | None = None
    end: int | None = None
    by_size: bool = False

    @property
    def deferred(self) -> bool:
        return self.start is not None


@dataclass
class StreamShedding:
    """One stream. `owes` says of each fragment whether what it loses will be repaired."""

    stream: str
    monitor: LoadMonitor
    opened: OpenedStream
    evaluator: Evaluator
    checkpoint: Path
    clock: Clock
    trigger_s: float
    owes: Mapping[str, bool]
    tests: Mapping[str, Test | None]  # what the reader can tell of each fragment's condition
    paced: bool = True  # False: the stream is read as fast as can be, and nothing is too fast
    backlog_rows: int = 0
    shed_rows: int = 0
    shed_batches: int = 0
    _idle_since: float = field(default_factory=time.monotonic, init=False)
    _busy: bool = field(default=False, init=False)  # a micro-batch is under way
    _began: float | None = field(default=None, init=False)
    lasted_s: float = field(default=0.0, init=False)
    _interval_s: float | None = field(default=None, init=False)
    _spent: dict[str, float] = field(default_factory=dict, init=False)
    _end: int = field(default=0, init=False)  # of the rows that batches were of
    _warm: bool = field(default=False, init=False)

    @property
    def rule(self) -> SamplingRule:
        return SamplingRule(self.stream, (ROW,))

    def has_room(self) -> bool:
        """Whether repairs may run beside the stream: it is calm, or has had nothing to do for a while."""
        return self.monitor.has_room or (not self._busy and time.monotonic() - self._idle_since > IDLE_S)

    def follow(self, plans: Sequence[Planned], make_monitor: MakeMonitor) -> None:
        """Other fragments run from now on; what is known of those that stay is kept."""
        known, self.tests = self.monitor, _tests(self.opened, plans)
        sheddable = [_sheddable(p, self.tests, self.opened) for p in plans]
        self.monitor = make_monitor(self.stream, sheddable, _delta(plans), known.deferrable)
        self.monitor.adopt(known)
        self.owes = {p.fragment.name: p.shed.repair != NEVER for p in plans}

    def status(self, owed: int) -> dict[str, object]:
        """What is shed, how much and why; `owed` batches are still to be made good."""
        last = self.monitor.last
        sheds = self.monitor.shedding and last is not None
        return {
            "shedding": self.monitor.shedding,
            "load": self.monitor.load,
            "rates": dict(last.rates) if sheds and last is not None else {},
            "expected_errors": {q: e for q, e in last.errors.items() if e < float("inf")} if sheds and last else {},
            "reason": last.reason if sheds and last is not None else "",
            "backlog_rows": self.backlog_rows,
            "micro_batch_s": self.lasted_s,
            "shed_batches": self.shed_batches,
            "shed_rows": self.shed_rows,
            "owed_batches": owed,
        }

    # --- a micro-batch ------------------------------------------------------------------------------------

    def begin(self, number: int) -> Sample | None:
        """A micro-batch begins: how it is taken, if its rows are known beforehand and it must be shed."""
        now = time.monotonic()
        waited = None if self._began is None else now - self._began
        self._interval_s = None if waited is None else min(waited, max(self.trigger_s, self.lasted_s))
        self._began, self._busy, self._spent = now, True, {}
        rows = rows_of_batch(self.checkpoint, number) if self.monitor.deferrable else None
        if rows is None:
            return None
        self._end = rows[1]
        decision = self._decide(rows[1] - rows[0], rows[1])
        return Sample(decision, *rows) if decision is not None else None

    def after_history(self, rows: int) -> Sample | None:
        """The batch is in history, and so many rows it has: how its fragments take it."""
        if self.monitor.deferrable:
            return None
        decision = self._decide(rows, None)
        return Sample(decision) if decision is not None and decision.sheds else None

    def _decide(self, rows: int, end: int | None) -> Decision | None:
        arrived = self.opened.arrived(self.clock.now_us())
        self.backlog_rows = 0 if arrived is None or end is None else max(arrived - end, 0)
        if self._interval_s is None or not self.paced:
            return None
        decision = self.monitor.decide(Arrivals(rows, self._interval_s, self.backlog_rows))
        return decision if decision.rates else None

    def ended(self, rows: int, read: int, sample: Sample | None) -> None:
        """The batch is done, and `read` of its rows were read: learn from what its parts took."""
        self._idle_since, self._busy = time.monotonic(), False
        if self._began is not None:
            self.lasted_s = self._idle_since - self._began
        if sample is not None and sample.deferred:
            self.monitor.learn_sampled(rows, sample.decision.rates, self._spent, read)
        elif sample is not None:
            self.monitor.learn_whole(rows, {KEEP: self._spent.pop(KEEP)})
            self.monitor.learn_sampled(rows, sample.decision.rates, self._spent)
        else:
            self.monitor.learn_whole(rows, self._spent)
        if sample is not None and sample.decision.sheds:
            self.shed_batches += 1
            self.shed_rows += rows

    def again(self, sample: Sample) -> DataFrame:
        """The records of a batch that some fragment takes, as far as the reader can tell."""
        assert self.opened.again is not None
        assert sample.start is not None
        assert sample.end is not None
        wanted = [one for name, test in self.tests.items() for one in wanted_by(name, test, sample.decision)]
        return self.opened.again(sample.start, sample.end, wanted)

    def warming(self) -> Sample | None:
        """Once, when a micro-batch was done and there is room: a sample to take for nothing, as a burst would be taken.
        The first of a process pays for what Spark and Java compile, which should not be while everybody waits."""
        if self._warm or not self._end or not self.paced or not self.lasted_s or not self.has_room():
            return None
        self._warm = True
        return Sample(self.monitor.rehearse(WARM_RATE), max(self._end - WARM_ROWS, 0), self._end)

    # --- its parts ----------------------------------------------------------------------------------------

    def kept(self, seconds: float) -> None:
        """Reading, parsing and keeping the raw records took so long."""
        self._spent[KEEP] = seconds

    def reduce(
        self, good: DataFrame, fragments: Sequence[Fragment], sample: Sample | None, rows: int
    ) -> list[tuple[Fragment, float, Reduced]]:
        """The partials of every fragment at the rate that was decided, of a batch of so many rows; notes what its parts
        took."""
        began, sifted_s = time.monotonic(), self.opened.sifting_s()
        found = self.partials(good, fragments, sample, rows)
        self._spent |= {f.name: reduced.seconds for f, reduced in zip(fragments, found, strict=True)}
        shared = time.monotonic() - began - sum(reduced.seconds for reduced in found)
        if sample is not None and sample.deferred:
            self._spent[SIFT] = self.opened.sifting_s() - sifted_s
            self._spent[PREPARE] = max(shared - self._spent[SIFT], 0.0)
        else:
            self._spent[KEEP] = self._spent.get(KEEP, 0.0) + max(shared, 0.0)
        rates = [sample.decision.rates.get(f.name, 1.0) if sample is not None else 1.0 for f in fragments]
        return list(zip(fragments, rates, found, strict=True))

    def partials(
        self, good: DataFrame, fragments: Sequence[Fragment], sample: Sample | None, rows: int
    ) -> list[Reduced]:
        """What each fragment takes of a batch of so many rows."""
        taken = Decision({}, 0.0, {}, "") if sample is None else sample.decision
        looks = sample is None and self.monitor.wants_moments(rows)
        takes = [
            Take(f, taken.rates.get(f.name, 1.0), spare=taken.spares.get(f.name, ()), groups=taken.groups.get(f.name),
                 looks=looks)
            for f in fragments
        ]  # fmt: skip
        deferred = sample is not None and sample.deferred
        share = self.monitor.read_share(taken) if deferred else 1.0
        return self.evaluator.reduce_all(good, takes, round(rows * share), self.rule, deferred)

    def absorb(
        self, found: Sequence[tuple[Fragment, float, Reduced]], sample: Sample | None, rows: int, span: tuple[int, int]
    ) -> tuple[list[Event], tuple[Taken, ...]]:
        """What the core hears of the partials, and what is owed of them. `span` are the least and the greatest event
        time that were seen."""
        events: list[Event] = []
        taken: list[Taken] = []
        for fragment, rate, reduced in found:
            self._learn(fragment, reduced, rows, (span[1] - span[0]) / 1e6)
            events.append(Absorbed(fragment.name, reduced.table, reduced.records))
            if rate < 1.0:
                lacking = lacking_of(fragment.slicing, reduced.records, rate, span)
                taken.append(self._taken(fragment.name, rate, lacking, sample))
        return events, tuple(taken)

    def _taken(self, name: str, rate: float, lacking: Lacking, sample: Sample | None) -> Taken:
        assert sample is not None, "what is taken whole has no rate"
        spare, groups = sample.decision.spares.get(name, ()), sample.decision.groups.get(name)
        return Taken(name, rate if groups is None else groups.lowest, lacking, self.owes.get(name, True), spare, groups)

    def _learn(self, fragment: Fragment, reduced: Reduced, rows: int, span_s: float) -> None:
        codes, keys = group_codes(reduced.sizes, fragment.key_names)
        groups = np.bincount(codes, weights=np.asarray(reduced.sizes[SIZE])).astype(np.float64)
        if len(fragment.keys) == 1 and len(groups) <= MAX_STRATA:
            named = zip(keys[fragment.key_names[0]].to_pylist(), groups.tolist(), strict=True)
            self.monitor.learn_groups(fragment.name, {value: size for value, size in named if value is not None})
        self.monitor.learn_shape(fragment.name, rows, groups, span_s)
        self.monitor.learn_spared(fragment.name, rows, reduced.spared)
        for terms in terms_in(fragment.aggregates) if reduced.moments.num_columns else ():
            if terms.moments is not None and len(terms.moments.states) > 1:
                self.monitor.learn_moments(fragment.name, terms.name, moments_of(reduced, terms.moments.states))


class Planned(Protocol):
    """A fragment that is to run, with what its queries allow."""

    @property
    def fragment(self) -> Fragment: ...
    @property
    def shed(self) -> ShedChoice: ...


def stream_shedding(
    stream: str, plans: Sequence[Planned], opened: OpenedStream, evaluator: Evaluator, checkpoint: Path, clock: Clock,
    trigger_s: float, paced: bool, make_monitor: MakeMonitor = LoadMonitor,
) -> StreamShedding:  # fmt: skip
    """The shedding of one stream with these fragments."""
    tests = _tests(opened, plans)
    sheddable = [_sheddable(p, tests, opened) for p in plans]
    monitor = make_monitor(stream, sheddable, _delta(plans), opened.again is not None)
    owes = {p.fragment.name: p.shed.repair != NEVER for p in plans}
    return StreamShedding(stream, monitor, opened, evaluator, checkpoint, clock, trigger_s, owes, tests, paced)


def _tests(opened: OpenedStream, plans: Sequence[Planned]) -> dict[str, Test | None]:
    columns = opened.columns
    return {p.fragment.name: None if columns is None else condition_of(p.fragment, columns) for p in plans}


def _delta(plans: Sequence[Planned]) -> float:
    return min((1.0 - p.shed.confidence for p in plans), default=0.05)


def _sheddable(plan: Planned, tests: Mapping[str, Test | None], opened: OpenedStream) -> Sheddable:
    terms, choice = terms_in(plan.fragment.aggregates), plan.shed
    fixed = not terms or choice.never or not (choice.any_aggregate or all(t.bounded for t in terms))
    window_s = min(w.size_us for w in plan.fragment.windows) / 1e6
    aggregates = tuple((t.name, t.of if t.bounded else "count") for t in terms)
    picked = tests[plan.fragment.name] is not None
    spareable = tuple(
        (t.name, t.argument or "") for t in terms if t.of in ("sum", "avg") and is_seen(t.argument, opened, _NUMBERS)
    )
    return Sheddable(plan.fragment.name, aggregates, window_s, choice.max_error, choice.weight, fixed, picked,
                     spareable, _group_key(plan.fragment, opened))  # fmt: skip


def _group_key(fragment: Fragment, opened: OpenedStream) -> str | None:
    if len(fragment.keys) != 1 or not any(is_type(fragment.keys[0].type) for is_type in _NAMED):
        return None
    return fragment.keys[0].sql if is_seen(fragment.keys[0].sql, opened, _NAMED) else None


def wanted_by(name: str, test: Test | None, decision: Decision) -> list[Wanted]:
    """What a fragment wants of a batch, as its reader is told."""
    groups, rate = decision.groups.get(name), decision.rates.get(name, 1.0)
    if groups is None:
        wanted = [Wanted(rate, test)]
    else:
        key = column_of(groups.key) or ""
        steps = {r: [v for v, own in groups.rates if own == r] for r in sorted({r for _, r in groups.rates})}
        wanted = [Wanted(r, both(test, ["in", key, values])) for r, values in steps.items()]
        wanted += [Wanted(1.0, both(test, ["not", ["in", key, groups.values]]))]
    spare = decision.spares.get(name, ())
    return [*wanted, *(Wanted(1.0, both(test, large(column_of(sql) or "", limit))) for sql, limit in spare)]


def is_seen(sql: str | None, opened: OpenedStream, types: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    """Whether whoever samples sees the value of an expression: a column of these types, where the reader has columns;
    any column where history is written first, and sampled from there."""
    name = None if sql is None else column_of(sql)
    if name is None or opened.again is None:
        return name is not None
    if opened.columns is None or name not in opened.columns.names:
        return False
    return any(is_type(opened.columns.field(name).type) for is_type in types)


def again_whole(opened: OpenedStream, debt: Debt) -> DataFrame:
    """All records of a batch whose history was put off."""
    assert opened.again is not None
    assert debt.start is not None
    assert debt.end is not None
    return opened.again(debt.start, debt.end, (Wanted(1.0),))


def shed_event(
    stream: str, number: int, taken: tuple[Taken, ...], sample: Sample | None, limits: tuple[int, int, int, int] | None
) -> Iterator[Event]:
    """The debt that a sampled batch leaves, if it leaves one."""
    if sample is not None and (taken or sample.deferred):
        yield BatchShed(stream, number, taken, sample.start, sample.end, limits, sample.by_size)


def lacking_of(slicing: Slicing, records: Records, rate: float, span: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """The slices that a batch may have lost records of: all that its sample spans, and one to either side, for the
    outermost records are likely to be lost."""
    kept = dict(records)
    start = slicing.start_of(slicing.start_of(span[0]) - 1)
    found: list[tuple[int, int]] = []
    while start <= span[1] or len(found) < 2:
        found.append((start, round(kept.get(start, 0) * (1 / rate - 1))))
        start = slicing.end_of(start)
    found.append((start, 0))
    return tuple(found[-MAX_LACKING:])


def moments_of(reduced: Reduced, states: Sequence[StateColumn]) -> Moments:
    """Of all records, and of those that may be left out; `states` are those of a variance."""
    weights, columns = np.asarray(reduced.sizes[SIZE], np.float64), reduced.moments.select([s.name for s in states])
    _, mean_of_all, _ = _moments(columns, weights)
    rest = _moments(columns[: reduced.spared_from], weights[: reduced.spared_from])
    return Moments(*rest, mean_of_all, reduced.spared_from is not None)


def _moments(states: pa.Table, weights: NDArray[np.float64]) -> tuple[float, float, float]:
    """Number, mean and mean square over rows that stand for so many records each."""
    n, mean, m2 = (np.nan_to_num(np.asarray(column, dtype=np.float64)) for column in states.columns)
    stands = np.where(n > 0, weights, 0.0)
    if not (total := float(stands.sum())):
        return 0.0, 0.0, 0.0
    square = m2 / np.maximum(n, 1.0) + mean**2
    return total, float((stands * mean).sum() / total), float((stands * square).sum() / total)
