"""The cloud side of feeds on Spark: micro-batches route uploaded events and compute the cloud's views natively.

Uploaded events are landed in Parquet files; a Structured Streaming query reads them, and each micro-batch
(`foreachBatch`) does one Spark job: join the new events with the routes (who downloads which share), join
them with the recent events under the installed views (native Spark SQL), and bring deliveries and notices
to the driver. The control plane is the same pure core as everywhere.

Invariant: a control message is handled after every event that arrived before it has been routed and joined,
so the proof of `catchment.feeds.cloud.moves` holds here too. Events stay on disk and are read by executors;
the driver holds names of files, routes and views. Processed events are kept for the longest lifetime and `away_us`
more of event time, which bounds how late a device that was away can still meet others; older files are deleted. Every
batch reads the files that it may meet, so lifetimes of days are refused: a cloud in one process keeps those. A batch
that is run again after a failure gives the same messages again, and receivers drop them by their keys.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from catchment.errors import FeedError
from catchment.feeds.cloud.cloud import CloudControl
from catchment.feeds.cloud.landing import EVENT_SQL, Landing, event_of, event_row, rows_of
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.cloud.routes import Hosts
from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.publisher import RecentlySeen
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import RejectJoined, ViewGraph
from catchment.feeds.protocol.messages import FeedEvent, Notice, Upward
from catchment.project.sections import SparkConfig
from catchment.spark.feeds.joins import DELIVERY, DONE, MATCH, NOTICE, FeedJoins
from catchment.spark.feeds.views import register_functions, view_graph_on
from catchment.spark.session import make_session
from catchment.spark.streaming import start_query
from catchment.units import format_duration

MAX_LIFETIME_US = 3_600_000_000  # a batch reads one file per trigger of the longest lifetime


class SparkPlane:
    """The data plane's state on the driver: routes, installed views, and how far each feed has come."""

    def __init__(self) -> None:
        self.routes: dict[str, dict[str, float]] = {}
        self.installed: dict[str, PhysicalView] = {}
        self.newest: dict[str, int] = {}
        self.matched: Counter[str] = Counter()
        self.version = 0  # changes with routes and views, so that their DataFrames are made again

    def set_route(self, feed: str, device: str, share: float) -> None:
        routes = self.routes.setdefault(feed, {})
        if share > 0:
            routes[device] = share
        else:
            routes.pop(device, None)
        self.version += 1

    def install(self, view: PhysicalView) -> None:
        self.installed[view.name] = view
        self.version += 1

    def uninstall(self, view: str) -> None:
        self.installed.pop(view, None)
        self.version += 1

    def newest_us(self, feed: str) -> int | None:
        return self.newest.get(feed)

    def note_newest(self, feed: str, at_us: int) -> None:
        self.newest[feed] = max(at_us, self.newest.get(feed, at_us))

    @property
    def forgotten(self) -> int:
        return 0  # files are kept for as long as declared, and are not bounded by their size

    def take_matched(self) -> Counter[str]:
        taken = self.matched
        self.matched = Counter()
        return taken


def check_lifetimes(program: FeedProgram) -> None:
    """Refuse a program with lifetimes that a cloud on Spark does not keep, with windows, or with its own streams."""
    for stream in program.streams.values():
        if stream.born_at_cloud:
            raise FeedError(
                f"stream {stream.name!r} is born at the cloud; a cloud on Spark has no streams of its own",
                where=stream.where,
                hint="run the cloud with --cloud local",
            )
    for template in program.templates.values():
        if template.window is not None:
            raise FeedError(
                "found a window; a cloud on Spark does not aggregate matches",
                where=f"{template.where}, view {template.name!r}",
                hint="run the cloud with --cloud local",
            )
        if template.is_pair and template.lifetime_us > MAX_LIFETIME_US:
            raise FeedError(
                f"found a lifetime of {format_duration(template.lifetime_us)}; a cloud on Spark keeps events for at "
                f"most {format_duration(MAX_LIFETIME_US)}",
                where=f"{template.where}, view {template.name!r}",
                hint="run the cloud with --cloud local, which keeps events on disk for days",
            )


