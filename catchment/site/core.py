"""The site core: partials in, updates and progress out; one shard of the keys of every fragment at a site.

Pure and deterministic: the same events with the same times give the same actions. Invariants: nothing that was absorbed
is lost or sent twice; a mark is announced only after everything before it has been sent; marks never regress.

Bound: `CacheLimits`. At the bound, keys that were already sent are forgotten, then the least recently touched partials
leave early (more traffic, no loss). While the link is blocked nothing can leave: then `full` asks the runner to stop
reading. No more leaves than the outbox has room for (`LinkMeasured.room_bytes`, `catchment.site.room`); what is due and
had to stay is held, and its link counts as blocked until it is measured again. While slices of a fragment are held its
mark stays before them, and nothing is stated that would be true only after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import ceil, fsum
from typing import Any

from catchment.aggregates.content_bytes import content_bytes
from catchment.errors import SiteError
from catchment.progress.events import Ticked
from catchment.query.fragment import Fragment
from catchment.shedding.debts import BatchGivenUp, BatchRepaired, BatchShed, ShedDebts
from catchment.site.account import BatchAccepted
from catchment.site.backfill import Backfill, PastAbsorbed
from catchment.site.event_clock import EventClock
from catchment.site.events import (
    Absorbed,
    Action,
    Event,
    FragmentAdded,
    FragmentBounded,
    FragmentDropped,
    LinkMeasured,
    LowMarkRaised,
    Observed,
    Send,
    SentMessage,
)
from catchment.site.fragment import RunningFragment, SiteFragment
from catchment.site.known_files import FilesRead, FolderSeen, KnownFilesState, KnownFolders, StreamTimes
from catchment.site.policies.base import LinkView
from catchment.site.reader import ReadingPaused, ReadingResumed
from catchment.site.retry import RecordsRetried, Retry, RetryBegun
from catchment.site.room import COUNT_BYTES, LEAST_ROOM, Room
from catchment.site.stated_progress import ProgressStated, StatedProgress, Statements
from catchment.site.suspension import BatchSkipped, FragmentResumed, FragmentSuspended, RecordsQuarantined
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US
from catchment.wire.messages import LookedUp, MarkFact, Repaired, Shed, Updates

MAX_ENDED = 1_000  # fragments that are gone of which it is remembered by which exit they left
CENTER = ""  # the exit towards the center by the declared route
_RELIEF_SHARE = 0.75  # a cache at its bound is emptied down to this share of it
_UNMEASURED = LinkMeasured(None, 0, False)


@dataclass(frozen=True)
class CacheLimits:
    """How much a core may hold, over all its fragments."""

    max_rows: int = 2_000_000
    max_bytes: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.max_bytes < 1:
            raise SiteError(
                f"a cache needs room for at least one row, not {self.max_rows} rows, {self.max_bytes} bytes"
            )


# Version 2 has paused, version 3 files, version 4 stated, version 5 links and ended.
@stored(version=5, migrations={1: dict, 2: dict, 3: dict, 4: dict})
@dataclass
class SiteState:
    """Everything that a site core knows."""

    fragments: dict[str, SiteFragment]
    clocks: dict[str, EventClock]
    link: LinkMeasured
    debts: ShedDebts
    shed_facts: list[Shed | Repaired]
    paused: set[str] = field(default_factory=set)
    files: dict[str, KnownFilesState] = field(default_factory=dict)
    stated: dict[str, StatedProgress] = field(default_factory=dict)
    links: dict[str, LinkMeasured] = field(default_factory=dict)  # of other exits than that towards the center
    ended: dict[str, str] = field(default_factory=dict)  # fragments that left by those and are gone -> exit


class SiteCore:
    """Caches partials, asks policies what leaves, and says what to send."""

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self.limits = limits or CacheLimits()
        self.debts = ShedDebts()
        self.files = KnownFolders()
        self._fragments: dict[str, SiteFragment] = {}
        self._clocks: dict[str, EventClock] = {}
        self._links: dict[str, LinkMeasured] = {CENTER: _UNMEASURED}  # by exit
        self._ended: dict[str, str] = {}  # fragments that are gone -> exit, if it was another than that of the center
        self._paused: set[str] = set()  # streams whose readers stand still
        self._stated: dict[str, StatedProgress] = {}  # by stream, of those whose sources state their progress
        self._shed_facts: list[Shed | Repaired] = []  # what was shed and repaired, until the link takes it

    # --- events in, actions out ---------------------------------------------------------------------------------

    def handle(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Take one event in; return what to do about it."""
        return self.handle_all((event,), now_us)

    def handle_all(self, events: Sequence[Event], now_us: int) -> tuple[Action, ...]:
        """Take the events of one entry in; return what to do about all of them together."""
        for event in events:
            self._take_in(event, now_us)
        for fragment in self._fragments.values():
            self._links.setdefault(fragment.sink, _UNMEASURED)
        together = self._busy_together()
        sent = [
            (sink, self._leaving(sink, link, together.get(sink), now_us)) for sink, link in list(self._links.items())
        ]
        return tuple(Send(tuple(messages), sink) for sink, messages in sent if messages)

    def _leaving(
        self, sink: str, link: LinkMeasured, together: Mapping[Fragment, float] | None, now_us: int
    ) -> list[SentMessage]:
        """Return what leaves now by an exit."""
        fragments = [fragment for fragment in self._fragments.values() if fragment.sink == sink]
        return _begins(fragments) if link.blocked else self._messages(sink, fragments, together, now_us)

    def _take_in(self, event: Event, now_us: int) -> None:
        match event:
            case FragmentAdded():
                self._add(event)
                fragment = self._find(event.fragment.name)
                self._tell_statements(fragment, now_us)
                self._follow_marks(fragment, now_us)
            case FragmentDropped(name=name):
                self._drop(name)
            case FragmentBounded(name=name, until_us=until_us, heir=heir):
                fragment = self._find(name)
                fragment.until_us = min(fragment.until_us, until_us)  # what was not taken before is another's
                if heir:
                    fragment.hand_over(self._find(heir), self._clock_of(self._find(heir)), now_us)
            case Absorbed(fragment=name):
                fragment = self._find(name)
                fragment.absorb(event, self._clock_of(fragment), now_us)
            case PastAbsorbed(fragment=name):
                if name in self._fragments:  # else it was dropped while its past was read
                    fragment = self._fragments[name]
                    fragment.absorb_past(event, self._clock_of(fragment), now_us)
            case LowMarkRaised():
                self._raise(event, now_us)
            case Observed():
                self._observe(event, now_us)
            case ProgressStated():
                self._state(event, now_us)
            case LinkMeasured(sink=sink):
                self._links[sink] = event
            case BatchAccepted(stream=stream):
                for fragment in self._fragments.values():
                    if fragment.fragment.stream == stream:
                        fragment.account.accept(event)
            case BatchShed(batch=batch, samples=samples):
                self._shed_facts += self.debts.add(event)
                for sample in (s for s in samples if s.fragment in self._fragments):
                    self._fragments[sample.fragment].account.owe(batch, sample.repair)
            case BatchRepaired(batch=batch, fragments=names):
                self._shed_facts += self.debts.settle(event)
                for name in (n for n in names if n in self._fragments):
                    self._fragments[name].account.repair(batch)
            case BatchGivenUp(stream=stream, batch=batch):
                self._shed_facts += self.debts.give_up(event)
                for running in (f for f in self._fragments.values() if f.fragment.stream == stream):
                    running.account.give_up(batch)
            case FragmentSuspended(fragment=name):
                self._find(name).suspension.suspend(event)
            case BatchSkipped(fragment=name):
                self._find(name).skip(event)
            case FragmentResumed(fragment=name):
                self._find(name).resume(event)
            case RecordsQuarantined(fragment=name):
                fragment = self._find(name)
                fragment.suspension.quarantine(event.records)
                fragment.account.quarantine(sum(count for _, count in event.records))
            case RetryBegun(fragment=name):
                self._find(name).retry.begin(event)
            case RecordsRetried(fragment=name):
                if name in self._fragments:  # else it was dropped meanwhile
                    fragment = self._fragments[name]
                    fragment.absorb_retried(event, self._clock_of(fragment), now_us)
            case ReadingPaused(stream):
                self._paused.add(stream)
            case ReadingResumed(stream):
                self._paused.discard(stream)
            case FilesRead() | FolderSeen():
                self.files.take_in(event, self.times_of(event.stream, now_us))
            case LookedUp(fragment=name):
                if name in self._fragments:  # else it was dropped while its past was read
                    self._fragments[name].note_looked_up(event)
            case Ticked():
                self._tick(now_us)

    def _drop(self, name: str) -> None:
        dropped = self._find(name)
        self._clocks.pop(dropped.clock_name, None)
        del self._fragments[name]
        if dropped.sink != CENTER:
            self._ended[name] = dropped.sink
            for oldest in list(self._ended)[:-MAX_ENDED]:
                del self._ended[oldest]

    def _add(self, event: FragmentAdded) -> None:
        name = event.fragment.name
        if name in self._fragments:
            self._fragments[name].update(event)
        else:
            self._fragments[name] = SiteFragment.start(event)
        clock = self._clock(event.fragment.stream)
        for slack in self._fragments[name].slacks:  # it may have been added after its stream had ended
            slack.end(clock.ended_us)
        if event.slacks:
            self._clock(self._fragments[name].clock_name)

    def _raise(self, event: LowMarkRaised, now_us: int) -> None:
        clock = self._clock(event.stream)
        clock.raise_to(event.low_mark_us, now_us)
        clock.note_read(event.read_us)
        if event.ended:
            clock.end(event.low_mark_us)
        for fragment in (f for f in self._fragments.values() if f.fragment.stream == event.stream):
            if event.ended:
                for slack in fragment.slacks:
                    slack.end(event.low_mark_us)
            elif fragment.is_suspended:  # its controllers observe nothing
                for slack in fragment.slacks:
                    slack.pass_over(event.low_mark_us)
            self._follow_marks(fragment, now_us)

    def _observe(self, event: Observed, now_us: int) -> None:
        fragment = self._find(event.fragment)
        for slack in fragment.slacks:
            if slack.plan.query == event.query:
                slack.observe(event.table, now_us)
        self._follow_marks(fragment, now_us)

    def _state(self, event: ProgressStated, now_us: int) -> None:
        """Believe what sources state: windows before it close without waiting."""
        stated = self._stated.setdefault(event.stream, StatedProgress())
        if not stated.take_in(event):
            return
        self._clock(event.stream).raise_to(stated.mark_us, now_us)
        for fragment in (f for f in self._fragments.values() if f.fragment.stream == event.stream):
            self._tell_statements(fragment, now_us)
            self._follow_marks(fragment, now_us)

    def _tell_statements(self, fragment: SiteFragment, now_us: int) -> None:
        """Tell the slack controllers of a fragment what the sources of its stream have stated."""
        stated = self._stated.get(fragment.fragment.stream)
        if stated is None:
            return
        for slack in fragment.slacks:
            if fragment.is_suspended:  # its controllers observe nothing
                slack.pass_over(stated.mark_us)
            else:
                slack.believe(stated.statements, stated.mark_us, now_us)

    def _tick(self, now_us: int) -> None:
        for fragment in self._reading():
            for slack in fragment.slacks:
                slack.tick(now_us)
            self._follow_marks(fragment, now_us)

    def _reading(self) -> Iterator[SiteFragment]:
        """Yield the fragments of which silence means something: they take part, and their streams are being read."""
        for fragment in self._fragments.values():
            if not fragment.is_suspended and fragment.fragment.stream not in self._paused:
                yield fragment

    def _follow_marks(self, fragment: SiteFragment, now_us: int) -> None:
        """Raise the clock of a fragment, if it has its own, to the mark of the query that waits least."""
        if fragment.clock_name in self._clocks:
            reached_us = max(self._marks_of(fragment).values())
            self._clock_of(fragment).raise_to(max(reached_us, fragment.gate.announced_us), now_us)

    def _messages(
        self, sink: str, fragments: Sequence[SiteFragment], together: Mapping[Fragment, float] | None, now_us: int
    ) -> list[SentMessage]:
        """Return what leaves now by an exit. Marks come last: they are true only after everything before them."""
        updates = self._release(sink, fragments, together, now_us)
        held_us = {f.name: f.gate.held_from_us(self._clock_of(f).low_mark_us) for f in fragments}
        holding = {name for name, from_us in held_us.items() if from_us < END_OF_TIME_US}
        marks: list[MarkFact] = []
        standings: list[SentMessage] = []
        sending = {update.fragment for update in updates}
        for fragment in fragments:
            standings += fragment.take_standings(held_us[fragment.name])
            standings += [*fragment.suspension.take_facts(fragment.name), *fragment.take_backfilling()]
            backfilled = [] if fragment.name in holding else fragment.take_backfilled()
            stated = fragment.take_marks(self._marks_of(fragment))
            if stated or backfilled or fragment.name in sending:
                standings += fragment.versions.take_facts(fragment.name)
            standings += backfilled
            marks += stated
        return [*updates, *self._take_shed_facts(sink, holding), *standings, *marks]

    def _release(
        self, sink: str, fragments: Sequence[SiteFragment], together: Mapping[Fragment, float] | None, now_us: int
    ) -> list[Updates]:
        """Return the updates that leave now by an exit, as far as its outbox has room."""
        link = self._links[sink]
        busy = [fragment for fragment in fragments if not fragment.is_idle]
        room = _room_for(link, busy)
        if room is not None:  # whoever has waited longest goes first, or the same ones would wait again and again
            busy.sort(key=lambda f: f.gate.untouched_since_us)
        weights = {f.name: f.weight for f in self._fragments.values() if f.sink == sink and f.pending_rows}
        updates: list[Updates] = []
        for fragment in busy:
            share = self._link_of(fragment, weights, together)
            updates += fragment.release(self._clock_of(fragment), share, now_us, room)
            if not fragment.pending_rows:
                weights.pop(fragment.name, None)
        updates += self._relieve(fragments, room)
        if link.room_bytes is not None:
            self._links[sink] = _link_after(link, updates, is_short=room is not None and room.is_short)
        return updates

    def _take_shed_facts(self, sink: str, holding: Set[str]) -> list[Shed | Repaired]:
        """Return what was shed and repaired of the fragments of an exit, also of those that are gone.

        That something was repaired waits while slices of its fragment are held: it may be among them.
        """
        taken: list[Shed | Repaired] = []
        kept: list[Shed | Repaired] = []
        for fact in self._shed_facts:
            is_early = isinstance(fact, Repaired) and fact.fragment in holding
            (kept if is_early or self.exit_of(fact.fragment) != sink else taken).append(fact)
        self._shed_facts = kept
        return taken

    def exit_of(self, name: str) -> str:
        """Return the exit by which a fragment leaves, or left."""
        return self._fragments[name].sink if name in self._fragments else self._ended.get(name, CENTER)

    def _relieve(self, fragments: Sequence[SiteFragment], room: Room | None) -> list[Updates]:
        """At the bound, forget what was sent, then send what was touched least recently, of these fragments."""
        if not self.full:
            return []
        for fragment in fragments:
            fragment.forget_sent()
        fill = max(self.rows / self.limits.max_rows, self.nbytes / self.limits.max_bytes)
        if fill < 1.0:
            return []
        updates: list[Updates] = []
        for fragment in fragments:
            updates += fragment.relieve(ceil(fragment.pending_rows * (1 - _RELIEF_SHARE / fill)), room)
        return updates

    def _busy_together(self) -> dict[str, dict[Fragment, float]]:
        """Return the weights of all fragments that have something to send, for each exit whose link others use too.

        Twins, which differ only in the sink that they are sent to, count once: so they cross the link. It is taken
        before anything leaves, so that both have the same share, and leave at the same time.
        """
        found: dict[str, dict[Fragment, float]] = {}
        for sink, link in self._links.items():
            if link.beside:
                exits = {sink, *link.beside}
                pending = [f for f in self._fragments.values() if f.sink in exits and f.pending_rows]
                found[sink] = {f.fragment.unnamed: f.weight for f in pending}
        return found

    def _link_of(
        self, fragment: SiteFragment, weights: Mapping[str, float], together: Mapping[Fragment, float] | None
    ) -> LinkView:
        """Return a fragment's share of the link, by the weights of the fragments that have something to send."""
        link = self._links[fragment.sink]
        row_bytes = fragment.cache.row_bytes * link.wire_ratio
        queued = link.queued_bytes / row_bytes
        frame = link.frame_bytes / row_bytes
        if link.goodput_bytes_per_s is None:
            return LinkView(queued=queued, frame=frame)
        if together is None:
            total = fsum({**weights, fragment.name: fragment.weight}.values())
        else:
            total = fsum({**together, fragment.fragment.unnamed: fragment.weight}.values())
        rate = link.goodput_bytes_per_s * fragment.weight / total / row_bytes
        return LinkView(believed_rate=rate, measured_rate=rate, queued=queued, frame=frame)

    def _clock(self, name: str) -> EventClock:
        return self._clocks.setdefault(name, EventClock())

    def _clock_of(self, fragment: SiteFragment) -> EventClock:
        """Return the clock by which a fragment lets slices go: the stream's, unless its queries have contracts."""
        own = self._clocks.get(fragment.clock_name)
        return own if own is not None else self._clock(fragment.fragment.stream)

    def _marks_of(self, fragment: SiteFragment) -> dict[str, int]:
        return fragment.marks(self._clock(fragment.fragment.stream).low_mark_us)

    def _find(self, name: str) -> SiteFragment:
        fragment = self._fragments.get(name)
        if fragment is None:
            raise SiteError(f"there is no fragment {name!r} here", hint=f"there are {sorted(self._fragments)}")
        return fragment

    # --- what can be asked --------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """How many keys it remembers, sent or pending."""
        return sum(f.rows for f in self._fragments.values())

    @property
    def pending_rows(self) -> int:
        """How many partials wait to be sent."""
        return sum(f.pending_rows for f in self._fragments.values())

    @property
    def nbytes(self) -> int:
        return sum(f.cache.nbytes for f in self._fragments.values() if not f.is_idle)

    @property
    def full(self) -> bool:
        """Whether the cache is at its bound: the runner should not read more until this is false."""
        return self.rows >= self.limits.max_rows or self.nbytes >= self.limits.max_bytes

    @property
    def fragments(self) -> tuple[str, ...]:
        """The names of the fragments that are here."""
        return tuple(self._fragments)

    @property
    def definitions(self) -> tuple[Fragment, ...]:
        """The fragments that are here."""
        return tuple(f.fragment for f in self._fragments.values())

    def running(self, name: str) -> RunningFragment:
        """Return how a fragment runs here."""
        return self._find(name).describe()

    @property
    def suspended(self) -> dict[str, FragmentSuspended]:
        """The fragments that take nothing in, and why."""
        events = {name: fragment.suspension.current for name, fragment in self._fragments.items()}
        return {name: event for name, event in events.items() if event is not None}

    @property
    def backfills(self) -> dict[str, Backfill]:
        """The fragments whose past is still to be read."""
        found = {name: fragment.backfill for name, fragment in self._fragments.items()}
        return {name: backfill for name, backfill in found.items() if backfill is not None and not backfill.is_over}

    def past_of(self, stream: str) -> list[range]:
        """Return the micro-batches of a stream that some fragment still has to read from history."""
        running = {name for name, fragment in self._fragments.items() if fragment.fragment.stream == stream}
        pasts = [past for name, backfill in self.backfills.items() if name in running for past in backfill.past]
        return [range(past.first, past.end) for past in pasts]

    def skipped_from(self, name: str) -> int | None:
        """Return the first micro-batch that a suspended fragment has skipped; None if it has skipped none yet."""
        return self._find(name).suspension.first_batch

    def retry_of(self, name: str) -> Retry:
        """Return how far the newest try of what a fragment has set aside has come."""
        return self._find(name).retry

    @property
    def retries(self) -> tuple[str, ...]:
        """The fragments of which records that were set aside are being tried again."""
        return tuple(name for name, fragment in self._fragments.items() if not fragment.retry.is_over)

    @property
    def ready_retries(self) -> tuple[str, ...]:
        """Those of these fragments whose next try can be made now: nothing more is set aside of the batches it takes.

        A fragment that is suspended, still reads its past, or is owed the rest of a shed batch may set more aside.
        """
        waiting = self.suspended.keys() | self.backfills.keys()
        return tuple(n for n in self.retries if n not in waiting and not self._is_owed(n, self.retry_of(n).end))

    def _is_owed(self, name: str, end: int) -> bool:
        """Return whether a fragment is owed the rest of a micro-batch before `end`."""
        debts = self.debts.of(self._find(name).fragment.stream)
        return any(debt.batch < end and name in debt.fragments for debt in debts)

    def errors_of(self, name: str) -> dict[int, int]:
        """Return how many records of each slice a fragment has failed on and set aside."""
        return dict(self._find(name).suspension.errors)

    def waiting_slices(self, name: str) -> frozenset[int]:
        """Return the slices of a fragment with something that waits to be sent or to be reported."""
        return self._find(name).gate.waiting_slices()

    def is_blocked(self, sink: str) -> bool:
        """Return whether updates wait for room in the outbox of an exit, as far as is known."""
        return self._links.get(sink, _UNMEASURED).blocked

    def is_paused(self, stream: str) -> bool:
        """Return whether the reader of a stream stands still."""
        return stream in self._paused

    def low_mark_us(self, stream: str) -> int:
        """Return how far the stream has come here."""
        return self._clock(stream).low_mark_us

    def newest_read_us(self, stream: str) -> int | None:
        """Return the newest event time that was read of a stream, held records included; None if that is not known."""
        return self._clock(stream).read_us

    def times_of(self, stream: str, now_us: int) -> StreamTimes:
        """Return where a stream stands."""
        return StreamTimes(now_us, self.low_mark_us(stream), self.newest_read_us(stream))

    def statements_of(self, stream: str) -> Statements:
        """Return what the sources of a stream have stated."""
        stated = self._stated.get(stream)
        return Statements() if stated is None else stated.statements

    def is_waiting(self, now_us: int) -> bool:
        """Return whether a `Ticked` may do something though nothing was read: a window is due, or facts wait.

        Facts wait while the link is blocked, and it is known to be free only once it has been measured again.
        """
        is_due = any(slack.is_due(now_us) for fragment in self._reading() for slack in fragment.slacks)
        return any(link.blocked for link in self._links.values()) or is_due

    def fragment_status(self) -> dict[str, dict[str, Any]]:
        """Return the status of each fragment, as plain JSON."""
        return {name: fragment.status() for name, fragment in self._fragments.items()}

    def contract_status(self, now_us: int) -> dict[str, Any]:
        """Return how the contract of each query that has one stands here, as plain JSON."""
        return {s.plan.query: s.status(now_us) for f in self._fragments.values() for s in f.slacks}

    def stated_status(self) -> dict[str, Any]:
        """Return what the sources of each stream have stated of their progress, as plain JSON."""
        return {stream: stated.status() for stream, stated in self._stated.items()}

    # --- state --------------------------------------------------------------------------------------------------

    def snapshot(self) -> SiteState:
        """Return all state, the definitions of the fragments included; it is live, so write it down at once."""
        for fragment in self._fragments.values():
            fragment.gate.slot_table.trim()
        return SiteState(
            self._fragments,
            self._clocks,
            self._links[CENTER],
            self.debts,
            self._shed_facts,
            self._paused,
            self.files.snapshot(),
            self._stated,
            {sink: link for sink, link in self._links.items() if sink != CENTER},
            self._ended,
        )

    def restore(self, state: SiteState) -> None:
        """Take back a state. Fragments that were added before go on as they were added, under the policy given then."""
        added = [fragment.as_added() for fragment in self._fragments.values()]
        self._fragments = state.fragments
        self._clocks = state.clocks
        self._links = {CENTER: state.link, **state.links}
        self._ended = state.ended
        self.debts = state.debts
        self._shed_facts = state.shed_facts
        self._paused = state.paused
        self.files = KnownFolders.restored(state.files)
        self._stated = state.stated
        for event in added:
            self._add(event)

    def validate(self) -> None:
        """Assert the invariants; tests call it after each event."""
        for fragment in self._fragments.values():
            link = self._links.get(fragment.sink, _UNMEASURED)
            fragment.validate(self._clock_of(fragment).low_mark_us, link.blocked)


