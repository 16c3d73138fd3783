"""One pass over a micro-batch in files or in a topic, in which Arrow reads, writes history and lifts fragments.

The files are shared among as many tasks as there are cores. Where Spark runs within this machine (`local[...]`), the
shares go to processes that wait for them (`catchment.vectorised.scan_pool`); on a cluster they are the tasks of a job:
an RDD of parts of files, because handing records or rows of a DataFrame to Python costs more than all that is computed
of them. A small batch is scanned in the driver itself, which is faster than either.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from catchment.files.watch import FilePiece
from catchment.functions.installed import installed_files
from catchment.site.events import Absorbed, Event, Observed
from catchment.site.plausible import PlausibleTimes
from catchment.site.suspension import BatchSkipped
from catchment.spark.sources.records import BatchStats
from catchment.spark.sources.streams import MARKER, PROBLEM
from catchment.storage.files import sync_files
from catchment.vectorised.choose import ScanChoice
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.lines import split_text
from catchment.vectorised.parquet import split_files
from catchment.vectorised.parts import FilePart, TopicPart, split_offsets
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.scan import ScanFindings, ScanPlan, merge_findings, scan_records
from catchment.vectorised.scan_order import ScanOrder, Share, fetch_tables
from catchment.vectorised.scan_pool import CannotBePickledError, ScanPool, ScanProcessLostError

SMALL_BYTES = 4 << 20  # files that together have at most this many bytes are scanned in the driver
SMALL_ROWS = 20_000  # records of a topic that are at most so many are, too
DOUBTFUL_PART = 1 << 20  # the number of the part that doubtful lines are; files have lower ones
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileScanner:
    """Scans the files of micro-batches.

    `folder` is for what is handed to the driver, and empty between batches. `pool` are the processes that scan where
    Spark runs within this machine; None: its tasks do.
    """

    spark: SparkSession
    folder: Path
    pool: ScanPool | None = None

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # what a killed process has left

    def scan(
        self,
        plan: ScanPlan,
        pieces: Sequence[FilePiece] | Sequence[TopicPart],
        limits: PlausibleTimes | None,
        history: Path | None,
        name: str = "",
        on_under_way: Callable[[], None] = lambda: None,
        syncs: bool = True,
    ) -> ScanFindings:
        """Return what is in the pieces of a batch, or raise why native Spark SQL must decide.

        `name` is who may end the pass. `on_under_way` is called when its shares wait for whoever scans them. Without
        `syncs` the records that are written to the folder `history` need not survive a crash.
        """
        order = ScanOrder(plan, limits, history, syncs=syncs, functions=installed_files())
        numbered = self._split(plan, pieces)
        if len(numbered) == 1 and plan.topic is None:
            return _merge(order, [order.run(numbered[0])])
        scratch = self.folder / name / uuid.uuid4().hex
        scratch.mkdir(parents=True)
        order = replace(order, scratch=scratch)
        try:
            if len(numbered) == 1:  # a broker may keep it waiting for long
                return _merge(order, [order.run(numbered[0])])
            return self._share(order, numbered, on_under_way)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _split(self, plan: ScanPlan, pieces: Sequence[FilePiece] | Sequence[TopicPart]) -> list[Share]:
        """Return what each of the tasks scans, with its number."""
        tasks = self.spark.sparkContext.defaultParallelism
        offsets = [piece for piece in pieces if isinstance(piece, TopicPart)]
        files = [piece for piece in pieces if isinstance(piece, FilePiece)]
        shares: Sequence[Sequence[FilePart | TopicPart]]
        try:
            if plan.topic is not None:
                shares = split_offsets(offsets, tasks, SMALL_ROWS)
            elif plan.lines is None:
                shares = split_files(files, tasks, SMALL_BYTES)
            else:
                shares = split_text(files, tasks, SMALL_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise NotVectorisedError(str(error)) from error
        return list(enumerate(shares)) or [(0, [])]

    def end_passes(self, name: str) -> None:
        """Let whoever scans under a name find out that it is not wanted any more."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _share(self, order: ScanOrder, shares: Sequence[Share], on_under_way: Callable[[], None]) -> ScanFindings:
        """Return what is in several shares of the files, each scanned by a process or a task."""
        if self.pool is not None:
            try:
                return self._share_with_pool(self.pool, order, shares, on_under_way)
            except (ScanProcessLostError, CannotBePickledError) as error:
                order.check_wanted()
                _log.warning("%s: Spark's tasks scan these files in its place", error.message)
        parts = self.spark.sparkContext.parallelize(shares, len(shares))
        on_under_way()
        return _merge(order, parts.mapPartitions(order.run_all).collect())

    def _share_with_pool(
        self, pool: ScanPool, order: ScanOrder, shares: Sequence[Share], on_under_way: Callable[[], None]
    ) -> ScanFindings:
        """Return what is in several shares of the files.

        History is made durable here, while the processes scan the files of the next batch.
        """
        found = _merge(order, pool.map(replace(order, syncs=False).run, shares, on_under_way, order.is_wanted))
        if order.syncs and order.history is not None:
            sync_files(order.history / name for name in found.history)
        return found


def _merge(order: ScanOrder, answers: Sequence[ScanFindings | str]) -> ScanFindings:
    """Return the answers of all shares as one, or raise why one of them has none."""
    found = []
    order.check_wanted()  # else an answer may be that it is not
    for answer in answers:
        if isinstance(answer, str):
            raise NotVectorisedError(answer)
        found.append(fetch_tables(answer))
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
    if file is not None:
        sync_files([file])
    return merge_findings(plan, [found, replace(more, rows=more.rows + bad, bad=more.bad + bad)])


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
