"""The center as it runs: an inbox that all sites send to, the core, and the tables that it publishes to.

A thread looks into the inbox every trigger interval. What has landed is merged per (slice, keys) and becomes one entry
of the journal (`catchment.progress.consumer`). The loop is plain on purpose: the inbox and the journal already say what
was consumed, so nothing is left for a streaming engine to remember. What may need one is injected: `merge` combines
large tables of partials, and the tables finish their rows.

Where more lands than can be merged, some groups of the views that tolerate it are deferred, and merged when there is
room (`catchment.progress.deferred`).

A repair that is due (late partials that the core has registered, with the published states that they change) goes into
the entry of the next landed segments, and is published with what that closes; it is an entry of its own only when
nothing lands.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from catchment.center.composed.query import ComposedQuery
from catchment.center.composed.tables import ComposedTables
from catchment.center.core import CenterCore, Repair
from catchment.center.deployed_changes import composed_changes, query_changes, roster_changes
from catchment.center.events import (
    Action,
    AnswersRecalled,
    AnswersResumed,
    AnswersSuspended,
    Compose,
    Event,
    Expired,
    Publish,
    QueryRenewed,
    Recalled,
    RosterChange,
    SiteHealed,
    SiteReplaced,
    UnfinishedRevision,
)
from catchment.center.log_lines import log_deployment, log_windows
from catchment.center.open_state import OpenState
from catchment.center.query import CenterQuery
from catchment.center.restated_notes import RestatedNotes
from catchment.center.results.restate import note_rounds, restate_windows
from catchment.center.results.second_round import RoundRule
from catchment.center.results.write import ResultTables
from catchment.center.round_notes import RoundNotes
from catchment.center.shards.consumer import ShardedCenter, ShardedConsumer
from catchment.center.shards.housekeeping import PartKeeper
from catchment.center.shards.parts import is_parts
from catchment.center.sites_apart import find_alike, names_apart
from catchment.center.status import describe_queries, describe_sites
from catchment.center.statuses import SUSPENDED
from catchment.center.unfinished_notes import UnfinishedNotes
from catchment.errors import EngineError
from catchment.log_fields import about
from catchment.progress.consumer import InboxConsumer, Merge, merge_here
from catchment.progress.events import Landed, Ticked
from catchment.progress.spans import ALL_OF_TIME, Span
from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.routings import Routings
from catchment.project.site_orders import SiteOrders
from catchment.query.fragment import Fragment
from catchment.query.window_repair import WindowRepair
from catchment.shedding.group_shares import DeferrableFragment
from catchment.storage.disk import current_disk
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import SECOND_US, START_OF_TIME_US, Clock
from catchment.wire.receiving.inbox import Inbox

REPAIR_ALONE_AFTER_US = 2 * SECOND_US  # how long a repair that is due waits for landed segments to go with
RECALLED_WINDOWS = 64  # windows of a resumed view that are published again in one entry
STOP_WITHIN_S = 60.0  # how long `stop` waits for the entry under way
FAILURE_FILE = "failure.txt"
_log = logging.getLogger(__name__)


@dataclass
class CenterPipeline:
    """Everything that runs at the center."""

    project: Project
    inbox: Inbox
    queries: Sequence[CenterQuery]
    fragments: Mapping[str, Fragment]
    begun: Mapping[str, Collection[str]]  # the fragments that were begun during a run, and those that end there
    tables: Mapping[str, ResultTables]
    clock: Clock
    merge: Merge = merge_here
    orders: SiteOrders = field(default_factory=SiteOrders)
    deferrable: Mapping[str, DeferrableFragment] = field(default_factory=dict)  # what may wait under overload
    stopwatch: Callable[[], float] = time.perf_counter
    composed: Sequence[ComposedQuery] = ()
    repairs: Mapping[str, WindowRepair] = field(default_factory=dict)  # by the view that computes windows again
    round_rules: Mapping[str, RoundRule] = field(default_factory=dict)  # how estimates are made exact, by query
    spread: ShardedCenter | None = None  # how its rows are spread, if this process does not hold them
    routings: Routings | None = None  # None: what is declared
    published: int = field(default=0, init=False)
    # Is set after recovery, so that it is not told again of what was published before.
    observer: WindowObserver | None = field(default=None, init=False)
    _committed_at_us: int = field(default=START_OF_TIME_US, init=False)  # when segments were last committed
    _turn: threading.RLock = field(default_factory=threading.RLock, init=False)  # one repair or entry at a time
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _heard_at_us: dict[str, int] = field(default_factory=dict, init=False)  # when something of a site last landed

    def __post_init__(self) -> None:
        self.folder = self.project.state_folder / "center"
        self.core = CenterCore()
        self.parts = PartKeeper(self.core, self.spread) if self.spread is not None else None
        self._notes = UnfinishedNotes(self.folder)
        self._restated = RestatedNotes(self.folder)
        self.rounds_due = RoundNotes(self.folder)
        journal = Journal(self.folder / "journal")
        self.host: Host[Event, Action] = Host(self.core, journal, self._enact, self.clock, self._flush_tables)
        snapshot = journal.snapshot()
        self.warnings = [*journal.warnings, *self._remove_torn(0 if snapshot is None else snapshot.enacted)]
        self.host.recover(max((table.next_number() for table in self.tables.values()), default=0))
        self.consumer = self._make_consumer()
        self.consumer.recover()
        limit_bytes = self.project.limits.open_state_bytes
        self.open_state = OpenState(self.core, self._routings, self.clock, limit_bytes)
        self._begin_lives()
        self._journal_notes()
        self._apply_deployment()

    @property
    def _routings(self) -> Routings:
        return self.routings or Routings.of(self.project, {})

    def _make_consumer(self) -> InboxConsumer:
        given = self.inbox, self.host, self.merge, self._find_span, self.stopwatch, self._find_alike
        return InboxConsumer(*given) if self.spread is None else ShardedConsumer(*given, self.spread)

    def deploy(
        self,
        queries: Sequence[CenterQuery],
        fragments: Mapping[str, Fragment],
        begun: Mapping[str, Collection[str]],
        tables: Mapping[str, ResultTables],
        orders: SiteOrders,
        deferrable: Mapping[str, DeferrableFragment],
        composed: Sequence[ComposedQuery] = (),
        repairs: Mapping[str, WindowRepair] | None = None,
        round_rules: Mapping[str, RoundRule] | None = None,
        routings: Routings | None = None,
    ) -> None:
        """Answer these queries over these sites from now on; those that go on are not touched."""
        with self._turn:
            self.deferrable = deferrable
            self.queries = queries
            self.fragments = fragments
            self.begun = begun
            self.tables = tables
            self.orders = orders
            self.composed = composed
            self.repairs = repairs or {}
            self.round_rules = round_rules or {}
            self.routings = routings
            self.open_state.routings = self._routings
            self._apply_deployment()

    def _apply_deployment(self) -> None:
        with self._turn:
            renewed = [e for e in query_changes(self.core, self.queries, self.begun) if isinstance(e, QueryRenewed)]
            if renewed:  # first: what has landed of their new fragments must find them
                waiting = self._fetch_states(self.core.repairs_before(renewed))
                self.host.submit("deploy", [*waiting, *renewed])
            lives = self.orders.lives
            senders = self._routings.neighbours(self.project.center)
            for name in senders:
                if self.orders.is_healed(name) and self.core.sites.lives.get(name, 0) < lives[name]:
                    self.inbox.stop_life(name)  # so that it cannot begin its new life while this is looked at
            neighbours = [name for name in senders if not self.inbox.is_in_life(name, lives.get(name, 0))]
            changes = list(roster_changes(self.core, self.queries, self.orders, neighbours))
            if changes:
                self._change_rosters(changes)
            events = list(query_changes(self.core, self.queries, self.begun))
            events += composed_changes(self.core, self.composed)
            if events:
                self.host.submit("deploy", events)
                for event in events:
                    log_deployment(event)

    def resume(self, names: Iterable[str]) -> None:
        """Finish the answers of these views again, if they are suspended here."""
        with self._turn:
            suspended = [
                name for name in names if name in self.core.unfinished and self.core.unfinished[name].suspended
            ]
            if suspended:
                self.host.submit("resume", [AnswersResumed(name) for name in suspended])
                for name in suspended:
                    _log.info("the answers of %s are finished again", name, extra=about(query=name))

    def _change_rosters(self, changes: Sequence[RosterChange]) -> None:
        """Let sites come and go; what has landed of them is handled before."""
        for change in changes:
            if isinstance(change, SiteReplaced | SiteHealed):
                self.inbox.stop_life(change.site)
        landed = self.inbox.last_position
        while self.consumer.position <= landed and self.consume():
            pass
        self._merge_deferred(everything=True)
        self.consumer.recover()
        self.host.submit("deploy", changes)
        for change in changes:
            _log.info("the sites change: %s", change, extra=about(site=change.site))
        self._begin_lives()

    def _begin_lives(self) -> None:
        """Let the inbox take the new lives of replaced sites; a crash may have come before it did."""
        for site, life in self.core.sites.lives.items():
            if self.inbox.life_of(site) < life:
                self.inbox.begin_life(site, life, is_healed=self.core.sites.healed.get(site) == life)

    def _find_span(self, fragment: str, site: str) -> Span:
        known = self.fragments.get(fragment)
        return ALL_OF_TIME if known is None else self.core.sites.span(known.stream, site)

    def _find_alike(self, fragment: str, sender: str) -> tuple[str, ...]:
        """Return the sites whose partials of a fragment are wanted by the same queries as those of a sender."""
        return find_alike(list(self.core.queries.values()), self._routings, fragment, sender)

    def start(self) -> None:
        """Begin to consume the inbox."""
        self._thread = threading.Thread(target=self._run, name="center", daemon=True)
        self._thread.start()

    def tick(self) -> None:
        """Let time pass: a window may be due without a site that is missing. Raise what the loop has failed with."""
        self.inbox.raise_failure()
        if self._failure is not None:
            raise self._stopped_error(self._failure) from self._failure
        with self._turn:
            if self.core.is_waiting(self.clock.now_us()):
                self.host.submit("tick", [Ticked()])
            if self.clock.now_us() - self._committed_at_us > REPAIR_ALONE_AFTER_US:
                self._repair()
            self._publish_unfinished()
            self._journal_notes()
            self._bound_open_state()

    def checkpoint(self) -> None:
        """Make everything durable that was published."""
        with self._turn:
            self.host.checkpoint()

    def remove_tables(self, name: str) -> None:
        """Remove the tables of a view that was deployed for a while, to compute something for another one."""
        for tables in self.tables.values():
            tables.remove_tables(name)
            return

    def finish(self) -> None:
        """Repair everything that is registered: nothing more will come for now."""
        with self._turn:
            self._merge_deferred(everything=True)
            self._repair(everything=True)
            self._journal_notes()

    @property
    def consumed(self) -> bool:
        """Whether everything that landed has been handled, late and deferred records too."""
        return self.inbox.size_bytes == 0 and not self.core.outstanding and not self.core.deferred

    def stop(self) -> None:
        """End after the entry under way; what has landed since waits in the inbox."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)
        self.host.journal.close()

    def status(self) -> dict[str, Any]:
        """Return per query how far each site has come and what is closed."""
        return {
            "published": self.published,
            "refused": dict(self.inbox.refused),
            "refusals": self.inbox.refusals(),
            "blocked": self.consumer.blocked_status(),
            "deferral": self.consumer.deferral_status(),
            **describe_queries(self.core),
            "sites": describe_sites(self.core, self.inbox.refusals(), self._heard_at_us),
            "open_state": self.open_state.status(),
            "second_rounds": self.rounds_due.status(),
            **({"parts": self.parts.status()} if self.parts is not None else {}),
            "warnings": self.warnings,
        }

    # --- the loop ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        interval_s = self.project.defaults.trigger_us / SECOND_US
        next_s = time.monotonic()
        try:
            while not self._stopping.wait(max(next_s - time.monotonic(), 0.0)):
                next_s = time.monotonic() + interval_s
                while self.consume() and not self._stopping.is_set():
                    pass
        except BaseException as failure:  # noqa: BLE001 - the next tick raises it in the thread that runs the process
            self._failure = failure

    def consume(self) -> bool:
        """Commit one run of landed segments, or of what was deferred; return whether there was any."""
        with self._turn:
            self.consumer.resume_requested()
        roster = self.core.sites.version
        began_us = self.clock.now_us()
        fragments = self.fragments
        run = self.consumer.read(fragments, self._deferrable_now())
        if run is None:
            return self._merge_deferred()
        with self._turn:
            is_outdated = self.core.sites.version != roster or self.fragments is not fragments
            if is_outdated or self.consumer.is_outdated(run):
                return True  # sites or fragments came or went meanwhile, so that other parts of it count: read it again
            # What was registered before is repaired with it: an enactment costs more than what it repairs.
            folded = self.parts.fold_slices(run.end) if self.parts is not None else []
            self.consumer.commit(run, [*self._recall(), *folded, *run.events, Ticked()])
            self._committed_at_us = self.clock.now_us()
            self._keep_parts(run.end)
            if self.observer is not None:
                self.observer.note_merged(run.events, began_us)
            self._journal_notes()
            self._heard_at_us.update({e.origin: self._committed_at_us for e in run.events if isinstance(e, Landed)})
            self._bound_open_state()
        return True

    def _keep_parts(self, run_end: int) -> None:
        """Remove the part files that are not wanted any more, if rows lie in files; the caller holds the turn."""
        if self.parts is not None:
            if self.parts.note_run(run_end):
                self.host.checkpoint()
            self.parts.remove_unused()

    def _deferrable_now(self) -> dict[str, DeferrableFragment]:
        """Return what may be deferred: fragments that serve no query but those that tolerate it, and want all sites."""
        users: dict[str, set[str]] = {}
        for name, running in list(self.core.queries.items()):
            for fragment in running.sources.fragments:
                users.setdefault(fragment, set()).add(name)
        apart = names_apart(list(self.core.queries.values()))
        return {
            name: f for name, f in self.deferrable.items() if name not in apart and users.get(name, set()) <= f.queries
        }

    def _merge_deferred(self, everything: bool = False) -> bool:
        """Commit what was deferred, oldest first, if there is room or it must be; return whether there was any."""
        with self._turn:
            run = self.consumer.read_deferred(self.fragments, everything)
            if run is None:
                return False
            self.consumer.commit_deferred(run, [*self._recall(), *run.events, Ticked()])
            self._committed_at_us = self.clock.now_us()
            self._journal_notes()
        return True

    def _bound_open_state(self) -> None:
        """Hold senders back while too much is held for open windows; the caller holds the turn."""
        if self.open_state.follow():
            held_back = dict.fromkeys(self.open_state.held_back, self.open_state.reason())
            if held_back:
                _log.warning("%s: held back: %s", self.open_state.reason(), ", ".join(sorted(held_back)))
            self.inbox.hold_back(held_back)

    def _stopped_error(self, failure: BaseException) -> EngineError:
        path = self.folder / FAILURE_FILE
        path.write_text("".join(traceback.format_exception(failure)), encoding="utf-8")
        reason = str(failure).strip().partition("\n")[0] or type(failure).__name__
        return EngineError(f"the center stopped: {reason}", hint=f"where it was then is in {path}")

    # --- what follows from an entry -----------------------------------------------------------------------------

    def _repair(self, everything: bool = False) -> None:
        """Commit the repairs that are due; a repaired window may then be final."""
        recalled = self._recall(everything)
        if recalled:
            self.host.submit("repair", [*recalled, Ticked()])

    def _recall(self, everything: bool = False) -> list[Event]:
        """Return the repairs that are due, with the published states that they change."""
        return self._fetch_states(self.core.repairs(self.clock.now_us(), everything))

    def _fetch_states(self, due: Iterable[Repair]) -> list[Event]:
        return [Recalled(r.query, r.windows, self.tables[r.query].recall(r.wanted), r.reason) for r in due]

    def _publish_unfinished(self) -> None:
        """Publish, some at a time, the windows of resumed views whose answers were not finished."""
        for name, state in self.core.unfinished.items():
            if state.suspended is None and name in self.tables:
                starts = tuple(sorted(state.windows)[:RECALLED_WINDOWS])
                states = self.tables[name].recall_windows(starts)
                self.host.submit("resume", [AnswersRecalled(name, starts, states)])

    def _journal_notes(self) -> None:
        """Suspend the views whose last step has failed, and let views follow windows that were published again.

        The caller holds the turn, so that nothing comes between.
        """
        restated = self._restated.events()
        if restated:
            self.host.submit("restate", restated)
            self._restated.clear()
        events = self._notes.events()
        if events:
            self.host.submit("suspend", events)
            self._notes.clear()
            for event in events:
                told = "the answers of %s are suspended: %s"
                _log.warning(told, event.query, event.reason, extra=about(query=event.query))

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        for name in sorted(self.tables, key=lambda name: name not in self.repairs):  # what computes others again first
            tables = self.tables[name]
            published = [a for a in actions if isinstance(a, Publish) and a.query == name]
            restated = list(restate_windows(name, self.repairs, self.tables, actions, self.round_rules))
            self._note_restated(number, name, restated)
            published += restated
            if name in self.round_rules:
                published = self._note_rounds(name, published)
            if self._notes.is_unfinished(name, number):
                published = [replace(p, status=SUSPENDED, is_finished=False) for p in published]
            expired = [a for a in actions if isinstance(a, Expired) and a.query == name]
            note = partial(self._note_unfinished, name, number)
            if any(is_parts(publish.rows) for publish in published):
                published, given_up = tables.fetch_rows(number, published, note)
                expired += given_up
            tables.register_late(number, expired)
            tables.publish(number, published, note)
        self._compose(number, [a for a in actions if isinstance(a, Compose)])
        self.published += sum(isinstance(a, Publish | Compose) for a in actions)
        log_windows(actions)
        if self.observer is not None:
            self.observer.note_published(actions)
        return 1

    def _note_restated(self, number: int, name: str, restated: Sequence[Publish]) -> None:
        """Note final windows that are about to be published again, if another view reads them."""
        changed = [p for p in restated if p.has_answer]
        is_read = any(query.lower == name for query in self.composed)
        if changed and is_read and self.tables[name].next_number() <= number:  # else they were, and it is journalled
            self._restated.add(number, name, changed)

    def _note_rounds(self, name: str, published: Sequence[Publish]) -> list[Publish]:
        """Note the windows that are final now and have estimates; return what is published, which says so."""
        told, starts_us = note_rounds(self.tables[name], self.round_rules[name], published, self.rounds_due)
        if starts_us:
            self.rounds_due.add(name, starts_us)
        return told

    def _compose(self, number: int, due: Sequence[Compose]) -> None:
        """Publish views of views, each after the one that it reads."""
        lowers = {query.name: query.lower for query in self.composed}
        for name in dict.fromkeys(compose.query for compose in due):
            tables = self.tables.get(name)
            if not isinstance(tables, ComposedTables):  # it was dropped
                continue
            mine = [compose for compose in due if compose.query == name]
            if self._notes.is_unfinished(lowers[name], number):
                mine = [replace(compose, status=SUSPENDED) for compose in mine]
            tables.compose(number, mine, partial(self._note_unfinished, name, number))

    def _note_unfinished(self, name: str, number: int, windows: tuple[UnfinishedRevision, ...], reason: str) -> None:
        self._notes.add(number, AnswersSuspended(name, windows, reason))

    def _remove_torn(self, first_number: int) -> list[str]:
        """Remove what a power cut has left half written of the tables: the journal is about to write it again."""
        removed = [told for tables in self.tables.values() for told in tables.remove_torn(first_number)]
        for told in removed:
            _log.warning("removed %s; the journal writes it again", told)
        return removed

    def _flush_tables(self) -> None:
        """Before the journal forgets what it can repeat: tables on the disk, and not in too many pieces."""
        for tables in self.tables.values():
            tables.compact()
            tables.flush()
        if self.parts is not None:
            self.parts.note_snapshot(self.consumer.position)
        current_disk().sync_everything()
