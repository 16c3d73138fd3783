"""The center core: open slices, progress, closing, revisions. Pure: events in, actions out.

A core holds one shard of the keys. It keeps partials of open slices only; a closed window's states live in the
result table and are recalled when late partials touch them, so that memory is bounded by what is open and the
cost of a repair by what was late.

Invariants:
- A partial is merged into each window that contains its slice exactly once.
- A window closes when the mark of every site has passed its end, or, `freshness` after the first site passed it,
  without the sites that are missing. A site's mark counts only when every segment up to the one that states it is in.
- A site that is blocked (`catchment.progress.blocking`) is missing from then on, and nothing else changes.
- A window needs the sites that count for it, and no others (`catchment.center.roster`).
- A query that comes or goes changes nothing of another (`catchment.center.fragment_sources` says where it begins).
- A window's status is early (still open), on_time (a site is missing, expects more, or has shed records of it), exact
  (nothing outstanding) or final (the horizon has passed too: it changes no more, and names the sites that stayed away).
  It goes back only from exact to on_time, where late records of the window were sampled; and what a suspended fragment
  has skipped makes a window that was exact `suspended`, until its site has sent that from history. Revisions of a
  window count 1, 2, 3, ...
- A window that lacks deferred partials is on_time, and is neither exact nor final before they were merged.
- A record is of one of three classes (Yang et al., HPM, section 2): its window is open, and it is merged; closed, and
  it is registered until a repair merges it (`catchment.center.late`); or final, and it is registered for good. None is
  silently dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.composed.query import ComposedQuery
from catchment.center.composed.windows import ComposedState, ComposedWindows, LowerProgress, in_order
from catchment.center.events import (
    Action,
    AnswersRecalled,
    AnswersResumed,
    AnswersSuspended,
    Compose,
    ComposedAdded,
    Event,
    PartsFolded,
    Publish,
    QueryAdded,
    QueryDropped,
    QueryMoved,
    QueryRenewed,
    Recalled,
    SiteHealed,
    SiteJoined,
    SiteReplaced,
    SiteRetired,
    WindowsRestated,
)
from catchment.center.query import CenterQuery
from catchment.center.roster_changes import RosterChanges, SiteRecords
from catchment.center.running_query import QueryState, RunningQuery
from catchment.center.windows.deferred import DeferralName
from catchment.center.windows.unfinished import UnfinishedState
from catchment.errors import CenterError
from catchment.progress.blocking import Blocked, SiteBlocked, SiteResumed, note_blocking
from catchment.progress.deferred import DeferralKey
from catchment.progress.events import DeferredMerged, Gathered, Landed, LeftOut, PartialsDeferred, Ticked
from catchment.progress.frontier import Frontier, apply_landed, instant_facts
from catchment.query.fragment import SLICE_COLUMN
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US
from catchment.wire.messages import Backfilled, Deferred, Delivered, LookedUp, Repaired, Shed, Suspended

MAX_FORMER = 1_000  # former fragments that are remembered; what is on its way of an older one has arrived long ago


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that is due: its windows, the published rows that it changes (window_start_us, keys...), and why."""

    query: str
    windows: tuple[int, ...]
    wanted: pa.Table
    reason: str


@stored(
    version=5,  # version 5 has former
    migrations={
        1: lambda fields: {**fields, "blocked": {}, "sites": SiteRecords()},
        2: dict,
        3: dict,
        4: dict,
    },
)
@dataclass
class CenterState:
    """All that a center core remembers, the definitions of its queries included."""

    frontiers: dict[str, Frontier]
    newest: dict[str, int]
    queries: dict[str, QueryState]
    blocked: Blocked
    sites: SiteRecords
    deferred: set[DeferralKey] = field(default_factory=set)
    composed: dict[str, ComposedState] = field(default_factory=dict)
    former: list[str] = field(default_factory=list)


