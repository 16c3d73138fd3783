"""The center and the relays of a simulated deployment, wired as in a process of production."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from catchment.center.composed.assembled import AssembledTables
from catchment.center.composed.tables import ComposedTables, LowerView, make_all_tables
from catchment.center.join.results import JoinedTables
from catchment.center.pipeline import CenterPipeline
from catchment.center.results.bounds import column_laws
from catchment.center.results.write import ResultTables
from catchment.deploy.deployment import Deployment
from catchment.deploy.reconcile import carried_by
from catchment.deploy.repairing.second_rounds import round_rules
from catchment.deploy.reports.role_files import refuse_redefined_views
from catchment.progress.admission import Admission
from catchment.progress.consumer import merge_here
from catchment.query.fragment import Fragment
from catchment.query.plan import QueryPlan
from catchment.relay.pipeline import RelayPipeline
from catchment.testing.simulated.evaluate import evaluate_rows, finish
from catchment.testing.simulated.network import SimulatedSender
from catchment.testing.simulated.tables import MemoryStore
from catchment.timeline import SECOND_US, Clock
from catchment.wire.messages import Segment
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox


@dataclass
class MergeWork:
    """The time that a role takes to merge rows, simulated: nothing else is begun before it is over."""

    row_s: Callable[[], float]
    now_us: Callable[[], int]
    spent_s: float = 0.0
    _busy_until_us: float = 0.0

    def merge(self, fragment: Fragment, table: pa.Table) -> pa.Table:
        """Merge partials, which takes its time."""
        seconds = table.num_rows * self.row_s()
        self.spent_s += seconds
        self._busy_until_us = max(self._busy_until_us, self.now_us()) + seconds * SECOND_US
        return merge_here(fragment, table)

    def has_time(self) -> bool:
        """Return whether what was begun is done; an overload that is over has no work left."""
        return self.row_s() == 0.0 or self._busy_until_us <= self.now_us()


class SimulatedCenter:
    """The center: the real pipeline, whose loop is driven by ticks, over tables in memory."""

    def __init__(
        self,
        deployment: Deployment,
        clock: Clock,
        store: MemoryStore,
        work: MergeWork,
        frame_versions: tuple[int, ...],
    ) -> None:
        self.deployment = deployment
        self.work = work
        self._store = store
        project = deployment.project
        self.folder = project.state_folder / "center"
        self.inbox = Inbox(self.folder / "inbox", admit=self._admit, versions=frame_versions)
        refuse_redefined_views(self.folder, deployment.plans)
        self.pipeline = CenterPipeline(
            project,
            self.inbox,
            deployment.center_queries,
            deployment.deployed.known,
            deployment.deployed.begun_after,
            make_all_tables(deployment.plans, self._make_tables),
            clock,
            orders=deployment.deployed.orders,
            merge=work.merge,
            deferrable=deployment.deferrable,
            stopwatch=lambda: work.spent_s,
            composed=deployment.composed_queries,
            repairs=deployment.deployed.repairs,
            round_rules=round_rules(deployment),
            routings=deployment.routings,
        )
        self.host = self.pipeline.host

    def deploy(self, deployment: Deployment) -> None:
        """Answer the queries that are deployed now."""
        self.deployment = deployment
        refuse_redefined_views(self.folder, deployment.plans)
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
        """Consume what has landed, as far as there is time for it, and let time pass."""
        while self.work.has_time() and self.pipeline.consume():
            pass
        self.pipeline.tick()
        self.pipeline.core.validate()

    def end(self) -> None:
        """End the process: what it holds is gone, what it wrote stays."""

    def _make_tables(self, plan: QueryPlan, lower: LowerView | None) -> ResultTables:
        deployment = self.deployment
        given = (
            deployment.project.state_folder,
            plan.name,
            plan.fragment,
            partial(finish, plan),
            column_laws(plan),
            1.0 - plan.options.confidence,
            deployment.late_delta(plan),
            deployment.source_key(plan),
        )
        if plan.join is not None:
            return JoinedTables(*given, store=self._store, pairing=plan.join.pairing)
        if lower is None:
            return ResultTables(*given, store=self._store)
        if plan.assembly is not None:
            return AssembledTables(*given, store=self._store, lower=lower.tables, assembly=plan.assembly)
        return ComposedTables(
            *given,
            store=self._store,
            lower=lower.tables,
            lower_columns=tuple(c.name for c in lower.plan.columns),
            evaluate=partial(evaluate_rows, plan.fragment),
        )

    def _admit(self, segment: Segment) -> None:
        Admission(self.pipeline.fragments, self.deployment.routings, self.deployment.births).check(segment)


class SimulatedRelay:
    """A relay: the real pipeline, whose sender is simulated."""

    def __init__(
        self,
        deployment: Deployment,
        name: str,
        clock: Clock,
        make_sender: Callable[[Outbox], SimulatedSender],
        work: MergeWork,
        frame_versions: tuple[int, ...],
    ) -> None:
        self.name = name
        self.work = work
        self.deployment = deployment
        self.folder = deployment.project.relay_folder(name)
        self.pipeline = RelayPipeline(
            deployment.project,
            name,
            self._admit,
            make_sender,
            clock,
            work.merge,
            lambda: work.spent_s,
            orders=deployment.deployed.orders,
            frame_versions=frame_versions,
        )
        self.host = self.pipeline.host
        self.inbox = self.pipeline.inbox
        self.outbox = self.pipeline.outbox
        self.deploy(deployment)
        self.pipeline.start()

    def deploy(self, deployment: Deployment) -> None:
        """Carry what is deployed now."""
        self.deployment = deployment
        orders = deployment.deployed.orders
        neighbours = deployment.routings.neighbours(self.name)
        self.pipeline.carry(tuple(carried_by(deployment, self.name)), deployment.deferrable, orders, neighbours)

    @property
    def needs_new_life(self) -> bool:
        """Whether it was ordered to be healed since it started."""
        return self.pipeline.needs_new_life

    def tick(self) -> None:
        """Take in what has landed, and send on what is due, if there is time for it."""
        if not self.work.has_time():
            return
        self.pipeline.tick()
        self.pipeline.core.validate()
        self.pipeline.exits.notify()

    def end(self) -> None:
        """End the process: what it holds is gone, what it wrote stays."""
        self.pipeline.exits.stop()

    def _admit(self, segment: Segment) -> None:
        deployed = self.deployment.deployed
        Admission(deployed.known, self.deployment.routings, self.deployment.births).check(segment)