class SparkCloud(CloudControl):
    """A cloud whose data plane is a Structured Streaming query."""

    def __init__(
        self,
        spark: SparkSession,
        graph: ViewGraph,
        folder: Path,
        rates: Mapping[str, float] | None = None,
        rule: ReoptimizeRule | None = None,
        away_us: int = HostLimits.away_us,
    ) -> None:
        check_lifetimes(graph.program)
        self.plane = SparkPlane()
        super().__init__(graph, self.plane, rates, rule)
        register_functions(spark, graph.program.functions)
        self.spark = spark
        self.folder = folder
        self.lifetime_us = max(t.lifetime_us for t in graph.program.templates.values())
        self.retention_us = self.lifetime_us + away_us
        self.joins = FeedJoins(spark, graph.program)
        self.landing = Landing(folder)
        self.outgoing: queue.SimpleQueue[Deliver] = queue.SimpleQueue()
        self.periods = RecentlySeen()
        self.control = threading.RLock()  # the batch and the caller both use the control plane
        self.query: StreamingQuery | None = None
        self.batches = 0

    # ---- what a driver calls

    def start(self, trigger_ms: int = 1000) -> None:
        """Begin to process what is landed."""
        stream = self.spark.readStream.schema(EVENT_SQL).parquet(str(self.landing.events_folder))
        writer = stream.writeStream.foreachBatch(self._batch).trigger(processingTime=f"{trigger_ms} milliseconds")
        self.query = start_query(writer.option("checkpointLocation", str(self.folder / "checkpoint")))

    def stop(self) -> None:
        """End the query and remove what was landed."""
        if self.query is not None:
            self.query.stop()
            self.query = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        with self.control:
            return super().deploy(hosts)

    def review(self, period_s: float) -> list[Deliver]:
        with self.control:
            return super().review(period_s)

    def views_of(self, data: ReferenceData, reject: RejectJoined | None = None) -> ViewGraph:
        """Return the views that the program has over other reference data, generated by Spark."""
        return view_graph_on(self.spark, self.graph.program, data, reject)

    def update(self, newer: ViewGraph) -> list[Deliver]:
        with self.control:
            return super().update(newer)

    def retire(self, device: str) -> list[Deliver]:
        with self.control:
            return super().retire(device)

    def receive(self, device: str, message: Upward) -> list[Deliver]:
        """Take one message; the answers come with a later `take`."""
        if not isinstance(message, FeedEvent) or self.controller.admits(device, message):
            self.landing.add(device, message)
        return []

    def take(self) -> Iterator[Deliver]:
        """Flush what was received, and take what there is to send."""
        self.landing.flush()
        self._check()
        with self.control:
            self._settle(self.landing.done)
        while not self.outgoing.empty():
            yield self.outgoing.get_nowait()

    def drain(self) -> Iterator[Deliver]:
        """Do as `take`, after everything received has been processed."""
        assert self.query is not None
        self.landing.flush()
        self.query.processAllAvailable()
        yield from self.take()

    def _check(self) -> None:
        failure = self.query.exception() if self.query is not None else None
        if failure is not None:
            raise FeedError(f"the cloud's stream has failed: {failure}")

    # ---- a micro-batch

    def _batch(self, fresh: DataFrame, batch_id: int) -> None:
        with self.control:
            files = self.landing.earlier_files(self.lifetime_us)
            old = fresh.sparkSession.read.schema(EVENT_SQL).parquet(*files) if files else fresh.limit(0)
            plane = self.plane
            rows = self.joins.run(fresh, old, plane.routes, plane.installed, plane.version).toArrow().to_pylist()
            self._keep_matches(rows)
            for row in rows_of(DELIVERY, rows):
                self.outgoing.put(Deliver(row["device"], event_of(row)))
            for row in rows_of(NOTICE, rows):
                self._notify(row)
            self._settle(max((r["arrival"] or 0 for r in rows_of(DONE, rows)), default=0))
            self.landing.delete_before(self.landing.reached_us - self.retention_us)
            self.batches += 1

    def _keep_matches(self, rows: list[dict[str, Any]]) -> None:
        kept = [event_row(row["arrival"], event_of(row)) for row in rows_of(MATCH, rows)]
        self.landing.store_matches(kept)
        for _, feed, _, at_us, _, _ in kept:
            self.plane.note_newest(feed, at_us)
            self.plane.matched[feed] += 1

    def _notify(self, row: dict[str, Any]) -> None:
        event = event_of(row)
        template = self.graph.program.templates[self.plane.installed[event.feed].template]
        every_us = template.notify_every_us
        key = event.key if every_us is None else (event.at_us // every_us,)
        notice = Notice(event.feed, row["device"], key, event.at_us, event.values)
        if every_us is None or self.periods.first_time(notice.identity):
            self.outgoing.put(Deliver(notice.notified, notice))

    def _settle(self, done: int) -> None:
        """Handle the control messages whose turn has come."""
        newest, controls = self.landing.mark_processed(done)
        for feed, at_us in newest.items():
            self.plane.note_newest(feed, at_us)
        for control in controls:
            for delivery in self.controller.handle(control.device, control.message):
                self.outgoing.put(delivery)


@contextmanager
def spark_cloud(
    program: FeedProgram,
    data: ReferenceData | None,
    rates: Mapping[str, float],
    rule: ReoptimizeRule,
    master: str = "local[2]",
) -> Iterator[SparkCloud]:
    """Yield a cloud on a Spark session of its own, for the time of a run; its view graph is generated there too.

    Without data it begins with no views: those of devices come when they register.
    """
    spark = make_session("feeds", SparkConfig(), master=master)
    try:
        with TemporaryDirectory(prefix="catchment-feeds-") as folder:
            graph = ViewGraph(program, {}, {}) if data is None else view_graph_on(spark, program, data)
            cloud = SparkCloud(spark, graph, Path(folder) / "cloud", rates, rule)
            cloud.start()
            try:
                yield cloud
            finally:
                cloud.stop()
    finally:
        spark.stop()