class CenterCore:
    """Drives the windows of every query by what lands from every site."""

    def __init__(self) -> None:
        self.frontiers: dict[str, Frontier] = {}
        self.queries: dict[str, RunningQuery] = {}
        self.composed: dict[str, ComposedWindows] = {}  # each after the one that it reads
        self.blocked: Blocked = {}
        self.newest: dict[str, int] = {}  # fragment -> the newest slice that was merged of it
        self.sites = SiteRecords()
        self.deferred: set[DeferralKey] = set()  # partials that wait on disk
        self.former: list[str] = []  # fragments in whose place others compute the same windows again

    def handle_all(self, events: Sequence[Event], now_us: int) -> tuple[Action, ...]:
        """Take the events of one entry in; return the actions that follow from them, in order.

        Views of views come last, each after the one that it reads.
        """
        actions = [action for event in events for action in self.handle(event, now_us)]
        for composed in self.composed.values():
            for event in events:
                if isinstance(event, AnswersSuspended) and event.query == composed.query.lower:
                    composed.note_unfinished([window.start_us for window in event.windows])
                if isinstance(event, WindowsRestated) and event.query == composed.query.lower:
                    composed.note_restated(event.windows)
            for action in actions:
                if isinstance(action, Publish | Compose) and action.query == composed.query.lower:
                    composed.note(action)
            actions += composed.settle(self._lower_progress(composed.query.lower), now_us)
        return tuple(actions)

    def handle(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Take one event in; return the actions that follow from it, in order."""
        match event:
            case QueryAdded():
                self._add(event)
            case QueryDropped(name):
                self.queries.pop(name, None)
                self.composed.pop(name, None)
            case ComposedAdded(query):
                self._add_composed(query)
            case QueryMoved(name, derivation, waits, takes_over):
                floor_us = self._floor_us(derivation.fragment)
                self._query(name).sources.move(derivation, floor_us, waits, takes_over)
            case QueryRenewed(query):
                self._renew(query, now_us)
            case SiteJoined() | SiteRetired() | SiteReplaced() | SiteHealed():
                RosterChanges(self.queries, self.frontiers, self.sites).change(event)
                if isinstance(event, SiteReplaced | SiteHealed):
                    self.blocked.pop(event.site, None)
            case LeftOut(site=site, records=records):
                self.sites.left_out[site] = self.sites.left_out.get(site, 0) + records
            case Recalled(query, starts, states, reason):
                if query in self.queries:  # else it was dropped meanwhile
                    running = self.queries[query]
                    marks = running.site_marks(self.frontiers)
                    repaired = running.windows.late.repair(starts, states, reason, marks, now_us)
                    return tuple(running.windows.unfinished.follow(repaired))
            case AnswersSuspended(query) | AnswersResumed(query) | AnswersRecalled(query):
                if query in self.queries:
                    return self.queries[query].follow_answers(event, now_us)
            case PartsFolded(query, slice_us, parts):
                if query in self.queries:  # else it was dropped meanwhile
                    self.queries[query].windows.open.replace(slice_us, parts)
            case Gathered():
                self._merge(event, now_us)
            case PartialsDeferred():
                self._defer(event)
            case DeferredMerged(fragment, number):
                self.deferred.discard((fragment, number))
                self._settle_deferred(("", fragment, number))
            case Landed():
                self._note_landed(event)
            case SiteBlocked() | SiteResumed():
                note_blocking(self.blocked, event, now_us)
            case Ticked():
                return tuple(action for name in self.queries for action in self._settle(name, now_us))
        return ()

    def repairs(self, now_us: int, everything: bool = False) -> Iterator[Repair]:
        """Yield the repairs that are due, or all that there could be.

        Each becomes a `Recalled` when the published states that it wants have been fetched. Nothing else may reach the
        core between the question and that event.
        """
        for name, running in self.queries.items():
            if running.windows.state.late:
                late = running.windows.late
                for reason, starts in late.due(running.site_marks(self.frontiers), now_us, everything).items():
                    yield Repair(name, starts, late.rows_to_recall(starts), reason)

    def repairs_before(self, renewed: Iterable[QueryRenewed]) -> Iterator[Repair]:
        """Yield the repairs of what waits for the windows of queries that are about to be computed again.

        Their published answers may stand: then they must have all that has come for them.
        """
        for event in renewed:
            late = self._query(event.query.name).windows.late
            starts = late.waiting()
            if starts:
                yield Repair(event.query.name, starts, late.rows_to_recall(starts), "it is about to be computed again")

    @property
    def outstanding(self) -> int:
        """Registered late records that no repair has merged yet, unless the former answers of their windows stand."""
        windows = (running.windows for running in self.queries.values())
        return sum(w.state.late.records for w in windows if w.renewed.has_other_late())

    @property
    def is_renewing(self) -> bool:
        """Whether something has come for a window that is computed again, and its former answer still stands."""
        windows = (running.windows for running in self.queries.values())
        return any(w.renewed.is_pending(start_us) for w in windows for start_us in w.state.late.tables)

    def is_waiting(self, now_us: int) -> bool:
        """Return whether a `Ticked` would publish though nothing landed."""
        return any(running.is_due(self.frontiers, now_us) for running in self.queries.values())

    def marks(self, name: str) -> Mapping[str, int]:
        """Return how far each site of a query has come."""
        return self._query(name).marks(self.frontiers)

    def suspensions(self, name: str) -> dict[str, Suspended]:
        """Return the sites where a fragment of a query is suspended, and why."""
        running = self._query(name)
        return {
            site: frontier.suspended[fragment]
            for site, frontier in self.frontiers.items()
            for fragment in running.sources.fragments
            if fragment in frontier.suspended and running.uses(fragment, site)
        }

    def backfilling(self, name: str) -> list[str]:
        """Return the sites that still read the past of a query from history."""
        past = self._query(name).site_marks(self.frontiers).backfilling
        return sorted({site for site, _, _ in past})

    @property
    def unfinished(self) -> dict[str, UnfinishedState]:
        """The queries that have answers which could not be finished."""
        states = {name: running.windows.state.unfinished for name, running in self.queries.items()}
        return {name: state for name, state in states.items() if state.suspended is not None or state.windows}

    @property
    def fragments(self) -> frozenset[str]:
        """The fragments that some query takes something from."""
        return frozenset(f for running in self.queries.values() for f in running.sources.fragments)

    def fragment_ends(self) -> dict[str, int]:
        """Return the fragments that no query takes anything from after an instant, with that instant."""
        parts = [part for running in self.queries.values() for part in running.sources.parts]
        open_ended = {part.sources[-1].fragment for part in parts}
        ends: dict[str, int] = {}
        for part in parts:
            for source in part.sources[:-1]:
                ends[source.fragment] = max(ends.get(source.fragment, START_OF_TIME_US), source.until_us)
        return {fragment: end for fragment, end in ends.items() if fragment not in open_ended}

    def snapshot(self) -> CenterState:
        """Return all its state."""
        queries = {name: running.snapshot() for name, running in self.queries.items()}
        composed = {name: windows.state for name, windows in self.composed.items()}
        return CenterState(
            self.frontiers, self.newest, queries, self.blocked, self.sites, self.deferred, composed, self.former
        )

    def restore(self, state: CenterState) -> None:
        """Take back the state of a snapshot. A query that is here already keeps its definition."""
        self.frontiers = state.frontiers
        self.newest = state.newest
        self.blocked = state.blocked
        self.sites = state.sites
        self.deferred = state.deferred
        self.former = state.former
        ordered = in_order([known.query for known in state.composed.values()])
        self.composed = {query.name: ComposedWindows(state.composed[query.name]) for query in ordered}
        for name, query_state in state.queries.items():
            known = self.queries.get(name)
            self.queries[name] = RunningQuery(query_state, known.query if known is not None else None)

    def validate(self) -> None:
        """Assert the invariants that can be seen from inside."""
        for running in self.queries.values():
            running.windows.validate()

    def _add(self, event: QueryAdded) -> None:
        name = event.query.name
        if name in self.queries:
            raise CenterError(f"query {name!r} is already running", hint="drop it first")
        self.queries[name] = RunningQuery.begin(event.query, self._floor_us, event.waits)
        for part in self.queries[name].sources.parts:
            self.sites.restrict(part.query.fragment.stream, part.roster)

    def _add_composed(self, query: ComposedQuery) -> None:
        """Begin a view of a view, behind the windows of that which were published before anyone listened."""
        if query.name in self.queries or query.name in self.composed:
            raise CenterError(f"query {query.name!r} is already running", hint="drop it first")
        if query.lower in self.composed:
            closed_us = self.composed[query.lower].state.closed_us
        else:
            closed_us = self._query(query.lower).windows.state.closed_us
        self.composed[query.name] = ComposedWindows(ComposedState(query, closed_us))

    def _renew(self, query: CenterQuery, now_us: int) -> None:
        """Compute the windows of a query again; what sites have stated of them by its former fragments ends."""
        running = self._query(query.name)
        self.former = [*self.former, *running.sources.fragments][-MAX_FORMER:]
        for frontier in self.frontiers.values():
            frontier.forget_standing(query.name)
        self.queries[query.name] = running.renew(query, waits=True, now_us=now_us)

    def _lower_progress(self, name: str) -> LowerProgress:
        """Return how far a view has come that others read."""
        if name in self.composed:
            composed = self.composed[name]
            return composed.progress(self._lower_progress(composed.query.lower))
        if name not in self.queries:  # it was dropped
            return LowerProgress(None, START_OF_TIME_US, START_OF_TIME_US, START_OF_TIME_US)
        running = self.queries[name]
        complete_us = min(running.marks(self.frontiers).values(), default=START_OF_TIME_US)
        state = running.windows.state
        changing_us = min((*state.closed, *state.late.starts_us), default=END_OF_TIME_US)  # the first that may change
        final_us = min(state.final_us, changing_us + running.query.window.size_us - 1)
        return LowerProgress(running.sources.start_us, max(state.closed_us, complete_us), complete_us, final_us)

    def _merge(self, event: Gathered, now_us: int) -> None:
        for running in self.queries.values():
            running.merge(event, now_us)
        if event.partials.num_rows:
            newest = pc.max(event.partials[SLICE_COLUMN]).as_py()
            self.newest[event.fragment] = max(self.newest.get(event.fragment, START_OF_TIME_US), newest)
        self.sites.note_merged(event)
        self._count_left_out(event)

    def _count_left_out(self, event: Gathered) -> None:
        """Count the records of windows that were final when all queries of a fragment were renewed.

        They were merged before, or have come too late: nobody can tell.
        """
        using = [running for running in self.queries.values() if event.fragment in running.sources.fragments]
        starts = [r.sources.taken_from_us or START_OF_TIME_US for r in using if r.query.renewal]
        if using and len(starts) == len(using):
            for site, slice_us, count in event.records:
                if slice_us < min(starts):
                    self.sites.left_out[site] = self.sites.left_out.get(site, 0) + count

    def _defer(self, event: PartialsDeferred) -> None:
        """Note what waits of a fragment. A query that begins later begins behind it, as behind what was merged."""
        self.deferred.add((event.fragment, event.number))
        self._note_deferred(event)

    def _note_deferred(self, deferred: PartialsDeferred | Deferred, site: str = "") -> None:
        newest_us = max((slice_us for slice_us, _ in deferred.lacking), default=START_OF_TIME_US)
        known_us = self.newest.get(deferred.fragment, START_OF_TIME_US)
        if newest_us > known_us:
            self.newest[deferred.fragment] = newest_us
        for running in self._using(deferred.fragment, site):
            running.defer(deferred, site)

    def _settle_deferred(self, name: DeferralName) -> None:
        for running in self.queries.values():
            running.windows.outstanding.settle_deferred(name)

    def _note_landed(self, landed: Landed) -> None:
        """Take a segment in; shed and skipped records count at once, repaired ones when all sent before them is in."""
        for origin, fact in instant_facts(landed):
            if isinstance(fact, Deferred):
                self._note_deferred(fact, origin)
                continue
            for running in self._using(fact.fragment, origin):
                if isinstance(fact, LookedUp):
                    running.note_looked_up(origin, fact)
                    continue
                counted = running.restrict_fact(origin, fact)
                if counted is None:
                    continue
                if isinstance(counted, Shed):
                    running.windows.outstanding.add_shed(origin, counted)
                else:
                    running.windows.skipped.add(origin, counted)
        for origin, stated in apply_landed(self.frontiers, landed, self.former):
            if isinstance(stated, Repaired):
                for running in self._using(stated.fragment):
                    running.windows.outstanding.settle_repaired(origin, stated)
            elif isinstance(stated, Delivered):
                self._settle_deferred((stated.place, stated.fragment, stated.number))
            elif isinstance(stated, Backfilled):
                for running in self._using(stated.fragment, origin):
                    self._settle_skipped(running, origin, stated)

    def _settle_skipped(self, running: RunningQuery, site: str, fact: Backfilled) -> None:
        """Let a query lack nothing more of what a site had skipped, once nothing of it is to come."""
        frontier = self.frontiers[site]
        fragments = running.sources.fragments
        if not any(f in frontier.suspended or f in frontier.backfilling for f in fragments):
            lost = [span for f in fragments for span in frontier.lost.get(f, ())]
            running.windows.skipped.settle(site, lost)

    def _settle(self, name: str, now_us: int) -> Iterator[Action]:
        running = self.queries[name]
        yield from running.windows.unfinished.follow(running.settle(self.frontiers, self.newest, now_us))
        if running.has_begun and running.query.contract is not None:
            until_us = running.assessed_until_us(self.frontiers)
            for frontier in self.frontiers.values():
                for part in running.query.parts:
                    frontier.forget_closings(part.name, until_us)

    def _using(self, fragment: str, site: str = "") -> list[RunningQuery]:
        return [running for running in self.queries.values() if running.uses(fragment, site)]

    def _floor_us(self, fragment: str) -> int:
        """Return the instant just after the newest slice that was merged of a fragment before now."""
        return self.newest[fragment] + 1 if fragment in self.newest else START_OF_TIME_US

    def _query(self, name: str) -> RunningQuery:
        if name not in self.queries:
            raise CenterError(f"query {name!r} is not running; running are {sorted(self.queries)}")
        return self.queries[name]
