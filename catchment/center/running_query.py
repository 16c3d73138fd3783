"""One query as it runs at the center: where its partials come from, and its windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from catchment.center.events import Action, AnswersRecalled, AnswersResumed, AnswersSuspended
from catchment.center.fragment_sources import Arrival, FragmentSource, FragmentSources
from catchment.center.join.publish import JoinPublisher
from catchment.center.query import CenterQuery
from catchment.center.roster import Lost, Roster, Stay
from catchment.center.several_sources import SeveralSources
from catchment.center.windows.closed import SiteMarks
from catchment.center.windows.deferred import DeferredBatch
from catchment.center.windows.publish import WindowPublisher
from catchment.center.windows.query_windows import QueryWindows
from catchment.center.windows.renewed import first_window_us, renew_windows
from catchment.center.windows.state import WindowsState
from catchment.progress.events import Gathered, PartialsDeferred
from catchment.progress.frontier import Frontier
from catchment.quality.merge_sites import SiteEstimate, expected_count
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US
from catchment.wire.messages import Closing, Deferred, LookedUp, Shed, Skipped


def _add_rosters(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 2 of version 1, in which the sites of a definition counted for all of time."""
    return fields | {"rosters": [Roster.of(part.sites).stays for part in fields["query"].parts]}


@stored(version=2, migrations={1: _add_rosters})
@dataclass
class QueryState:
    """All that is remembered of one query: its definition, its windows, and its sources and rosters, of each side."""

    query: CenterQuery
    sources: list[list[FragmentSource]]
    waiting: list[Arrival]  # of several sides, arrivals of one before the others have begun
    windows: WindowsState
    rosters: list[dict[str, list[Stay]]]


