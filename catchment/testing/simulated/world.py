"""A whole deployment in one process: sites, relays and a center on simulated time, disks and links.

Everything that decides is the real code: cores, hosts, journals, outboxes, inboxes, the loops of relays and of the
center, the deployment and its changes. Simulated are the clock, the disk, the network, Spark's group-by and the result
tables. One seed gives one run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import Rebalancer
from catchment.deploy.repairing.heal import heal
from catchment.deploy.repairing.second_rounds import SecondRounds
from catchment.deploy.store import DeploymentStore
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import CatchmentError, ConfigError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.ways import Way, Ways, links_of
from catchment.storage.disk import use_disk
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.disk import Killed, SimulatedDisk, state_files
from catchment.testing.simulated.evaluate import PureEvaluator
from catchment.testing.simulated.network import LinkWeather, SimulatedHop, SimulatedLink, SimulatedSender
from catchment.testing.simulated.records import Workload
from catchment.testing.simulated.roles import MergeWork, SimulatedCenter, SimulatedRelay
from catchment.testing.simulated.scheduler import Scheduler, SimulatedClock
from catchment.testing.simulated.site import SimulatedSite, SiteCounts, SiteSurroundings, SourceLog
from catchment.testing.simulated.tables import MemoryStore
from catchment.testing.verdicts.recovery import CenterMemory
from catchment.testing.verdicts.replayed import find_replay_differences
from catchment.timeline import SECOND_US
from catchment.wire.frames.brief import is_brief
from catchment.wire.frames.codec import frame_version
from catchment.wire.frames.versions import NEWEST_VERSION, READ_VERSIONS
from catchment.wire.receiving.recent_tables import RecentTables
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.tables_there import TablesThere
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, RefusedError

Reply = TypeVar("Reply", int, Greeting)

CENTER = "center"
SITE = "site"
RELAY = "relay"
RESTART_US = 2 * SECOND_US  # after a process has ended without being asked to
MAX_BATCH = 10_000

Running = SimulatedSite | SimulatedRelay | SimulatedCenter


class BrokenSimulationError(AssertionError):
    """Something happened in a simulated deployment that must not happen."""


@dataclass(frozen=True)
class PlannedDeployment(Deployment):
    """A deployment that is planned once per version, however many processes follow it."""

    versions: dict[int, Deployment] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, given: Deployment, versions: dict[int, Deployment]) -> PlannedDeployment:
        return cls(given.project, given.catalog, given.plans, given.deployed, given.declared, given.sinks, versions)

    def at(self, deployed: Deployed) -> Deployment:
        if deployed.version not in self.versions:
            self.versions[deployed.version] = self.of(super().at(deployed), self.versions)
        return self.versions[deployed.version]

    def read_again(self, deployed: Deployed) -> Deployment:
        """Return the same as `at`: what a project declares changes only when the whole deployment is reloaded."""
        return self.at(deployed)


@dataclass
class Role:
    """One process of the deployment and its machine, over all its lives."""

    kind: str
    name: str
    folder: Path
    clock: SimulatedClock
    sink: str = ""  # whose part of the deployment it runs for, if not for the center's
    running: Running | None = None
    senders: list[SimulatedSender] = field(default_factory=list)  # of this life, also of one that ended at its start
    watcher: DeploymentWatcher | None = None
    rebalancer: Rebalancer | None = None
    life: int = 0
    is_dead: bool = False  # it will not be started again
    memory: CenterMemory | None = None  # of a center, what it knew when it ended
    refusals: list[str] = field(default_factory=list)
    frame_versions: tuple[int, ...] = READ_VERSIONS  # those of its release
    sent_versions: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" for {self.sink}" if self.sink else "")


@dataclass(frozen=True)
class StateCopy:
    """What the machine of a role held at some time: its files, and what the checkpoints of its streams remembered."""

    files: dict[Path, bytes]
    logs: dict[tuple[str, str], SourceLog]


@dataclass
class WorldOptions:
    """How a world behaves beside its faults."""

    tick_us: int = 2 * SECOND_US
    max_batch: int = MAX_BATCH
    checkpoint_chance: float = 0.03  # per tick: that a role writes its state down
    replay_chance: float = 0.01  # per tick: that the state of a role is compared with what its journal says
    shed_rate: Callable[[str, int], float] = lambda site, now_us: 1.0
    row_s: Callable[[str, int], float] = lambda role, now_us: 0.0  # seconds that a role takes to merge a row


class World:
    """Runs a project under a seed. `run_until` lets simulated time pass; use it as a context manager."""

    def __init__(self, deployment: Deployment, workload: Workload, seed: int, options: WorldOptions) -> None:
        self.chance = random.Random(seed)
        self._replay_chance = random.Random(seed)  # of its own: whether states are compared changes nothing else
        self.options = options
        self.workload = workload
        self.seen: Counter[RareState] = Counter()
        self.trace: list[str] = []
        self.start_us = min((int(a.arrival_us[0]) for a in workload.values() if len(a)), default=0)
        self.scheduler = Scheduler(self.start_us)
        self.disk = SimulatedDisk(self.chance)
        self.stores = {"": MemoryStore()}  # of the center, and of other sinks by their names
        self.disk.on_sync = self._sync_stores
        self.are_streams_over = False
        self._first = PlannedDeployment.of(deployment, {})
        self.evaluator = PureEvaluator(deployment.project.folder, deployment.catalog.tables)
        self.project = deployment.project
        if self.project.state_folder.exists():
            raise ConfigError(
                f"the project has been run: {self.project.state_folder} is there, and a simulation would go on from it",
                hint="give each simulation a project folder of its own, without state",
            )
        self.routes = deployment.routes
        self._ways = Ways.of(self.project)
        self._using_disk = use_disk(self.disk)
        self.logs = {key: SourceLog(arrivals) for key, arrivals in workload.items()}
        self.counts = {site: SiteCounts() for _, site in workload}
        self.links: dict[tuple[str, str], SimulatedLink] = {}
        # What the roles of one site share, which are one process in a real deployment: all forget when one ends.
        self._recent_tables: dict[str, RecentTables] = {}
        self._tables_there: dict[tuple[str, str], TablesThere] = {}
        self.roles = self._make_roles(deployment)
        self.disk.machine(self.project.state_folder)

    def _make_roles(self, deployment: Deployment) -> dict[tuple[str, str], Role]:
        project = self.project
        sites = sorted({site for _, site in self.workload})
        roles = {}
        for part in deployment.parts:
            sink = part.project.sink
            self.stores.setdefault(sink, MemoryStore())
            named = [(CENTER, part.project.center, part.project.state_folder / "center")]
            named += [(RELAY, name, part.project.relay_folder(name)) for name in part.routings.hubs]
            named += [] if sink else [(SITE, name, project.site_folder(name)) for name in sites]
            for kind, name, folder in named:
                self.disk.machine(folder)
                role = Role(kind, name, folder, SimulatedClock(self.scheduler), sink)
                roles[kind, relay_label(name, sink) if kind == RELAY else name] = role
        return roles

    @property
    def store(self) -> MemoryStore:
        """The tables of the center."""
        return self.stores[""]

    def _sync_stores(self) -> None:
        for store in self.stores.values():
            store.sync()

    def __enter__(self) -> World:
        self._using_disk.__enter__()
        for role in self.roles.values():
            self.start(role)
        return self

    def __exit__(self, *failure: object) -> None:
        for role in self.roles.values():
            self._drop(role)
        self._using_disk.__exit__(None, None, None)

    def run_until(self, instant_us: int) -> None:
        """Let simulated time pass."""
        self.scheduler.run_until(instant_us)

    def note(self, state: RareState, count: int = 1) -> None:
        """Note that a rare state was entered."""
        if count:
            self.seen[state] += count

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{(self.scheduler.now_us - self.start_us) / SECOND_US:10.3f} {what}")

    @property
    def center(self) -> SimulatedCenter | None:
        """The center, while it runs."""
        return self.center_at("")

    def center_at(self, sink: str) -> SimulatedCenter | None:
        """Return what answers at a sink, while it runs; the center, if none is named."""
        running = self.roles[CENTER, sink or self.project.center].running
        return running if isinstance(running, SimulatedCenter) else None

    def followed_version(self, sink: str = "") -> int | None:
        """Return the version of what is deployed that the center or another sink follows, while it runs."""
        watcher = self.roles[CENTER, sink or self.project.center].watcher
        return None if watcher is None else watcher.version

    def sites(self) -> Sequence[Role]:
        return [role for role in self.roles.values() if role.kind == SITE]

    # --- lives -------------------------------------------------------------------------------------------------------

    def start(self, role: Role) -> None:
        """Start the process of a role, which goes on from its files."""
        if role.running is not None or role.is_dead:
            return
        role.life += 1
        if self.carry_out(role, lambda: self._start(role)) and role.running is not None:
            self._note_recovery(role)
            life = role.life
            self.scheduler.after(self._tick_delay_us(), lambda: self._tick(role, life))

    def kill(self, role: Role, *, power_cut: bool = False, back_after_us: int | None = RESTART_US) -> None:
        """End the process of a role; `back_after_us` is None where it is not started again by itself."""
        if role.running is None:
            return
        self.say(f"{role} ends{' in a power cut' if power_cut else ''}")
        self._drop(role)
        if power_cut:
            self._cut_power(role)
        if back_after_us is not None:
            self.scheduler.after(back_after_us, lambda: self.start(role))

    def carry_out(self, role: Role, action: Callable[[], None]) -> bool:
        """Let a role do something; if that ends its process, start it again later. Return whether it lived."""
        try:
            action()
        except Killed:
            self._fail(role, "ends at a call of its disk")
        except OSError as error:
            self.note(RareState.DISK_FAILED)
            self._fail(role, f"ends: {error}")
        except CatchmentError as error:
            if not self.disk.machine(role.folder).was_damaged:
                raise BrokenSimulationError(f"{role} stopped: {error}") from error
            self._refuse(role, error)
        else:
            return True
        return False

    def _fail(self, role: Role, why: str) -> None:
        self.say(f"{role} {why}")
        if role.running is None:
            self.note(RareState.KILLED_IN_RECOVERY)
        self._drop(role)
        if self.chance.random() < 0.5:
            self._cut_power(role)
        self.scheduler.after(RESTART_US, lambda: self.start(role))

    def _refuse(self, role: Role, error: CatchmentError) -> None:
        """Do what the hint of a refusal asks for: start again, or restore what is damaged."""
        self.say(f"{role} refuses: {error.message}")
        self.note(RareState.DAMAGE_REFUSED)
        role.refusals.append(error.message)
        self._drop(role)
        if len(role.refusals) % 2 == 0 or self.chance.random() < 0.5:
            self.restore(role)
        self.scheduler.after(RESTART_US, lambda: self.start(role))

    def restore(self, role: Role) -> None:
        """Restore the damaged files of a role from a copy."""
        self.note(RareState.DAMAGE_RESTORED, self.disk.restore(role.folder))

    def reload(self) -> None:
        """Take up a changed `catchment.toml`: every process is stopped, and those that it names are started."""
        for role in self.roles.values():
            self.kill(role, back_after_us=None)
        deployment = Deployment.load(self.project.folder)
        self._first = PlannedDeployment.of(deployment, {})
        self.project = deployment.project
        self.routes = deployment.routes
        self._ways = Ways.of(self.project)
        known = self.roles
        self.roles = {name: known.get(name, role) for name, role in self._make_roles(deployment).items()}
        for role in self.roles.values():
            self.start(role)

    # --- state that is older, or lost --------------------------------------------------------------------------------

    def copy_state(self, role: Role) -> StateCopy:
        """Return a copy of everything that a machine holds."""
        files = {path: path.read_bytes() for path in state_files(role.folder)}
        return StateCopy(files, {key: log.copy() for key, log in self._logs_of(role).items()})

    def put_back(self, role: Role, copied: StateCopy | None) -> None:
        """End a role, and leave on its disk what a copy holds; without one, nothing. It is not started again."""
        self.kill(role, back_after_us=None)
        self.disk.replace_all(role.folder, {} if copied is None else copied.files)
        role.memory = None
        if role.kind == CENTER:
            self.stores[role.sink].tables.clear()
        for key, log in self._logs_of(role).items():
            log.put_back(None if copied is None else copied.logs[key])

    def heal(self, role: Role) -> None:
        """Order a role to be healed, as an operator does, unless the views that needed it were dropped meanwhile."""
        try:
            heal(self.project.folder, role.name)
        except ConfigError as error:
            self.say(f"{role} is not healed: {error.message}")
        else:
            self.say(f"{role} is healed")

    def _logs_of(self, role: Role) -> dict[tuple[str, str], SourceLog]:
        return {key: log for key, log in self.logs.items() if role.kind == SITE and key[1] == role.name}

    def _drop(self, role: Role) -> None:
        if isinstance(role.running, SimulatedCenter):
            role.memory = CenterMemory.of(role.running)
        if role.running is not None:
            role.running.end()
        self._recent_tables.pop(role.name, None)
        for sender in role.senders:  # a process that ends while it starts has begun to send, and is not running yet
            sender.stop()
        role.senders.clear()
        role.running = None
        role.watcher = None
        self.disk.close_files(role.folder)

    def _cut_power(self, role: Role) -> None:
        if self.disk.machine(role.folder).was_damaged:
            return  # which copy a person restores after both is not simulated
        self.note(RareState.POWER_CUT_LOST, self.disk.cut_power(role.folder))
        if role.kind == SITE:
            for (_, site), log in self.logs.items():
                if site == role.name:
                    log.cut_power()
        if role.kind == CENTER:
            self.note(RareState.RESULTS_LOST, self.stores[role.sink].cut_power(self.chance))

    def _note_recovery(self, role: Role) -> None:
        assert role.running is not None
        if role.life > 1:
            host = role.running.host
            self.note(RareState.RECOVERED_SNAPSHOT, int(host.journal.base > 0))
            self.note(RareState.RECOVERED_ENTRIES, host.next_sequence - host.journal.base)
            if self.disk.machine(role.folder).damaged:
                self.note(RareState.DAMAGE_SURVIVED)
        if isinstance(role.running, SimulatedCenter) and role.memory is not None:
            changed = list(role.memory.differences(CenterMemory.of(role.running)))
            if changed:
                raise BrokenSimulationError(f"{role} knows something else after its restart: {', '.join(changed)}")
            role.memory = None

    # --- what runs ---------------------------------------------------------------------------------------------------

    def _start(self, role: Role) -> None:
        deployment = self.current()
        watcher = DeploymentWatcher(deployment)
        watcher.begin()
        role.watcher = watcher
        part = deployment.part_at(role.sink)
        if role.kind == CENTER:
            store = self.stores[role.sink]
            role.running = SimulatedCenter(part, role.clock, store, self._work(role), role.frame_versions)
            role.rebalancer = Rebalancer(watcher, role.sink)
            if not role.sink:
                watcher.acknowledge()
        elif role.kind == RELAY:
            make_sender = partial(self._make_sender, role, sink=role.sink)
            role.running = SimulatedRelay(
                part, role.name, role.clock, make_sender, self._work(role), role.frame_versions
            )
        else:
            role.running = SimulatedSite(deployment, role.name, self._surroundings(role))
            if any(exit_.outbox.missing() for exit_ in role.running.exits):
                raise CatchmentError("a segment is neither in the outbox nor in the journal", hint="restore a copy")

    def _work(self, role: Role) -> MergeWork:
        return MergeWork(lambda: self.options.row_s(role.name, self.scheduler.now_us), lambda: self.scheduler.now_us)

    def _surroundings(self, role: Role) -> SiteSurroundings:
        name = role.name
        return SiteSurroundings(
            role.clock,
            self.evaluator,
            {stream: log for (stream, site), log in self.logs.items() if site == name},
            partial(self._make_sender, role),
            lambda: self.scheduler.now_us,
            lambda: self.options.shed_rate(name, self.scheduler.now_us),
            lambda: self.are_streams_over,
            lambda: self.options.max_batch,
            self.counts[name],
        )

    def _tick(self, role: Role, life: int) -> None:
        if role.running is None or role.life != life:
            return
        running = role.running
        if self.carry_out(role, lambda: self._step(role, running)):
            machine = self.disk.machine(role.folder)
            delay_us = self._tick_delay_us() + machine.stalled_us
            machine.stalled_us = 0
            self.scheduler.after(delay_us, lambda: self._tick(role, life))

    def _step(self, role: Role, running: Running) -> None:
        self._follow(role, running)
        running.tick()
        if self._replay_chance.random() < self.options.replay_chance:
            self._check_replay(role, running)
        if self.chance.random() < self.options.checkpoint_chance:
            running.host.checkpoint()

    def _check_replay(self, role: Role, running: Running) -> None:
        """Compare what a role knows with what its journal says."""
        if self.disk.machine(role.folder).was_damaged:
            return  # its files may not be readable
        changed = find_replay_differences(running.host)
        if changed:
            raise BrokenSimulationError(f"{role} would know something else after a restart: {'; '.join(changed[:5])}")
        self.note(RareState.REPLAY_COMPARED)

    def _follow(self, role: Role, running: Running) -> None:
        """Bring a role to what is deployed now; sites only when the center is there."""
        watcher = role.watcher
        assert watcher is not None
        found = watcher.poll()
        if found is not None:
            self._start_new_roles(found)
        if found is not None and not isinstance(running, SimulatedSite):
            running.deploy(found.part_at(role.sink))
        if role.rebalancer is not None and isinstance(running, SimulatedCenter):
            if not role.sink:
                watcher.acknowledge()
            before = watcher.deployment.part_at(role.sink).deployed
            role.rebalancer.step(running.pipeline.core, role.clock.now_us())
            if not role.sink:
                SecondRounds(watcher).step(running.pipeline)
            if before.leaving and not self.current().part_at(role.sink).deployed.leaving:
                self.note(RareState.FRAGMENT_RETIRED)
        if isinstance(running, SimulatedSite) and watcher.sites_may_follow():
            running.deploy(watcher.deployment)
        if not isinstance(running, SimulatedCenter) and running.needs_new_life:
            raise Killed  # it begins its new life when it is started again

    def _start_new_roles(self, deployment: Deployment) -> None:
        """Start what runs for sinks at which nothing was answered before."""
        for label, role in self._make_roles(deployment).items():
            if label not in self.roles:
                self.roles[label] = role
                self.scheduler.after(RESTART_US, lambda role=role: self.start(role))  # type: ignore[misc]

    def views(self) -> list[str]:
        """Return the views that have published something."""
        return sorted({query for kind, query in self.store.tables if kind == "windows"})

    def blocked_sites(self, role: Role) -> list[str]:
        """Return the sites whose segments a role could not merge, which must not happen."""
        running = role.running
        if running is None or isinstance(running, SimulatedSite):
            return []
        return [f"{role} has blocked {name}: {why}" for name, why in running.pipeline.consumer.blocked_status().items()]

    def is_drained(self, role: Role) -> bool:
        """Return whether a role has nothing left to take in or to send."""
        running = role.running
        if isinstance(running, SimulatedRelay):
            if any(r.is_dead for r in self.roles.values()):  # what a dead site has begun waits there for its end
                return running.pipeline.consumer.is_drained and running.pipeline.exits.are_empty
            return running.pipeline.drained
        if isinstance(running, SimulatedSite):
            return running.exits.are_empty
        return running is not None and running.pipeline.consumer.is_drained

    def describe(self, role: Role) -> str:
        """Return what a role still has to do."""
        running = role.running
        if isinstance(running, SimulatedSite):
            errors = [exit_.sender.snapshot().last_error for exit_ in running.exits]
            readers = {n: (r.next_batch, r.is_finished) for n, r in running.readers.items()}
            segments = sum(len(exit_.outbox.pending()) for exit_ in running.exits)
            return f"{readers}, {running.core.pending_rows} rows and {segments} segments wait, {errors}"
        if isinstance(running, SimulatedRelay):
            return str(running.pipeline.status())
        return "" if running is None else str(running.pipeline.status())

    def current(self) -> Deployment:
        """Return what is deployed now."""
        found = DeploymentStore(self.project.state_folder).read()
        return self._first if found is None else self._first.at(found)

    def _tick_delay_us(self) -> int:
        return round(self.options.tick_us * self.chance.uniform(0.8, 1.2))

    # --- links -------------------------------------------------------------------------------------------------------

    def link(self, origin: str, destination: str) -> SimulatedLink:
        """Return the link between two sites."""
        name = origin, destination
        if name not in self.links:
            declared = self.project.links.get(name)
            latency_us = declared.latency_us if declared is not None else 0
            weather = LinkWeather(min_delay_us=latency_us + 1_000, max_delay_us=latency_us + 2_000)
            if declared is not None:
                weather.bytes_per_s = declared.bandwidth_bytes_per_s
            self.links[name] = SimulatedLink(self.scheduler, self.chance, weather)
        return self.links[name]

    def _make_sender(self, role: Role, outbox: Outbox, sink: str) -> SimulatedSender:
        to = outbox.destination
        life = role.life

        def greet(introduction: Introduction) -> Greeting:
            greeting = self._inbox_call(to, sink, lambda receiver: receiver.inbox.greet(introduction))
            return replace(greeting, takes_brief=NEWEST_VERSION in greeting.versions)

        def accept(data: bytes) -> int:
            self.note(RareState.EARLIER_LIFE, int(role.life != life))
            if not is_brief(data):
                self._note_version(role, frame_version(data))
            recent = self._recent_tables.setdefault(to, RecentTables())
            named = recent.named
            try:
                return self._inbox_call(to, sink, lambda receiver: recent.accept(receiver.inbox, data))
            finally:
                self.note(RareState.TABLE_NAMED, recent.named - named)

        run = partial(self.carry_out, role)
        link = self.link(role.name, to)
        sender = SimulatedSender(
            outbox,
            link,
            role.clock,
            greet,
            accept,
            lambda action: _ignore(run(action)),
            role.frame_versions,
            {} if sink or self._ways.next_end(role.name) != to else self._ways_around(role.name),
            lambda: self.note(RareState.WAY_CHANGED),
            self._tables_there.setdefault((role.name, to), TablesThere()),
        )
        role.senders.append(sender)
        return sender

    def _ways_around(self, origin: str) -> dict[Way, list[SimulatedHop]]:
        """Return the links of the ways around the direct link of an end."""
        return {
            way: [SimulatedHop(self.link(*link), partial(self._is_up, link[1])) for link in links_of(way)]
            for way in map(self._ways.check, self._ways.from_end(origin)[1:])
        }

    def _is_up(self, name: str) -> bool:
        """Return whether a process of a site runs, which forwards."""
        roles = (self.roles.get((kind, name)) for kind in (SITE, RELAY))
        return any(role is not None and role.running is not None for role in roles)

    def _note_version(self, role: Role, version: int) -> None:
        if role.sent_versions and version not in role.sent_versions:
            self.note(RareState.VERSIONS_MIXED)
        role.sent_versions.add(version)

    def _inbox_call(self, to: str, sink: str, call: Callable[[SimulatedCenter | SimulatedRelay], Reply]) -> Reply:
        """Let the far side answer a call, if it is up; a disk error there ends it at its next tick."""
        role = self.roles.get((RELAY, relay_label(to, sink))) or self.roles.get((CENTER, to))
        if role is None:
            raise LinkError(f"{to} is no relay yet")
        receiver = role.running
        if receiver is None or isinstance(receiver, SimulatedSite):
            raise LinkError(f"{role} does not answer")
        try:
            return call(receiver)
        except Killed:
            self._fail(role, "ends at a call of its disk")
        except OSError as error:
            self.say(f"{role} cannot store: {error}")
        except RefusedError as refusal:
            self.note(RareState.SEGMENT_REFUSED)
            self.note(RareState.FRAGMENT_UNKNOWN, int(refusal.reason == "unfit"))
            self.note(RareState.TABLE_FORGOTTEN, int(refusal.reason == "not_here"))
            self.note(RareState.HISTORY_REFUSED, int(refusal.reason in ("other_history", "wrong_epoch")))
            if isinstance(receiver, SimulatedCenter) and receiver.pipeline.open_state.held_back:
                self.note(RareState.SENDER_HELD_BACK, int(refusal.reason == "full"))
            raise
        raise LinkError(f"{role} ended during the call")


def relay_label(name: str, sink: str) -> str:
    """Return what tells a relay from that of the same site for another sink."""
    return f"{name} for {sink}" if sink else name


def _ignore(_: bool) -> None:
    return None
