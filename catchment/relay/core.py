"""The relay core takes in what sites sent, merges it, and sends it on towards the center.

A site core does the work, as it does for records: partials of equal (fragment, slice, key) merge in its cache
whichever site they are of, its policy decides when they leave, and its release gate lets a slice go when its time has
come. That is when every site behind the relay has passed it, or `wait_us` after the first one did. So an aggregation
tree adds nothing to the time of a window that waits for all its sites, and at most the wait to one that does not.

Invariants:
- What was taken in leaves once: `catchment.site.core` holds that for partials, `catchment.relay.origins` for the counts
  of raw records, each under the site that it came from.
- A mark, or the end of a site's windows, is passed on after everything of that site before it, and is that of the site:
  the center sees the sites, not the relay, so it names the one that is missing. What the relay waits for holds no mark
  of a site that has nothing waiting here.
- Where queries of a fragment wait unequally long, a slice leaves when it is due for the one that waits least.
- The first mark of a site for a fragment is passed on as it is: it says where the site began.
- What was shed or skipped is passed on at once, and that a fragment is suspended or resumed; that something was
  repaired, when all that had come of the site before has left.
- That partials were deferred here is stated before any mark that passes them, and that they were delivered when they
  have left.
- Nothing is stated by an exit while its link is blocked, and nothing is forgotten for that.
- A fragment leaves by one exit, its facts too, from the first to the last.

Exactly once, end to end: an inbox takes a segment (sender, epoch, number) once. The relay's journal has an entry for
the positions [a, b) of its inbox, named by b, and goes on from the newest b, so every landed segment is handled once.
The core is deterministic and what it asks for is numbered, so after a crash the journal gives the same segments under
the same numbers, and the outbox keeps those it has. The next inbox takes those once. By induction over the links of the
route, each partial of a site is merged into its window once, whatever is killed where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from catchment.progress.blocking import Blocked, SiteBlocked, SiteResumed, note_blocking
from catchment.progress.deferred import DeferralKey
from catchment.progress.events import DeferredMerged, Gathered, Landed, PartialsDeferred, Ticked
from catchment.progress.frontier import Frontier, apply_landed
from catchment.relay.events import Action, Carried, Event, Flushed, Forward, LifeBegun
from catchment.relay.origins import Origins
from catchment.site.core import CENTER, CacheLimits, SiteCore, SiteState
from catchment.site.events import (
    Absorbed,
    FragmentAdded,
    FragmentDropped,
    LinkMeasured,
    LowMarkRaised,
)
from catchment.site.events import Event as SiteEvent
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US, Slicing
from catchment.wire.messages import (
    Backfilled,
    Backfilling,
    Counted,
    Deferred,
    Delivered,
    LookedUp,
    Progress,
    QueryMark,
    Relayed,
    Repaired,
    Shed,
    Standing,
    SuspensionFact,
    Updates,
)


def _with_blocked_exits(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 5 of version 4, in which a relay had one exit."""
    blocked = {CENTER} if fields["blocked"] else set()
    return {**{name: value for name, value in fields.items() if name != "blocked"}, "blocked_exits": blocked}


@stored(
    version=5,  # version 4 has lives, version 5 blocked_exits
    migrations={1: lambda fields: {**fields, "blocked_sites": {}}, 2: dict, 3: dict, 4: _with_blocked_exits},
)
@dataclass
class RelayState:
    """All that a relay core remembers."""

    site: SiteState
    frontiers: dict[str, Frontier]
    origins: dict[str, Origins]
    rows_in: int
    sent: dict[str, int]
    facts: list[Relayed]
    blocked_exits: set[str]  # whose links are
    blocked_sites: Blocked
    deferred: set[DeferralKey] = field(default_factory=set)
    lives: dict[str, int] = field(default_factory=dict)


