"""A micro-batch on which an expression fails: the fragment it belongs to is suspended alone, the others go on.

The whole batch is reduced first, as if nothing could fail. Only when that raises a data error are the fragments
evaluated one by one, and the batch is then reduced again without those that failed. Whatever evaluates fragments, it
need not know of this: it raises, and is asked again for fewer. A batch is never half applied: its partials, what was
suspended and what was skipped are one entry of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.site.events import Event
from catchment.site.slack import watched_values
from catchment.site.suspension import BatchSkipped, FragmentSuspended
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS
from catchment.spark.evaluation.failures import FragmentFailure, failure_of, find_record, is_data_error
from catchment.spark.evaluation.observe import observe_sources
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.micro_batch import Records, ReducedBatch, StreamState
from catchment.spark.pipelines.record_quarantine import RecordQuarantine
from catchment.spark.pipelines.scanning import ScanningReducer
from catchment.spark.sources.records import BatchStats, good_records


@dataclass(frozen=True)
class IsolatingReducer:
    """Reduces micro-batches, and suspends the fragments that fail on them."""

    reducer: ScanningReducer
    suspended: Callable[[], Mapping[str, FragmentSuspended]]  # the fragments that the core has suspended
    quarantine: RecordQuarantine

    def reduce(self, state: StreamState, batch: Records, number: int) -> ReducedBatch:
        """Return what follows from a micro-batch, for the fragments that do not fail on it."""
        state.suspended = {n: event.expression for n, event in self.suspended().items()}
        self.quarantine.forget_attempt(state.stream.name, number)
        failures: list[FragmentFailure] = []
        far_records = state.far_records
        while True:
            try:
                reduced = self.reducer.reduce(state, batch, number)
                apart = self._reduce_guarded(state, batch, number, reduced.stats)
                if isinstance(apart, FragmentFailure):
                    failures.append(apart)
                    state.suspended[apart.fragment.name] = apart.expression
                    state.far_records = far_records
                    continue
                events = [*_suspensions(state, failures, reduced, number), *reduced.events, *apart]
                return replace(reduced, events=events)
            except Exception as failure:  # what is no fragment's fault is raised
                if not is_data_error(failure):
                    raise
                found = self.find_failures(state, self._good(state, batch, number))
                if not found and not state.count_all_skipped():
                    raise
            state.far_records = far_records
            for each in found:
                if self._sets_aside(state, each):
                    state.guarded.add(each.fragment.name)
                    continue
                failures.append(find_record(self.reducer.evaluator, good_records(batch(), with_raw=True), each))
                state.suspended[each.fragment.name] = failures[-1].expression

    def _sets_aside(self, state: StreamState, failure: FragmentFailure) -> bool:
        """Return whether the views of a fragment that fails ask for the records to be set aside."""
        plans = {plan.fragment.name: plan for plan in state.own_plans}
        return plans[failure.fragment.name].max_errors is not None

    def _reduce_guarded(
        self, state: StreamState, batch: Records, number: int, stats: BatchStats
    ) -> list[Event] | FragmentFailure:
        """Return what follows for the fragments that set records aside; or the first that is to be suspended."""
        events: list[Event] = []
        for plan in state.guarded_plans:
            good = _within(self._good(state, batch, number), state, stats)
            raw = _within(good_records(batch(), with_raw=True), state, stats)
            found = self.quarantine.reduce(state, plan, good, raw, number)
            if isinstance(found, FragmentFailure):
                return found
            events += found
        return events

    def find_failures(self, state: StreamState, good: DataFrame) -> list[FragmentFailure]:
        """Return the fragments of a stream that fail on these records, each evaluated alone."""
        found = (failure_of(p.fragment, partial(self._evaluate, state, p, good)) for p in state.active_plans)
        return [failure for failure in found if failure is not None]

    def _evaluate(self, state: StreamState, plan: FragmentPlan, good: DataFrame) -> None:
        evaluator = self.reducer.evaluator
        evaluator.reduce_all(good, [Take(plan.fragment)], state.last_rows or UNKNOWN_ROWS)
        for watch in plan.watches:
            observe_sources(evaluator, good, watch.fragment, state.stream.source, watched_values(watch.slack))

    def _good(self, state: StreamState, batch: Records, number: int) -> DataFrame:
        """Return the good records of a batch: from history, which has only plausible ones, if they are there."""
        written = self.reducer.written_history(state, number)
        return good_records(batch()) if written is None else written


def _within(records: DataFrame, state: StreamState, stats: BatchStats) -> DataFrame:
    """Return the records whose event times are plausible: those that the statistics of a batch are of."""
    if stats.low_us is None or stats.high_us is None:
        return records.where(F.lit(False))
    return records.where(F.unix_micros(F.col(f"`{state.stream.event_time}`")).between(stats.low_us, stats.high_us))


def _suspensions(
    state: StreamState, failures: list[FragmentFailure], reduced: ReducedBatch, number: int
) -> list[Event]:
    """Return that the fragments that failed are suspended, from the first slice of which they have skipped records."""
    skipped = {e.fragment: e.records for e in reduced.events if isinstance(e, BatchSkipped)}
    low_us = reduced.stats.low_us or state.newest_us or 0
    return [
        FragmentSuspended(
            state.stream.name,
            number,
            f.fragment.name,
            min((slice_us for slice_us, _ in skipped.get(f.fragment.name, ())), default=low_us),
            f.reason,
            f.expression,
            f.record,
        )
        for f in failures
    ]
