"""The center as a role of a process: its inbox and server, its pipeline, and the result tables of every view.

What is answered at another sink is answered by such a role too, at that site: to its part of the deployment it is the
center.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from catchment.center.composed.assembled import AssembledTables
from catchment.center.composed.tables import ComposedTables, LowerView, make_all_tables
from catchment.center.join.results import JoinedTables
from catchment.center.pipeline import CenterPipeline
from catchment.center.results.bounds import column_laws
from catchment.center.results.store import DeltaStore
from catchment.center.results.write import ResultTables
from catchment.center.shards.consumer import ShardedCenter
from catchment.center.shards.folder import PartFolder
from catchment.center.shards.tables import ShardedTables
from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.connections import Connections, reached_at
from catchment.deploy.repairing.second_rounds import round_rules
from catchment.deploy.reports.requests import forget_resumptions, requested_resumptions
from catchment.deploy.reports.role_files import refuse_redefined_views
from catchment.progress.admission import Admission
from catchment.progress.window_observer import WindowObserver
from catchment.query.plan import QueryPlan
from catchment.query.sql.view_options import QUARANTINE
from catchment.sinks.declared import make_deliveries
from catchment.spark.evaluation.compose import make_evaluate
from catchment.spark.evaluation.finish import make_finish, make_finish_each, rename
from catchment.spark.evaluation.merge import make_merge
from catchment.spark.evaluation.shard_tasks import SparkTasks, make_finish_files
from catchment.spark.sources.lookup_tables import LookupTables
from catchment.storage.free_space import FreeSpace
from catchment.timeline import END_OF_TIME_US, Clock
from catchment.units import SECOND_US
from catchment.wire.messages import Segment
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox


class CenterRole:
    """Runs the center of a project, which `start` makes reachable."""

    def __init__(
        self,
        deployment: Deployment,
        spark: SparkSession,
        clock: Clock,
        connections: Connections,
        on_segment: Callable[[Segment], None],
        observer: WindowObserver | None = None,
    ) -> None:
        self.deployment = deployment
        self._spark = spark
        self._connections = connections
        self._on_segment = on_segment
        self._observer = observer
        self._clock = clock
        self._answered_us: int | None = None  # when everything was answered, as far as is known
        self._server: InboxServer | None = None
        project = deployment.project
        folder = project.state_folder / "center"
        self._free_space = FreeSpace(folder, project.limits.free_disk_bytes, clock)
        self._inbox = Inbox(folder / "inbox", admit=self._admit, free_space=self._free_space, clock=clock)
        refuse_redefined_views(folder, deployment.plans)
        self._spread = self._make_spread()
        self.pipeline = CenterPipeline(
            project,
            self._inbox,
            deployment.center_queries,
            deployment.deployed.known,
            deployment.deployed.begun_after,
            make_all_tables(deployment.plans, self._make_tables),
            clock,
            make_merge(spark),
            deployment.deployed.orders,
            deployment.deferrable,
            composed=deployment.composed_queries,
            repairs=deployment.deployed.repairs,
            round_rules=round_rules(deployment),
            spread=self._spread,
            routings=deployment.routings,
        )
        self.pipeline.observer = observer
        plans = {p.name: p for p in deployment.plans}
        self._deliveries = make_deliveries(deployment.catalog.sinks.values(), plans, project, clock)

    def start(self, closing: ExitStack) -> None:
        """Listen for sites and begin to consume what lands; `closing` ends both."""
        if not self.deployment.project.sink:  # at another sink it is the server of that site that takes what lands
            self._server = self._connections.make_server(self.deployment.project.center, self._inbox)
            self._server.start()
            closing.callback(self._server.close)
        self.pipeline.start()
        closing.callback(self.pipeline.stop)
        for delivery in self._deliveries:
            delivery.start()
            closing.callback(delivery.stop)

    @property
    def inbox(self) -> Inbox:
        """Where the segments of all sites land."""
        return self._inbox

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        assert self._server is not None, "the center listens from its start on"
        project = self.deployment.project
        return reached_at(project, project.center, self._server)

    def follow(self, deployment: Deployment) -> None:
        """Answer the queries that are deployed now."""
        self.deployment = deployment
        refuse_redefined_views(self.pipeline.folder, deployment.plans)
        tables = make_all_tables(deployment.plans, self._make_tables, self.pipeline.tables)
        deployed = deployment.deployed
        self.pipeline.deploy(
            deployment.center_queries,
            deployed.known,
            deployed.begun_after,
            tables,
            deployed.orders,
            deployment.deferrable,
            deployment.composed_queries,
            deployed.repairs,
            round_rules(deployment),
            deployment.routings,
        )

    def tick(self) -> None:
        """Let time pass, and resume the views that somebody has asked to be resumed."""
        requested = requested_resumptions(self.pipeline.folder)
        if requested:
            self.pipeline.resume(requested)
            forget_resumptions(self.pipeline.folder, requested)
        self.pipeline.tick()

    def is_finished(self, once: bool) -> bool:
        """Return whether all that landed is answered and delivered, and every site has ended.

        With `once`, ends are not waited for. A sink whose target is away is never waited for: it goes on at the next
        start.
        """
        if not self.pipeline.consumed or (once and self.pipeline.core.is_renewing):
            self._answered_us = None
            if once:
                self.pipeline.finish()
            return False
        core = self.pipeline.core
        ended = (mark == END_OF_TIME_US for query in list(core.queries) for mark in core.marks(query).values())
        if not (all(ended) or once):
            return False
        if self._answered_us is None:
            self._answered_us = self._clock.now_us()
        return all(delivery.is_done(self._answered_us) for delivery in self._deliveries)

    def status(self, refused: str | None = None) -> Mapping[str, Any]:
        """Return per query how far each site has come and what is closed, and why a deployment is not followed."""
        sinks = {delivery.name: delivery.status() for delivery in self._deliveries}
        own = {"disk": self._free_space.status(), "sinks": sinks, "refused_deployment": refused}
        return {**self.pipeline.status(), **own}

    def _make_tables(self, plan: QueryPlan, lower: LowerView | None) -> ResultTables:
        finish = make_finish(self._spark, plan)
        given = (
            self.deployment.project.state_folder,
            plan.name,
            plan.fragment,
            finish,
            column_laws(plan),
            1.0 - plan.options.confidence,
            self.deployment.late_delta(plan),
            self.deployment.source_key(plan),
        )
        store = DeltaStore(self.deployment.project.state_folder, self._keep_hours())
        each = make_finish_each(self._spark, plan)
        nulls = plan.options.on_error == QUARANTINE
        if plan.join is not None:
            return JoinedTables(*given, pairing=plan.join.pairing, store=store, finish_each=each, publishes_nulls=nulls)
        if lower is None:
            is_whole = plan.top is not None
            if self._spread is None:
                return ResultTables(*given, store=store, finish_each=each, publishes_nulls=nulls, is_whole=is_whole)
            renames = plan.trivial and not is_whole
            return ShardedTables(
                *given,
                store=store,
                finish_each=each,
                publishes_nulls=nulls,
                is_whole=is_whole,
                spread=self._spread,
                rename=partial(rename, plan) if renames else None,
                finish_files=None if renames else make_finish_files(self._spark, plan),
            )
        if plan.assembly is not None:
            return AssembledTables(
                *given, store=store, finish_each=each, publishes_nulls=nulls, lower=lower.tables, assembly=plan.assembly
            )
        return ComposedTables(
            *given,
            store=store,
            finish_each=each,
            publishes_nulls=nulls,
            lower=lower.tables,
            lower_columns=tuple(c.name for c in lower.plan.columns),
            evaluate=make_evaluate(self._spark, plan.fragment, self._read_tables(plan)),
        )

    def _make_spread(self) -> ShardedCenter | None:
        """Return how rows are spread over the workers, if the project asks for that."""
        shards = self.deployment.project.spark.center_shards
        if not shards:
            return None
        folder = PartFolder(self.deployment.project.state_folder / "center" / "parts")
        return ShardedCenter(shards, SparkTasks(self._spark), folder)

    def _read_tables(self, plan: QueryPlan) -> LookupTables:
        """Return the tables that a view of a view looks up; they are read here."""
        names = {lookup.table for lookup in plan.fragment.lookups}
        tables = {name: self.deployment.catalog.tables[name] for name in names}
        return LookupTables(self._spark, tables, self.deployment.project.folder, self._clock)

    def _keep_hours(self) -> int:
        """Return how long replaced files of tables stay, in whole hours, one at least."""
        return max(1, -(-self.deployment.project.limits.replaced_files_keep_us // (3600 * SECOND_US)))

    def _admit(self, segment: Segment) -> None:
        Admission(self.pipeline.fragments, self.deployment.routings, self.deployment.births).check(segment)
        self._on_segment(segment)
        if self._observer is not None:
            self._observer.note_landed(segment)