class RunningQuery:
    """Takes what lands of its fragments into its windows."""

    def __init__(self, state: QueryState, query: CenterQuery | None = None) -> None:
        self.query = query or state.query
        given = zip(self.query.parts, state.sources, state.rosters, strict=True)
        parts = [FragmentSources(part, sources, Roster(stays)) for part, sources, stays in given]
        self.sources = SeveralSources(self.query, parts, state.waiting) if self.query.sides else parts[0]
        publisher = JoinPublisher if self.query.join is not None else WindowPublisher
        self.windows = QueryWindows(self.query, state.windows, publisher)
        self._begin()

    @classmethod
    def begin(cls, query: CenterQuery, floor_us: Callable[[str], int], waits: bool) -> RunningQuery:
        """Begin a query; `floor_us` says up to where its fragments were merged before anyone listened."""
        parts = [FragmentSources.begin(part, floor_us(part.source_fragment), waits) for part in query.parts]
        rosters = [part.roster.stays for part in parts]
        return cls(QueryState(query, [part.sources for part in parts], [], WindowsState(), rosters))

    def renew(self, query: CenterQuery, waits: bool, now_us: int) -> RunningQuery:
        """Return the query with another definition, by which its windows that are not final are computed again.

        All its slices come of the new fragments. Where it has not begun yet, it begins as if it were new.
        """
        begin_us = self.sources.start_us
        from_us = START_OF_TIME_US
        windows = WindowsState()  # what was shed or deferred of a former fragment is not repaired by the new one
        if begin_us is not None:
            known = self.windows.state
            from_us = first_window_us(query, known.final_us, begin_us)
            windows = renew_windows(query, known, from_us, self.sites, now_us)
        sources = [
            [FragmentSource(part.source_fragment, part.derivation, from_us, waits, begin_us)] for part in query.parts
        ]
        rosters = [part.roster.stays for part in self.sources.parts]
        return RunningQuery(QueryState(query, sources, [], windows, rosters))

    @property
    def has_begun(self) -> bool:
        """Whether it is known from when on windows are answered."""
        return self.sources.start_us is not None

    def merge(self, event: Gathered, now_us: int) -> None:
        """Merge what landed of a fragment, as far as it is the query's."""
        for table, records in self.sources.take(event.fragment, event.partials, event.records, event.sites):
            self.windows.merge(table, records, now_us)

    def defer(self, event: PartialsDeferred | Deferred, site: str = "") -> None:
        """Note that partials of a fragment wait here, or at a relay that a site sends through."""
        name = event.place if isinstance(event, Deferred) else "", event.fragment, event.number
        for source in (s for part in self.sources.parts for s in part.sources if s.fragment == event.fragment):
            keys = () if self.query.sides or self.query.whole_windows else source.own_keys(event.keys)
            lacking = [(slice_us, n) for slice_us, n in event.lacking if source.may_take(slice_us)]
            self.windows.outstanding.defer(name, DeferredBatch(event.share, keys, event.is_counted, site), lacking)

    def uses(self, fragment: str, site: str = "") -> bool:
        """Return whether it takes something from a fragment; with a site, from that of a site."""
        parts = (part for part in self.sources.parts if not site or part.query.counts(site))
        return any(fragment in part.fragments for part in parts)

    def settle(self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int], now_us: int) -> Iterator[Action]:
        """Publish all that can be published without a repair."""
        for table, records in self.sources.find_starts(frontiers, newest, now_us):
            self._begin()
            self.windows.merge(table, records, now_us)
        if self.has_begun:
            self._begin()
            yield from self.windows.settle(self.site_marks(frontiers), now_us)
            awaited = self.windows.outstanding.awaited_fragments(self.sites)
            self.sources.forget_final(self.windows.settled_us, frontiers, awaited)

    def follow_answers(
        self, event: AnswersSuspended | AnswersResumed | AnswersRecalled, now_us: int
    ) -> tuple[Action, ...]:
        """Suspend or resume the last step of the query, or publish what was held back; return what follows."""
        unfinished = self.windows.unfinished
        match event:
            case AnswersSuspended():
                unfinished.suspend(event)
                overflowing = [window.start_us for window in event.windows if window.overflows]
                return tuple(self.windows.closer.give_up(overflowing, event.reason, now_us))
            case AnswersResumed():
                unfinished.resume()
            case AnswersRecalled(_, starts, states):
                published = tuple(unfinished.publish_recalled(starts, states, now_us))
                for publish in published:
                    self.windows.note_revision(publish.window.start_us, publish.revision)
                return published
        return ()

    def is_due(self, frontiers: Mapping[str, Frontier], now_us: int) -> bool:
        """Return whether `settle` would publish something though nothing has landed."""
        read_marks = partial(self.site_marks, frontiers)  # only if a horizon may have passed: it asks every site
        return self.has_begun and self.windows.is_due(self._furthest_us(frontiers), read_marks, now_us)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that count from now on."""
        return tuple(dict.fromkeys(site for part in self.sources.parts for site in part.roster.present))

    def marks(self, frontiers: Mapping[str, Frontier]) -> dict[str, int]:
        """Return up to where each site is in with all that counts of it."""
        unknown = Frontier()
        return {
            site: min(
                max(part.mark(frontiers.get(site, unknown)), part.roster.from_us(site))
                for part in self.sources.parts
                if site in part.roster.present
            )
            for site in self.sites
        }

    def _from_us(self, site: str) -> int:
        """Return from when on a site counts on every side."""
        return max(part.roster.from_us(site) for part in self.sources.parts if site in part.roster.present)

    def _furthest_us(self, frontiers: Mapping[str, Frontier]) -> int:
        """Return how far the furthest site has come, with what it sends now: windows wait for the rest from then on."""
        return max(
            min(part.newest_mark(frontiers[site]) for part in self.sources.parts if site in part.roster.present)
            if site in frontiers
            else START_OF_TIME_US
            for site in self.sites
        )

    def site_marks(self, frontiers: Mapping[str, Frontier]) -> SiteMarks:
        """Return how far each site has come, and what it has stated of the windows that it closed."""
        unknown = Frontier()
        known = {site: frontiers.get(site, unknown) for site in self.sites}
        marks = self.marks(frontiers)
        complete = marks if self.query.contract is None else self._complete_until(frontiers)
        closings = {site: self._closings(f) for site, f in known.items()}
        lost = tuple(lost for part in self.sources.parts for lost in (*part.roster.lost(), *_lost_past(part, known)))
        backfilling = tuple(past for part in self.sources.parts for past in _awaited_past(part, known))
        names = [part.name for part in self.query.parts]
        standings = {site: sum(f.standings.get(name, 0) for name in names) for site, f in known.items()}
        return SiteMarks(marks, complete, closings, self._furthest_us(frontiers), lost, backfilling, standings)

    def _complete_until(self, frontiers: Mapping[str, Frontier]) -> dict[str, int]:
        """Return up to where each site expects nothing more."""
        unknown = Frontier()
        return {
            site: min(
                max(frontiers.get(site, unknown).complete_until_us(part.query.name), part.roster.from_us(site))
                for part in self.sources.parts
                if site in part.roster.present
            )
            for site in self.sites
        }

    def _closings(self, frontier: Frontier) -> Mapping[int, Closing]:
        """Return what a site has stated of the windows that it closed; of several streams, of all together."""
        if not self.query.sides:
            return frontier.closings.get(self.query.name, {})
        stated = [frontier.closings[part.name] for part in self.query.sides if part.name in frontier.closings]
        ends = {end_us for closings in stated for end_us in closings}
        return {end_us: join_closings([c[end_us] for c in stated if end_us in c]) for end_us in ends}

    def assessed_until_us(self, frontiers: Mapping[str, Frontier]) -> int:
        """Return up to where windows need nothing any more of what sites have stated of them.

        While one site is awaited, what the others have stated is asked for: they are a part of the estimate.
        """
        complete_us = min(self._complete_until(frontiers).values(), default=END_OF_TIME_US)
        return max(self.windows.settled_us, min(self.windows.state.closed_us, complete_us))

    def restrict_fact(self, site: str, fact: Shed | Skipped) -> Shed | Skipped | None:
        """Return the part of what a site has left out that counts; None if nothing does."""
        if site not in self.sites:
            return None
        from_us = self._from_us(site)
        lacking = tuple((slice_us, count) for slice_us, count in fact.lacking if slice_us >= from_us)
        return replace(fact, lacking=lacking) if lacking else None

    def note_looked_up(self, site: str, fact: LookedUp) -> None:
        """Note in which version of a table a site has looked up records that count."""
        if site not in self.sites:
            return
        from_us = self._from_us(site)
        slices = tuple(slice_us for slice_us in fact.slices if slice_us >= from_us)
        if slices:
            self.windows.looked_up.add(site, replace(fact, slices=slices), self.windows.state.final_us)

    @property
    def waiting(self) -> list[Arrival]:
        """What has landed and waits until it is known where its source, or all sides, begin."""
        sides = self.sources.waiting if isinstance(self.sources, SeveralSources) else []
        return [*sides, *(arrival for part in self.sources.parts for s in part.sources for arrival in s.waiting)]

    def snapshot(self) -> QueryState:
        """Return its state, ready to be written down."""
        waiting = self.sources.waiting if isinstance(self.sources, SeveralSources) else []
        parts = self.sources.parts
        rosters = [part.roster.stays for part in parts]
        return QueryState(self.query, [p.sources for p in parts], waiting, self.windows.snapshot(), rosters)

    def _begin(self) -> None:
        """Answer from the first window on that is wholly seen."""
        if self.sources.taken_from_us is not None:
            self.windows.begin(self.sources.taken_from_us)


def join_closings(closings: Sequence[Closing]) -> Closing:
    """Return what a site has stated of one window of several streams as one closing: how many records are in."""
    parts = [closing.estimates[0] for closing in closings if closing.estimates]
    held = sum(part.count for part in parts)
    expected = expected_count(parts)
    estimate = SiteEstimate(min(held / expected, 1.0) if expected else 1.0, None, held, 0.0)
    reasons = ", ".join(sorted({closing.reason for closing in closings}))
    return Closing(closings[0].end_us, reasons, (estimate,), tuple(s for c in closings for s in c.sources))


def _awaited_past(part: FragmentSources, known: Mapping[str, Frontier]) -> Iterator[Lost]:
    """Yield the event times of which a site reads records from history, as far as the query takes them."""
    for site, frontier in known.items():
        for source in part.sources:
            fact = frontier.backfilling.get(source.fragment)
            if fact is not None and fact.from_us < source.until_us:
                yield site, fact.from_us, min(fact.until_us, source.until_us)


def _lost_past(part: FragmentSources, known: Mapping[str, Frontier]) -> Iterator[Lost]:
    """Yield the event times of which the history of a site no longer held everything when the query began."""
    for site, frontier in known.items():
        for source in part.sources:
            for low_us, high_us in frontier.lost.get(source.fragment, ()):
                if low_us < source.until_us:
                    yield site, low_us, min(high_us, source.until_us)
        yield from _begun_too_late(part, site, frontier)


def _begun_too_late(part: FragmentSources, site: str, frontier: Frontier) -> Iterator[Lost]:
    """Yield the event times before a site has begun to compute a query again, from where that is wanted.

    Where the query has moved since, the sources after the first begin later, and the first has what is before.
    """
    first = part.sources[0]
    if part.query.renewal and first.start_us is not None and site in part.roster.present:
        first_us = frontier.first_mark(first.fragment)
        from_us = max(first.floor_us, part.roster.from_us(site))
        if first_us is not None and from_us < first_us < END_OF_TIME_US:
            yield site, from_us, first_us
