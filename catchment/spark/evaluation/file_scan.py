"""One pass over the files of a micro-batch in Spark's tasks, where Arrow reads, writes history and lifts fragments.

The job is an RDD of parts of files, as many tasks as cores, because handing records or rows of a DataFrame to Python
costs more than all that is computed of them. A small batch is scanned in the driver itself: a job would take longer.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from catchment.errors import CatchmentError
from catchment.files.watch import FilePiece
from catchment.functions.installed import FunctionsFile, install, installed_files
from catchment.site.events import Absorbed, Event, Observed
from catchment.site.plausible import PlausibleTimes
from catchment.site.suspension import BatchSkipped
from catchment.spark.sources.records import BatchStats
from catchment.spark.sources.streams import MARKER, PROBLEM
from catchment.vectorised.choose import ScanChoice
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.lines import split_text
from catchment.vectorised.parquet import split_files
from catchment.vectorised.parts import FilePart
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.scan import ScanFindings, ScanPlan, merge_findings, scan, scan_records

SMALL_BYTES = 4 << 20  # files that together have at most this many bytes are scanned in the driver
DOUBTFUL_PART = 1 << 20  # the number of the part that doubtful lines are; files have lower ones
INLINE_BYTES = 1 << 16  # tables that are larger are handed to the driver in a file


@dataclass(frozen=True)
class ScanOrder:
    """What the tasks of one pass are told; `scratch` is a folder for what they hand to the driver."""

    plan: ScanPlan
    limits: PlausibleTimes | None
    history: Path | None
    scratch: Path
    functions: tuple[FunctionsFile, ...] = ()  # the code that fragments may call

    def run(self, shares: Iterator[tuple[int, list[FilePart]]]) -> Iterator[ScanFindings | str]:
        """Yield what is in each share of the files, or why it cannot be found here."""
        for file in self.functions:
            install(file)
        for number, parts in shares:
            try:
                yield self._hand_over(number, self.scan(number, parts))
            except (pa.ArrowException, CatchmentError, OSError, OverflowError, ValueError) as error:
                yield str(error) or type(error).__name__

    def scan(self, number: int, parts: Sequence[FilePart]) -> ScanFindings:
        """Return what is in one share of the files.

        A cluster may run a task twice at once. So files have names of their own attempt, and those of the attempt
        whose findings reach the driver count.
        """
        history = None if self.history is None else self.history / f"part-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
        return scan(self.plan, parts, self.limits, history)

    def _hand_over(self, number: int, found: ScanFindings) -> ScanFindings:
        """Return the findings with large tables in files: the way through Spark's sockets takes several copies."""
        if not self.scratch.exists():
            return found  # this is the driver itself
        tables = [None if t is None else self._place(t, f"{number}-{i}") for i, t in enumerate(found.tables)]
        return replace(found, tables=tuple(tables))

    def _place(self, table: pa.Table, name: str) -> pa.Table | str:
        if table.nbytes <= INLINE_BYTES:
            return table
        path = self.scratch / f"{name}-{uuid.uuid4().hex[:12]}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return str(path)


@dataclass(frozen=True)
class FileScanner:
    """Scans the files of micro-batches; `folder` is for what tasks hand to the driver, and empty between batches."""

    spark: SparkSession
    folder: Path

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # what a killed process has left

    def scan(
        self, plan: ScanPlan, pieces: Sequence[FilePiece], limits: PlausibleTimes | None, history: Path | None
    ) -> ScanFindings:
        """Return what is in the files, or raise why native Spark SQL must decide."""
        tasks = self.spark.sparkContext.defaultParallelism
        try:
            if plan.lines is None:
                shares = split_files(sorted(piece.path for piece in pieces), tasks, SMALL_BYTES)
            else:
                shares = split_text(pieces, tasks, SMALL_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise NotVectorisedError(str(error)) from error
        scratch = self.folder / uuid.uuid4().hex
        order = ScanOrder(plan, limits, history, scratch, installed_files())
        try:
            found = self._run(order, shares)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return found

    def _run(self, order: ScanOrder, shares: Sequence[list[FilePart]]) -> ScanFindings:
        numbered = list(enumerate(shares)) or [(0, [])]
        if len(numbered) == 1:
            answers = list(order.run(iter(numbered)))
        else:
            order.scratch.mkdir(parents=True)
            parts = self.spark.sparkContext.parallelize(numbered, len(numbered))
            answers = parts.mapPartitions(partial(ScanOrder.run, order)).collect()
        found = []
        for answer in answers:
            if isinstance(answer, str):
                raise NotVectorisedError(answer)
            found.append(replace(answer, tables=tuple(map(_fetch, answer.tables))))
        return merge_findings(order.plan, found)


def is_small(pieces: Sequence[FilePiece]) -> bool:
    """Return whether a batch of these files is scanned without a job."""
    return sum(piece.end - piece.start for piece in pieces) <= SMALL_BYTES


def add_judged(
    plan: ScanPlan, found: ScanFindings, judged: pa.Table, limits: PlausibleTimes | None, history: Path | None
) -> ScanFindings:
    """Return the findings with what Spark has made of the doubtful lines: good records, markers and bad records."""
    good = judged.filter(pc.or_kleene(judged[PROBLEM].is_null(), pc.equal(judged[PROBLEM], MARKER)))
    bad = judged.num_rows - good.num_rows
    file = None if history is None else history / "part-doubtful.parquet"
    more = scan_records(plan, RecordColumns.of(good, plan.columns), DOUBTFUL_PART, limits, file)
    return merge_findings(plan, [found, replace(more, rows=more.rows + bad, bad=more.bad + bad)])


def _fetch(table: pa.Table | str | None) -> pa.Table | None:
    if not isinstance(table, str):
        return table
    with pa.memory_map(table) as file:
        return pa.ipc.open_file(file).read_all()


def stats_of_scan(found: ScanFindings) -> BatchStats:
    """Return what a pass over files has counted."""
    return BatchStats(found.rows, found.bad, found.low_us, found.high_us)


def events_of_scan(choice: ScanChoice, found: ScanFindings, batch: int) -> list[Event]:
    """Return the partials and observations that a pass over a micro-batch has found, as events."""
    counts = [tuple(sorted(records.items())) for records in found.records]
    skipped = zip(choice.skipping, counts[len(choice.scanned) :], strict=False)
    events: list[Event] = [BatchSkipped(f.name, batch, records) for f, records in skipped]
    watched = iter(zip(choice.scan.watches, found.tables[len(choice.scan.fragments) :], strict=True))
    for plan, table, records in zip(choice.scanned, found.tables, counts, strict=False):
        fragment = plan.fragment
        rows = fragment.schema.empty_table() if table is None else table.select(fragment.schema.names)
        events.append(Absorbed(fragment.name, rows.cast(fragment.schema), records))
        for watch in plan.watches:
            observing, observed = next(watched)
            observed = observing.schema.empty_table() if observed is None else observed
            events.append(Observed(fragment.name, watch.slack.query, observed))
    return events