class RelayCore:
    """Merges what several sites sent, and passes on what they state, at each `Ticked`; `name` is the relay's."""

    def __init__(self, wait_us: int, limits: CacheLimits | None = None, name: str = "relay") -> None:
        self.name = name
        self.wait_us = wait_us
        self.site = SiteCore(limits)
        self.frontiers: dict[str, Frontier] = {}
        self.origins: dict[str, Origins] = {}
        self.rows_in = 0
        self._sent: dict[str, int] = {}  # fragment -> rows that have left; kept when it ends
        self._facts: list[Relayed] = []  # facts that wait for nothing but the link
        self._blocked_exits: set[str] = set()  # nothing is sent by them for now
        self.blocked: Blocked = {}
        self.deferred: set[DeferralKey] = set()  # partials that wait on disk
        self.lives: dict[str, int] = {}  # how often those that send here were healed

    @property
    def rows_out(self) -> int:
        return sum(self._sent.values())

    def handle_all(self, events: Sequence[Event], now_us: int) -> tuple[Action, ...]:
        """Take the events of one entry in; return the actions that follow from them, in order."""
        return tuple(action for event in events for action in self.handle(event, now_us))

    def handle(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Take one event in; return what goes on because of it."""
        match event:
            case Carried(fragment, policy, origins, weight, exit_name):
                self.origins.setdefault(fragment.name, Origins({})).senders = dict(origins)
                # Marks come per fragment here, so each one is a stream of its own.
                stream = replace(fragment, stream=fragment.name)
                return self._handle_at_site(FragmentAdded(stream, policy, weight, sink=exit_name), now_us)
            case FragmentDropped(name):
                del self.origins[name]
                return self._handle_at_site(event, now_us)
            case Gathered():
                return self._take(event, now_us)
            case PartialsDeferred():
                self._defer(event)
            case DeferredMerged(fragment, number):
                self._deliver(fragment, number)
            case Landed():
                self._note_landed(event)
            case LinkMeasured(blocked=blocked, sink=exit_name):
                self._blocked_exits.discard(exit_name)
                if blocked:
                    self._blocked_exits.add(exit_name)
                return self._handle_at_site(event, now_us)
            case LifeBegun(site, life, begins_anew):
                self.lives[site] = life
                if begins_anew:
                    self.frontiers.pop(site, None)
                self.blocked.pop(site, None)
            case SiteBlocked() | SiteResumed():
                note_blocking(self.blocked, event, now_us)
            case Ticked():
                return self._settle(now_us, self.wait_us)
            case Flushed():
                return self._settle(now_us, 0)
        return ()

    def is_waiting(self, now_us: int) -> bool:
        """Return whether a `Ticked` may let something go though nothing landed: time has passed, or facts wait.

        Facts wait while the link is blocked, and it is known to be free only once it has been measured again.
        """
        return self.site.is_waiting(now_us) or any(
            o.is_due(now_us, self.wait_us, self.site.low_mark_us(f)) for f, o in self.origins.items()
        )

    def senders_of(self, name: str) -> Mapping[str, str]:
        """Return the sites of a fragment that comes through here, each with the neighbour that it comes by."""
        return self.origins[name].senders if name in self.origins else {}

    def marks(self, fragment: str) -> dict[str, int]:
        """Return how far each site has come, as it stated, for the query that waits least."""
        none = Frontier()
        return {o: self.frontiers.get(o, none).furthest_mark(fragment) for o in self.origins[fragment].senders}

    def _take(self, event: Gathered, now_us: int) -> tuple[Action, ...]:
        known = self.origins.get(event.fragment)
        if known is None:  # the fragment has ended
            return ()
        counts = known.take(event.records, event.senders)
        return self._handle_at_site(Absorbed(event.fragment, event.partials, counts), now_us)

    def _defer(self, event: PartialsDeferred) -> None:
        """State under the name of one of its sites what waits of a fragment."""
        self.deferred.add((event.fragment, event.number))
        known = self.origins.get(event.fragment)
        if known is not None:
            fact = Deferred(
                event.fragment, self.name, event.number, event.share, event.keys, event.lacking, event.is_counted
            )
            self._facts.append(Relayed(min(known.senders), fact))

    def _deliver(self, fragment: str, number: int) -> None:
        """State that what waited was delivered, when all that is here now has left: it is among that."""
        self.deferred.discard((fragment, number))
        known = self.origins.get(fragment)
        if known is not None:
            fact = Delivered(fragment, self.name, number)
            known.repaired.append((min(known.senders), fact, tuple(known.waiting)))

    def _note_landed(self, landed: Landed) -> None:
        self.rows_in += sum(rows for _, rows in landed.updates)
        for origin, fact in apply_landed(self.frontiers, landed):
            known = self.origins.get(fact.fragment)
            if known is None:
                continue
            if isinstance(fact, Shed | SuspensionFact | Deferred | Backfilling | LookedUp):
                self._facts.append(Relayed(origin, fact))
            elif isinstance(fact, Repaired | Delivered | Backfilled):
                known.repaired.append((origin, fact, known.waiting_of(origin)))
            elif isinstance(fact, Standing):
                self._note_standing(known, origin, fact)

    def _note_standing(self, known: Origins, origin: str, fact: Standing) -> None:
        """Pass on at once how windows were closed; that they are complete, when everything of them has left."""
        complete = known.complete_until.setdefault(origin, {})
        complete[fact.query] = max(complete.get(fact.query, START_OF_TIME_US), fact.complete_until_us)
        self.frontiers[origin].closings.pop(fact.query, None)
        if fact.closings:
            announced_us = known.announced.get(origin, {}).get(fact.query, START_OF_TIME_US)
            self._facts.append(Relayed(origin, replace(fact, complete_until_us=announced_us)))

    def _handle_at_site(self, event: SiteEvent, now_us: int) -> tuple[Action, ...]:
        """Let the site core handle an event; return its updates with the counts of each site, without its progress."""
        found = []
        for action in self.site.handle(event, now_us):
            sent = [m for m in action.messages if isinstance(m, Updates)]
            counted = [Relayed(o, Counted(m.fragment, n)) for m in sent for o, n in self._counts(m)]
            for update in sent:
                self._sent[update.fragment] = self._sent.get(update.fragment, 0) + update.rows
            updates = tuple(replace(m, records=()) for m in sent if m.rows)
            if updates or counted:
                found.append(Forward(updates, tuple(counted), action.sink))
        return tuple(found)

    def _counts(self, update: Updates) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
        return self.origins[update.fragment].count_out(update.records)

    def _settle(self, now_us: int, wait_us: int) -> tuple[Action, ...]:
        """Let go what is due; then state what holds."""
        actions = self._handle_at_site(Ticked(), now_us)
        for name, known in self.origins.items():
            marks = self.marks(name)
            known.note_first_mark(marks, now_us, self.site.running(name).fragment.slicing)
            due_us = known.due_until(marks, now_us, wait_us)
            if due_us > self.site.low_mark_us(name):
                actions += self._handle_at_site(LowMarkRaised(name, due_us), now_us)
            known.forget_first_marks(self.site.low_mark_us(name))
            known.keep_waiting(self.site.waiting_slices(name))
        return (*actions, *self._take_facts())

    def _take_facts(self) -> Iterator[Forward]:
        """Yield what is stated by each exit whose link is not blocked."""
        facts: dict[str, list[Relayed]] = {}
        kept: list[Relayed] = []
        for fact in self._facts:
            exit_name = self.site.exit_of(fact.fragment)
            waiting = kept if exit_name in self._blocked_exits else facts.setdefault(exit_name, [])
            waiting.append(fact)
        self._facts = kept
        for name in self.origins:
            exit_name = self.site.exit_of(name)
            if exit_name not in self._blocked_exits:
                facts.setdefault(exit_name, []).extend(self._statements(name))
        yield from (Forward((), tuple(stated), exit_name) for exit_name, stated in facts.items() if stated)

    def _statements(self, name: str) -> Iterator[Relayed]:
        """Yield what holds of each site now and was not stated before."""
        known = self.origins[name]
        slicing = self.site.running(name).fragment.slicing
        for origin in known.senders:
            yield from (Relayed(origin, fact) for fact in _standings(name, known, origin, slicing))
            yield from (Relayed(origin, fact) for fact in self._progress(name, origin, slicing))
            yield from (Relayed(origin, fact) for fact in self._query_marks(name, origin, slicing))
        yield from (Relayed(origin, fact) for origin, fact in known.take_repaired())

    def _progress(self, name: str, origin: str, slicing: Slicing) -> Iterator[Progress]:
        known = self.origins[name]
        frontier = self.frontiers.get(origin)
        first = frontier.first_mark(name) if frontier is not None else None
        if frontier is None or first is None:
            return
        for mark in (first, frontier.mark(name)):
            safe_mark = known.safe_mark(origin, mark, slicing)
            if origin not in known.stated and safe_mark < first:
                return
            if safe_mark > known.stated.get(origin, START_OF_TIME_US):
                known.stated[origin] = safe_mark
                yield Progress(name, safe_mark, self._sent.get(name, 0))

    def _query_marks(self, name: str, origin: str, slicing: Slicing) -> Iterator[QueryMark]:
        """Yield the queries that a site has served further than was passed on, after the mark that is true of all."""
        known = self.origins[name]
        frontier = self.frontiers.get(origin)
        ahead = {} if frontier is None else frontier.query_marks.get(name, {})
        before = known.stated_queries.pop(origin, {})
        stated = {query: mark for query, mark in before.items() if query in ahead}
        for query, mark in ahead.items():
            safe_mark = known.safe_mark(origin, mark, slicing)
            passed_on = max(known.stated.get(origin, START_OF_TIME_US), stated.get(query, START_OF_TIME_US))
            if safe_mark > passed_on:
                stated[query] = safe_mark
                yield QueryMark(name, query, safe_mark)
        if stated:
            known.stated_queries[origin] = stated

    def snapshot(self) -> RelayState:
        """Return all its state."""
        return RelayState(
            self.site.snapshot(),
            self.frontiers,
            self.origins,
            self.rows_in,
            self._sent,
            self._facts,
            self._blocked_exits,
            self.blocked,
            self.deferred,
            self.lives,
        )

    def restore(self, state: RelayState) -> None:
        """Take back the state of a snapshot."""
        self.site.restore(state.site)
        self.frontiers = state.frontiers
        self.origins = state.origins
        self.rows_in = state.rows_in
        self._sent = state.sent
        self._facts = state.facts
        self._blocked_exits = state.blocked_exits
        self.blocked = state.blocked_sites
        self.deferred = state.deferred
        self.lives = state.lives

    def validate(self) -> None:
        """Assert the invariants that can be seen from inside."""
        self.site.validate()
        for name, known in self.origins.items():
            assert self.site.waiting_slices(name) <= known.waiting.keys(), (
                f"{name}: a slice waits here that waits for nobody"
            )


def _standings(name: str, known: Origins, origin: str, slicing: Slicing) -> Iterator[Standing]:
    announced = known.announced.setdefault(origin, {})
    for query, complete_us in known.complete_until.get(origin, {}).items():
        safe_mark = known.safe_mark(origin, complete_us, slicing)
        if safe_mark > announced.get(query, START_OF_TIME_US):
            announced[query] = safe_mark
            yield Standing(name, query, safe_mark)
