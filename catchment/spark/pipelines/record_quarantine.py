"""Setting single records aside: a fragment whose view says `on_error = 'quarantine'` goes on without those it fails on.

Once such a fragment has failed, it is evaluated alone for as long as the process lives, in two steps: Spark evaluates
its expressions guarded, record by record, and keeps the records on which none fails; the partials are made of these.
The others are written to quarantine as they came. A record that becomes several rows, by a look-up or by `explode`, is
set aside as a whole. A replayed batch finds the same records, and writes them again in the same place. Records of the
past and those that were shed are set aside in the same way, when they are read.

On a stream that may be shed such a fragment is not sampled: it takes every batch whole.

Bounds: `max_errors` records per window, and `MAX_PER_BATCH` per micro-batch. Beyond either the fragment is suspended,
and so it is where no single record is to blame, as when a sum overflows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.query.fragment import Fragment
from catchment.query.sql.statements import Stream
from catchment.site.events import Event, Observed
from catchment.site.retry import SET_ASIDE_BY, name_folder, read_folder_name
from catchment.site.slack import watched_values
from catchment.site.suspension import RecordsQuarantined, find_window_beyond, shorten
from catchment.spark.evaluation.evaluator import UNKNOWN_ROWS
from catchment.spark.evaluation.failures import (
    FragmentFailure,
    find_record,
    is_data_error,
    reason_of_data_error,
    split_failing,
)
from catchment.spark.evaluation.observe import observe_sources
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.micro_batch import BatchReducer, StreamState
from catchment.spark.sources.history import BatchFolder
from catchment.spark.sources.records import bad_records
from catchment.spark.sources.streams import PROBLEM, RAW

MAX_PER_BATCH = 10_000  # records of one micro-batch that a fragment may fail on

SliceCounts = tuple[tuple[int, int], ...]  # (slice, how many records)
Result = TypeVar("Result")


@dataclass(frozen=True)
class RecordQuarantine:
    """Evaluates single fragments on the records that they do not fail on, and keeps the others."""

    reducer: BatchReducer
    errors_of: Callable[[str], Mapping[int, int]]  # records per slice that a fragment has set aside before

    def reduce(
        self, state: StreamState, plan: FragmentPlan, good: DataFrame, raw: DataFrame, number: int
    ) -> list[Event] | FragmentFailure:
        """Return what follows from a batch for one fragment, or why it is to be suspended after all.

        `good` are the good records of the batch, and `raw` the same with their raw text.
        """
        found = self.set_aside(state.stream, plan, good, raw, number, lambda kept: self._absorb(state, plan, kept))
        if isinstance(found, FragmentFailure):
            return found
        events, counts = found
        return [*events, RecordsQuarantined(plan.fragment.name, number, counts)]

    def set_aside(
        self,
        stream: Stream,
        plan: FragmentPlan,
        good: DataFrame,
        raw: DataFrame,
        number: int,
        evaluate: Callable[[DataFrame], Result],
    ) -> tuple[Result, SliceCounts] | FragmentFailure:
        """Evaluate the records of a batch that a fragment does not fail on, and write the others to quarantine.

        Return what was found and how many were set aside per slice; or why they cannot be.
        """
        fragment = plan.fragment
        evaluator = self.reducer.evaluator
        with split_failing(evaluator, raw, fragment) as (bad, _):
            counts = _count_slices(bad, fragment)
            problem = self._refuse(plan, counts)
            if problem is not None:
                return find_record(evaluator, raw, FragmentFailure(fragment, problem))
            try:
                with split_failing(evaluator, good, fragment) as (_, kept):
                    result = evaluate(kept)
            except Exception as failure:  # what is no record's fault is raised
                if not is_data_error(failure):
                    raise
                return FragmentFailure(fragment, reason_of_data_error(failure))
            if counts:
                self.write(stream, fragment, bad, self.folder_of(stream.name, fragment.name), number)
        return result, tuple(sorted(counts.items()))

    def _refuse(self, plan: FragmentPlan, counts: Mapping[int, int]) -> str | None:
        """Return why so many records cannot be set aside."""
        assert plan.max_errors is not None
        if sum(counts.values()) > MAX_PER_BATCH:
            return f"an expression fails on more than {MAX_PER_BATCH} records of one micro-batch"
        known = self.errors_of(plan.fragment.name)
        if find_window_beyond(plan.fragment.windows, known, counts, plan.max_errors) is None:
            return None
        return f"an expression fails on more than max_errors = {plan.max_errors} records of a window"

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

    # --- what lies in quarantine ------------------------------------------------------------------------------

    def write(self, stream: Stream, fragment: Fragment, bad: DataFrame, folder: Path, number: int) -> None:
        """Write records that a fragment fails on, whole and as they came."""
        problem = shorten(f"an expression of {fragment.name} fails on it")
        columns = [F.col(f"`{column.name}`") for column in stream.columns]
        raw = F.col(RAW) if RAW in bad.columns else F.lit(None).cast("string").alias(RAW)
        marked = bad.select(*columns, raw, F.lit(problem).alias(PROBLEM))
        BatchFolder(folder).write(bad_records(marked, self.reducer.site), number)

    def folder_of(self, stream: str, fragment: str, attempt: int = 0) -> Path:
        """Return where the records are that a fragment has set aside; or that a try of these has left."""
        return self.reducer.folder / "quarantine" / stream / name_folder(fragment, attempt)

    def batches_of(self, stream: str, fragment: str) -> Iterator[tuple[int, int, Path]]:
        """Yield the batches of which there is something: the number of the try, of the batch, and the folder."""
        for folder in self._folders(stream):
            owner, attempt = read_folder_name(folder.name) or ("", 0)
            for path in folder.glob("batch=*") if owner == fragment else ():
                number = path.name.removeprefix("batch=")
                if number.isdigit():
                    yield attempt, int(number), path

    def forget_attempt(self, stream: str, number: int) -> None:
        """Remove what fragments have set aside of a batch that was not committed: they may fail no longer."""
        for folder in self._folders(stream):
            BatchFolder(folder).remove(number)

    def _folders(self, stream: str) -> Iterator[Path]:
        return (self.reducer.folder / "quarantine" / stream).glob(f"{SET_ASIDE_BY}*")


def _count_slices(records: DataFrame, fragment: Fragment) -> Counter[int]:
    """Return how many records there are per slice; more than `MAX_PER_BATCH` are not counted to the end."""
    times = records.select(F.unix_micros(F.col(f"`{fragment.event_time}`")).alias("at")).limit(MAX_PER_BATCH + 1)
    return Counter(fragment.slicing.start_of(row["at"]) for row in times.collect())
