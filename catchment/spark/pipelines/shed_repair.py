"""The repair of what was shed: when the load allows, a shed batch is read whole, and the rest of it is sent.

Batches are repaired one at a time, in a thread of its own, so that neither the stream nor the ticks of the site wait. A
repair is one entry of the journal: the partials of what was left out, the terms of the sample with the other sign, and
the fact that nothing is owed any more. A crash before the entry leaves the debt, and the repair is made again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.aggregates import partials
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.reports.requests import forget_repairs, requested_repairs
from catchment.files.numbered_lines import FileGoneError
from catchment.log_fields import about
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.records.kafka_errors import DELETED
from catchment.shedding.debts import BatchGivenUp, BatchRepaired, ShedDebt, ShedDebts
from catchment.shedding.reader_filter import ROW, ReadRequest
from catchment.shedding.sampler import Selection, Side
from catchment.shedding.terms import negate_terms
from catchment.site.events import Event
from catchment.site.plausible import PlausibleTimes
from catchment.site.suspension import FragmentSuspended, RecordsQuarantined
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS, Evaluator
from catchment.spark.evaluation.failures import FragmentFailure, failure_of, find_record, is_data_error
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.micro_batch import BatchReducer, StreamState, count_times
from catchment.spark.pipelines.record_quarantine import RecordQuarantine
from catchment.spark.pipelines.shedding import WARM_UP_ROWS, sampling_rule, source_of
from catchment.spark.sources.records import is_bad, mark_implausible, observe_good_records, stats_of
from catchment.spark.streaming import reason_of

FIRST_PAUSE_S = 1.0  # before a repair that failed is tried again
LONGEST_PAUSE_S = 60.0
CHECK_S = 0.25  # how often the thread checks whether there is something to repair

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NextRepair:
    """A debt that is to be repaired, its stream, and the fragments that get the rest of its batch."""

    state: StreamState
    debt: ShedDebt
    fragments: tuple[Fragment, ...]


@dataclass
class ShedRepairs:
    """Repairs the shed batches of a site."""

    reducer: BatchReducer
    quarantine: RecordQuarantine
    debts: Callable[[], ShedDebts]
    states: Callable[[], Sequence[StreamState]]
    plans: Callable[[], Sequence[FragmentPlan]]
    suspended: Callable[[], Collection[str]]  # fragments that are not repaired until they are resumed
    submit: Callable[[list[Event]], None]  # journals a repair and sends what follows from it
    stopping: threading.Event

    @property
    def _folder(self) -> Path:
        return self.reducer.folder

    def next_repair(self) -> NextRepair | None:
        """Return the oldest batch that has something to repair."""
        requested = requested_repairs(self._folder)
        wanted = {p.fragment.name for p in self.plans() if p.shed.is_repaired(requested)} - {*self.suspended()}
        for state in self.states():
            if state.shedding is None:
                continue
            for debt in self.debts().of(state.stream.name):
                names = wanted & debt.fragments
                if names or not debt.is_in_history:
                    own = (plan.fragment for plan in state.own_plans)
                    return NextRepair(state, debt, tuple(f for f in own if f.name in names))
        return None

    def repair_next(self) -> bool:
        """Repair one batch, if the load allows; return whether there was one."""
        requested = requested_repairs(self._folder)  # before it is looked for: what is asked for since then stays
        found = self.next_repair()
        if found is None and requested:
            forget_repairs(self._folder, requested)  # every stream is up, and nothing that was asked for is owed
        if found is None or self.stopping.is_set():
            self._warm_up()
            return False
        state = found.state
        if not (state.is_finished or (state.shedding is not None and state.shedding.has_room())):
            return False
        try:
            rows = self._whole_batch(state, found.debt)
        except FileGoneError as gone:
            return self._give_up(found, gone.message)
        except PySparkException as failure:
            if DELETED not in str(failure):
                raise
            return self._give_up(found, reason_of(str(failure)))
        try:
            self.submit(self._repair(found, rows))
        finally:
            rows.unpersist()
        return True

    def _give_up(self, found: NextRepair, reason: str) -> bool:
        """Journal that the source no longer has the records of a batch: what lacks them is never called exact."""
        stream = found.state.stream.name
        of = about(site=self.reducer.site, stream=stream)
        _log.warning("what is owed of batch %d of %s is given up: %s", found.debt.batch, stream, reason, extra=of)
        self.submit([BatchGivenUp(stream, found.debt.batch)])
        return True

    def _repair(self, found: NextRepair, rows: DataFrame) -> list[Event]:
        """Return the events that repair a batch; where a fragment fails on it, that the fragment is suspended."""
        stream = found.state.stream.name

        def repair(*fragments: Fragment) -> list[Event]:
            return repair_events(stream, found.debt, rows, fragments, self.reducer.evaluator)

        try:
            return repair(*found.fragments)
        except Exception as failure:  # what is no fragment's fault is raised
            alone = [failure_of(f, partial(repair, f)) for f in found.fragments] if is_data_error(failure) else []
            failures = [f for f in alone if f is not None]
            if not failures:
                raise
            return [event for each in failures for event in self._isolate(found, rows, each)]

    def _isolate(self, found: NextRepair, rows: DataFrame, failure: FragmentFailure) -> list[Event]:
        """Return what follows for a fragment that fails on a batch: it sets the records aside, or is suspended."""
        stream = found.state.stream
        fragment = failure.fragment
        batch = found.debt.batch
        plan = next(plan for plan in found.state.own_plans if plan.fragment.name == fragment.name)

        def repair(kept: DataFrame) -> list[Event]:
            return repair_events(stream.name, found.debt, kept, [fragment], self.reducer.evaluator)

        if plan.max_errors is not None:
            aside = self.quarantine.set_aside(stream, plan, rows, rows, batch, repair)
            if not isinstance(aside, FragmentFailure):
                return [*aside[0], RecordsQuarantined(fragment.name, batch, aside[1])]
            failure = aside
        # No slice lacks more than before: what is owed of the batch stays owed.
        told = find_record(self.reducer.evaluator, rows, failure)
        from_us = found.state.newest_us or 0
        return [
            FragmentSuspended(stream.name, batch, fragment.name, from_us, told.reason, told.expression, told.record)
        ]

    def _warm_up(self) -> None:
        """Reduce one sample per stream and process, so that no burst waits for JIT compilation."""
        for state in self.states():
            if state.is_finished or self.stopping.is_set() or state.shedding is None:
                continue
            sample = state.shedding.warm_up_sample()
            if sample is None:
                continue
            try:
                _, good = observe_good_records(state.shedding.reread_rows(sample), state.stream.event_time)
                state.shedding.evaluate(good, state.fragments, sample, WARM_UP_ROWS)
            except Exception:  # noqa: BLE001 - nothing depends on it; what is wrong shows in a batch
                _log.warning("the samplers of %s were not warmed up", state.stream.name, exc_info=True)

    def _whole_batch(self, state: StreamState, debt: ShedDebt) -> DataFrame:
        """Return all good records of a batch with their numbers; they are in history when this returns."""
        stream = state.stream
        if debt.source_rows is None:
            return self.reducer.read_history(stream, debt.batch, numbered=True)
        limits = None if debt.limits is None else PlausibleTimes(*debt.limits)
        records = mark_implausible(_reread_whole(state, debt), stream.event_time, limits)
        observation, rows = observe_good_records(records, stream.event_time)
        rows.persist()
        rows.count()
        try:
            _check_files(state, debt)
        except BaseException:
            rows.unpersist()
            raise
        stats = stats_of(observation)
        found = (
            None
            if limits is not None
            else self.reducer.check_times(state, lambda: count_times(state, rows), stats).limits
        )
        if found is not None:  # event times that are not plausible are among what was left out
            records = mark_implausible(records, stream.event_time, found)
            rule = sampling_rule(stream.name, debt.batch, source_of(debt))
            was_sampled = F.expr(rule.keep_sql(debt.highest_rate))
            is_plausible = F.expr(found.sql(f"unix_micros(`{stream.event_time}`)"))
            rows = rows.where(is_plausible | was_sampled)
            stats = replace(stats, bad=records.where(is_bad()).count())
        self.reducer.write_history(stream, rows, debt.batch)
        state.quarantined += stats.bad
        if stats.bad:
            self.reducer.write_quarantine(stream, records.drop(ROW), debt.batch)
        return rows


def _check_files(state: StreamState, debt: ShedDebt) -> None:
    """Refuse files that were removed or written to while they were read again."""
    source = source_of(debt)
    if state.opened.files is not None and source is not None:
        state.opened.files.check(source)


def _reread_whole(state: StreamState, debt: ShedDebt) -> DataFrame:
    """Return all records of a batch whose history was deferred."""
    source = source_of(debt)
    assert state.opened.reread_rows is not None
    assert source is not None
    return state.opened.reread_rows(source, (ReadRequest(1.0),))


def repair_events(
    stream: str, debt: ShedDebt, rows: DataFrame, fragments: Sequence[Fragment], evaluator: Evaluator
) -> list[Event]:
    """Return the events that repair a batch; `rows` are all its good records, with their numbers."""
    samplers = dict(debt.samplers)
    takes = [Take(f, Selection(samplers[f.name], side)) for f in fragments for side in (Side.LEFT, Side.KEPT)]
    size = UNKNOWN_ROWS if debt.source_rows is None else debt.source_rows[1] - debt.source_rows[0]
    found = evaluator.reduce_all(rows, takes, size, sampling_rule(stream, debt.batch, source_of(debt)))
    events: list[Event] = []
    for fragment, left, kept in zip(fragments, found[::2], found[1::2], strict=True):
        both = pa.concat_tables([left.table, negate_terms(kept.table, fragment.aggregates)])
        table = partials.combine(both, [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)
        events += left._replace(table=table).events(fragment.name)
    events.append(BatchRepaired(stream, debt.batch, tuple(f.name for f in fragments)))
    return events


@dataclass
class RepairThread:
    """A thread that repeats `work`: at once while it returns True, else after a while; `failure` is what stopped it.

    What Spark or the file system fails with is tried again, after a pause that doubles up to `LONGEST_PAUSE_S`.
    """

    work: Callable[[], bool]
    name: str = "repairs"
    failure: BaseException | None = None
    retried: str | None = None  # what it has failed with and tries again
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the repair that is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def raise_failure(self) -> None:
        """Raise what stopped the thread, if anything did."""
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                is_busy = self.work()
                pause_s = FIRST_PAUSE_S
                self.retried = None
                if not is_busy:
                    self._stopping.wait(CHECK_S)
            except (PySparkException, Py4JError, OSError) as failure:
                self.retried = reason_of(str(failure))
                _log.warning("a repair failed and is tried again in %.0f s: %s", pause_s, self.retried)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except BaseException as failure:  # noqa: BLE001 - raised where the site ticks
                if not self._stopping.is_set():
                    self.failure = failure
                return