def _room_for(link: LinkMeasured, fragments: Sequence[SiteFragment]) -> Room | None:
    """Return the room for what these fragments hold; None if all of it fits."""
    if link.room_bytes is None:
        return None
    room_bytes = link.room_bytes - link.frame_bytes
    held_bytes = sum(f.cache.nbytes + COUNT_BYTES * len(f.gate.open_slices) for f in fragments)
    if held_bytes <= room_bytes:
        return None
    if link.queued_bytes == 0:
        return Room(room_bytes, is_of_empty=True)
    return Room(room_bytes if link.room_bytes >= link.queued_bytes * LEAST_ROOM else 0)


def _link_after(link: LinkMeasured, updates: Sequence[Updates], is_short: bool) -> LinkMeasured:
    """Return a link as it is after these updates, until it is measured again."""
    if not updates:
        return replace(link, blocked=is_short)
    rows_bytes = sum(content_bytes(u.table) + COUNT_BYTES * len(u.records) for u in updates)
    added_bytes = ceil(link.frame_bytes + rows_bytes)
    left_bytes = max((link.room_bytes or 0) - added_bytes, 0)
    queued_bytes = link.queued_bytes + added_bytes
    return replace(link, queued_bytes=queued_bytes, room_bytes=left_bytes, blocked=is_short or left_bytes == 0)


def _begins(fragments: Sequence[SiteFragment]) -> list[SentMessage]:
    """Return where new fragments begin: it is stated at once, even onto a blocked link."""
    begins: list[SentMessage] = []
    for fragment in fragments:
        begins += [*fragment.take_backfilling(), *fragment.take_begin()]
    return begins
