"""One simulated run of a project: safety while faults happen, then liveness when they are over.

In the first phase records arrive, views come, go and move, and faults happen. In the second, faults are over, though
some sites may be dead for good; every stream is read to its end, and everything that can be answered must be, in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from catchment.center.results.second_round import DONE
from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import change_at_sink
from catchment.deploy.routes.move_routes import move_routes
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import drop, submit
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import share
from catchment.query.plan import QueryPlan
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import View
from catchment.query.view_start import ViewStart
from catchment.testing.campaigns.features import Feature, Features
from catchment.testing.campaigns.states import RareState
from catchment.testing.faults import FaultPlan
from catchment.testing.simulated.records import Workload
from catchment.testing.simulated.roles import SimulatedCenter
from catchment.testing.simulated.world import SITE, BrokenSimulationError, World, WorldOptions
from catchment.testing.verdicts.assembled import AssembledCheck
from catchment.testing.verdicts.checks import ViewCheck
from catchment.testing.verdicts.composed import ComposedCheck
from catchment.testing.verdicts.oracle import Accepted, ViewOracle
from catchment.testing.verdicts.stated_bounds import RunTally
from catchment.timeline import SECOND_US

SETTLE_US = 20 * SECOND_US  # how long faults go on after the last record has arrived
LIVENESS_US = 240 * SECOND_US  # within which everything must be answered once faults are over
LIVENESS_STEP_US = 4 * SECOND_US
WAIT_FOR_DEAD_US = 60 * SECOND_US  # longer than any relay and the center wait for a site in a generated project
NOTHING: Features = frozenset()


@dataclass
class RunReport:
    """What came of one run; `problems` is empty if all is well."""

    seed: int
    features: Features
    problems: list[str] = field(default_factory=list)
    seen: Counter[RareState] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    records: int = 0
    windows: int = 0
    simulated_s: float = 0.0
    bounds: RunTally = field(default_factory=RunTally)

    def assert_right(self) -> None:
        """Raise with everything that is wrong, and what happened before."""
        if self.problems:
            raise BrokenSimulationError(
                "\n".join([f"seed {self.seed}", *self.problems, "--- what happened", *self.trace])
            )


class DeploymentSimulation:
    """Simulates one project under one seed, with the faults and changes that its features name."""

    def __init__(
        self,
        deployment: Deployment,
        workload: Workload,
        seed: int = 0,
        features: Features = NOTHING,
        submissions: Sequence[str] = (),
        options: WorldOptions | None = None,
    ) -> None:
        self.seed = seed
        self.features = features
        self.world = World(deployment, workload, seed, options or WorldOptions())
        self._submissions = list(submissions)
        self._chance = self.world.chance
        self._last_us = max((int(a.arrival_us[-1]) for a in workload.values() if len(a)), default=0)
        self._dropped: list[QueryPlan] = []
        self._starts: dict[tuple[str, str], int] = {}  # by sink and query
        self._bounds = RunTally()
        if Feature.SHED in features and options is None:
            self.world.options.shed_rate = self._shed_rate
        if Feature.OVERLOAD in features and options is None:
            self.world.options.row_s = self._row_s

    def run(self) -> RunReport:
        """Run both phases and check what was published."""
        report = RunReport(self.seed, self.features)
        world = self.world
        with world:
            try:
                self._run_faults()
                self._run_to_the_end()
                report.problems = self._problems()
            except BrokenSimulationError as error:
                report.problems = [str(error)]
        self._note_counts()
        report.bounds = self._bounds
        report.seen = world.seen
        report.trace = world.trace
        report.records = sum(len(a) for a in world.workload.values())
        report.windows = sum(log.num_rows for v in world.views() if (log := world.store.windows(v)) is not None)
        report.simulated_s = (world.scheduler.now_us - world.start_us) / SECOND_US
        return report

    # --- the two phases ----------------------------------------------------------------------------------------------

    def _run_faults(self) -> None:
        end_us = self._last_us + SETTLE_US
        plan = FaultPlan(self.world, self.features, end_us)
        plan.begin()
        self._plan_changes()
        self.world.run_until(end_us)
        plan.end()

    def _run_to_the_end(self) -> None:
        world = self.world
        world.are_streams_over = True
        world.options.tick_us *= 2
        deadline_us = world.scheduler.now_us + LIVENESS_US
        while not self._is_settled():
            if world.scheduler.now_us > deadline_us:
                raise BrokenSimulationError(f"not everything is answered in time: {self._describe()}")
            world.run_until(world.scheduler.now_us + LIVENESS_STEP_US)

    def _is_settled(self) -> bool:
        """Return whether everything was read, sent, merged and published; beside dead sites, for a while."""
        if not self._is_done():
            return False
        if self._dead():  # relays and the center wait for them, each as long as it may
            self.world.run_until(self.world.scheduler.now_us + WAIT_FOR_DEAD_US)
        return self._is_done()

    def _is_done(self) -> bool:
        world = self.world
        roles = [r for r in world.roles.values() if not r.is_dead]
        if any(r.running is None for r in roles):
            return False
        if not all(r.running.is_finished for r in roles if r.kind == SITE):  # type: ignore[union-attr]
            return False
        centers = [world.center_at(sink) for sink in world.stores]
        if None in centers or not all(world.is_drained(r) for r in roles):
            return False
        rounds = (center.pipeline.rounds_due for center in centers if center is not None)
        if any(due.is_busy for due in rounds) and not self._dead():
            return False
        return all(c is not None and c.pipeline.consumed and self._has_answered(c) for c in centers)

    def _has_answered(self, center: SimulatedCenter) -> bool:
        return all(self._is_answered(plan, center) for plan in center.deployment.plans)

    def _is_answered(self, plan: QueryPlan, center: SimulatedCenter) -> bool:
        core = center.pipeline.core
        if plan.lower is not None and core.composed[plan.name].state.windows and not self._dead():
            return False
        if plan.lower is not None and plan.slices is None:
            return True
        running = core.queries[(plan.slices or plan).name]
        dead = set(running.sites) & set(self._dead())
        if dead == set(running.sites):
            return True  # nobody is left who would let its last windows close
        windows = running.windows
        return not windows.state.slices and (bool(dead) or not windows.state.closed)

    def _dead(self) -> list[str]:
        return [r.name for r in self.world.sites() if r.is_dead]

    def _describe(self) -> str:
        lines = [f"{r}: {'down' if r.running is None else self.world.describe(r)}" for r in self.world.roles.values()]
        return "; ".join(lines)

    # --- changes -----------------------------------------------------------------------------------------------------

    def _plan_changes(self) -> None:
        world = self.world
        for name, act in ((Feature.SUBMIT, self._submit), (Feature.DROP, self._drop), (Feature.MOVE, self._move)):
            if name in self.features:
                for _ in range(self._chance.randint(1, 2)):
                    world.scheduler.at(self._chance.randint(world.start_us, self._last_us), act)
        if Feature.REROUTE in self.features:
            for _ in range(self._chance.randint(1, 3)):
                world.scheduler.at(self._chance.randint(world.start_us, self._last_us), self._reroute)
        if Feature.PAST in self.features:
            for _ in self._submissions:
                world.scheduler.at(self._chance.randint(world.start_us, self._last_us), self._submit)

    def _submit(self) -> None:
        if not self._submissions:
            return
        text = self._submissions.pop()
        path = Path(self.world.project.folder) / "submitted.sql"
        path.write_text(text)
        submit(self.world.project, path)
        self.world.say("a view is submitted")

    def _drop(self) -> None:
        deployment = self.world.current()
        every = [plan for part in deployment.parts for plan in part.plans]
        read = {plan.lower for plan in every} | self._read_by_submissions()
        helping = {name for part in deployment.parts for name in part.deployed.repairs}  # they end by themselves
        plans = [plan for plan in every if plan.view not in read and plan.view not in helping]
        if len(deployment.plans) < 2 or not plans:
            return
        plan = self._chance.choice(plans)
        for sink in self.world.stores:
            self._note_start(plan, sink)
        drop(self.world.project, plan.name)
        self._dropped.append(plan)
        self.world.note(RareState.QUERY_DROPPED)
        self.world.say(f"{plan.name} is dropped")

    def _read_by_submissions(self) -> set[str]:
        """Return what views read that are yet to be submitted: without it they would be refused."""
        statements = [statement for text in self._submissions for statement in parse_sql(text)]
        return {name for statement in statements if isinstance(statement, View) for name in statement.reads}

    def _move(self) -> None:
        """Move queries, as the center or another sink does: from the deployment that it follows, or not at all."""
        sinks = list(self.world.stores)
        sink = self._chance.choice(sinks) if len(sinks) > 1 else ""
        followed = self.world.followed_version(sink)
        strength = self._chance.choice(list(Strength))
        weights = {a: self._chance.uniform(1, 20) for a in range(8)}

        def size(demand: object) -> float:
            return weights[len(repr(demand)) % 8]

        store = DeploymentStore(self.world.project.state_folder)
        before = store.version
        if followed != before:
            return

        def move(now: Deployed) -> Deployed:
            return now.move(share(now.sharing.queries.values(), strength, size))

        def change(now: Deployed | None) -> Deployed:
            assert now is not None, "every role writes down what is deployed when it starts"
            return change_at_sink(now, sink, move)

        store.change(change)
        self.world.note(RareState.QUERY_MOVED, int(store.version != before))
        self.world.say("the sharing moves")

    def _reroute(self) -> None:
        """Move a site or a relay to another next one, as the center or another sink does."""
        sinks = list(self.world.stores)
        sink = self._chance.choice(sinks) if len(sinks) > 1 else ""
        store = DeploymentStore(self.world.project.state_folder)
        version = store.version
        if self.world.followed_version(sink) != version:
            return
        part = self.world.current().part_at(sink)
        hops = part.routes.hops
        links = [(a, b) for a, b in part.project.links if hops.get(a, b) != b and b in part.possible_ends]
        if not links:
            return
        site, to = self._chance.choice(links)
        made = move_routes(part, {site: to})

        def change(now: Deployed | None) -> Deployed:
            assert now is not None, "every role writes down what is deployed when it starts"
            return change_at_sink(now, sink, lambda deployed: made)

        if made is not part.deployed:
            store.change(change)
            self.world.note(RareState.ROUTE_MOVED)
            self.world.say(f"{site} is moved to {to}")

    # --- what is checked ---------------------------------------------------------------------------------------------

    def _note_start(self, plan: QueryPlan, sink: str) -> None:
        center = self.world.center_at(sink)
        if center is not None and plan.name in center.pipeline.core.queries:
            start_us = center.pipeline.core.queries[plan.name].sources.start_us
            if start_us is not None:
                self._starts[sink, plan.name] = start_us

    def _problems(self) -> list[str]:
        world = self.world
        oracle = ViewOracle(world.evaluator, world.workload, self._accepted())
        problems = [p for role in world.roles.values() for p in world.blocked_sites(role)]
        problems += self._count_problems()
        for sink in world.stores:
            found = self._problems_at(sink, oracle)
            problems += [f"at {sink}: {problem}" for problem in found] if sink else found
        return problems

    def _problems_at(self, sink: str, oracle: ViewOracle) -> list[str]:
        """Return what is wrong with the answers at a sink; at the center, if none is named."""
        world = self.world
        center = world.center_at(sink)
        assert center is not None
        problems: list[str] = []
        for view in center.deployment.plans:
            if view.lower is not None:
                state = center.pipeline.core.composed[view.name].state
                check_composed = ComposedCheck if view.slices is None else AssembledCheck
                problems += check_composed(world.stores[sink], view, state, bool(self._dead())).problems()
            if view.lower is not None and view.slices is None:
                continue
            plan = view.slices or view
            self._note_start(plan, sink)
            start_us = self._starts.get((sink, plan.name))
            if start_us is None and self._dead():
                continue  # a view begins when every site has begun it
            if start_us is None:
                problems.append(f"{plan.name} has never begun")
                continue
            if plan.options.start == ViewStart() and start_us > world.start_us:
                problems.append(f"{plan.name} begins {start_us - world.start_us} us after the first record")
            check = ViewCheck(world, plan, oracle, start_us, self._dead(), sink)
            problems += check.problems()
            self._bounds.add(check.tally_bounds())
        return problems

    def _accepted(self) -> Accepted:
        """Return the records that count: of a dead site also those that it had sent before it got an older state."""
        dead = self._dead()
        logs = self.world.logs.items()
        return {key: log.accepted | log.ever_accepted if key[1] in dead else log.accepted for key, log in logs}

    def _count_problems(self) -> list[str]:
        """Return the streams of which not every record was read, and the sites whose counts do not add up."""
        problems = []
        for (stream, site), log in self.world.logs.items():
            read = log.start_of(len(log.ends))
            if site not in self._dead() and (stream, site) in self._read_streams() and read != len(log.arrivals):
                problems.append(f"of {stream} at {site} {read} records of {len(log.arrivals)} were read")
        for site, counts in self.world.counts.items():
            if counts.read != counts.accepted + counts.quarantined:
                problems.append(f"the counts of {site} do not add up: {counts}")
        return problems

    def _read_streams(self) -> set[tuple[str, str]]:
        parts = self.world.current().parts
        return {(p.scan.stream, site) for part in parts for p in part.sides for site in p.scan.sites}

    def _note_counts(self) -> None:
        """Note the rare states that counters tell."""
        world = self.world
        for counts in world.counts.values():
            world.note(RareState.BATCH_REPLAYED, counts.replayed_batches)
            world.note(RareState.BATCH_SHED, counts.shed_batches)
            world.note(RareState.SHED_REPAIRED, counts.repaired_batches)
            world.note(RareState.PAST_READ, counts.past_chunks)
            world.note(RareState.RECORD_QUARANTINED, counts.quarantined)
            world.note(RareState.RECORD_HELD, counts.held)
            world.note(RareState.LINK_BLOCKED, counts.blocked_ticks)
        for link in world.links.values():
            world.note(RareState.REQUEST_LOST, link.events.lost_requests)
            world.note(RareState.ANSWER_LOST, link.events.lost_answers)
            world.note(RareState.MESSAGE_DOUBLED, link.events.doubled)
            world.note(RareState.OLD_MESSAGE, link.events.replayed)
            world.note(RareState.MESSAGES_JAMMED, link.events.jammed)
            world.note(RareState.MESSAGE_OVERTAKEN, link.events.overtaken)
        for view in world.views():
            self._note_windows(view)

    def _note_windows(self, view: str) -> None:
        log = self.world.store.windows(view)
        if log is None:
            return
        were_missing: set[object] = set()
        were_deferred: set[object] = set()
        for row in log.select(["window_start", "status", "missing_sites", "reason"]).to_pylist():
            start = row["window_start"]
            if row["status"] == "early":
                self.world.note(RareState.WINDOW_EARLY)
            if row["missing_sites"]:
                self.world.note(RareState.CLOSED_WITHOUT_SITE)
                were_missing.add(start)
            elif row["status"] in ("exact", "final") and start in were_missing:
                were_missing.discard(start)
                self.world.note(RareState.SITE_RETURNED)
            if "groups were deferred" in row["reason"]:
                self.world.note(RareState.GROUPS_DEFERRED)
                were_deferred.add(start)
            elif row["status"] in ("exact", "final") and start in were_deferred:
                were_deferred.discard(start)
                self.world.note(RareState.DEFERRED_MERGED)
            if row["reason"].startswith("computed again:"):
                self.world.note(RareState.WINDOW_RENEWED)
            if row["reason"].startswith(DONE):
                self.world.note(RareState.ESTIMATES_EXACT)
            if row["reason"].startswith("late:"):
                self.world.note(RareState.WINDOW_REPAIRED)
            if row["reason"].startswith("closed under its contract"):
                self.world.note(RareState.CLOSED_UNDER_CONTRACT)
        if view.startswith("late_"):
            self.world.note(RareState.QUERY_BEGUN)

    def _row_s(self, role: str, now_us: int) -> float:
        """Return the seconds per merged row: now and then a relay or the center is overloaded for some seconds."""
        phase = (now_us // (6 * SECOND_US) + sum(map(ord, role)) + self.seed) % 3
        return {0: 0.5, 1: 2.0}.get(phase, 0.01) if not self.world.are_streams_over else 0.0

    def _shed_rate(self, site: str, now_us: int) -> float:
        """Return the rate of the next batch: now and then a site is overloaded for a few seconds."""
        phase = (now_us // (4 * SECOND_US) + sum(map(ord, site)) + self.seed) % 4
        return {0: 0.3, 1: 0.7}.get(phase, 1.0) if not self.world.are_streams_over else 1.0
