"""The center: what lands in the inbox through Spark into the center core, and what the core publishes into tables.

One Structured Streaming query reads the inbox. Each of its micro-batches merges the landed partials per (slice,
keys), large ones natively on the executors, small ones in the driver's vectorised core (equal answers, and no job
to schedule); journals them; and publishes. Segments leave the inbox only when the journal has them. A repair that is
due (late partials that the core has registered, with the published states that they change) goes into the entry of the
next micro-batch, and is published with what that closes; it is an entry of its own only when no batch comes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from catchment.aggregates import partials
from catchment.center.core import CenterCore
from catchment.center.events import (
    Action,
    CenterQuery,
    Event,
    Expired,
    Merged,
    Publish,
    Recalled,
)
from catchment.center.results.tables import ResultTables
from catchment.deploy.reconcile import center_changes
from catchment.progress.events import Landed, Ticked
from catchment.project.config import Project
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.spark.evaluation.evaluator import merge_columns
from catchment.spark.sources.inbox import InboxSource
from catchment.spark.streaming import make_offsets_durable, retry_slow_start, start_query, stopped
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import SECOND_US, START_OF_TIME_US, Clock
from catchment.wire.codec import decode_segment
from catchment.wire.inbox import Inbox
from catchment.wire.messages import Segment, counted_in

CAUSE = "inbox"
MERGE_ON_EXECUTORS_ABOVE_ROWS = 50_000
REPAIR_ALONE_AFTER_US = 2 * SECOND_US  # so long a repair that is due waits for a micro-batch to go with


@dataclass
class CenterPipeline:
    """Everything that runs at the center."""

    spark: SparkSession
    project: Project
    inbox: Inbox
    queries: Sequence[CenterQuery]
    fragments: Mapping[str, Fragment]
    begun: Collection[str]  # the fragments that were begun during a run
    tables: Mapping[str, ResultTables]
    clock: Clock
    published: int = field(default=0, init=False)
    query: StreamingQuery | None = field(default=None, init=False)
    _batch_at_us: int = field(default=START_OF_TIME_US, init=False)
    _turn: threading.RLock = field(default_factory=threading.RLock, init=False)  # one repair or batch at a time

    def __post_init__(self) -> None:
        self.folder = self.project.state_folder / "center"
        self.core = CenterCore()
        journal = Journal(self.folder / "journal")
        self.host: Host[Event, Action] = Host(self.core, journal, self._enact, self.clock, self._settle_tables)
        self.host.recover()
        self._bring()

    def deploy(
        self, queries: Sequence[CenterQuery], fragments: Mapping[str, Fragment], begun: Collection[str],
        tables: Mapping[str, ResultTables],
    ) -> None:  # fmt: skip
        """Answer these queries from now on; those that go on are not touched."""
        self.queries, self.fragments, self.begun = queries, fragments, begun
        self.tables = tables
        self._bring()

    def _bring(self) -> None:
        with self._turn:
            events = list(center_changes(self.core, self.queries, self.begun))
            if events:
                self.host.submit("deploy", events)

    def start(self) -> None:
        """Begin to consume the inbox."""
        self.spark.dataSource.register(InboxSource)
        reader = self.spark.readStream.format(InboxSource.name()).option("folder", str(self.inbox.folder))
        landed = retry_slow_start("the inbox", reader.load)
        interval = f"{self.project.defaults.trigger_us // 1000} milliseconds"
        writer = (
            landed.writeStream.queryName("center")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .foreachBatch(self._on_batch)
            .trigger(processingTime=interval)
        )
        self.query = start_query(writer)

    def tick(self) -> None:
        """Let time pass: a window may be due without a site that is missing."""
        self.inbox.check()
        failure = self.query.exception() if self.query is not None else None
        if failure is not None:
            raise stopped("the center", failure, self.folder) from failure
        with self._turn:
            if self.core.is_waiting(self.clock.now_us()):
                self.host.submit("tick", [Ticked()])
            if self.clock.now_us() - self._batch_at_us > REPAIR_ALONE_AFTER_US:
                self._repair()

    def finish(self) -> None:
        """Nothing more will come for now: repair all that is registered."""
        with self._turn:
            self._repair(everything=True)

    @property
    def consumed(self) -> bool:
        """Whether everything that landed has been handled, late records too."""
        return self.inbox.size_bytes == 0 and not self.core.outstanding

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
        self.host.journal.close()

    # --- a micro-batch ----------------------------------------------------------------------------------------

    def _on_batch(self, batch: DataFrame, number: int) -> None:
        ranges = batch.collect()
        start, end = min((r["start"] for r in ranges), default=0), max((r["end"] for r in ranges), default=0)
        if not self.host.committed(CAUSE, number):
            segments = [decode_segment(path.read_bytes()) for path in self.inbox.landed(start, end)]
            merged = self._merge(segments)
            events: list[Event] = [*merged, *(Landed.of(s) for s in segments), Ticked()]
            make_offsets_durable(self.folder / "checkpoint", number)
            with self._turn:
                # What was registered before is repaired with it: an enactment costs more than what it repairs.
                self.host.submit(CAUSE, [*self._recalled(), *events], batch=number)
                self._batch_at_us = self.clock.now_us()
        self.inbox.discard(end)

    def _merge(self, segments: Iterable[Segment]) -> list[Merged]:
        fragments = self.fragments
        tables: dict[str, list[pa.Table]] = {}
        records: dict[str, list[tuple[str, int, int]]] = {}
        for segment in segments:
            for update in segment.updates():
                if update.fragment in fragments:
                    tables.setdefault(update.fragment, []).append(update.table.cast(fragments[update.fragment].schema))
            for name, origin, counts in counted_in(segment):
                if name in fragments:
                    records.setdefault(name, []).extend((origin, s, n) for s, n in counts)
        return [
            Merged(name, self._merge_tables(fragments[name], tables.get(name, [])), tuple(records.get(name, ())))
            for name in {**tables, **records}
        ]

    def _merge_tables(self, fragment: Fragment, tables: list[pa.Table]) -> pa.Table:
        table = pa.concat_tables([fragment.schema.empty_table(), *tables])
        keys = [SLICE_COLUMN, *fragment.key_names]
        if table.num_rows < MERGE_ON_EXECUTORS_ABOVE_ROWS:
            return partials.combine(table, keys, fragment.aggregates)
        return merge_on_executors(self.spark, fragment, table)

    def _repair(self, everything: bool = False) -> None:
        """Repairs that are due; a repaired window may then be final."""
        recalled = self._recalled(everything)
        if recalled:
            self.host.submit("repair", [*recalled, Ticked()])

    def _recalled(self, everything: bool = False) -> list[Event]:
        """The repairs that are due, with the published states that they change."""
        due = self.core.repairs(self.clock.now_us(), everything)
        return [Recalled(r.query, r.windows, self.tables[r.query].recall(r.wanted), r.reason) for r in due]

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        for name, tables in self.tables.items():
            tables.publish(number, [a for a in actions if isinstance(a, Publish) and a.query == name])
            tables.register_late(number, [a for a in actions if isinstance(a, Expired) and a.query == name])
        self.published += sum(isinstance(a, Publish) for a in actions)
        return 1

    def _settle_tables(self) -> None:
        """Before the journal forgets what it can repeat: tables on the disk, and not in too many pieces."""
        for tables in self.tables.values():
            tables.compact()
        os.sync()


def merge_on_executors(spark: SparkSession, fragment: Fragment, table: pa.Table) -> pa.Table:
    """Merge partials natively: one group-by with the merge expressions of the aggregates."""
    keys = [F.col(f"`{name}`") for name in (SLICE_COLUMN, *fragment.key_names)]
    merged = spark.createDataFrame(table).groupBy(*keys).agg(*merge_columns(fragment.aggregates)).toArrow()
    return merged.select(fragment.schema.names).cast(fragment.schema)


def center_status(center: CenterPipeline) -> dict[str, Any]:
    """Per query: how far each site has come and what is closed."""
    queries = {}
    for name, windows in center.core.queries.items():
        marks = {s: m if m > START_OF_TIME_US else None for s, m in center.core.marks(name).items()}
        closed = windows.closed_us if windows.closed_us > START_OF_TIME_US else None
        queries[name] = {
            "marks_us": marks, "closed_us": closed, "open_slices": len(windows.slices),
            "late_records": windows.late_records, "outstanding_records": windows.late.records,
            "unmerged_records": windows.unmerged_records, "shed_windows": len(windows.debts),
        }  # fmt: skip
    return {"published": center.published, "refused": dict(center.inbox.refused), "queries": queries}
