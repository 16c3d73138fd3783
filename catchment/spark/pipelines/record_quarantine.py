"""Setting single records aside: a fragment whose view says `on_error = 'quarantine'` goes on without those it fails on.

Once such a fragment has failed, it is evaluated alone for as long as the process lives, in two steps: Spark evaluates
its expressions guarded, record by record, and keeps the records on which none fails; the partials are made of these.
The others are written to quarantine as they came. A replayed batch finds the same records, and writes them again in the
same place.

Bounds: `max_errors` records per window, and `MAX_PER_BATCH` per micro-batch. Beyond either the fragment is suspended,
and so it is where no single record is to blame, as when a sum overflows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.query.fragment import Fragment
from catchment.site.events import Event, Observed
from catchment.site.slack import watched_values
from catchment.site.suspension import RecordsQuarantined, find_window_beyond, shorten
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS
from catchment.spark.evaluation.failures import (
    FragmentFailure,
    expressions_of,
    fails_on,
    find_record,
    is_data_error,
    reason_of_data_error,
    without_elimination,
)
from catchment.spark.evaluation.observe import observe_sources
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.micro_batch import BatchReducer, StreamState
from catchment.spark.sources.history import BatchFolder
from catchment.spark.sources.records import bad_records
from catchment.spark.sources.streams import PROBLEM

MAX_PER_BATCH = 10_000  # records of one micro-batch that a fragment may fail on


@dataclass(frozen=True)
class RecordQuarantine:
    """Reduces single fragments on the records that they do not fail on."""

    reducer: BatchReducer
    errors_of: Callable[[str], Mapping[int, int]]  # records per slice that a fragment has set aside before

    def reduce(
        self, state: StreamState, plan: FragmentPlan, good: DataFrame, raw: DataFrame, number: int
    ) -> list[Event] | FragmentFailure:
        """Return what follows from a batch for one fragment, or why it is to be suspended after all.

        `good` are the good records of the batch, and `raw` the same with their raw text.
        """
        fragment = plan.fragment
        with without_elimination(raw.sparkSession), without_elimination(good.sparkSession):
            bad = raw.alias(fragment.stream).where(_fails(raw, fragment))
            counts = self._count(bad, fragment)
            problem = self._refuse(plan, counts)
            if problem is not None:
                return find_record(self.reducer.evaluator, raw, FragmentFailure(fragment, problem))
            if counts:
                self._write(state, fragment, bad, number)
            kept = good.alias(fragment.stream).where(~_fails(good, fragment)).persist()
            kept.count()
        try:
            events = self._absorb(state, plan, kept)
        except Exception as failure:  # what is no record's fault is raised
            if not is_data_error(failure):
                raise
            return FragmentFailure(fragment, reason_of_data_error(failure))
        finally:
            kept.unpersist()
        return [*events, RecordsQuarantined(fragment.name, number, tuple(sorted(counts.items())))]

    def _count(self, bad: DataFrame, fragment: Fragment) -> Counter[int]:
        """Return how many records fail, per slice; more than `MAX_PER_BATCH` are not counted to the end."""
        times = bad.select(F.unix_micros(F.col(f"`{fragment.event_time}`")).alias("at")).limit(MAX_PER_BATCH + 1)
        return Counter(fragment.slicing.start_of(row["at"]) for row in times.collect())

    def _refuse(self, plan: FragmentPlan, counts: Mapping[int, int]) -> str | None:
        """Return why so many records cannot be set aside."""
        assert plan.max_errors is not None
        if sum(counts.values()) > MAX_PER_BATCH:
            return f"an expression fails on more than {MAX_PER_BATCH} records of one micro-batch"
        known = self.errors_of(plan.fragment.name)
        if find_window_beyond(plan.fragment.windows, known, counts, plan.max_errors) is None:
            return None
        return f"an expression fails on more than max_errors = {plan.max_errors} records of a window"

    def _write(self, state: StreamState, fragment: Fragment, bad: DataFrame, number: int) -> None:
        problem = shorten(f"an expression of {fragment.name} fails on it")
        marked = bad.withColumn(PROBLEM, F.lit(problem))
        folder = self.reducer.folder / "quarantine" / state.stream.name / f"fragment={fragment.name}"
        BatchFolder(folder).write(bad_records(marked, self.reducer.site), number)

    def _absorb(self, state: StreamState, plan: FragmentPlan, kept: DataFrame) -> list[Event]:
        evaluator = self.reducer.evaluator
        name = plan.fragment.name
        (reduced,) = evaluator.reduce_all(kept, [Take(plan.fragment)], state.last_rows or UNKNOWN_ROWS)
        events = reduced.events(name)
        for watch in plan.watches:
            values = watched_values(watch.slack)
            table = observe_sources(evaluator, kept, watch.fragment, state.stream.source, values)
            events.append(Observed(name, watch.slack.query, table))
        return events


def _fails(records: DataFrame, fragment: Fragment) -> Column:
    """Return whether any expression of a fragment fails on a record."""
    return reduce(or_, (fails_on(records.sparkSession, sql) for sql in expressions_of(fragment)), F.lit(False))
